"""Which pairs are worth laying on each other, and how laying them changes their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairingnet.types import PairMatch

_BEHIND = -1e6  # below the score of any join


@dataclass(frozen=True, eq=False)
class Candidates:
    """ids (F,); ranked (F, K) numbers of the best others, -1 for none; scores (F, K), minus infinity where nothing is
    known of a candidate before it is laid on."""

    ids: tuple[str, ...]
    ranked: NDArray[np.intp]
    scores: NDArray[np.float32]

    def pairs(self) -> list[tuple[str, str]]:
        """Each candidate pair once, in the order of the fragments."""
        rows, places = np.nonzero(self.ranked >= 0)
        others = self.ranked[rows, places]
        codes = np.unique(np.minimum(rows, others) * len(self.ids) + np.maximum(rows, others))
        return [(self.ids[code // len(self.ids)], self.ids[code % len(self.ids)]) for code in codes.tolist()]

    def only(self, kept: Mapping[int, Iterable[int] | None], most: int) -> Candidates:
        """Lists of some fragments alone, up to `most` long; each among the named others, or among all (None)."""
        ranked = np.full((len(self.ids), most), -1, dtype=np.intp)
        scores = np.full((len(self.ids), most), -np.inf, dtype=np.float32)
        for query, pool in kept.items():
            row = self.ranked[query]
            there = row >= 0 if pool is None else np.isin(row, np.fromiter(pool, dtype=np.intp))
            places = np.flatnonzero(there)[:most]
            ranked[query, : len(places)] = row[places]
            scores[query, : len(places)] = self.scores[query, places]
        return Candidates(self.ids, ranked, scores)

    def with_joins(self, joins: Iterable[PairMatch]) -> Candidates:
        """At the end of each list that is not empty, everyone else with whom some join was found."""
        number = {name: i for i, name in enumerate(self.ids)}
        more: list[list[int]] = [[] for _ in self.ids]
        for join in joins:
            for one, other in ((number[join.source], number[join.target]), (number[join.target], number[join.source])):
                if (self.ranked[one] >= 0).any() and other not in self.ranked[one]:
                    more[one].append(other)
        width = max(map(len, more), default=0)
        added = np.array([[*others, *[-1] * (width - len(others))] for others in more], dtype=np.intp)
        added = added.reshape(len(self.ids), width)
        unknown = np.full(added.shape, -np.inf, dtype=np.float32)
        ranked = np.concatenate([self.ranked, added], axis=1)
        return Candidates(self.ids, ranked, np.concatenate([self.scores, unknown], axis=1))


def rank_by_joins(candidates: Candidates, matches: Iterable[PairMatch]) -> Candidates:
    """The candidates again, those with the likelier joins first. One that could not be laid on comes after them, or is
    none where nothing else is known of it."""
    score = {match.pair: match.score for match in matches if match.target_from_source}
    scores = np.full(candidates.scores.shape, -np.inf, dtype=np.float32)
    for a, row in enumerate(candidates.ranked):
        for place, b in enumerate(row):
            if b >= 0:
                otherwise = _BEHIND - place if np.isfinite(candidates.scores[a, place]) else -np.inf
                scores[a, place] = score.get(frozenset((candidates.ids[a], candidates.ids[b])), otherwise)
    order = np.argsort(-scores, axis=1, kind="stable")
    told = np.take_along_axis(scores, order, axis=1)
    ranked = np.take_along_axis(candidates.ranked, order, axis=1)
    return Candidates(candidates.ids, np.where(np.isfinite(told), ranked, -1), told)
