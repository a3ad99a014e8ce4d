"""Plane geometry: rigid transforms, closed contours. Pure numpy, no images.

Points are (x, y) in pixels, y down, pixel centres at integers; arrays are (N, 2).
A closed contour does not repeat its first point, and its signed area is positive.
Transforms are named so that neighbours cancel: `canvas_from_b @ b_from_a`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Points = NDArray[np.float64]


@dataclass(frozen=True)
class Rigid2D:
    """Turn by `angle_rad` (from x towards y), then shift by `(x_px, y_px)`."""

    angle_rad: float = 0.0
    x_px: float = 0.0
    y_px: float = 0.0

    @classmethod
    def from_matrix(cls, matrix: ArrayLike) -> Rigid2D:
        """Read `[[a, b, tx], [c, d, ty]]` (a third row is ignored); refuse what is not rigid."""
        m = np.asarray(matrix, dtype=np.float64)
        if m.shape not in ((2, 3), (3, 3)) or not np.isfinite(m).all():
            raise ValueError(f"a rigid transform is a finite 2x3 matrix, this one has shape {m.shape}")
        turn = m[:2, :2]
        if np.abs(turn).max() > 2 or not np.allclose(turn @ turn.T, np.eye(2), atol=1e-3) or np.linalg.det(turn) < 0:
            raise ValueError("the matrix scales, shears or mirrors; a rigid transform only turns and shifts")
        return cls(float(np.arctan2(turn[1, 0], turn[0, 0])), float(m[0, 2]), float(m[1, 2]))

    @classmethod
    def about(cls, centre: ArrayLike, angle_rad: float) -> Rigid2D:
        """Turn around `centre`, which stays where it is."""
        x, y = np.asarray(centre, dtype=np.float64)
        turned = cls(angle_rad).apply([[x, y]])[0]
        return cls(angle_rad, float(x - turned[0]), float(y - turned[1]))

    @property
    def matrix(self) -> NDArray[np.float64]:
        """(2, 3) matrix, as OpenCV's warps and the file formats want it."""
        c, s = np.cos(self.angle_rad), np.sin(self.angle_rad)
        return np.array([[c, -s, self.x_px], [s, c, self.y_px]])

    @property
    def shift(self) -> NDArray[np.float64]:
        """(2,) the translation."""
        return np.array([self.x_px, self.y_px])

    def apply(self, points: ArrayLike) -> Points:
        """Move points (N, 2)."""
        m = self.matrix
        return np.asarray(points, dtype=np.float64) @ m[:, :2].T + m[:, 2]

    def rounded(self) -> Rigid2D:
        """On a grid of 2^-20 px and 2^-32 rad: far finer than anyone can measure, far coarser than rounding errors."""
        return Rigid2D(
            round(self.angle_rad * 2.0**32) * 2.0**-32,
            round(self.x_px * 2.0**20) * 2.0**-20,
            round(self.y_px * 2.0**20) * 2.0**-20,
        )

    def inverse(self) -> Rigid2D:
        c, s = math.cos(self.angle_rad), math.sin(self.angle_rad)
        return Rigid2D(wrap_angle(-self.angle_rad), -c * self.x_px - s * self.y_px, s * self.x_px - c * self.y_px)

    def __matmul__(self, other: Rigid2D) -> Rigid2D:
        """First `other`, then `self`."""
        c, s = math.cos(self.angle_rad), math.sin(self.angle_rad)
        return Rigid2D(
            wrap_angle(self.angle_rad + other.angle_rad),
            c * other.x_px - s * other.y_px + self.x_px,
            s * other.x_px + c * other.y_px + self.y_px,
        )


def wrap_angle(angle_rad: float) -> float:
    """The same direction in [-pi, pi)."""
    return float((angle_rad + math.pi) % (2 * math.pi) - math.pi)


def angle_difference(a_rad: float, b_rad: float) -> float:
    """Smallest turn between two directions, in [0, pi]."""
    return abs(wrap_angle(a_rad - b_rad))


def fit_rigid(source: ArrayLike, target: ArrayLike, weights: ArrayLike | None = None) -> Rigid2D:
    """Least-squares `target_from_source` of corresponding points (N, 2), N >= 2 (Procrustes)."""
    a, b = np.asarray(source, dtype=np.float64), np.asarray(target, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 2 or a.shape[1] != 2 or len(a) < 2:
        raise ValueError(f"fit_rigid needs two equal arrays (N >= 2, 2), got {a.shape} and {b.shape}")
    w = np.ones(len(a)) if weights is None else np.asarray(weights, dtype=np.float64)
    w = w / w.sum()
    centre_a, centre_b = w @ a, w @ b
    a, b = a - centre_a, b - centre_b
    # As complex numbers the best rotation is the phase of sum(conj(a) b).
    cosine = w @ (a * b).sum(axis=1)
    sine = w @ (a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0])
    turn = Rigid2D(float(np.arctan2(sine, cosine)))
    shift = centre_b - turn.apply([centre_a])[0]
    return Rigid2D(turn.angle_rad, float(shift[0]), float(shift[1]))


def signed_area(contour: ArrayLike) -> float:
    """Area of a closed contour (N, 2); positive for our orientation (clockwise on the screen)."""
    x, y = np.asarray(contour, dtype=np.float64).T
    return float(0.5 * np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y))


def perimeter(contour: ArrayLike) -> float:
    """Length of a closed contour (N, 2)."""
    return float(_edge_lengths(np.asarray(contour, dtype=np.float64)).sum())


def centroid(contour: ArrayLike) -> NDArray[np.float64]:
    """(2,) centre of the enclosed area."""
    points = np.asarray(contour, dtype=np.float64)
    origin = points[0]  # keeps the products small, wherever the contour lies
    x, y = (points - origin).T
    cross = x * np.roll(y, -1) - np.roll(x, -1) * y
    mean = np.array([((x + np.roll(x, -1)) * cross).sum(), ((y + np.roll(y, -1)) * cross).sum()])
    return np.asarray(origin + mean / (3 * cross.sum()))


def resample_closed(contour: ArrayLike, step_px: float = 1.0) -> Points:
    """The same closed curve, with points at equal arc length.

    The spacing is the one nearest to `step_px` that divides the perimeter. The first point is the vertex
    farthest from the centroid, so the result does not depend on where the input starts, and turns with it.
    """
    points = np.asarray(contour, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < 3:
        raise ValueError(f"a closed contour is an array (N >= 3, 2), this one has shape {points.shape}")
    points = points[_edge_lengths(points) > 0]
    reach = np.linalg.norm(points - centroid(points), axis=1)
    # Rounding keeps vertices that are equally far in exact arithmetic equal here; the tie goes to the
    # upper left one, whatever the order of the input.
    tied = np.flatnonzero(reach >= reach.max() - 1e-6)
    first = tied[np.lexsort((points[tied, 0], points[tied, 1]))[0]]
    points = np.roll(points, -first, axis=0)
    arc = np.concatenate([[0.0], np.cumsum(_edge_lengths(points))])
    count = max(3, round(arc[-1] / step_px))
    at = np.arange(count) * (arc[-1] / count)
    closed = np.vstack([points, points[:1]])
    return np.stack([np.interp(at, arc, closed[:, 0]), np.interp(at, arc, closed[:, 1])], axis=1)


def _edge_lengths(points: Points) -> NDArray[np.float64]:
    """(N,) distance from each point to the next, the last one to the first."""
    return np.asarray(np.linalg.norm(np.roll(points, -1, axis=0) - points, axis=1))
