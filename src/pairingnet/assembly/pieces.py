"""Outlines of fragments, laid beside each other: along how much contour they touch, and how much they overlap.

Lengths are in steps of the contour. Poses are rounded to a grid first, far finer than what they are known to, so that
the answer is one whoever asks first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pairingnet.assembly.candidates import Complex, Numbers, on_plane
from pairingnet.geometry import Rigid2D
from pairingnet.match import loops
from pairingnet.match.contact import Outline, as_pose, lies_on_px
from pairingnet.types import PairMatch

_REACH = 3.0  # steps between contours that touch, where several matches have placed them
_ALLOWED = 2.5  # steps; so deep in each other pieces may lie: poses are not known to less
_ON_EACH_OTHER = (
    0.25  # of a contour, drawn a little smaller, that lies inside another: far more than poses are ever off
)
_TURNS = 8192.0  # cells of the grid in a radian
_SHIFTS = 8.0  # cells in a step


class Meeting(NamedTuple):
    """Two pieces beside each other: steps of contact, steps of contour deep inside the other, how far the contact bends
    away from a straight line, and whether one lies on the other, which cannot be."""

    contact: float
    overlap: float
    bend: float
    on_top: bool


@dataclass(frozen=True, eq=False)
class Pieces:
    """The fragments of a problem, in the order of their names; gap_px: what wear has usually taken away between
    neighbours."""

    names: tuple[str, ...]
    outlines: tuple[Outline, ...]
    step_px: float
    gap_px: float = 0.0
    centres: Complex = field(init=False)
    radii_px: NDArray[np.float64] = field(init=False)
    _known: dict[tuple[int, ...], Meeting] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        points = [on_plane(outline.points) for outline in self.outlines]
        centres = np.array([each.mean() for each in points], dtype=np.complex128)
        radii = [float(np.abs(each - centre).max()) for each, centre in zip(points, centres, strict=True)]
        object.__setattr__(self, "centres", centres)
        object.__setattr__(self, "radii_px", np.array(radii, dtype=np.float64))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def reach_px(self) -> float:
        """Contours this near to each other touch."""
        return _REACH * self.step_px + self.gap_px

    def near(self, one: Numbers, placed: Complex, other: Numbers, others: Complex) -> NDArray[np.intp]:
        """(K, 2): places in both lists of pieces that may touch; placed and others: where their centres lie."""
        apart = np.abs(placed[:, None] - others) - self.radii_px[one][:, None] - self.radii_px[other]
        return np.argwhere(apart < self.reach_px)

    def meeting(self, one: int, other: int, turn: complex, shift: complex) -> Meeting:
        """How the first piece lies on the second, in a pose `second_from_first`."""
        angle, cell_px = round(float(np.angle(turn)) * _TURNS), self.step_px / _SHIFTS
        x, y = round(shift.real / cell_px), round(shift.imag / cell_px)
        key = (one, other, angle, x, y)
        if key not in self._known:
            pose = Rigid2D(angle / _TURNS, x * cell_px, y * cell_px)
            self._known[key] = _meeting(self.outlines[one], self.outlines[other], pose, self.step_px, self.reach_px)
        return self._known[key]


def usual_gap_px(matches: Iterable[PairMatch]) -> float:
    """The gap of most matches that are rather right than wrong."""
    gaps = [match.evidence.get("worn_px", 0.0) for match in matches if match.probability > 0.5]
    return float(np.median(gaps)) if gaps else 0.0


def pieces_of(outlines: Mapping[str, Outline], step_px: float, gap_px: float) -> Pieces:
    """In the order of their names, whatever order they are given in."""
    names = tuple(sorted(outlines))
    return Pieces(names, tuple(outlines[name] for name in names), step_px, gap_px)


def _meeting(one: Outline, other: Outline, pose: Rigid2D, step_px: float, reach_px: float) -> Meeting:
    forth, back = as_pose(pose), as_pose(pose.inverse())
    rows, _ = loops.touching(forth, one.points, one.tangents, 1, other.ground, reach_px)
    deep_px = _ALLOWED * step_px
    overlap_px = 2 * one.spacing_px * loops.count_inside(forth, one.points, 2, other.ground, deep_px)
    overlap_px += 2 * other.spacing_px * loops.count_inside(back, other.points, 2, one.ground, deep_px)
    on_top = any(
        lies_on_px(upper, lower, there, deep_px) > _ON_EACH_OTHER * upper.perimeter_px
        for upper, lower, there in ((one, other, pose), (other, one, pose.inverse()))
    )
    bend_px = loops.bend(one.points, rows) if len(rows) > 2 else 0.0
    contact_px = len(rows) * one.spacing_px
    return Meeting(contact_px / step_px, float(overlap_px) / step_px, float(bend_px) / step_px, on_top)
