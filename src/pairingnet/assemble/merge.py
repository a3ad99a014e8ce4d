"""Pair matches -> groups of placed fragments: the surest joins first, and never a piece by force.

A join is taken where the pieces do not lie on each other, and where it is not contradicted by other joins as sure.
Joins that close a loop confirm each other: together they may carry a piece that none of them would alone.
"""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pairingnet.assemble.poses import settle_poses
from pairingnet.config import AssembleSettings
from pairingnet.geometry import Rigid2D, angle_difference
from pairingnet.match.contact import Outline, overlap_penalty
from pairingnet.types import Assembly, Group, PairMatch

_SURE = 1e3  # log-odds of what a person has decided


@dataclass(frozen=True, eq=False)
class Decisions:
    """What a person has said: joins that hold and joins that do not, as unordered pairs of ids."""

    accepted: Ids[frozenset[str]] = frozenset()
    rejected: Ids[frozenset[str]] = frozenset()


@dataclass(eq=False)
class _Board:
    """Where everything lies while groups grow; each fragment is in one group."""

    outlines: Mapping[str, Outline]
    settings: AssembleSettings
    step_px: float
    group_of: dict[str, int] = field(default_factory=dict)
    poses: dict[int, dict[str, Rigid2D]] = field(default_factory=dict)
    held: dict[int, list[PairMatch]] = field(default_factory=dict)


def assemble(
    outlines: Mapping[str, Outline],
    matches: Iterable[PairMatch],
    step_px: float,
    settings: AssembleSettings | None = None,
    decisions: Decisions | None = None,
) -> Assembly:
    """Put fragments together. outlines: all fragments; matches: joins with probabilities."""
    settings, decisions = settings or AssembleSettings(), decisions or Decisions()
    joins = _usable(matches, settings, decisions)
    board = _Board(outlines, settings, step_px)
    for number, name in enumerate(outlines):
        board.group_of[name] = number
        board.poses[number] = {name: Rigid2D()}
        board.held[number] = []
    between = _by_pieces(joins)
    waiting = list(joins)
    while waiting:
        # A join that was too weak alone may hold after others have brought its neighbours together.
        left = [join for join in waiting if not _try(board, join, between)]
        if len(left) == len(waiting):
            break
        waiting = [join for join in left if board.group_of[join.source] != board.group_of[join.target]]
    return _finished(board, joins)


def _usable(matches: Iterable[PairMatch], settings: AssembleSettings, decisions: Decisions) -> list[PairMatch]:
    """Joins that may be used, the surest first; decisions of a person are certain."""
    usable = []
    for match in matches:
        pair = frozenset((match.source, match.target))
        if match.target_from_source is None or pair in decisions.rejected:
            continue
        if pair in decisions.accepted:
            usable.append(replace(match, score=_SURE, probability=1.0))
        elif match.probability >= settings.weakest:
            usable.append(match)
    return sorted(usable, key=lambda match: (-match.score, match.source, match.target))


def _try(board: _Board, join: PairMatch, between: Mapping[frozenset[str], list[PairMatch]]) -> bool:
    """Merge the groups of a join, if it holds; True where they are one then."""
    one, other = board.group_of[join.source], board.group_of[join.target]
    if one == other:
        return True
    assert join.target_from_source is not None
    # The group of the target stays; that of the source moves.
    moved_from_source = board.poses[other][join.target] @ join.target_from_source
    shift = moved_from_source @ board.poses[one][join.source].inverse()
    moved = {name: shift @ pose for name, pose in board.poses[one].items()}
    sure = 0.0
    agreeing = []
    for name, pose in moved.items():
        for beside, fixed in board.poses[other].items():
            for match in between.get(frozenset((name, beside)), ()):
                if _agrees(board, match, {name: pose, beside: fixed}):
                    sure += match.score
                    agreeing.append(match)
                elif match.score > 0:
                    sure -= match.score
    if sure < board.settings.log_odds or _collides(board, moved, board.poses[other]):
        return False
    board.poses[other] |= moved
    board.held[other] += board.held.pop(one) + agreeing
    for name in board.poses.pop(one):
        board.group_of[name] = other
    if len(agreeing) > 1:
        board.poses[other] = settle_poses(board.poses[other], board.held[other])
    return True


def _agrees(board: _Board, match: PairMatch, poses: Mapping[str, Rigid2D]) -> bool:
    """Whether two placed pieces lie as a join says, within a few steps along their seam."""
    assert match.target_from_source is not None
    placed = poses[match.target].inverse() @ poses[match.source]
    if angle_difference(placed.angle_rad, match.target_from_source.angle_rad) > np.radians(board.settings.agree_deg):
        return False
    points = match.points[:, 0] if len(match.points) else np.zeros((1, 2))
    apart = np.linalg.norm(placed.apply(points) - match.target_from_source.apply(points), axis=1).mean()
    return bool(apart < board.settings.agree * board.step_px)


def _collides(board: _Board, moved: Mapping[str, Rigid2D], fixed: Mapping[str, Rigid2D]) -> bool:
    """Whether any moved piece would lie on a fixed one."""
    allowed_px = board.settings.allowed * board.step_px
    boxes = {name: _box(board.outlines[name], pose) for name, pose in fixed.items()}
    for name, pose in moved.items():
        low, high = _box(board.outlines[name], pose)
        for beside, (other_low, other_high) in boxes.items():
            if (low + allowed_px > other_high).any() or (other_low + allowed_px > high).any():
                continue
            beside_from_name = fixed[beside].inverse() @ pose
            deep_px = overlap_penalty(board.outlines[name], board.outlines[beside], beside_from_name, allowed_px)
            if deep_px > board.settings.overlap * board.step_px:
                return True
    return False


def _box(outline: Outline, pose: Rigid2D) -> tuple[np.ndarray, np.ndarray]:
    points = pose.apply(outline.points[::4])
    return points.min(axis=0), points.max(axis=0)


def _by_pieces(joins: Iterable[PairMatch]) -> dict[frozenset[str], list[PairMatch]]:
    found: dict[frozenset[str], list[PairMatch]] = {}
    for join in joins:
        found.setdefault(frozenset((join.source, join.target)), []).append(join)
    return found


def _finished(board: _Board, joins: Sequence[PairMatch]) -> Assembly:
    groups, singles = [], []
    for number, poses in board.poses.items():
        if len(poses) == 1:
            singles += list(poses)
            continue
        groups.append(Group(settle_poses(poses, board.held[number]), tuple(board.held[number])))
    groups.sort(key=lambda group: (-len(group), min(group.poses)))
    confirmed: list[PairMatch] = []
    contradicted: list[PairMatch] = []
    for join in joins:
        number = board.group_of[join.source]
        if number == board.group_of[join.target]:
            holds = _agrees(board, join, board.poses[number])
            (confirmed if holds else contradicted).append(join)
    return Assembly(tuple(groups), tuple(sorted(singles)), tuple(confirmed), tuple(contradicted))
