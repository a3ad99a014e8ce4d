"""How two contours lie on each other under a transform: refinement to sub-pixel, and what can be measured there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.geometry import Points, Rigid2D
from pairingnet.types import Pixels


class Outline:
    """A fragment's contour, ready to be laid on others: points (N, 2) at about 1 px, normals, depth inside."""

    def __init__(self, contour: Points) -> None:
        self.points = contour
        along = np.roll(self.points, -2, axis=0) - np.roll(self.points, 2, axis=0)
        self.tangents: Points = along / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)

    @cached_property
    def normals(self) -> Points:
        """(N, 2) into the piece."""
        return np.stack([-self.tangents[:, 1], self.tangents[:, 0]], axis=1)

    @cached_property
    def box(self) -> tuple[Points, Points]:
        """(2,), (2,): the upper left and the lower right corner."""
        return self.points.min(axis=0), self.points.max(axis=0)

    @cached_property
    def tree(self) -> cKDTree:
        return cKDTree(self.points)

    @cached_property
    def _depth(self) -> tuple[Pixels, float]:
        """(H, W) how deep a pixel lies inside of the piece, from the corner of its box, and the unit of that in px."""
        width, height = np.ceil(self.box[1] - self.box[0]).astype(int) + 3
        mask = np.zeros((height, width), dtype=np.uint8)
        cv2.fillPoly(mask, [np.rint(self.points - self.box[0] + 1).astype(np.int32)], 1)
        depth = cv2.distanceTransform(mask, cv2.DIST_L2, 5)
        unit = max(float(depth.max()), 1.0) / 255
        return (depth / unit).astype(np.uint8), unit

    def depth_at(self, points: Points) -> NDArray[np.float32]:
        """(N,) px that places lie inside of the piece; 0 outside."""
        at = np.rint(points - self.box[0] + 1).astype(np.intp)
        stored, unit = self._depth
        height, width = stored.shape
        within = (at[:, 0] >= 0) & (at[:, 0] < width) & (at[:, 1] >= 0) & (at[:, 1] < height)
        depth = np.zeros(len(at), dtype=np.float32)
        depth[within] = unit * stored[at[within, 1], at[within, 0]]
        return depth


@dataclass(frozen=True, eq=False)
class Contact:
    """Where two outlines touch: rows and columns (K,) of their points, signed gap (K,) in px along the target's normal
    (positive: apart)."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    gap_px: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rows)


def contact(source: Outline, target: Outline, target_from_source: Rigid2D, reach_px: float, every: int = 1) -> Contact:
    """The source's points (or every n-th) that lie within `reach_px` of the target's contour with opposed tangents."""
    landed = target_from_source.apply(source.points)
    (left, top), (right, bottom) = target.box
    x, y = landed[::every].T
    near = every * np.flatnonzero(
        (x > left - reach_px) & (x < right + reach_px) & (y > top - reach_px) & (y < bottom + reach_px)
    )
    distance, nearest = target.tree.query(landed[near], distance_upper_bound=reach_px)
    found = np.isfinite(distance)
    rows, columns = near[found], np.asarray(nearest, dtype=np.intp)[found]
    turned = target_from_source.apply(source.tangents[rows]) - target_from_source.shift
    opposed = (turned * target.tangents[columns]).sum(axis=1) < -0.6
    rows, columns = rows[opposed], columns[opposed]
    apart = target.points[columns] - landed[rows]
    return Contact(rows, columns, (apart * target.normals[columns]).sum(axis=1))


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
    transform = start
    a, b, weight = anchors
    right_wards, down_wards = np.tile([1.0, 0.0], (len(a), 1)), np.tile([0.0, 1.0], (len(a), 1))
    for number in range(rounds):
        reach = reach_px * max(0.35, 1 - number / rounds)
        touching = contact(source, target, transform, reach, every=3 if number < rounds // 2 else 1)
        if len(touching) < 10:
            return transform
        p, n = transform.apply(source.points[touching.rows]), target.normals[touching.columns]
        move_px = touching.gap_px - gap_px
        sigma = max(0.5, float(np.abs(move_px - move_px.mean()).mean()))
        trust = 1 / (1 + (move_px / (3 * sigma)) ** 2) ** 2
        lines = _rows(p, n, move_px, trust)
        landed = transform.apply(a)
        off = b - landed
        hold = 0.15 * weight * len(touching) / max(1e-9, len(a) * weight.mean())
        hold = hold / (1 + (np.linalg.norm(off, axis=1) / reach_px) ** 2) ** 2 / 4
        across, down = _rows(landed, right_wards, off[:, 0], hold), _rows(landed, down_wards, off[:, 1], hold)
        left, right = (sum(parts) for parts in zip(lines, across, down, strict=True))
        turn, x, y = np.linalg.solve(left + 1e-9 * np.eye(3), right)
        transform = Rigid2D(float(turn), float(x), float(y)) @ transform
        if number >= rounds // 2 and abs(turn) < 2e-5 and abs(x) + abs(y) < 2e-2:
            break
    return transform


def _rows(
    points: Points, directions: Points, distance: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Normal equations of small motions (turn, x, y) that move points along directions by distances."""
    spin = directions[:, 1] * points[:, 0] - directions[:, 0] * points[:, 1]
    j = np.column_stack([spin, directions])
    return (j * weight[:, None]).T @ j, (j * weight[:, None]).T @ distance


def overlap_penalty(
    source: Outline, target: Outline, target_from_source: Rigid2D, allowed_px: float, every: int = 1
) -> float:
    """How many contour points (px of contour) of either piece would lie deeper than allowed inside the other; from
    every n-th of them."""
    landed = target_from_source.apply(source.points[::every])
    back = target_from_source.inverse().apply(target.points[::every])
    deep = (target.depth_at(landed) > allowed_px).sum() + (source.depth_at(back) > allowed_px).sum()
    return float(every * deep)
