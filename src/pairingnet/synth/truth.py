"""What is true of pieces whose places are known: who touches whom, along which line, for how long.

All contours here are in canvas pixels (the complete picture's), closed, about 1 px steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.geometry import Points, perimeter
from pairingnet.types import TruePair

# Overlap ratios below the first are High difficulty, from the second on Low. On pieces torn from photographs they give
# the paper's shares, 28 / 46 / 26 % (docs/results.md); a collection stores the ones it was made with.
DIFFICULTY_THRESHOLDS = (0.163, 0.326)


def true_pairs(
    contours: Mapping[str, Points],
    max_gap_px: float = 2.0,
    min_overlap_px: float = 50.0,
    thresholds: tuple[float, float] = DIFFICULTY_THRESHOLDS,
) -> list[TruePair]:
    """All neighbours among fragments given by their contours on the canvas.

    Two fragments are neighbours where at least `min_overlap_px` of their contours lie within `max_gap_px`
    of each other. Source and target are in the order of `contours`.
    """
    trees = {name: cKDTree(contour) for name, contour in contours.items()}
    boxes = {name: (c.min(axis=0) - max_gap_px, c.max(axis=0) + max_gap_px) for name, c in contours.items()}
    pairs = []
    for source, target in combinations(contours, 2):
        if (boxes[source][0] > boxes[target][1]).any() or (boxes[target][0] > boxes[source][1]).any():
            continue
        seam, overlap_px = shared_stretch(contours[source], contours[target], trees[source], trees[target], max_gap_px)
        if overlap_px < min_overlap_px:
            continue
        ratio = overlap_px / min(perimeter(contours[source]), perimeter(contours[target]))
        pairs.append(TruePair(source, target, overlap_px, ratio, difficulty_of(ratio, thresholds), seam))
    return pairs


def neighbours(contours: Mapping[str, Points], max_gap_px: float, min_overlap_px: float) -> set[frozenset[str]]:
    """Whom the rule of `true_pairs` calls neighbours, in no order."""
    return {frozenset((pair.source, pair.target)) for pair in true_pairs(contours, max_gap_px, min_overlap_px)}


def shared_stretch(
    source: Points, target: Points, source_tree: cKDTree, target_tree: cKDTree, max_gap_px: float
) -> tuple[Points, float]:
    """The line between two contours where they run within `max_gap_px` of each other, and its length.

    The line (K, 2) lies half-way between the contours, in the source's order, at the source's steps.
    """
    to_target, nearest = target_tree.query(source, distance_upper_bound=max_gap_px)
    near_source = np.isfinite(to_target)
    if not near_source.any():
        return np.zeros((0, 2)), 0.0
    near_target = np.isfinite(source_tree.query(target, distance_upper_bound=max_gap_px)[0])
    length = near_source.sum() * _step(source) + near_target.sum() * _step(target)
    order = _from_a_break(near_source)
    order = order[near_source[order]]
    return (source[order] + target[np.asarray(nearest)[order]]) / 2, float(length / 2)


def seam_gap(seam: Points, source: Points, target: Points) -> NDArray[np.float64]:
    """(K,) how wide the gap is at each point of a seam (K, 2): from what is left of the source's contour to what is
    left of the target's, all on the canvas."""
    return np.asarray(cKDTree(source).query(seam)[0] + cKDTree(target).query(seam)[0], dtype=np.float64)


def difficulty_of(overlap_ratio: float, thresholds: tuple[float, float]) -> str:
    """ "High" for a short shared stretch, "Low" for a long one."""
    low, high = thresholds
    return "High" if overlap_ratio < low else "Medium" if overlap_ratio < high else "Low"


def keep_pairs(pairs: Sequence[TruePair], part_of: Mapping[str, str]) -> list[TruePair]:
    """The pairs whose two fragments both exist and are in the same part."""
    return [p for p in pairs if p.source in part_of and part_of[p.source] == part_of.get(p.target)]


def with_thresholds(pairs: Sequence[TruePair], thresholds: tuple[float, float]) -> list[TruePair]:
    """The same pairs, their difficulty judged anew."""
    return [replace(pair, difficulty=difficulty_of(pair.overlap_ratio, thresholds)) for pair in pairs]


def _step(contour: Points) -> float:
    return perimeter(contour) / len(contour)


def _from_a_break(inside: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The order of a ring that starts right after a gap, so that no shared stretch is cut in two."""
    gaps = np.flatnonzero(~inside)
    start = int(gaps[-1]) + 1 if len(gaps) else 0
    return np.roll(np.arange(len(inside)), -start)
