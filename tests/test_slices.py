"""Slices: collections made from the same pictures, every method on each, one table over all."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pairingnet.benchmark.run import Bench
from pairingnet.benchmark.slices import (
    SLICES,
    as_markdown,
    benchmark_slices,
    first_pictures,
    read_slices,
    slice_collection,
)
from pairingnet.cli import app
from pairingnet.config import BenchmarkSettings, SliceSettings
from pairingnet.errors import CollectionError, SettingsError
from pairingnet.io.images import read_image, write_png
from pairingnet.types import Pixels
from tests.conftest import SMALL_PIECES

TEARING = {"h_min": 60, "w_min": 60, "d_min": 40}
QUICK = Bench(("mean_colour", "same_picture"), settings=BenchmarkSettings(limit_s=0), apart=False)


@pytest.fixture(scope="module")
def pictures(picture: Pixels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small pictures."""
    folder = tmp_path_factory.mktemp("pictures")
    write_png(folder / "one.png", picture[:300, :400])
    write_png(folder / "two.png", picture[100:, 200:][:, ::-1].copy())
    return folder


def test_slices_are_read_by_name_and_from_a_file(tmp_path: Path) -> None:
    assert read_slices("turned, worn-heavy,first-12") == {
        "turned": SliceSettings(),
        "worn-heavy": SliceSettings(wear="heavy"),
        "first-12": SliceSettings(pictures=12),
    }
    path = tmp_path / "slices.toml"
    path.write_text('[plain]\n[sheared]\nstraight = 0.5\ntexture = "grey"\nrotate = false\n')
    assert read_slices(str(path)) == {
        "plain": SliceSettings(),
        "sheared": SliceSettings(straight=0.5, texture="grey", rotate=False),
    }
    for text, says in (
        ("[a]\nwaer = 1\n", "wear"),
        ("[a]\nwear = 'awful'\n", "none, scanned, light"),
        ("rotate = true\n", "no table"),
        ("[a\n", "TOML"),
    ):
        path.write_text(text)
        with pytest.raises(SettingsError, match=says):
            read_slices(str(path))
    with pytest.raises(SettingsError, match="upright"):
        read_slices("uprigth")


def test_every_slice_can_be_made(pictures: Path, tmp_path: Path) -> None:
    made = {name: slice_collection(pictures, tmp_path, name, each, SMALL_PIECES, 1) for name, each in SLICES.items()}
    turned, upright = made["turned"], made["upright"]
    assert all(abs(r.canvas_from_fragment.angle_rad) < 1e-9 for r in upright.fragments if r.canvas_from_fragment)
    assert any(abs(r.canvas_from_fragment.angle_rad) > 0.1 for r in turned.fragments if r.canvas_from_fragment)
    assert {record.part for record in made["fragment-split"].fragments} == {"test"}
    assert len({record.source for record in made["fragment-split"].fragments}) == 2
    assert 0.3 < len(made["fragment-split"]) / len(turned) < 0.5
    assert [r.id for r in made["grey"].fragments] == [r.id for r in turned.fragments]
    first = first_pictures(turned, 1)
    assert {record.source for record in first.fragments} == {"one"} and len(first.pairs) < len(turned.pairs)
    # Slices that are torn alike share the pieces; each seed has its own.
    assert len(list((tmp_path / "torn").iterdir())) == 8


