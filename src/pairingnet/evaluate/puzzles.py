"""RePAIR's metrics: a whole puzzle laid out, compared with how it truly lies. Pure functions of poses and outlines.

The answer is moved as one until its largest piece lies on its true place (the *anchor*); then

Q_pos        of every other piece, the share of its area that lies on its own true area, weighted by area: 0 to 1
RMSE         over the other pieces, the mean of |turn| / sqrt 2 in degrees, and of the shift / sqrt 2 in mm
neighbours   precision and recall of the pairs of pieces that lie side by side, whatever their poses

Three things are not as in the published evaluation, which is not made for them: turns are wrapped (359 and 1 degree are
2 apart, not 358); the answer is turned as well as shifted with its anchor before shifts are measured, so that they do
not depend on how the answer lies; and an answer in several parts is the part that holds the most area, whose pieces are
counted as `placed`: all others have no area on their place, and no turn and shift that could be told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from pairingnet.geometry import Points, Rigid2D, angle_difference, signed_area
from pairingnet.synth.truth import neighbours

PX_PER_MM = 7.369  # of RePAIR's images
REACH_PX = 60.0  # RePAIR's true gaps are up to 50 px wide
_LEAST_CONTACT_PX = 50.0
_CELLS = 800.0  # across a piece, where areas are counted


@dataclass(frozen=True, eq=False)
class Puzzle:
    """A puzzle with its truth: poses `canvas_from_fragment` of its pieces; their outlines (K, 2) in pixels of their
    images; sizes (width, height) of these images; reach_px: contours so near to each other are neighbours."""

    name: str
    poses: Mapping[str, Rigid2D]
    outlines: Mapping[str, Points]
    sizes: Mapping[str, tuple[int, int]]
    reach_px: float = REACH_PX


@dataclass(frozen=True)
class PuzzleScores:
    """Of one puzzle, or the mean of several: NaN where there is nothing to tell."""

    q_pos: float
    rmse_rotation_deg: float
    rmse_translation_mm: float
    neighbour_precision: float
    neighbour_recall: float
    pieces: int
    placed: int


def score_puzzle(puzzle: Puzzle, groups: Sequence[Mapping[str, Rigid2D]], px_per_mm: float = PX_PER_MM) -> PuzzleScores:
    """Compare groups of poses with the truth; pieces of other puzzles are left out."""
    own = [{name: pose for name, pose in group.items() if name in puzzle.poses} for group in groups]
    own = [group for group in own if group]
    area = {name: signed_area(puzzle.outlines[name]) for name in puzzle.poses}
    precision, recall = _neighbours_found(puzzle, own)
    if not own:
        return PuzzleScores(0.0, np.nan, np.nan, precision, recall, len(puzzle.poses), 0)
    placed = max(own, key=lambda group: sum(area[name] for name in group))
    anchor = max(placed, key=lambda name: area[name])
    truth_from_answer = puzzle.poses[anchor] @ placed[anchor].inverse()
    moved = {name: truth_from_answer @ pose for name, pose in placed.items() if name != anchor}
    # Of the piece, in its own pixels: where it belongs is where it lies.
    slips = {name: puzzle.poses[name].inverse() @ pose for name, pose in moved.items()}
    others = sum(area[name] for name in puzzle.poses if name != anchor)
    covered = sum(area[name] * _share_on_itself(puzzle.outlines[name], slip) for name, slip in slips.items())
    turns = [angle_difference(pose.angle_rad, puzzle.poses[name].angle_rad) for name, pose in moved.items()]
    shifts = [float(np.linalg.norm(_shift_of_middle(slips[name], puzzle.sizes[name]))) for name in moved]
    return PuzzleScores(
        q_pos=covered / others if others else np.nan,
        rmse_rotation_deg=_mean([float(np.degrees(turn)) / np.sqrt(2) for turn in turns]),
        rmse_translation_mm=_mean([shift / px_per_mm / np.sqrt(2) for shift in shifts]),
        neighbour_precision=precision,
        neighbour_recall=recall,
        pieces=len(puzzle.poses),
        placed=len(placed) if len(placed) > 1 else 0,
    )


def mean_scores(scores: Sequence[PuzzleScores]) -> PuzzleScores:
    """Over all puzzles: the mean of what can be told of each, as the benchmark does; pieces are summed."""

    def mean(name: str) -> float:
        told = np.array([getattr(score, name) for score in scores])
        return _mean(told[~np.isnan(told)])

    return PuzzleScores(
        mean("q_pos"),
        mean("rmse_rotation_deg"),
        mean("rmse_translation_mm"),
        mean("neighbour_precision"),
        mean("neighbour_recall"),
        sum(score.pieces for score in scores),
        sum(score.placed for score in scores),
    )


def _neighbours_found(puzzle: Puzzle, groups: Sequence[Mapping[str, Rigid2D]]) -> tuple[float, float]:
    """Precision and recall of pairs of pieces that lie side by side."""
    true = _neighbours(puzzle, puzzle.poses)
    shown = set().union(*(_neighbours(puzzle, group) for group in groups)) if groups else set()
    right = len(true & shown)
    return _share(right, len(shown)), _share(right, len(true))


def _neighbours(puzzle: Puzzle, poses: Mapping[str, Rigid2D]) -> set[frozenset[str]]:
    placed = {name: pose.apply(puzzle.outlines[name]) for name, pose in poses.items()}
    return neighbours(placed, puzzle.reach_px, _LEAST_CONTACT_PX)


def _share_on_itself(outline: Points, slip: Rigid2D) -> float:
    """Share of a piece's area that still lies on the piece when it slips; by counting cells."""
    low, high = outline.min(axis=0), outline.max(axis=0)
    scale = _CELLS / float((high - low).max())
    width, height = np.ceil((high - low) * scale).astype(int) + 3
    here, there = (_filled((points - low) * scale + 1, (height, width)) for points in (outline, slip.apply(outline)))
    return float((here & there).sum() / max(1, here.sum()))


def _filled(points: Points, shape: tuple[int, int]) -> NDArray[np.bool_]:
    cells = np.zeros(shape, dtype=np.uint8)
    # Far beyond the cells nothing is to be seen, and OpenCV counts in 32 bits.
    bounded = points.clip(-8 * _CELLS, 8 * _CELLS)
    cv2.fillPoly(cells, [np.rint(bounded * 256).astype(np.int32)], 1, shift=8)
    return cells > 0


def _shift_of_middle(slip: Rigid2D, size: tuple[int, int]) -> Points:
    """(2,) where the middle of an image slips to: the point that a turn alone leaves where it is."""
    middle = (np.array(size, dtype=np.float64) - 1) / 2
    return np.asarray(slip.apply([middle])[0] - middle)


def _mean(values: Sequence[float] | NDArray[np.float64]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
