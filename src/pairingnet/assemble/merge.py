"""Pair matches -> groups of placed fragments: the surest joins first, and never a piece by force.

A join is taken where the pieces do not lie on each other, where it is not contradicted by other joins as sure, and
where not too many pieces would become neighbours that no join speaks of.
Joins that close a loop confirm each other: together they may carry a piece that none of them would alone.
What a person has decided holds whatever else speaks against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pairingnet.assemble.joins import Pair, by_pair
from pairingnet.assemble.layout import Poses, Table, agrees, carried_over, collisions
from pairingnet.assemble.loops import confirmed, log_odds_together
from pairingnet.assemble.poses import settle_poses, straightened
from pairingnet.assemble.silence import Silence, brought_together
from pairingnet.config import AssembleSettings
from pairingnet.geometry import Rigid2D
from pairingnet.match.contact import Outline
from pairingnet.types import Assembly, Decisions, Group, PairMatch

_SURE = 1e3  # log-odds of what a person has decided
_LUCK = (1.0, 2.0)  # log-odds by which joins change places in other orders, in turn
_VERY_SURE = 10.0  # log-odds of joins that no bit of mat left on a piece, or a bent tip, may keep apart:
_SPUR = 0.5  # for each unit more, pieces may lie on each other along so many times more contour
_ABOUT = 2.5  # times as far off as joins may be that agree
_LOOSE = (15.0, 1.0)  # steps; how far off joins between groups may be that draw them near, at first and at last


@dataclass(eq=False)
class _Board:
    """Where everything lies while groups grow; each fragment is in one group, and in one body of locked pieces."""

    table: Table
    rejected: Sequence[PairMatch]
    by_loops: Mapping[PairMatch, float]  # log-odds of joins that close a loop
    group_of: dict[str, int] = field(default_factory=dict)
    poses: dict[int, dict[str, Rigid2D]] = field(default_factory=dict)
    held: dict[int, list[PairMatch]] = field(default_factory=dict)
    body_of: dict[str, str] = field(default_factory=dict)
    silence: Silence = field(default_factory=Silence)
    too_weak: dict[PairMatch, tuple[int, ...]] = field(default_factory=dict)  # in which state of which groups

    def state_of(self, join: PairMatch) -> tuple[int, ...]:
        """The groups of a join and how much they hold: where that is the same, so is what all joins say of them."""
        groups = self.group_of[join.source], self.group_of[join.target]
        return *groups, *(len(self.held[number]) for number in groups)

    def settle(self, number: int, exact: bool = False) -> None:
        poses, joins, step_px = self.poses[number], self.held[number], self.table.step_px
        self.poses[number] = settle_poses(poses, joins, step_px, self.body_of, exact=exact)


def assemble(
    outlines: Mapping[str, Outline],
    matches: Iterable[PairMatch],
    step_px: float,
    settings: AssembleSettings | None = None,
    decisions: Decisions | None = None,
    order: int = 0,
) -> Assembly:
    """Put fragments together. outlines: all fragments; matches: joins with probabilities; order: 0 for the surest joins
    first, others mix up those that are about as sure, each in its own way."""
    settings, decisions = settings or AssembleSettings(), decisions or Decisions()
    joins, rejected = _usable(matches, settings, decisions)
    table = Table(outlines, settings, step_px)
    by_loops = confirmed(table, joins)
    joins.sort(key=lambda join: -max(join.score, by_loops.get(join, -np.inf)))
    waiting = _mixed_up(joins, by_loops, order) if order else joins
    board = _Board(table, rejected, by_loops)
    for number, name in enumerate(outlines):
        board.group_of[name] = number
        board.poses[number] = {name: Rigid2D()}
        board.held[number] = []
        board.body_of[name] = name
    for join in decisions.locked:
        _lock(board, join)
    between = by_pair(joins)
    while waiting:
        # A join that was too weak alone may hold after others have brought its neighbours together.
        left = [join for join in waiting if not _try(board, join, between)]
        if len(left) == len(waiting):
            break
        waiting = [join for join in left if board.group_of[join.source] != board.group_of[join.target]]
    return _finished(board, joins)


def _mixed_up(joins: Sequence[PairMatch], by_loops: Mapping[PairMatch, float], order: int) -> list[PairMatch]:
    """The same joins as if each had turned out a little surer, or less sure."""
    luck = np.random.default_rng(order).normal(scale=_LUCK[order % 2], size=len(joins))
    sure = [max(join.score, by_loops.get(join, -np.inf)) + by for join, by in zip(joins, luck, strict=True)]
    return [joins[i] for i in np.argsort(-np.array(sure), kind="stable")]


def _usable(
    matches: Iterable[PairMatch], settings: AssembleSettings, decisions: Decisions
) -> tuple[list[PairMatch], list[PairMatch]]:
    """Joins that may be used, the surest first, those that a person has accepted before all; and the rejected."""
    usable, rejected = [], []
    for match in matches:
        pair = match.pair
        if match.target_from_source is None:
            continue
        if pair in decisions.rejected:
            rejected.append(match)
        elif pair in decisions.accepted:
            usable.append(replace(match, score=_SURE, probability=1.0))
        elif match.probability >= settings.weakest:
            usable.append(match)
    return sorted(usable, key=lambda match: (-match.score, match.source, match.target)), rejected


def _lock(board: _Board, join: PairMatch) -> None:
    """Two pieces become one body, as they lie in the join."""
    one, other = board.group_of.get(join.source), board.group_of.get(join.target)
    if one is None or other is None or one == other:
        return
    moved = carried_over(join, board.poses[one], board.poses[other])
    _unite(board, one, other, moved, [join])
    old, new = board.body_of[join.source], board.body_of[join.target]
    board.body_of |= {name: new for name, body in board.body_of.items() if body == old}


def _try(board: _Board, join: PairMatch, between: Mapping[Pair, list[PairMatch]]) -> bool:
    """Merge the groups of a join, if it holds; True where they are one then."""
    one, other = board.group_of[join.source], board.group_of[join.target]
    if one == other:
        return True
    state = board.state_of(join)
    if board.too_weak.get(join) == state:
        return False
    # The group of the target stays; that of the source moves.
    fixed = board.poses[other]
    moved = carried_over(join, board.poses[one], fixed)
    decided = join.score >= _SURE
    if not decided:  # what a person has accepted lies as it was seen
        moved = drawn_near(board.table, between, moved, fixed)
    together = {**fixed, **moved}
    agreeing, against = _said(board.table, between, moved, fixed)
    sure = log_odds_together([match.probability for match in agreeing], len(agreeing) - 1) if agreeing else -np.inf
    sure = max(sure, board.by_loops.get(join, sure)) - against
    least = board.table.settings.log_odds
    if not agreeing or (not decided and sure < least):  # most end here, before anything is laid on anything
        board.too_weak[join] = state
        return False
    near = brought_together(board.table, moved, fixed)
    silent = len(near - {match.pair for match in agreeing})
    if not decided:
        may_lie = 1 + _SPUR * max(0.0, sure - _VERY_SURE)
        if (
            sure + board.silence.log_odds(moved, fixed, silent) < least
            or any(collisions(board.table, moved, fixed, may_lie))
            or any(_would_hold(board, match, one, other, together) for match in board.rejected)
        ):
            return False
    board.silence.note(len(near), silent)
    _unite(board, one, other, moved, agreeing)
    if len(agreeing) > 1:
        board.settle(other)
    return True


def drawn_near(table: Table, between: Mapping[Pair, list[PairMatch]], moved: Poses, fixed: Poses) -> dict[str, Rigid2D]:
    """Where a group comes to lie by all joins that want it about there: by one alone, far from it, it may be turned too
    much."""
    together = {**fixed, **moved}
    pairs = (frozenset((name, beside)) for name in moved for beside in fixed)
    near = [way for pair in pairs for way in between.get(pair, ()) if agrees(table, way, together, _ABOUT)]
    body_of = dict.fromkeys(fixed, "fixed") | dict.fromkeys(moved, "moved")
    placed = settle_poses(together, near, table.step_px, body_of, _LOOSE)
    return {name: placed[name] for name in moved}


def _said(
    table: Table, between: Mapping[Pair, list[PairMatch]], moved: Poses, fixed: Poses
) -> tuple[list[PairMatch], float]:
    """The joins between two groups that agree with a merge, and how sure those are that do not."""
    together = {**fixed, **moved}
    agreeing, against = [], 0.0
    for name in moved:
        for beside in fixed:
            ways = between.get(frozenset((name, beside)), ())
            holding = [match for match in ways if agrees(table, match, together)]
            agreeing += holding[:1]  # the surest of them
            if ways and not holding:
                against += max(0.0, ways[0].score)
    return agreeing, against


def _would_hold(board: _Board, rejected: PairMatch, one: int, other: int, together: Mapping[str, Rigid2D]) -> bool:
    """Whether a merge would lay two pieces as a person has said that they do not lie."""
    groups = {board.group_of.get(rejected.source), board.group_of.get(rejected.target)}
    return groups == {one, other} and agrees(board.table, rejected, together)


def _unite(board: _Board, one: int, other: int, moved: Mapping[str, Rigid2D], joins: Sequence[PairMatch]) -> None:
    board.poses[other] |= moved
    board.held[other] += board.held.pop(one) + list(joins)
    for name in board.poses.pop(one):
        board.group_of[name] = other


def _finished(board: _Board, joins: Sequence[PairMatch]) -> Assembly:
    groups, singles = [], []
    for number, poses in board.poses.items():
        if len(poses) == 1:
            singles += list(poses)
            continue
        board.settle(number, exact=True)
        board.poses[number] = straightened(board.table.outlines, board.poses[number])
        groups.append(Group(board.poses[number], tuple(board.held[number])))
    groups.sort(key=lambda group: (-len(group), min(group.poses)))
    confirmed: list[PairMatch] = []
    contradicted: list[PairMatch] = []
    for ways in by_pair(joins).values():
        number = board.group_of[ways[0].source]
        if number == board.group_of[ways[0].target]:
            holding = [join for join in ways if agrees(board.table, join, board.poses[number])]
            (confirmed if holding else contradicted).append((holding or ways)[0])
    return Assembly(tuple(groups), tuple(sorted(singles)), tuple(confirmed), tuple(contradicted))
