"""Joins as assembly handles them: by the pair that they join, and with log-odds that change as others are heard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from pairingnet.types import PairMatch

Pair = frozenset[str]

_ALONE = "probability_alone"


def by_pair(joins: Iterable[PairMatch]) -> dict[Pair, list[PairMatch]]:
    """The ways to join each pair, in the order in which they come."""
    found: dict[Pair, list[PairMatch]] = {}
    for join in joins:
        found.setdefault(join.pair, []).append(join)
    return found


def with_log_odds(match: PairMatch, log_odds: float) -> PairMatch:
    """The same join, more or less likely; what it was before anything else was heard is kept in its evidence."""
    if log_odds == match.score:
        return match
    probability = float(1 / (1 + np.exp(-np.clip(log_odds, -50, 50))))
    told = {_ALONE: round(match.probability, 4), **match.evidence}
    return replace(match, score=log_odds, probability=probability, evidence=told)
