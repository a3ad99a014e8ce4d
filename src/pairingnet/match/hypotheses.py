"""Two pieces with a local frame at every contour point -> a few rigid transforms, each with its support.

A correspondence of two frames fixes the whole transform: the points coincide, the tangents oppose. So every
likely correspondence proposes one, and all others vote on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairingnet.geometry import Points, Rigid2D, angle_difference, fit_rigid


@dataclass(frozen=True, eq=False)
class Correspondences:
    """K likely pairs of contour points: rows and columns (K,) in the two contours, probability (K,), best first."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    probability: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A transform, what speaks for it, and which correspondences (K,) do."""

    target_from_source: Rigid2D
    support: float
    inliers: NDArray[np.intp]


def likely_correspondences(logits: NDArray[np.float32], most: int, least: float) -> Correspondences:
    """The best partner of every row and of every column of logits (N, M), by the dual softmax."""
    by_row = _softmax(logits, axis=1)
    by_column = _softmax(logits, axis=0)
    probability = by_row * by_column
    rows, columns = np.arange(len(logits)), np.arange(logits.shape[1])
    best = np.concatenate(
        [
            np.stack([rows, probability.argmax(axis=1)], axis=1),
            np.stack([probability.argmax(axis=0), columns], axis=1),
        ]
    )
    best = np.unique(best, axis=0)
    values = probability[best[:, 0], best[:, 1]].astype(np.float64)
    order = np.argsort(-values, kind="stable")[:most]
    order = order[values[order] >= least]
    return Correspondences(best[order, 0], best[order, 1], values[order])


def propose(
    found: Correspondences,
    source: tuple[Points, Points],
    target: tuple[Points, Points],
    threshold_px: float,
    most: int,
) -> list[Hypothesis]:
    """Up to `most` different transforms, the best supported first. source and target: points and tangents (N, 2)."""
    if len(found) < 2:
        return []
    a, b = source[0][found.rows], target[0][found.columns]
    ta, tb = source[1][found.rows], target[1][found.columns]
    weight = np.sqrt(found.probability)
    # The rotation that turns ta into -tb, as a complex number.
    turn = -(tb[:, 0] + 1j * tb[:, 1]) * (ta[:, 0] - 1j * ta[:, 1])
    turn /= np.maximum(np.abs(turn), 1e-9)
    pa, pb = a[:, 0] + 1j * a[:, 1], b[:, 0] + 1j * b[:, 1]
    shift = pb - turn * pa
    landed = turn[:, None] * pa[None] + shift[:, None]  # (H, K)
    agrees = np.abs(landed - pb[None]) < threshold_px
    support = agrees @ weight
    kept: list[Hypothesis] = []
    told = np.zeros(len(found), dtype=bool)
    for h in np.argsort(-support, kind="stable"):
        if len(kept) >= most or support[h] < 0.05 * support.max():
            break
        if told[h]:
            continue
        # A correspondence that agrees with a better proposal, with about the same turn, proposes the same.
        told |= agrees[h] & ((turn * turn[h].conj()).real > np.cos(np.radians(12)))
        start = Rigid2D(float(np.angle(turn[h])), float(shift[h].real), float(shift[h].imag))
        kept.append(_settle(start, a, b, weight, threshold_px))
    kept = [each for each in kept if len(each.inliers) >= 2]
    different: list[Hypothesis] = []
    for each in sorted(kept, key=lambda hypothesis: -hypothesis.support):
        if not any(_alike(each.target_from_source, o.target_from_source, a, threshold_px) for o in different):
            different.append(each)
    return different


def _settle(start: Rigid2D, a: Points, b: Points, weight: NDArray[np.float64], threshold_px: float) -> Hypothesis:
    """Fit to the correspondences that agree, a few times, stricter each time."""
    transform = start
    inliers = np.zeros(0, dtype=np.intp)
    for factor in (1.5, 1.0, 0.7, 0.7):
        apart = np.linalg.norm(transform.apply(a) - b, axis=1)
        near = np.flatnonzero(apart < factor * threshold_px)
        if len(near) < 2:
            break
        inliers = near
        transform = fit_rigid(a[near], b[near], weight[near])
    apart = np.linalg.norm(transform.apply(a) - b, axis=1)
    support = float((weight * np.clip(1.3 - apart / threshold_px, 0, 1))[apart < 1.3 * threshold_px].sum())
    return Hypothesis(transform, support, inliers)


def _alike(one: Rigid2D, other: Rigid2D, points: Points, near_px: float) -> bool:
    if angle_difference(one.angle_rad, other.angle_rad) > np.radians(12):
        return False
    return bool(np.linalg.norm(one.apply(points) - other.apply(points), axis=1).min() < near_px)


def _softmax(x: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))
