"""Scores of pairs -> ranked candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Features = TypeVar("Features")
Ranking = tuple[NDArray[np.intp], NDArray[np.float32]]


def rank_all_pairs(score: Callable[[Features, Features], float], features: Sequence[Features], most: int) -> Ranking:
    """Ask about every pair once, either way round; a score of 0 is no candidate."""
    scores = np.full((len(features), len(features)), -np.inf)
    for a, b in combinations(range(len(features)), 2):
        value = score(features[a], features[b])
        scores[a, b] = scores[b, a] = value if value > 0 else -np.inf
    return rank_scores(scores, most)


def rank_scores(scores: NDArray[np.floating], most: int) -> Ranking:
    """The `most` best others of each fragment by scores (F, F); -1 and minus infinity where there are no more.

    Minus infinity is no candidate, and nobody is its own. Equal scores keep the order of the fragments.
    """
    count = len(scores)
    others = np.array(scores, dtype=np.float32)
    np.fill_diagonal(others, -np.inf)
    ranked = np.full((count, most), -1, dtype=np.intp)
    told = np.full((count, most), -np.inf, dtype=np.float32)
    kept = min(most, count)
    best = np.argsort(-others, axis=1, kind="stable")[:, :kept]
    told[:, :kept] = np.take_along_axis(others, best, axis=1)
    ranked[:, :kept] = np.where(np.isfinite(told[:, :kept]), best, -1)
    return ranked, told
