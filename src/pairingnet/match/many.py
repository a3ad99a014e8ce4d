"""Many pairs on several processes: each reads the features it needs, and keeps the last ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pairingnet.engine.jobs import Workers, run_jobs
from pairingnet.match.ring import RingFeatures, RingMethod
from pairingnet.match.store import read_features
from pairingnet.types import PairMatch

Name = TypeVar("Name", str, int)

_CHUNK = 64  # pairs in a job
_USUAL_LOOSE = "/usual_loose"  # beside the fragments' ids, which have no slash
_TILE = 100  # fragments; a process keeps three times as many, about half a MB each


@dataclass(frozen=True)
class Source:
    """Where processes find what they need: the weights, the features' folder, the levels' file, the step, and the
    device of the network."""

    weights: Path
    features: Path
    levels: Path
    step_px: float
    device: str = "cpu"


def match_many(
    source: Source,
    pairs: Sequence[tuple[str, str]],
    jobs: Workers = 0,
    done: Callable[[Sequence[PairMatch]], None] | None = None,
) -> list[PairMatch]:
    """Match pairs of fragment ids; in their order. `done` gets each handful of matches as soon as it is known."""
    if not pairs:
        return []
    # What is read from files is kept; when they are written anew, so is this.
    written = source.levels.stat().st_mtime_ns
    return match_in_tiles(partial(_match_chunk, source, written), pairs, jobs, done)


def match_in_tiles(
    match: Callable[[list[tuple[Name, Name]]], list[PairMatch]],
    pairs: Sequence[tuple[Name, Name]],
    jobs: Workers = 0,
    done: Callable[[Sequence[PairMatch]], None] | None = None,
) -> list[PairMatch]:
    """Let `match` work on handfuls of pairs that share fragments; the matches in the order of the pairs."""
    # Blocks of sources against blocks of targets: what a process has read is used many times before it goes.
    number = {name: i for i, name in enumerate(sorted({name for pair in pairs for name in pair}))}
    tiles = [(number[a] // _TILE, number[b] // _TILE, number[a], number[b]) for a, b in pairs]
    ordered = sorted(range(len(pairs)), key=lambda i: tiles[i])
    chunks = [[pairs[i] for i in ordered[first : first + _CHUNK]] for first in range(0, len(ordered), _CHUNK)]
    parts = run_jobs(match, chunks, jobs, "matching", done)
    found = [match for part in parts for match in part]
    by_place = dict(zip(ordered, found, strict=True))
    return [by_place[i] for i in range(len(pairs))]


def write_levels(path: Path, features: Sequence[RingFeatures]) -> None:
    """Store the background levels of a collection."""
    from pairingnet.io.files import write_whole

    arrays = {each.id: np.stack([each.side.query_level, each.side.key_level]) for each in features}
    arrays |= {_USUAL_LOOSE: np.array([each.side.usual_loose for each in features[:1]])}
    write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def _match_chunk(source: Source, written: int, pairs: list[tuple[str, str]]) -> list[PairMatch]:
    method = method_of(source)
    return [method.match(_features(source, written, a), _features(source, written, b)) for a, b in pairs]


@lru_cache(maxsize=1)
def method_of(source: Source) -> RingMethod:
    """The method of a run; loaded once in each process."""
    from pairingnet.match.weights import load_model

    return RingMethod(load_model(source.weights, source.device), source.step_px)


@lru_cache(maxsize=1)
def _levels(path: Path, written: int) -> dict[str, NDArray[np.float32]]:  # noqa: ARG001 (part of the cache's key)
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


@lru_cache(maxsize=3 * _TILE)
def _features(source: Source, written: int, fragment_id: str) -> RingFeatures:
    levels = _levels(source.levels, written)
    of_query, of_key = levels[fragment_id]
    known = (of_query, of_key, len(levels) - 1, float(levels[_USUAL_LOOSE][0]))
    return read_features(source.features, fragment_id, known)
