"""Two pieces with a local frame at every contour point -> a few rigid transforms, each with its support.

A correspondence of two frames fixes the whole transform: the points coincide, the tangents oppose. So every
likely correspondence proposes one, and all others vote on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairingnet.geometry import Points, Rigid2D

Complex = NDArray[np.complex128]

_COMPLEX = np.array([1, 1j])
_SAME_TURN = float(np.cos(np.radians(12)))


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
    # As complex numbers a rigid motion is z -> turn z + shift; this one turns ta into -tb.
    pa, pb = a @ _COMPLEX, b @ _COMPLEX
    turn = -(tb @ _COMPLEX) * (ta @ _COMPLEX).conj()
    turn /= np.maximum(np.abs(turn), 1e-9)
    shift = pb - turn * pa
    agrees = np.abs(turn[:, None] * pa[None] + shift[:, None] - pb[None]) < threshold_px  # (H, K)
    support = agrees @ weight
    chosen: list[int] = []
    told = np.zeros(len(found), dtype=bool)
    for h in np.argsort(-support, kind="stable"):
        if len(chosen) >= most or support[h] < 0.05 * support.max():
            break
        if told[h]:
            continue
        # A correspondence that agrees with a better proposal, with about the same turn, proposes the same.
        told |= agrees[h] & ((turn * turn[h].conj()).real > _SAME_TURN)
        chosen.append(int(h))
    turn, shift, apart = _settle(turn[chosen], shift[chosen], pa, pb, weight, threshold_px)
    support = (weight * np.clip(1.3 - apart / threshold_px, 0, 1)).sum(axis=1)
    inliers = apart < 0.7 * threshold_px
    kept: list[int] = []
    for h in np.argsort(-support, kind="stable"):
        near = (turn[kept] * turn[h].conj()).real > _SAME_TURN
        moved = np.abs((turn[h] - turn[kept][:, None]) * pa + (shift[h] - shift[kept])[:, None]).min(axis=1)
        if inliers[h].sum() >= 2 and not (near & (moved < threshold_px)).any():
            kept.append(int(h))
    return [
        Hypothesis(
            Rigid2D(float(np.angle(turn[h])), float(shift[h].real), float(shift[h].imag)),
            float(support[h]),
            np.flatnonzero(inliers[h]),
        )
        for h in kept
    ]


def _settle(
    turn: Complex, shift: Complex, pa: Complex, pb: Complex, weight: NDArray[np.float64], threshold_px: float
) -> tuple[Complex, Complex, NDArray[np.float64]]:
    """Fit all motions (H,) to the correspondences that agree with each, a few times, stricter each time; with the
    distances (H, K) that are left."""
    for factor in (1.5, 1.0, 0.7, 0.7):
        apart = np.abs(turn[:, None] * pa[None] + shift[:, None] - pb[None])
        w = weight * (apart < factor * threshold_px)
        total = np.maximum(w.sum(axis=1, keepdims=True), 1e-12)
        w = w / total
        centre_a, centre_b = w @ pa, w @ pb
        best = ((w * (pa[None] - centre_a[:, None]).conj()) * (pb[None] - centre_b[:, None])).sum(axis=1)
        fitted = np.abs(best) > 1e-6  # one point alone says nothing about the turn
        turn = np.where(fitted, best / np.maximum(np.abs(best), 1e-12), turn)
        shift = np.where(fitted, centre_b - turn * centre_a, shift)
    return turn, shift, np.abs(turn[:, None] * pa[None] + shift[:, None] - pb[None])


def _softmax(x: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))
