"""How two contours lie on each other under a transform: where they touch, how they meet, what overlaps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.geometry import Points, Rigid2D, perimeter, resample_closed
from pairingnet.match import loops
from pairingnet.match.loops import Floats, Ground
from pairingnet.prepare.strip import as_stored

_CELL = 2.0  # spacings of the contour's points
_COARSE = 8  # every so many points are enough to see whether pieces lie on each other
_MARGIN = 16  # cells around a piece in which its contour is found


class Outline:
    """A fragment's contour, ready to be laid on others: points (N, 2) at equal steps, tangents, and a grid that finds
    the point nearest to any place."""

    def __init__(self, contour: Points, tangents: Points | None = None) -> None:
        self.points = np.ascontiguousarray(contour, dtype=np.float64)
        if tangents is None:
            along = np.roll(self.points, -2, axis=0) - np.roll(self.points, 2, axis=0)
            tangents = along / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
        self.tangents: Points = np.ascontiguousarray(tangents, dtype=np.float64)

    @classmethod
    def at_step(cls, contour: Points, step_px: float) -> Outline:
        """A contour with four points a step, or one a pixel: what is finer costs time and tells nothing."""
        spacing_px = perimeter(contour) / len(contour)
        return cls(as_stored(contour if step_px / 4 <= spacing_px else resample_closed(contour, step_px / 4)))

    @cached_property
    def spacing_px(self) -> float:
        return perimeter(self.points) / len(self.points)

    @property
    def perimeter_px(self) -> float:
        return self.spacing_px * len(self.points)

    @cached_property
    def inwards(self) -> Points:
        """(N, 2): normals that lead into the piece."""
        return np.stack([-self.tangents[:, 1], self.tangents[:, 0]], axis=1)

    @cached_property
    def tree(self) -> cKDTree:
        """The points, to be found from any distance."""
        return cKDTree(self.points)

    @cached_property
    def ground(self) -> Ground:
        """This contour, for others to be laid on it."""
        cell_px = _CELL * self.spacing_px
        corner = self.points.min(axis=0) - _MARGIN * cell_px
        width, height = np.ceil((self.points.max(axis=0) - corner) / cell_px).astype(int) + 1 + _MARGIN
        at = (self.points - corner) / cell_px
        columns, rows = np.rint(at).astype(np.intp).T
        free = np.ones((height, width), dtype=np.uint8)
        free[rows, columns] = 0
        distance, label = cv2.distanceTransformWithLabels(free, cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL)
        point_of = np.zeros(int(label.max()) + 1, dtype=np.int32)
        point_of[label[rows, columns]] = np.arange(1, len(self.points) + 1)
        side = -(distance <= _MARGIN).astype(np.int8)  # outside; 0 where the contour is far
        cv2.fillPoly(side.view(np.uint8), [np.rint(at * 16).astype(np.int32)], 1, shift=4)
        return self.points, self.tangents, point_of[label] * side, corner, cell_px


@dataclass(frozen=True, eq=False)
class Contact:
    """Where two outlines touch: rows and columns (K,) of their points; how far apart they are across the seam (K,)
    (positive: a gap) and along it (K,), in px."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    gap_px: Floats
    along_px: Floats

    def __len__(self) -> int:
        return len(self.rows)


def contact(source: Outline, target: Outline, target_from_source: Rigid2D, reach_px: float) -> Contact:
    """The source's points that lie within `reach_px` of the target's contour with opposed tangents."""
    pose = as_pose(target_from_source)
    rows, columns = loops.touching(pose, source.points, source.tangents, 1, target.ground, reach_px)
    return Contact(rows, columns, *loops.apart(pose, source.points, target.ground, rows, columns))


def refine(
    source: Outline,
    target: Outline,
    start: Rigid2D,
    anchors: tuple[Points, Points, NDArray[np.float64]],
    reach_px: float,
    rounds: int = 8,
    gap_px: float = 0.0,
) -> Rigid2D:
    """Slide and turn until the contours meet, or are `gap_px` apart: point to line along the contact, held by the
    anchors.

    anchors: corresponding points (K, 2) of source and target and their weights (K,); along a straight seam nothing
    but them says where the pieces sit.
    """
    cosine, sine, x, y = loops.slide(
        as_pose(start),
        source.points,
        source.tangents,
        target.ground,
        *(np.ascontiguousarray(part, dtype=np.float64) for part in anchors),
        reach_px,
        rounds,
        gap_px,
    )
    return Rigid2D(float(np.arctan2(sine, cosine)), float(x), float(y))


def overlap_penalty(
    source: Outline, target: Outline, target_from_source: Rigid2D, allowed_px: float, every: int = 1
) -> float:
    """How much contour (px) of either piece would lie deeper than allowed inside the other; from every n-th point."""
    total = 0.0
    for moved, fixed, pose in (
        (source, target, target_from_source),
        (target, source, target_from_source.inverse()),
    ):
        deep = loops.count_inside(as_pose(pose), moved.points, every, fixed.ground, allowed_px)
        total += every * deep * moved.spacing_px
    return total


def lies_on_px(source: Outline, target: Outline, target_from_source: Rigid2D, allowed_px: float) -> float:
    """How much contour (px) of the source would lie inside the target if it were drawn twice as deep as allowed inside
    of its piece: where two pieces lie exactly on each other, the contours themselves are nowhere deep."""
    drawn = source.points + 2 * allowed_px * source.inwards
    deep = loops.count_inside(as_pose(target_from_source), drawn, _COARSE, target.ground, allowed_px)
    return float(_COARSE * deep * source.spacing_px)


def as_pose(transform: Rigid2D) -> Floats:
    """(4,) as the loops want it."""
    return np.array([np.cos(transform.angle_rad), np.sin(transform.angle_rad), transform.x_px, transform.y_px])