def test_colours_are_gone_before_anyone_looks(pictures: Path, tmp_path: Path) -> None:
    turned = slice_collection(pictures, tmp_path, "turned", SliceSettings(), SMALL_PIECES, 1)
    for texture in ("grey", "canny"):
        shown = slice_collection(pictures, tmp_path, texture, SliceSettings(texture=texture), SMALL_PIECES, 1)
        for before, after in list(zip(turned.fragments, shown.fragments, strict=True))[:4]:
            image, plain = read_image(turned.folder / before.image), read_image(shown.folder / after.image)
            assert image.alpha is not None and plain.alpha is not None and np.array_equal(image.alpha, plain.alpha)
            assert (plain.pixels == plain.pixels[..., :1]).all()
            if texture == "canny":
                assert set(np.unique(plain.pixels)) <= {0, 255}
        assert shown.pairs[0].difficulty == turned.pairs[0].difficulty
        assert len(shown.pairs) == len(turned.pairs)
        stamps = [path.stat().st_mtime_ns for path in (shown.folder / "fragments").iterdir()]
        slice_collection(pictures, tmp_path, texture, SliceSettings(texture=texture), SMALL_PIECES, 1)
        assert stamps == [path.stat().st_mtime_ns for path in (shown.folder / "fragments").iterdir()]


def test_one_table_over_slices_methods_and_seeds(pictures: Path, tmp_path: Path) -> None:
    slices = {"turned": SliceSettings(), "grey": SliceSettings(texture="grey")}
    entries = benchmark_slices(pictures, tmp_path, QUICK, slices, [1, 2], TEARING)
    assert [(each.slice, each.method) for each in entries] == [
        ("turned", "mean_colour"),
        ("turned", "same_picture"),
        ("grey", "mean_colour"),
        ("grey", "same_picture"),
    ]
    by_seed = []
    for seed in (1, 2):
        rows = json.loads((tmp_path / "turned" / str(seed) / "benchmark.json").read_text())["methods"]
        by_seed.append((rows[0]["R@5"], rows[0]["R@5 items"]))
    told = entries[0].estimates["R@5"]
    # Every asked neighbour counts once, whatever seed it is of.
    assert told.items == sum(count for _, count in by_seed)
    assert told.value == pytest.approx(sum(value * count for value, count in by_seed) / told.items)
    assert told.low <= told.value <= told.high and entries[0].seeds == 2
    assert as_markdown(entries) + "\n" == (tmp_path / "slices.md").read_text()
    lines = list(csv.DictReader((tmp_path / "slices.csv").read_text().splitlines()))
    assert {line["slice"] for line in lines} == {"turned", "grey"}
    assert len(json.loads((tmp_path / "slices.json").read_text())["slices"]) == 4
    assert (tmp_path / "slices.png").stat().st_size > 10_000
    # Done once: nothing is torn or asked again.
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("method.json")}
    assert len(stamps) == 8
    benchmark_slices(pictures, tmp_path, QUICK, slices, [1, 2], TEARING)
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("method.json")}
    with pytest.raises(CollectionError, match="wear: none before, light now"):
        benchmark_slices(pictures, tmp_path, QUICK, {"turned": SliceSettings(wear="light")}, [1], TEARING)
    with pytest.raises(SettingsError, match="turned, upright"):
        benchmark_slices(pictures, tmp_path, QUICK, {}, [1], TEARING)


def test_the_command_takes_slices(pictures: Path, tmp_path: Path) -> None:
    words = ["benchmark", pictures, tmp_path, "--slices", "first-1", "--methods", "chance", "--seeds", "3"]
    words += [word for name, value in TEARING.items() for word in ("--set", f"{name}={value}")]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert "| first-1 | chance |" in result.output and "slices.png" in result.output
    for more, says in (
        (["--seeds", "a"], "seeds"),
        (["--seeds", "1,2"], "--slices"),
        (["--set", "t_max=3"], "--slices"),
    ):
        wrong = CliRunner().invoke(app, ["benchmark", str(pictures), str(tmp_path / "x"), *more])
        assert isinstance(wrong.exception, SettingsError) and says in str(wrong.exception)


def test_settings_of_slices_have_ranges() -> None:
    for change in ({"straight": 1.5}, {"pictures": -1}, {"split": "odd"}, {"part": "all"}, {"texture": "sepia"}):
        with pytest.raises(SettingsError, match=next(iter(change))):
            replace(SliceSettings(), **change)
