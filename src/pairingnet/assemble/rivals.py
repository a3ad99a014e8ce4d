"""A stretch of contour had one neighbour: joins that claim the same stretch rival each other.

Alone, a join is judged by what its two pieces show. Among all joins it is worth less where somebody else claims its
stretch on either piece, and among worn pieces more where nobody does. Rivals have rivals themselves: what is left of
them after a first round is what counts in the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pairingnet.assemble.joins import Pair, with_log_odds
from pairingnet.assemble.layout import Table, usual_loose_px
from pairingnet.config import RivalSettings
from pairingnet.match.contact import contact
from pairingnet.types import Decisions, PairMatch

_PARTS = 128  # of a contour; a stretch is those of them that a join touches
_SHARE = 0.5  # of its stretch that a rival claims as well
_NOBODY = -20.0  # log-odds
_ROUNDS = 2

Floats = NDArray[np.float64]
Rivals = list[tuple[NDArray[np.intp], NDArray[np.bool_]]]


def among_rivals(
    table: Table, joins: Sequence[PairMatch], settings: RivalSettings, decisions: Decisions | None = None
) -> list[PairMatch]:
    """The same joins with the log-odds that they have among each other. What a person has accepted is as strong a rival
    as there is, what was rejected is none; both stay as they are."""
    decisions = decisions or Decisions()
    heard = [join for join in joins if join.target_from_source is not None and join.pair not in decisions.rejected]
    accepted = np.array([join.pair in decisions.accepted for join in heard], dtype=bool)
    alone = np.array([join.score for join in heard], dtype=np.float64)
    if usual_loose_px(joins) <= settings.worn * table.step_px:
        # Right joins of clean pieces are sure by themselves; nobody contests those of strangers either.
        settings = replace(settings, free=0.0)
    told = np.where(accepted, alone, log_odds_among(alone, rivals_of(table, heard), settings, accepted))
    score = {join: float(log_odds) for join, log_odds in zip(heard, told, strict=True)}
    return [with_log_odds(join, score.get(join, join.score)) for join in joins]


def log_odds_among(
    alone: Floats, rivals: Rivals, settings: RivalSettings, accepted: NDArray[np.bool_] | None = None
) -> Floats:
    """(J,): log-odds of joins among their rivals, from those that they have alone (J,); accepted (J,) are the strongest
    rivals that there are."""
    told = alone
    for _ in range(_ROUNDS):
        heard = told if accepted is None else np.where(accepted, np.inf, told)
        told = judged(alone, strongest(rivals, heard, settings.most), settings)
    return told


def judged(alone: Floats, rival: Floats, settings: RivalSettings) -> Floats:
    """(J,): log-odds of joins, from those that they have alone (J,), and those of their strongest rivals (J,)."""
    return settings.alone * alone + settings.free - settings.rival * np.logaddexp(0, rival)


def rivals_of(table: Table, joins: Sequence[PairMatch]) -> Rivals:
    """For each piece: the numbers (K,) of its joins, and which of them (K, K) rival each one."""
    claims: dict[str, list[tuple[int, Pair, NDArray[np.float32]]]] = {}
    for number, join in enumerate(joins):
        for name, stretch in zip((join.source, join.target), _stretches(table, join), strict=True):
            claims.setdefault(name, []).append((number, join.pair, stretch))
    found = []
    for own in claims.values():
        stretches = np.stack([stretch for _, _, stretch in own])
        shared = stretches @ stretches.T
        same = np.array([[pair == other for _, other, _ in own] for _, pair, _ in own])
        contested = shared > _SHARE * np.maximum(1, np.diag(shared))[:, None]
        found.append((np.array([number for number, _, _ in own]), contested & ~same))
    return found


def strongest(rivals: Rivals, log_odds: Floats, most: float) -> Floats:
    """(J,): log-odds of all rivals of each join together, on the piece where they are stronger."""
    odds = np.exp(np.minimum(log_odds, most))
    best = np.full(len(log_odds), _NOBODY)
    for numbers, contested in rivals:
        together = np.log(np.maximum(contested @ odds[numbers], np.exp(_NOBODY)))
        best[numbers] = np.maximum(best[numbers], together)
    return best


def _stretches(table: Table, join: PairMatch) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(P,), (P,): the parts of both contours that a join touches, as ones."""
    assert join.target_from_source is not None
    one, other = table.outlines[join.source], table.outlines[join.target]
    touching = contact(one, other, join.target_from_source, table.reach_px)
    stretches = np.zeros((2, _PARTS), np.float32)
    for stretch, outline, touched in zip(stretches, (one, other), (touching.rows, touching.columns), strict=True):
        stretch[touched * _PARTS // len(outline.points)] = 1
    return stretches[0], stretches[1]
