"""Two pieces -> a few ways they might fit, each with a score and its stitch line. Both comparison methods start here.

In the manner of Zhang & Li 2014, step 1. Its text was not at hand, so the steps are those of a later re-implementation,
and what was chosen here is marked so:

1. every segment of the one polygon with every one of the other, the second run through backwards, where length and
   colour agree;
2. chord on chord gives a pose;
3. poses that cover too much of a piece are dropped;
4. segments match where their centroids fall together; the score is W2 + a W3, W2 the sum of their lengths weighted by
   their likeness in colour, W3 their number;
5. the best poses (chosen: 10 different ones) are laid contour on contour, and scored again along the stitch line, the
   contour points that touch then. Chosen: each counts by its likeness in colour, less the contour that would overlap.
   In the one published file of candidates the score is the number of those points;
6. up to five different candidates are left (chosen, as in that file).

Likeness in colour is 1 - distance / largest distance. Chosen: it counts from the least that is allowed on, else length
alone would decide (the best pose of step 4 was right for .59 of 150 validation pairs without that, for .66 with it).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.baselines.segments import AXES, Complex, Piece, Segments
from pairingnet.config import CandidateSettings
from pairingnet.geometry import Points, Rigid2D
from pairingnet.match.contact import contact, overlap_penalty, refine

_MOST_PAIRINGS = 2000  # the longest; ragged contours would have many times more
_SAME_TURN = float(np.cos(np.radians(2)))
_SAME_PLACE_PX = 5.0
_STRAYED = 3.0  # times the reach: a refinement that moved further has found something else


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way two pieces might fit; line (K, 2, 2): points of the source (K, 0) and the target (K, 1) that touch."""

    target_from_source: Rigid2D
    score: float
    line: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Poses:
    """P rigid motions z -> turn z + shift, of complex numbers (P,)."""

    turn: Complex
    shift: Complex

    def __len__(self) -> int:
        return len(self.turn)

    def apply(self, z: Complex) -> Complex:
        """(P, Z) places z (Z,) under every motion."""
        return np.asarray(self.turn[:, None] * z + self.shift[:, None])

    def inverse(self) -> Poses:
        return Poses(self.turn.conj(), -self.turn.conj() * self.shift)

    def only(self, chosen: NDArray[np.intp]) -> Poses:
        return Poses(self.turn[chosen], self.shift[chosen])

    def rigid(self, number: int) -> Rigid2D:
        shift = self.shift[number]
        return Rigid2D(float(np.angle(self.turn[number])), float(shift.real), float(shift.imag))


@dataclass(frozen=True, eq=False)
class Pairings:
    """Segments of the source (P,) and of the target (P,) that might be one, and the poses that would make them so."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    poses: Poses

    def only(self, chosen: NDArray[np.intp]) -> Pairings:
        return Pairings(self.rows[chosen], self.columns[chosen], self.poses.only(chosen))


def find_candidates(source: Piece, target: Piece, settings: CandidateSettings) -> list[Candidate]:
    """The best ways two pieces might fit, best first; none is an answer."""
    proposed = pair_segments(source.segments, target.segments, settings)
    proposed = proposed.only(np.flatnonzero(covered(source, target, proposed.poses) < settings.overlap))
    score, partner = segment_score(source.segments, target.segments, proposed.poses, settings)
    middle = source.contour.mean()
    best = distinct(proposed.poses, score, middle, settings.refined)
    fitted = [_fit(source, target, proposed, partner[number], number, settings) for number in best]
    poses = _as_poses([candidate.target_from_source for candidate in fitted])
    scores = np.array([candidate.score for candidate in fitted])
    scores[covered(source, target, poses) >= settings.overlap] = -np.inf
    kept = distinct(poses, scores, middle, settings.candidates)
    return [fitted[number] for number in kept if scores[number] >= settings.least]


def pair_segments(source: Segments, target: Segments, settings: CandidateSettings) -> Pairings:
    """Segments alike in length and colour, and the poses that lay their chords on each other, start on end."""
    a_px, b_px = source.length_px[:, None], target.length_px[None]
    close = np.abs(a_px - b_px) < np.maximum(settings.length_px, settings.length_share * np.maximum(a_px, b_px))
    close &= likeness(source.colour[:, None], target.colour[None]) > settings.similarity
    close &= np.minimum(a_px, b_px) >= settings.shortest_chord
    rows, columns = np.nonzero(close)
    longest = np.argsort(-source.length_px[rows], kind="stable")[:_MOST_PAIRINGS]
    rows, columns = rows[longest], columns[longest]
    return Pairings(
        rows,
        columns,
        align_chords(source.start[rows], source.end[rows], target.end[columns], target.start[columns]),
    )


def align_chords(start: Complex, end: Complex, to_start: Complex, to_end: Complex) -> Poses:
    """The motions that turn chords (P,) into the direction of others and lay midpoint on midpoint."""
    turn = (to_end - to_start) * (end - start).conj()
    length = np.abs(turn)
    turn = np.where(length > 1e-9, turn / np.maximum(length, 1e-9), 1.0)
    return Poses(turn, 0.5 * (to_start + to_end) - turn * 0.5 * (start + end))


def likeness(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 for the same colour (..., 3), 0 for black and white."""
    return np.asarray(1 - np.linalg.norm(one - other, axis=-1) / (255 * np.sqrt(3)))


