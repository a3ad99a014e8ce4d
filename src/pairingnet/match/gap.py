"""Broken pieces do not touch: the width of the gap between two contours, fitted together with the pose.

Closing contours on each other answers the wrong question where both have lost something: what runs parallel at a
distance is drawn together until it touches, and a curved seam is bent out of place by it. Here the distance is unknown
as well. Of each point of the source that lies opposite the target, with outward normal n of the target,

    n . (moved point - nearest point of the target) = g(s),    g(s) = width + slope s

is solved by least squares for the small motion of the source and for the gap, robustly, until nothing moves. Where the
seam bends, or has two islands, the width is told by the contours alone: only at the right distance are they parallel
all along. Along a straight seam it is not, and the prior decides; how uncertain the answer is says which it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pairingnet.geometry import Points, Rigid2D
from pairingnet.match.contact import Outline
from pairingnet.match.loops import OPPOSED
from pairingnet.types import PairMatch

_EVERY = 4  # points of an outline: one a step
_LEAST = 16  # of these points opposite each other; fewer fix neither a pose nor a gap
_ROUNDS = 25
_REWEIGHTED = 3  # times a round that what does not go with the gap loses weight
_STILL_PX = 1e-3  # motions below this are none
# Roughness is alike over some points: so many count as one that says something new.
_ALIKE = 8.0
_LEAST_SPREAD = 0.15  # steps; no two contours run more parallel than their points are exact
_HELD = 0.15  # steps**-1: how firmly points keep their place along the seam, where nothing but that says it
_SLOPE = 0.05  # usual change of a gap along its seam, px per px

# Of a collection, in steps. Whole pieces lie within .01 to .05, scans and sherds that touch within .15.
_LOOSE = 0.15
_LIKELY = 0.5  # joins that tell what is usual
_HEARD = 0.005  # less likely ones are not looked at again
_BROAD = 8.0  # how far a gap may be from what is told before anything is fitted
_REACH = 12.0
# Smaller gaps the verifier tells as well or better: of pieces that have lost .4 to 2.3 steps the fit tells .7 to 4.4
# (puzzles of photos/val, rubbed and of medium wear).
_WORTH = 5.0


@dataclass(frozen=True)
class GapPrior:
    """What is known of a gap before anything is fitted: its usual width in px, and the spread of that."""

    width_px: float
    spread_px: float


@dataclass(frozen=True, eq=False)
class GapFit:
    """A pose that lets the contours run parallel; width_px: of the gap, in the middle of the seam; slope: its change
    along the seam; spread_px: what is left between contours and gap; sigma_px: how uncertain the width is; covariance
    (3, 3): of turn (rad) and shift (px) about the middle of the seam; points: how many lie opposite each other."""

    target_from_source: Rigid2D
    width_px: float = 0.0
    slope: float = 0.0
    spread_px: float = float("nan")
    sigma_px: float = float("inf")
    covariance: NDArray[np.float64] = field(default_factory=lambda: np.full((3, 3), np.inf), repr=False)
    points: int = 0


def with_gaps(joins: Sequence[PairMatch], outlines: Mapping[str, Outline], step_px: float) -> list[PairMatch]:
    """Joins of one collection, where its pieces no longer touch: the gaps that the likely ones tell together, and the
    poses of all of them with such gaps. The same joins where pieces touch."""
    likely = [join for join in joins if join.probability >= _LIKELY and join.target_from_source is not None]
    loose = [join.evidence.get("gap_px", 0.0) for join in likely]
    if not likely or float(np.median(loose)) < _LOOSE * step_px:
        return list(joins)
    told_px = float(np.median([join.evidence.get("worn_px", 0.0) for join in likely]))
    broad = GapPrior(told_px, _BROAD * step_px)
    usual = pooled_prior([_fit_of(join, outlines, step_px, broad) for join in likely], broad)
    if usual.width_px < _WORTH * step_px:
        return list(joins)
    return [_moved_apart(join, outlines, step_px, usual) for join in joins]


def _moved_apart(join: PairMatch, outlines: Mapping[str, Outline], step_px: float, usual: GapPrior) -> PairMatch:
    """A join with its gap, and all other ways to join the two."""
    if join.target_from_source is None or not join.probability >= _HEARD:
        return join
    fit = _fit_of(join, outlines, step_px, usual)
    others = tuple(_moved_apart(other, outlines, step_px, usual) for other in join.others)
    if not fit.points:
        return replace(join, others=others)
    told = {"worn_px": round(fit.width_px, 1), "worn_sigma_px": round(fit.sigma_px, 1)}
    pose = fit.target_from_source.rounded()
    return replace(join, target_from_source=pose, evidence={**join.evidence, **told}, others=others)


def _fit_of(join: PairMatch, outlines: Mapping[str, Outline], step_px: float, prior: GapPrior) -> GapFit:
    assert join.target_from_source is not None
    source, target = outlines[join.source], outlines[join.target]
    return fit_gap(source, target, join.target_from_source, step_px, prior, _REACH * step_px)


def fit_gap(
    source: Outline,
    target: Outline,
    start: Rigid2D,
    step_px: float,
    prior: GapPrior,
    reach_px: float,
    varying: bool = False,
) -> GapFit:
    """Fit pose and gap, from a pose that is nearly right; as it is where too little lies opposite.

    reach_px: contours farther from each other than this are no seam; varying: the gap may change along it.
    """
    points, tangents = source.points[::_EVERY], source.tangents[::_EVERY]
    pose, found = start, GapFit(start)
    for _ in range(_ROUNDS):
        opposite = _opposite(pose, points, tangents, target, reach_px)
        if opposite is None:
            return found
        motion, found = _solved(pose, start, *opposite, step_px, prior, varying)
        pose = found.target_from_source
        if motion < _STILL_PX:
            break
    return found


def pooled_prior(fits: Sequence[GapFit], broad: GapPrior) -> GapPrior:
    """The usual gap of a collection: pieces of one find have suffered alike. By the mean and the spread of what fits
    tell of it, each by its own certainty (random effects), with `broad` as one fit more."""
    known = [fit for fit in fits if np.isfinite(fit.sigma_px)]
    widths = np.array([broad.width_px, *(fit.width_px for fit in known)])
    sigmas = np.array([broad.spread_px, *(fit.sigma_px for fit in known)])
    mean, between = float(np.median(widths)), float(broad.spread_px)
    for _ in range(30):
        weight = 1 / (sigmas**2 + between**2)
        mean = float((weight * widths).sum() / weight.sum())
        # What the widths differ by beyond their own uncertainty.
        surplus = (weight**2 * ((widths - mean) ** 2 - sigmas**2)).sum() / (weight**2).sum()
        between = float(np.sqrt(max(surplus, (0.1 * broad.spread_px) ** 2)))
    return GapPrior(max(mean, 0.0), between)


def _opposite(
    pose: Rigid2D, points: Points, tangents: Points, target: Outline, reach_px: float
) -> tuple[Points, Points, NDArray[np.float64]] | None:
    """The source's points (K, 2) that have the target opposite; its outward normals (K, 2) there, and how far they come
    to lie from it (K,), negative inside. None where they are too few."""
    moved = pose.apply(points)
    distance, nearest = target.tree.query(moved, distance_upper_bound=reach_px)
    near = np.flatnonzero(np.isfinite(distance))
    along = target.tangents[np.asarray(nearest)[near]]
    facing = (Rigid2D(pose.angle_rad).apply(tangents[near]) * along).sum(axis=1) < OPPOSED
    rows, along = near[facing], along[facing]
    if len(rows) < _LEAST:
        return None
    normals = np.stack([along[:, 1], -along[:, 0]], axis=1)
    off = moved[rows] - target.points[np.asarray(nearest)[rows]]
    return points[rows], normals, np.asarray((normals * off).sum(axis=1))


def _solved(
    pose: Rigid2D,
    start: Rigid2D,
    points: Points,
    normals: Points,
    across: NDArray[np.float64],
    step_px: float,
    prior: GapPrior,
    varying: bool,
) -> tuple[float, GapFit]:
    """One step: how far the seam moves by it, px, and the fit after it."""
    moved = pose.apply(points)
    middle = moved.mean(axis=0)
    arm = moved - middle
    radius = max(float(np.sqrt((arm**2).sum(axis=1).mean())), step_px)
    tangents = np.stack([-normals[:, 1], normals[:, 0]], axis=1)
    spin = np.stack([-arm[:, 1], arm[:, 0]], axis=1) / radius  # the turn is counted in px at the seam's ends
    place = arm @ _longest_axis(arm) / radius
    ones = np.ones(len(moved))
    # Unknowns: turn, shift (2), width, slope. Rows: the gap at each point, its place along the seam, what is known.
    columns = [(normals * spin).sum(axis=1), normals[:, 0], normals[:, 1], -ones, -place]
    held = [(tangents * spin).sum(axis=1), tangents[:, 0], tangents[:, 1], 0 * ones, 0 * ones]
    gaps, holds = np.stack(columns, axis=1), np.stack(held, axis=1)
    firm = np.full(len(moved), (_HELD / step_px) ** 2 / _ALIKE)
    strayed = (tangents * (moved - start.apply(points))).sum(axis=1)  # along the seam, from where it began
    slopes = _SLOPE * radius if varying else 1e-6 * radius
    known = np.array([0.0, 0.0, 0.0, 1 / prior.spread_px**2, 1 / slopes**2])
    left = _normal(holds, firm) + np.diag(known + 1e-12)
    right = known * [0, 0, 0, prior.width_px, 0] - np.einsum("ki,k->i", holds, firm * strayed)
    left_over = across - np.median(across)
    for _ in range(_REWEIGHTED):
        spread = max(1.4826 * float(np.median(np.abs(left_over))), _LEAST_SPREAD * step_px)
        weight = 1 / (1 + (left_over / (3 * spread)) ** 2) ** 2 / (_ALIKE * spread**2)
        covariance = np.linalg.inv(left + _normal(gaps, weight))
        solution = covariance @ (right - np.einsum("ki,k->i", gaps, weight * across))
        left_over = across + np.einsum("ki,i->k", gaps, solution)
    turn, x, y, width, slope = solution
    after = Rigid2D.about(middle, turn / radius)
    moved_by = Rigid2D(after.angle_rad, after.x_px + float(x), after.y_px + float(y)) @ pose
    scale = np.diag([1 / radius, 1.0, 1.0])
    fit = GapFit(
        moved_by,
        float(width),
        float(slope / radius),
        1.4826 * float(np.median(np.abs(left_over))),
        float(np.sqrt(covariance[3, 3])),
        scale @ covariance[:3, :3] @ scale,
        len(moved),
    )
    return float(np.abs([turn, x, y]).max()), fit


def _normal(rows: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """(5, 5) of the normal equations: rows (K, 5) by weight (K,). A matrix product would round as the processor
    likes."""
    return np.asarray(np.einsum("ki,k,kj->ij", rows, weight, rows))


def _longest_axis(arm: Points) -> Points:
    """(2,) the direction along which points about the origin stretch."""
    _, vectors = np.linalg.eigh(arm.T @ arm)
    return np.asarray(vectors[:, -1])
