"""Pieces that lie somewhere: whether they lie as a join says, and whether they lie on each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pairingnet.config import AssembleSettings
from pairingnet.geometry import Points, Rigid2D, angle_difference, perimeter
from pairingnet.match.contact import Outline, contact, lies_on_px, overlap_penalty
from pairingnet.types import PairMatch

Poses = Mapping[str, Rigid2D]
_COVERED = 0.5  # of a piece's contour, drawn a little smaller, that lies inside another: then it lies on it
_REACH = 3.0  # steps between contours that touch, in a layout of several joins


@dataclass(frozen=True, eq=False)
class Table:
    """What judging a layout needs: the pieces' outlines, the settings, the contour step that they are in, and the gap
    that wear has left between neighbours."""

    outlines: Mapping[str, Outline]
    settings: AssembleSettings
    step_px: float
    gap_px: float = 0.0

    @property
    def reach_px(self) -> float:
        """Contours this near to each other touch."""
        return _REACH * self.step_px + self.gap_px


def usual_gap_px(joins: Iterable[PairMatch]) -> float:
    """The gap of most joins that are rather right than wrong."""
    return _usual(joins, "worn_px")


def usual_loose_px(joins: Iterable[PairMatch]) -> float:
    """How far apart contours lie in most joins that are rather right than wrong, when they are laid on each other."""
    return _usual(joins, "gap_px")


def _usual(joins: Iterable[PairMatch], what: str) -> float:
    told = [join.evidence.get(what, 0.0) for join in joins if join.probability > 0.5]
    return float(np.median(told)) if told else 0.0


def agrees(table: Table, join: PairMatch, poses: Poses, times: float = 1.0) -> bool:
    """Whether two placed pieces lie as a join says, within a few steps along their seam, or so many times that."""
    assert join.target_from_source is not None
    placed = poses[join.target].inverse() @ poses[join.source]
    if angle_difference(placed.angle_rad, join.target_from_source.angle_rad) > np.radians(table.settings.agree_deg):
        return False
    return off_px(join, placed) < times * table.settings.agree * table.step_px


def off_px(join: PairMatch, placed: Rigid2D) -> float:
    """How far from where a join says its source lies in another pose, along the seam, on average."""
    assert join.target_from_source is not None
    points = join.points[:, 0] if len(join.points) else np.zeros((1, 2))
    return float(np.linalg.norm(placed.apply(points) - join.target_from_source.apply(points), axis=1).mean())


def seam_of(table: Table, source: str, target: str, pose: Rigid2D) -> tuple[Points, float]:
    """Where two pieces touch in a pose: points (K, 2, 2) of both contours, and along how many px."""
    one, other = table.outlines[source], table.outlines[target]
    touching = contact(one, other, pose, table.reach_px)
    points = np.stack([one.points[touching.rows], other.points[touching.columns]], axis=1)
    return points, len(touching) * one.spacing_px


def carried_over(join: PairMatch, moved: Poses, fixed: Poses) -> dict[str, Rigid2D]:
    """The poses of the source's group, moved as a whole to where the join wants them beside the target's."""
    assert join.target_from_source is not None
    shift = fixed[join.target] @ join.target_from_source @ moved[join.source].inverse()
    return {name: shift @ pose for name, pose in moved.items()}


def collisions(table: Table, moved: Poses, fixed: Poses, times: float = 1.0) -> Iterator[tuple[str, str]]:
    """Which moved pieces would lie on which fixed ones, along so many times as much contour as is usual."""
    allowed_px, most_px = table.settings.allowed * table.step_px, times * table.settings.overlap * table.step_px
    for name, beside in boxes_meet(table, moved, fixed, -allowed_px):
        beside_from_name = fixed[beside].inverse() @ moved[name]
        laid = table.outlines[name], table.outlines[beside], beside_from_name, allowed_px
        if overlap_penalty(*laid) > most_px or lies_on_px(*laid) > _COVERED * perimeter(laid[0].points):
            yield name, beside


def touching(table: Table, moved: Poses, fixed: Poses, least_px: float) -> Iterator[tuple[str, str]]:
    """Which moved pieces would touch which fixed ones, along so much contour."""
    for name, beside in boxes_meet(table, moved, fixed, table.reach_px):
        if seam_of(table, name, beside, fixed[beside].inverse() @ moved[name])[1] >= least_px:
            yield name, beside


def boxes_meet(table: Table, moved: Poses, fixed: Poses, margin_px: float) -> Iterator[tuple[str, str]]:
    """Moved and fixed pieces whose boxes come so near to each other (below 0: lie so deep in each other)."""
    low, high = _boxes(table, moved)
    other_low, other_high = _boxes(table, fixed)
    names = list(fixed)
    for i, name in enumerate(moved):
        meets = ((other_low - margin_px <= high[i]) & (low[i] - margin_px <= other_high)).all(axis=1)
        yield from ((name, names[j]) for j in np.flatnonzero(meets))


def within(poses: Poses, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Of pairs of pieces of one group, each once, and none of a piece with itself."""
    number = {name: i for i, name in enumerate(poses)}
    yield from ((a, b) for a, b in pairs if number[a] < number[b])


def _boxes(table: Table, poses: Poses) -> tuple[Points, Points]:
    """(N, 2), (N, 2): the lowest and the highest coordinates of placed pieces."""
    placed = [pose.apply(table.outlines[name].points[::4]) for name, pose in poses.items()]
    return np.stack([points.min(axis=0) for points in placed]), np.stack([points.max(axis=0) for points in placed])
