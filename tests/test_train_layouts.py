"""The energy of layouts is learned from merges, right and wrong, by a command that goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairingnet.assembly.energy import POWERS, SHIPPED, TERMS, load_energy, powers_of
from pairingnet.errors import CollectionError
from pairingnet.io.collection import Collection, write_collection
from pairingnet.train.layouts import _logistic, jobs_of, without
from tests.helpers import run


def test_what_a_merge_is_worth_is_found_again() -> None:
    """Merges drawn by known weights: those are learned, each power of the confidence for itself."""
    rng = np.random.default_rng(0)
    true = np.array([[1.0, -2.0, 0.5], [0.3, 0.4, 0.0], [-0.2, 0.0, 0.1]])
    powers = np.stack([powers_of(float(c)) for c in rng.uniform(-2, 10, 20_000)])
    inputs = powers[:, :, None] * rng.normal(size=(20_000, 1, 3))
    right = rng.random(20_000) < 1 / (1 + np.exp(-(inputs * true).sum(axis=(1, 2))))
    learned = _logistic(inputs, right)
    assert learned.shape == true.shape
    for confidence in (-1.0, 4.0, 9.0):
        assert powers_of(confidence) @ learned == pytest.approx(powers_of(confidence) @ true, abs=0.2)


def test_what_never_occurs_has_no_weight() -> None:
    rng = np.random.default_rng(0)
    inputs = np.zeros((200, POWERS, 2))
    inputs[:, 0, 0] = rng.normal(size=200)
    assert np.abs(_logistic(inputs, rng.random(200) < 0.5)[:, 1]).max() < 1e-6


@given(share=st.floats(0, 1), seed=st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_lost_pieces_take_their_pairs_along(torn: Collection, share: float, seed: int) -> None:
    left = without(torn, share, np.random.default_rng(seed))
    kept = {record.id for record in left.fragments}
    assert all({pair.source, pair.target} <= kept for pair in left.pairs)
    assert len(left.pairs) == sum({pair.source, pair.target} <= kept for pair in torn.pairs)
    assert len(kept) == len(torn) if share == 0 else len(kept) <= len(torn)


def two_pictures(torn: Collection, folder: Path) -> Path:
    """Half of the pieces as if they were of another picture."""
    records = [replace(r, source="other" if i % 2 else r.source) for i, r in enumerate(torn.fragments)]
    source_of = {record.id: record.source for record in records}
    folder.mkdir()
    (folder / "fragments").symlink_to(torn.folder / "fragments")
    pairs = tuple(pair for pair in torn.pairs if source_of[pair.source] == source_of[pair.target])
    write_collection(
        replace(
            torn,
            folder=folder,
            fragments=tuple(records),
            pairs=pairs,
            sources=dict.fromkeys(source_of.values(), (600, 400)),
        )
    )
    return folder


def test_puzzles_of_all_kinds_and_none_twice(torn: Collection, tmp_path: Path) -> None:
    folder = two_pictures(torn, tmp_path / "two")
    weights = tmp_path / "weights"
    weights.write_bytes(b"some")
    jobs = jobs_of([folder], weights, skipped=0, pictures=2, mixed=1, kept=tmp_path / "kept")
    assert [job.pieces for job in jobs] == [0, 6]  # too few pictures are left for a mixture
    assert len({job.kept for job in jobs}) == 2
    weights.write_bytes(b"others")
    again = jobs_of([folder], weights, skipped=0, pictures=2, mixed=0, kept=tmp_path / "kept")
    assert not {job.kept for job in jobs} & {job.kept for job in again}


def test_weights_are_learned_by_a_command_that_goes_on(torn: Collection, tmp_path: Path) -> None:
    folder, out = two_pictures(torn, tmp_path / "two"), tmp_path / "layouts.json"
    command = ("train", "layouts", folder, "--out", out, "--pictures", 2, "--mixed", 0, "--jobs", 1)
    result = run(*command)
    assert result.returncode == 0, result.stderr
    content = json.loads(out.read_text(encoding="utf-8"))
    assert set(content["guided"]["weights"]) == set(TERMS)
    assert content["guided"]["merges"] > content["guided"]["right"] > 0
    assert list(content["made_by"]["collections"]) == ["two"] and content["made_by"]["pictures"] == 2
    assert load_energy(out).weights.shape == load_energy(out, guided=False).weights.shape == (POWERS, len(TERMS))
    kept = {path: path.stat().st_mtime_ns for path in out.with_suffix("").iterdir()}
    out.unlink()
    assert run(*command).returncode == 0
    assert json.loads(out.read_text(encoding="utf-8")) == content
    assert {
        path: path.stat().st_mtime_ns for path in out.with_suffix("").iterdir()
    } == kept  # nothing was matched again


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.pop("guided"),
        lambda content: content["guided"]["weights"].pop("support"),
        lambda content: content["guided"]["weights"].update(support=[1.0]),
        lambda content: content["guided"]["calibration"].update(held=[[1.0, 1.0, 1.0]]),
        lambda content: content["guided"].pop("learned_between"),
    ],
)
def test_weights_that_are_none_are_refused(damage: object, tmp_path: Path) -> None:
    content = json.loads(SHIPPED.read_text(encoding="utf-8"))
    assert callable(damage)
    damage(content)
    path = tmp_path / "layouts.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CollectionError, match="no weights of layouts"):
        load_energy(path)
