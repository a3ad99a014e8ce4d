"""Two pieces with a local frame at every contour point -> a few rigid transforms, each with its support.

A correspondence of two frames fixes the whole transform: the points coincide, the tangents oppose. So every
likely correspondence proposes one, and all others vote on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairingnet.geometry import Points, Rigid2D
from pairingnet.match.loops import best_partners, different, proposers, settle, votes_for

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


def likely_correspondences(
    logits: NDArray[np.float32], most: int, least: float, sharper: float = 1.0
) -> Correspondences:
    """The best partner of every row and of every column of logits (N, M), by the dual softmax of so many times them."""
    exponential = logits - logits.max()
    exponential *= sharper
    np.maximum(exponential, -80, out=exponential)  # less would be nothing, and divide by it
    np.exp(exponential, out=exponential)
    of_row, of_column = (1 / exponential.sum(axis=axis, dtype=np.float32) for axis in (1, 0))
    rows, columns, values = best_partners(exponential, of_row, of_column, least)
    order = np.argsort(-values, kind="stable")[:most]
    order = order[values[order] >= least]
    return Correspondences(rows[order], columns[order], values[order].astype(np.float64))


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
    agrees, support = votes_for(turn, shift, pa, pb, weight, threshold_px)
    # A correspondence that agrees with a better proposal, with about the same turn, proposes the same.
    chosen = proposers(support, agrees, turn, most, 0.05 * support.max(), _SAME_TURN)
    turn, shift, apart = settle(turn[chosen], shift[chosen], pa, pb, weight, threshold_px)
    support = (weight * np.clip(1.3 - apart / threshold_px, 0, 1)).sum(axis=1)
    inliers = apart < 0.7 * threshold_px
    enough = np.flatnonzero(inliers.sum(axis=1) >= 2)
    kept = enough[different(support[enough], turn[enough], shift[enough], pa, threshold_px, _SAME_TURN)]
    return [
        Hypothesis(
            Rigid2D(float(np.angle(turn[h])), float(shift[h].real), float(shift[h].imag)),
            float(support[h]),
            np.flatnonzero(inliers[h]),
        )
        for h in kept
    ]
