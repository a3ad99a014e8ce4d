from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pairingnet.config import WEAR_LEVELS, PrepareSettings, TearSettings
from pairingnet.errors import SettingsError
from pairingnet.settings import archive_settings, differences, parse_assignments, read_toml, with_values
from pairingnet.synth.wear import wear_edge
from tests.conftest import blob


def test_text_becomes_the_fields_type() -> None:
    settings = with_values(TearSettings(), {"n_max": "2", "tau": "0.8", "rotate": "no", "wave_span": "segment"})
    assert (settings.n_max, settings.tau, settings.rotate, settings.wave_span) == (2, 0.8, False, "segment")


def test_an_unknown_name_gets_the_nearest_real_one() -> None:
    with pytest.raises(SettingsError, match="Did you mean 'tolerance'"):
        with_values(PrepareSettings(), {"tolerence": 3})


@pytest.mark.parametrize(("name", "value"), [("n_max", "2.5"), ("tau", "much"), ("rotate", "perhaps"), ("tau", "nan")])
def test_values_of_another_type_are_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        with_values(TearSettings(), {name: value})


def test_assignments() -> None:
    assert parse_assignments(["a=1", " b = x=y "]) == {"a": "1", "b": "x=y"}
    with pytest.raises(SettingsError, match="name=value"):
        parse_assignments(["nonsense"])


def test_toml(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("tau = 0.8\n")
    assert read_toml(tmp_path / "a.toml") == {"tau": 0.8}
    (tmp_path / "a.toml").write_text("[wear]\nchips = 1\n")
    assert read_toml(tmp_path / "a.toml") == {"wear.chips": 1}
    (tmp_path / "a.toml").write_text("wear.erosion = 2.0\n")
    assert read_toml(tmp_path / "a.toml") == {"wear.erosion": 2.0}
    with pytest.raises(SettingsError, match="cannot be read"):
        read_toml(tmp_path)
    (tmp_path / "b.toml").write_text("tau =\n")
    for name in ("b.toml", "c.toml"):
        with pytest.raises(SettingsError, match=name):
            read_toml(tmp_path / name)


def test_differences_are_named() -> None:
    assert differences({"a": 1, "b": 2}, {"b": 3, "c": 4}) == [
        "a: 1 before, unset now",
        "b: 2 before, 3 now",
        "c: unset before, 4 now",
    ]


def test_levels_of_wear_grow() -> None:
    """Each level takes more of a piece than the one before it, and `none` nothing."""
    taken = {}
    for name in ("none", "light", "medium", "heavy", "sherds", "broken", "fresco"):
        mask = blob(3, size=320, radius=120)
        kept = wear_edge(mask, WEAR_LEVELS[name], np.random.default_rng(0))
        taken[name] = int((mask > 127).sum() - (kept > 127).sum())
    assert taken["none"] == 0 < taken["light"] < taken["medium"] < taken["heavy"]
    assert taken["broken"] < taken["fresco"]
    assert set(WEAR_LEVELS) == {*taken, "scanned"}


def test_settings_of_stages() -> None:
    settings = archive_settings({"candidates": "7", "votes.partners": "5", "index": {"probes": 3}})
    assert (settings.candidates, settings.votes.partners, settings.index.probes) == (7, 5, 3)
    with pytest.raises(SettingsError, match="no settings 'vote' in archive"):
        archive_settings({"vote.partners": "5"})
