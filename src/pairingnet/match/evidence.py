"""What speaks for and against a join: a few numbers per pose, the same for every collection and scale.

They are measured along the contact, at the strips' points. What a true join shows: its features agree wherever the
contours touch, not only where they proposed it; nothing overlaps; colours go on across the seam, and better here than
a little further along. A straight contact alone says nothing: straight edges and outer borders touch everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.geometry import Points, Rigid2D
from pairingnet.prepare.strip import SAMPLES, Strip

_CHANCE = 2.0  # how much better than the usual the best of a contour is by chance
_OPPOSED = -0.6  # cosine between the tangents of contours that touch
_ALONG = 3  # samples side by side at each point, see SAMPLES


@dataclass(frozen=True)
class Evidence:
    """One pose, measured. Lengths are in steps of the contour, colours in shares of the full range."""

    support: float = 0.0  # sum of the roots of the probabilities of correspondences that agree
    agreement: float = 0.0  # sum over the contact of log-odds that features belong together
    agreement_mean: float = 0.0  # the same per point of the contact
    contact: float = 0.0  # steps along which the contours touch
    tight: float = 0.0  # steps along which they touch within a tenth of a step
    loose: float = 0.0  # median gap or overlap along the contact
    overlap: float = 0.0  # contour points deep inside the other piece
    bend: float = 0.0  # how far the contact leaves a straight line, at most
    colour: float = 0.0  # mean difference of colours across the seam
    colour_typical: float = 0.0  # how much colours vary along the seam
    colour_shifted: float = 0.0  # least difference when one piece is moved along the seam
    correlation: float = 0.0  # of the colours on both sides, along the seam
    share: float = 0.0  # of the shorter contour that is contact

    def in_pixels(self, step_px: float) -> dict[str, float]:
        """What a person wants to know of it."""
        return {
            "contact_px": round(self.contact * step_px, 1),
            "gap_px": round(self.loose * step_px, 2),
            "overlap_px": round(self.overlap * step_px, 1),
            "colour_difference": round(self.colour, 4),
            "colour_correlation": round(self.correlation, 3),
            "agreement": round(self.agreement_mean, 2),
        }


@dataclass(frozen=True, eq=False)
class Side:
    """One piece as features: strip, queries and keys (N, D), and their background levels (N,): the logarithm of how
    well a point goes with anything in the collection. Empty until a collection is known."""

    strip: Strip
    queries: NDArray[np.float32]
    keys: NDArray[np.float32]
    query_level: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    key_level: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))

    @cached_property
    def tree(self) -> cKDTree:
        return cKDTree(self.strip.points)


def agreements(
    source: Side, target: Side, poses: Sequence[Rigid2D], scale: float, every: int = 2
) -> NDArray[np.float64]:
    """(H,): only how well features agree along the contact of each pose, for its length; enough to tell which poses
    are worth more work."""
    if not poses:
        return np.zeros(0)
    step = max(source.strip.step_px, target.strip.step_px)
    chosen = np.arange(0, len(source.strip), every)
    landed = np.stack([pose.apply(source.strip.points[chosen]) for pose in poses])
    distance, nearest = target.tree.query(landed.reshape(-1, 2), distance_upper_bound=2.5 * step)
    near = np.flatnonzero(np.isfinite(distance))
    which, rows, columns = near // len(chosen), chosen[near % len(chosen)], np.asarray(nearest, dtype=np.intp)[near]
    turns = np.stack([pose.matrix[:, :2] for pose in poses])
    turned = np.einsum("kij,kj->ki", turns[which], source.strip.tangents[rows])
    opposed = (turned * target.strip.tangents[columns]).sum(axis=1) < _OPPOSED
    odds = _odds(source, target, rows[opposed], columns[opposed], scale)
    total, count = np.bincount(which[opposed], odds, len(poses)), np.bincount(which[opposed], minlength=len(poses))
    # By the root: a long contact may not win by length alone, nor a short one by a few lucky points.
    return np.asarray(total * np.sqrt(every / (count + 3)))


def measure(
    source: Side, target: Side, target_from_source: Rigid2D, support: float, overlap_steps: float, scale: float
) -> tuple[NDArray[np.intp], NDArray[np.intp], Evidence]:
    """Measure a pose: the points (K,), (K,) of both strips that touch, and what they say."""
    step = max(source.strip.step_px, target.strip.step_px)
    rows, columns, gap, slide = _touching(source.strip, target, target_from_source, 2.5 * step)
    if len(rows) < 3:
        return rows, columns, Evidence(support=support, overlap=overlap_steps)
    odds = _odds(source, target, rows, columns, scale)
    colours = _across(source.strip, target.strip, rows, columns, slide)
    evidence = Evidence(
        support=support,
        agreement=float(odds.sum()),
        agreement_mean=float(odds.mean()),
        contact=float(len(rows)),
        tight=float((np.abs(gap) < 0.1 * step).sum()),
        loose=float(np.median(np.abs(gap)) / step),
        overlap=overlap_steps,
        bend=_bend(source.strip.points[rows]) / step,
        share=len(rows) / min(len(source.strip), len(target.strip)),
        **colours,
    )
    return rows, columns, evidence


def _odds(
    source: Side, target: Side, rows: NDArray[np.intp], columns: NDArray[np.intp], scale: float
) -> NDArray[np.float32]:
    """(K,): how much better these points go together than each goes with anything (log-odds)."""
    together = (source.queries[rows] * target.keys[columns]).sum(axis=1)
    together = 0.5 * scale * (together + (source.keys[rows] * target.queries[columns]).sum(axis=1))
    usual = source.query_level[rows] + target.key_level[columns] + source.key_level[rows] + target.query_level[columns]
    return np.asarray(together - 0.25 * usual - _CHANCE)


def _touching(
    strip: Strip, target: Side, pose: Rigid2D, reach_px: float
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
    """Points of both strips that touch: rows, columns (K,), the gap across and the offset along the target (K,), px."""
    landed = pose.apply(strip.points)
    distance, nearest = target.tree.query(landed, distance_upper_bound=reach_px)
    rows = np.flatnonzero(np.isfinite(distance))
    columns = np.asarray(nearest, dtype=np.intp)[rows]
    turned = pose.apply(strip.tangents[rows]) - pose.shift
    opposed = (turned * target.strip.tangents[columns]).sum(axis=1) < _OPPOSED
    rows, columns = rows[opposed], columns[opposed]
    apart = landed[rows] - target.strip.points[columns]
    across = -(apart * target.strip.normals[columns]).sum(axis=1)
    return rows, columns, across, (apart * target.strip.tangents[columns]).sum(axis=1)


def _bend(points: Points) -> float:
    """Largest distance of the points from the line through them."""
    centred = points - points.mean(axis=0)
    normal = np.linalg.eigh(centred.T @ centred)[1][:, 0]
    return float(np.abs(centred @ normal).max())


def _across(
    source: Strip, target: Strip, rows: NDArray[np.intp], columns: NDArray[np.intp], slide_px: NDArray[np.float64]
) -> dict[str, float]:
    """Colours on both sides of the seam, compared in place and shifted along it."""
    own, other = edge_colours(source), edge_colours(target)
    mine = own[_ALONG * rows + 1]
    there = _ALONG * columns + 1 + np.rint(_ALONG * slide_px / target.step_px).astype(np.intp)
    differences = {}
    for shift in range(-12, 13, 2):  # thirds of a step: up to four steps both ways
        beside = other[(there + shift) % len(other)]
        differences[shift] = float(np.abs(mine - beside).mean())
    beside = other[there % len(other)]
    variation = float(np.abs(beside - beside.mean(axis=0)).mean() + np.abs(mine - mine.mean(axis=0)).mean()) / 2
    a, b = mine - mine.mean(axis=0), beside - beside.mean(axis=0)
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return {
        "colour": differences[0],
        "colour_typical": variation,
        "colour_shifted": min(value for shift, value in differences.items() if abs(shift) >= 4),
        "correlation": float((a * b).sum() / norm) if norm > 1e-6 else 0.0,
    }


def edge_colours(strip: Strip) -> NDArray[np.float32]:
    """(3 N, 3) in [0, 1]: colours just at the contour, three a step, continued from what lies a little inside."""
    values = strip.colours[:, : 3 * _ALONG].astype(np.float32).reshape(len(strip), 3, _ALONG, 3) / 255
    depths = [SAMPLES[_ALONG * row][1] for row in range(3)]
    slope = (values[:, 0] - values[:, 2]) / (depths[2] - depths[0])
    return (values[:, 0] + 0.5 * depths[0] * slope).clip(0, 1).reshape(-1, 3)
