"""Many pairs on several processes: each reads the features it needs, and keeps the last ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from pairingnet.engine.jobs import Workers, run_jobs
from pairingnet.errors import CollectionError
from pairingnet.match.ring import Registered, RingFeatures, RingMethod
from pairingnet.match.statistics import CollectionStatistics, read_statistics
from pairingnet.match.store import feature_path, read_features
from pairingnet.types import PairMatch

Asked = TypeVar("Asked", bound=tuple[Any, ...])  # begins with the names or numbers of two fragments
Answer = TypeVar("Answer")

_CHUNK = 64  # pairs in a job
_TILE = 100  # fragments; a process keeps three times as many, about half a MB each


@dataclass(frozen=True)
class Source:
    """Where processes find what they need: the weights and the mark of their content, the features' folder, the file of
    the collection's statistics and the fingerprint of those that count, the step, and the device of the network."""

    weights: Path
    mark: str
    features: Path
    statistics: Path
    step_px: float
    device: str = "cpu"
    fingerprint: str = ""


def match_many(
    source: Source,
    pairs: Sequence[tuple[str, str, Registered | None]],
    jobs: Workers = 0,
    done: Callable[[Sequence[tuple[Registered, PairMatch]]], None] | None = None,
) -> list[tuple[Registered, PairMatch]]:
    """Match pairs of fragment ids, in their order; those that were registered before are only judged. `done` gets each
    handful of answers as soon as it is known."""
    return match_in_tiles(partial(_match_chunk, source), pairs, jobs, done) if pairs else []


def match_in_tiles(
    match: Callable[[list[Asked]], list[Answer]],
    pairs: Sequence[Asked],
    jobs: Workers = 0,
    done: Callable[[Sequence[Answer]], None] | None = None,
) -> list[Answer]:
    """Let `match` work on handfuls of pairs that share fragments; the answers in the order of the pairs."""
    # Blocks of sources against blocks of targets: what a process has read is used many times before it goes.
    number = {name: i for i, name in enumerate(sorted({name for pair in pairs for name in pair[:2]}))}
    tiles = [(number[a] // _TILE, number[b] // _TILE, number[a], number[b]) for a, b, *_ in pairs]
    ordered = sorted(range(len(pairs)), key=lambda i: tiles[i])
    chunks = [[pairs[i] for i in ordered[first : first + _CHUNK]] for first in range(0, len(ordered), _CHUNK)]
    parts = run_jobs(match, chunks, jobs, "matching", done)
    found = [answer for part in parts for answer in part]
    by_place = dict(zip(ordered, found, strict=True))
    return [by_place[i] for i in range(len(pairs))]


def _match_chunk(source: Source, pairs: list[tuple[str, str, Registered | None]]) -> list[tuple[Registered, PairMatch]]:
    method = method_of(source)
    answers = []
    for name, beside, before in pairs:
        a, b = _features(source, name), _features(source, beside)
        registered = before or method.register(a, b)
        answers.append((registered, method.judge(a, b, registered)))
    return answers


def method_of(source: Source) -> RingMethod:
    """The method of a run; loaded once in each process."""
    return _method(source.weights, source.mark, source.device, source.step_px)


@lru_cache(maxsize=1)
def _method(weights: Path, mark: str, device: str, step_px: float) -> RingMethod:
    from pairingnet.match.weights import load_model

    model = load_model(weights, device)
    if model.mark != mark:
        raise CollectionError(f"{weights} has changed while it was used.", "Run the command again.")
    return RingMethod(model, step_px)


def features_in(source: Source, fragment_id: str) -> RingFeatures:
    """Features of a fragment as they are among its collection; those asked for last are kept."""
    return _features(source, fragment_id)


@lru_cache(maxsize=1)
def _statistics(source: Source) -> CollectionStatistics:
    found = read_statistics(source.statistics, source.fingerprint)
    if found is None:
        raise CollectionError(f"{source.statistics} is damaged, or not of this collection.", "Run the command again.")
    return found


@lru_cache(maxsize=3 * _TILE)
def _features(source: Source, fragment_id: str) -> RingFeatures:
    found = read_features(source.features, fragment_id)
    if found is None:
        path = feature_path(source.features, fragment_id)
        raise CollectionError(f"{path} is missing or damaged.", "Run the command again: it makes it anew.")
    return _statistics(source).applied_to(found)
