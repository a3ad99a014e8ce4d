"""The system on one page: fragments -> features -> candidates -> matches.

Each stage looks at what its folder holds and does only what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pairingnet.engine.local import run_jobs
from pairingnet.io.collection import Collection, read_collection
from pairingnet.match.many import Source, match_many, method_of, write_levels
from pairingnet.match.ring import RingFeatures
from pairingnet.match.store import feature_path, read_features, write_features
from pairingnet.prepare.load import load_fragment
from pairingnet.prepare.strip import working_step
from pairingnet.types import PairMatch

_CHUNK = 16  # fragments in a job


@dataclass(frozen=True, eq=False)
class Candidates:
    """ids (F,); ranked (F, K) numbers of the best others, -1 for none; scores (F, K)."""

    ids: tuple[str, ...]
    ranked: NDArray[np.intp]
    scores: NDArray[np.float32]

    def pairs(self) -> list[tuple[str, str]]:
        """Each candidate pair once."""
        numbers = {(min(a, int(b)), max(a, int(b))) for a, row in enumerate(self.ranked) for b in row if b >= 0}
        return [(self.ids[a], self.ids[b]) for a, b in sorted(numbers)]


def source_of(collection: Collection, weights: Path, run: Path) -> Source:
    """Where the stages of a run find what they need."""
    from pairingnet.match.weights import load_ring

    network, _ = load_ring(weights)
    step_px = working_step([record.perimeter_px for record in collection.fragments], network.settings.points)
    return Source(weights, run / "features", run / "levels.npz", step_px)


def compute_features(collection: Collection, source: Source, jobs: int = 0) -> list[RingFeatures]:
    """Features of all fragments, with what each of their points finds anywhere."""
    ids = [record.id for record in collection.fragments]
    missing = [name for name in ids if not feature_path(source.features, name).is_file()]
    chunks = [missing[first : first + _CHUNK] for first in range(0, len(missing), _CHUNK)]
    run_jobs(partial(_store_features, collection.folder, source), chunks, jobs, "features")
    features = method_of(source).know([read_features(source.features, name) for name in ids])
    write_levels(source.levels, features)
    return features


def find_candidates(features: Sequence[RingFeatures], source: Source, most: int) -> Candidates:
    """The most promising others of each fragment."""
    ranked, scores = method_of(source).rank(features, most)
    return Candidates(tuple(each.id for each in features), ranked, scores)


def match_candidates(
    candidates: Candidates, source: Source, also: Iterable[tuple[str, str]] = (), jobs: int = 0
) -> list[PairMatch]:
    """Lay every candidate pair on each other (and the pairs of `also`); the likeliest join first."""
    asked = list(also)
    known = {frozenset(pair) for pair in asked}
    asked += [pair for pair in candidates.pairs() if frozenset(pair) not in known]
    return sorted(match_many(source, asked, jobs), key=lambda match: -match.score)


def rank_by_probability(candidates: Candidates, matches: Iterable[PairMatch]) -> Candidates:
    """The candidates again, those with the likelier joins first."""
    score = {frozenset((match.source, match.target)): match.score for match in matches if match.target_from_source}
    scores = np.full(candidates.scores.shape, -np.inf, dtype=np.float32)
    for a, row in enumerate(candidates.ranked):
        for place, b in enumerate(row):
            if b >= 0:
                scores[a, place] = score.get(frozenset((candidates.ids[a], candidates.ids[b])), -1e6 - place)
    order = np.argsort(-scores, axis=1, kind="stable")
    return Candidates(
        candidates.ids,
        np.take_along_axis(candidates.ranked, order, axis=1),
        np.take_along_axis(scores, order, axis=1),
    )


def _store_features(folder: Path, source: Source, ids: list[str]) -> None:
    collection = read_collection(folder)
    for features in method_of(source).features(load_fragment(collection, name) for name in ids):
        write_features(source.features, features)
