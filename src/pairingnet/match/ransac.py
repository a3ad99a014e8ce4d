"""A rigid transform that most correspondences agree on, some of which are wrong.

RANSAC with the proposals of a block fitted and judged at once. As complex numbers a rigid motion is
z -> r z + t with |r| = 1, and its least-squares fit a few sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairingnet.geometry import Points, Rigid2D, fit_rigid

_BLOCK = 128
_CONFIDENCE = 0.9999


@dataclass(frozen=True, eq=False)
class RobustFit:
    """The transform, or None where there was nothing to fit; inliers (K,)."""

    target_from_source: Rigid2D | None
    inliers: NDArray[np.bool_]


def ransac_rigid(
    source: Points,
    target: Points,
    rng: np.random.Generator,
    sample: int = 5,
    threshold_px: float = 10.0,
    iterations: int = 4000,
) -> RobustFit:
    """Fit `target_from_source` to corresponding points (K, 2), (K, 2)."""
    count = len(source)
    if count < sample:
        return RobustFit(None, np.zeros(count, dtype=bool))
    z, w = source @ np.array([1, 1j]), target @ np.array([1, 1j])
    best = np.zeros(count, dtype=bool)
    tried, needed = 0, iterations
    while tried < needed:
        size = min(_BLOCK, iterations - tried)
        chosen = rng.integers(0, count, (size, sample))
        turn, shift = _fit_many(z[chosen], w[chosen])
        inliers = np.abs(turn[:, None] * z[None] + shift[:, None] - w[None]) < threshold_px  # (I, K)
        leader = int(np.argmax(inliers.sum(axis=1)))
        if inliers[leader].sum() > best.sum():
            best = inliers[leader]
        tried += size
        needed = min(iterations, _enough(float(best.mean()), sample))
    if best.sum() < sample:
        return RobustFit(None, np.zeros(count, dtype=bool))
    for _ in range(3):  # the inliers of the better fit fit better
        pose = fit_rigid(source[best], target[best])
        best = np.linalg.norm(pose.apply(source) - target, axis=1) < threshold_px
        if best.sum() < sample:
            break
    return RobustFit(pose, best)


def _fit_many(
    z: NDArray[np.complex128], w: NDArray[np.complex128]
) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """Turn (I,) and shift (I,) of the best motions from z (I, S) to w (I, S)."""
    zc, wc = z.mean(axis=1), w.mean(axis=1)
    cross = (np.conj(z - zc[:, None]) * (w - wc[:, None])).sum(axis=1)
    length = np.abs(cross)
    turn = np.where(length > 1e-12, cross / np.maximum(length, 1e-12), 1.0)
    return turn, wc - turn * zc


def _enough(share: float, sample: int) -> int:
    """Proposals after which one of inliers only is almost certain to have been among them."""
    all_inliers = share**sample
    if all_inliers <= 0:
        return 2**31
    if all_inliers >= 1 - 1e-9:
        return 1
    return int(np.ceil(np.log(1 - _CONFIDENCE) / np.log1p(-all_inliers)))