def counted(alike: NDArray[np.float64], settings: CandidateSettings) -> NDArray[np.float64]:
    """Likeness as scores count it: 0 at the least that is allowed, 1 for the same colour."""
    return np.clip((alike - settings.similarity) / (1 - settings.similarity), 0, 1)


def covered(source: Piece, target: Piece, poses: Poses) -> NDArray[np.float64]:
    """(P,) the share of the one piece that lies on the other, of the two shares the larger."""
    on_target = target.core.covers(poses.apply(source.core.inner))
    on_source = source.core.covers(poses.inverse().apply(target.core.inner))
    shares = [places.sum(axis=1) / max(1, places.shape[1]) for places in (on_target, on_source)]
    return np.asarray(np.maximum(*shares))


def segment_score(
    source: Segments, target: Segments, poses: Poses, settings: CandidateSettings
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """W2 + a W3 of every pose (P,), and the target's segment that each of the source's matches (P, S), -1 for none."""
    if not len(source) or not len(target) or not len(poses):
        return np.zeros(len(poses)), np.full((len(poses), len(source)), -1, dtype=np.intp)
    landed = poses.apply(source.centroid)
    tree = cKDTree(_as_points(target.centroid))
    apart, found = tree.query(_as_points(landed), distance_upper_bound=settings.centroid)
    near = np.isfinite(apart).reshape(landed.shape)
    partner = np.where(near, np.asarray(found, dtype=np.intp).reshape(landed.shape), -1)
    length_px = 0.5 * (source.length_px + target.length_px[partner])
    alike = counted(likeness(source.colour, target.colour[partner]), settings)
    return (near * (length_px * alike + settings.per_match)).sum(axis=1), partner


def distinct(poses: Poses, score: NDArray[np.float64], middle: complex, most: int) -> NDArray[np.intp]:
    """Numbers of up to `most` poses, best first, without those that put `middle` where a better one does, turned
    alike."""
    kept: list[int] = []
    place = poses.turn * middle + poses.shift
    told = np.zeros(len(poses), dtype=bool)
    for number in np.argsort(-score, kind="stable"):
        if len(kept) >= most:
            break
        if not told[number]:
            kept.append(int(number))
            turned_alike = (poses.turn * poses.turn[number].conj()).real > _SAME_TURN
            told |= turned_alike & (np.abs(place - place[number]) < _SAME_PLACE_PX)
    return np.array(kept, dtype=np.intp)


def _fit(
    source: Piece,
    target: Piece,
    proposed: Pairings,
    partner: NDArray[np.intp],
    number: int,
    settings: CandidateSettings,
) -> Candidate:
    """Lay one pose contour on contour, held by the segments that match, and score its stitch line."""
    start = proposed.poses.rigid(number)
    a, b = source.segments, target.segments
    rows = np.append(np.flatnonzero(partner >= 0), proposed.rows[number])
    columns = np.append(partner[partner >= 0], proposed.columns[number])
    anchors = (_as_points(a.centroid[rows]), _as_points(b.centroid[columns]), a.length_px[rows])
    pose = refine(source.outline, target.outline, start, anchors, settings.reach)
    moved = np.linalg.norm(pose.apply(anchors[0]) - start.apply(anchors[0]), axis=1)
    if moved.mean() > _STRAYED * settings.reach:
        pose = start
    line = contact(source.outline, target.outline, pose, settings.touch)
    alike = counted(likeness(source.colours[line.rows], target.colours[line.columns]), settings)
    overlap_px = overlap_penalty(source.outline, target.outline, pose, settings.allowed, every=2)
    points = np.stack([source.outline.points[line.rows], target.outline.points[line.columns]], axis=1)
    return Candidate(pose, float(alike.sum() - overlap_px), points)


def _as_poses(found: list[Rigid2D]) -> Poses:
    turn = np.exp(1j * np.array([pose.angle_rad for pose in found], dtype=np.float64))
    return Poses(turn, np.array([pose.shift for pose in found], dtype=np.float64).reshape(-1, 2) @ AXES)


def _as_points(z: Complex) -> Points:
    """Complex numbers of any shape as (N, 2)."""
    return np.ascontiguousarray(z).view(np.float64).reshape(-1, 2)
