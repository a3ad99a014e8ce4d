"""Real fragments -> true poses and pairs, from a complete picture or from a file with poses.

The paper's way: SIFT key points in the fragment and the complete picture, nearest descriptors by FLANN, a
robust fit. A scan and a picture rarely have the same scale, so fragments with many key points are fitted with
a similarity first, and the scale they agree on becomes the canvas's. With the scale known, every single match
of two key points (position and direction) fixes a whole pose; counting how many others agree with it places
plain fragments too, which have few key points and weak ones. A fragment of another scale (another scanner,
another distance) is stored resampled to the common one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.assembly.canvas import compose
from pairingnet.engine.local import progress_bar
from pairingnet.errors import TruthError
from pairingnet.geometry import Points, Rigid2D, fit_rigid, perimeter
from pairingnet.io.collection import Collection, write_collection
from pairingnet.io.files import write_whole
from pairingnet.io.images import MAX_PIXELS, read_image, write_jpeg, write_png
from pairingnet.io.truth import KnownPoses
from pairingnet.prepare.contour import trace_contour
from pairingnet.prepare.load import load_fragment
from pairingnet.prepare.warp import warp_fragment
from pairingnet.synth.truth import DIFFICULTY_THRESHOLDS, difficulty_of, shared_stretch, true_pairs
from pairingnet.types import Fragment, FragmentRecord, Pixels, TruePair

_RATIO = 0.8  # for a first fit, the best descriptor must be this much closer than the second best
_FIT_PX = 3.0  # picture pixels a key point may stray from the fit
_CERTAIN = 30  # agreeing key points that place a fragment without knowing the scale
_LEAST_AGREEING = 4  # and with it
_TURN_RAD, _SIZE_RATIO = 0.3, 1.4  # what two matches that agree may differ in
_HYPOTHESES = 400
_SAME_SCALE = 0.015


@dataclass(frozen=True, eq=False)
class Placement:
    """Key points of a fragment (K, 2) and the picture (K, 2) that agree, and picture pixels per fragment pixel."""

    in_fragment: Points
    in_picture: Points
    scale: float


@dataclass(frozen=True, eq=False)
class KeyPoints:
    """points (K, 2); size_px and angle_rad (K,); descriptors (K, 128)."""

    points: Points
    size_px: NDArray[np.float64]
    angle_rad: NDArray[np.float64]
    descriptors: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.points)


@dataclass(frozen=True)
class Annotated:
    """A collection with truth, and the fragments that could not be placed, with the reason."""

    collection: Collection
    not_placed: tuple[str, ...]


def annotate_from_picture(
    collection: Collection,
    picture_path: Path,
    max_gap_px: float = 6.0,
    min_overlap_px: float = 50.0,
    max_pixels: int = MAX_PIXELS,
) -> Annotated:
    """Place the fragments of a collection in a complete picture; the collection is written again with truth."""
    picture = PictureIndex(read_image(picture_path, max_pixels=max_pixels).pixels)
    fragments = [load_fragment(collection, record.id) for record in collection.fragments]
    with progress_bar() as bar:
        first = {
            fragment.id: picture.place_at_any_scale(fragment)
            for fragment in bar.track(fragments, description="finding the scale")
        }
        placements = {name: found for name, found in first.items() if found is not None}
        scale = common_scale(list(placements.values()))
        not_placed: list[str] = []
        for fragment in bar.track(fragments, description="placing"):
            if fragment.id not in placements:
                found = picture.place(fragment, scale)
                if found is None:
                    not_placed.append(f"{fragment.id}: it was not found in the picture (too plain, or not of it)")
                else:
                    placements[fragment.id] = found
    if not placements:
        raise TruthError(
            f"No fragment of {collection.folder} was found in {picture_path}.",
            "Check that they belong together, and that the picture is sharp enough.",
        )
    source = picture_path.stem
    records = [
        _placed_record(collection, record, placements.get(record.id), scale, source) for record in collection.fragments
    ]
    width, height = (round(side / scale) for side in picture.size)
    placed = replace(collection, fragments=tuple(records), sources={source: (width, height)})
    contours = _contours_on_canvas(placed)
    pairs = true_pairs(contours, max_gap_px, min_overlap_px)
    made_by = {
        **collection.made_by,
        "annotated": "picture",
        "max_gap_px": max_gap_px,
        "picture_px_per_px": scale,
    }
    return _written(replace(placed, pairs=tuple(pairs), made_by=made_by), not_placed)


def annotate_from_poses(
    collection: Collection,
    known: KnownPoses,
    source: str,
    files: Sequence[str] = (),
    max_gap_px: float = 6.0,
    min_overlap_px: float = 50.0,
) -> Annotated:
    """Give the fragments of a collection the poses of a file; pairs are the file's, where it lists them.

    files: names of the scans in order, for poses that are listed by position.
    """
    number_of = {name: str(position) for position, name in enumerate(files)}
    records, not_placed = [], []
    for record in collection.fragments:
        file = record.origin or record.id
        pose = known.poses.get(number_of.get(file, "") if known.by_position else Path(file).stem)
        if pose is None:
            not_placed.append(f"{record.id}: the file has no pose for it")
            records.append(record)
            continue
        file_from_fragment = Rigid2D(0.0, float(record.offset_px[0]), float(record.offset_px[1]))
        records.append(replace(record, source=source, canvas_from_fragment=pose @ file_from_fragment))
    placed = replace(collection, fragments=tuple(records))
    contours = _contours_on_canvas(placed)
    if known.pairs is None:
        pairs = true_pairs(contours, max_gap_px, min_overlap_px)
    else:
        id_of = {Path(record.origin or record.id).stem: record.id for record in records}
        listed = [(id_of.get(a), id_of.get(b), contact) for a, b, contact in known.pairs]
        pairs = [_listed_pair(contours, a, b, c) for a, b, c in listed if a in contours and b in contours]
    made_by = {**collection.made_by, "annotated": "poses", "max_gap_px": max_gap_px}
    return _written(replace(placed, pairs=tuple(pairs), made_by=made_by), not_placed)


class PictureIndex:
    """A complete picture's key points, ready to be asked where a fragment lies."""

    def __init__(self, pixels: Pixels) -> None:
        self.size = (pixels.shape[1], pixels.shape[0])
        self._keys = _key_points(pixels, None)
        self._matcher = cv2.FlannBasedMatcher({"algorithm": 1, "trees": 4}, {"checks": 64})
        if len(self._keys) >= 3:
            self._matcher.add([self._keys.descriptors])
            self._matcher.train()

    def place_at_any_scale(self, fragment: Fragment) -> Placement | None:
        """Where a fragment with many clear key points lies; None where there are not enough of them."""
        keys, matches = self._matches(fragment)
        good = [
            (best.queryIdx, best.trainIdx) for best, second, _ in matches if best.distance < _RATIO * second.distance
        ]
        if len(good) < _CERTAIN:
            return None
        mine, theirs = np.array(good).T
        in_fragment, in_picture = keys.points[mine], self._keys.points[theirs]
        matrix, agree = cv2.estimateAffinePartial2D(
            in_fragment, in_picture, method=cv2.RANSAC, ransacReprojThreshold=_FIT_PX, maxIters=5000, confidence=0.999
        )
        if matrix is None or int(agree.sum()) < _CERTAIN:
            return None
        kept = agree.ravel() > 0
        return Placement(in_fragment[kept], in_picture[kept], float(np.hypot(matrix[0, 0], matrix[1, 0])))

    def place(self, fragment: Fragment, scale: float) -> Placement | None:
        """Where a fragment of known scale lies: the pose that most key points agree on."""
        keys, matches = self._matches(fragment)
        if not matches:
            return None
        mine, theirs = np.array([(m.queryIdx, m.trainIdx) for row in matches for m in row]).T
        size_ratio = scale * keys.size_px[mine] / self._keys.size_px[theirs]
        fits = np.maximum(size_ratio, 1 / size_ratio) < _SIZE_RATIO
        mine, theirs = mine[fits], theirs[fits]
        agreeing = _largest_agreement(
            scale * keys.points[mine],
            self._keys.points[theirs],
            self._keys.angle_rad[theirs] - keys.angle_rad[mine],
        )
        if len(np.unique(mine[agreeing])) < _LEAST_AGREEING:
            return None
        return Placement(keys.points[mine[agreeing]], self._keys.points[theirs[agreeing]], scale)

    def _matches(self, fragment: Fragment) -> tuple[KeyPoints, list[tuple[cv2.DMatch, cv2.DMatch, cv2.DMatch]]]:
        """A fragment's key points, and for each the three nearest of the picture."""
        keys = _key_points(fragment.pixels, fragment.alpha)
        if not len(keys) or len(self._keys) < 3:
            return keys, []
        found = self._matcher.knnMatch(keys.descriptors, k=3)
        return keys, [(row[0], row[1], row[2]) for row in found if len(row) == 3]


def common_scale(placements: Sequence[Placement]) -> float:
    """The scale most fragments have; 1 where none is known or they differ from it by less than can be measured."""
    if not placements:
        return 1.0
    scales = np.array([placement.scale for placement in placements])
    # Many key points far apart tell the scale best.
    weights = np.array([((p.in_fragment - p.in_fragment.mean(axis=0)) ** 2).sum() for p in placements])
    alike = np.abs(scales[None] / scales[:, None] - 1) < _SAME_SCALE  # (F, F)
    most = alike.sum(axis=1) + alike @ (weights / weights.sum()) / 2  # by number, and by weight between equals
    near = alike[np.argmax(most)]
    scale = float(np.average(scales[near], weights=weights[near]))
    return 1.0 if abs(scale - 1) < 0.002 else scale


def _key_points(pixels: Pixels, alpha: Pixels | None) -> KeyPoints:
    """Key points of a picture (H, W, 3); with alpha, only where the whole neighbourhood is inside."""
    mask = None
    if alpha is not None:
        mask = cv2.erode(np.where(alpha >= 128, np.uint8(255), np.uint8(0)), np.ones((9, 9), np.uint8))
    # Plain pieces have weak key points only. A low threshold finds them, if noise is smoothed away first.
    detector = cv2.SIFT.create(nfeatures=0, contrastThreshold=0.002, edgeThreshold=20)
    grey = cv2.GaussianBlur(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), (0, 0), 1.5)
    found, descriptors = detector.detectAndCompute(grey, mask)
    rows = np.array([(*key.pt, key.size, np.deg2rad(key.angle)) for key in found], dtype=np.float64).reshape(-1, 4)
    table = np.asarray(descriptors, dtype=np.float32) if len(found) else np.zeros((0, 128), dtype=np.float32)
    return KeyPoints(rows[:, :2], rows[:, 2], rows[:, 3], table)


def _largest_agreement(source: Points, target: Points, turn_rad: NDArray[np.float64]) -> NDArray[np.intp]:
    """The largest set of matches that one rigid motion explains, each match proposing its own (M, 2), (M, 2), (M,)."""
    best = np.zeros(0, dtype=np.intp)
    if not len(source):
        return best
    proposals = np.unique(np.linspace(0, len(source) - 1, min(len(source), _HYPOTHESES)).astype(int))
    most = 0
    for i in proposals:
        motion = Rigid2D(float(turn_rad[i]))
        landed = motion.apply(source - source[i]) + target[i]
        turned = np.abs((turn_rad - turn_rad[i] + np.pi) % (2 * np.pi) - np.pi)
        agree = np.flatnonzero((np.linalg.norm(landed - target, axis=1) < 1.5 * _FIT_PX) & (turned < _TURN_RAD))
        # A key point has several matches, and counts once.
        count = len(np.unique(source[agree], axis=0))
        if count > most:
            best, most = agree, count
    return best


def _placed_record(
    collection: Collection, record: FragmentRecord, placement: Placement | None, scale: float, source: str
) -> FragmentRecord:
    """A record with its rigid pose on the canvas, which is the picture at the fragments' scale."""
    if placement is None:
        return record
    factor = placement.scale / scale
    if abs(factor - 1) < _SAME_SCALE:
        factor = 1.0
    else:
        record = _resampled(collection, record, factor)
    pose = _robust_rigid(placement.in_fragment * factor, placement.in_picture / scale)
    return replace(record, source=source, canvas_from_fragment=pose)


def _robust_rigid(source: Points, target: Points) -> Rigid2D:
    """Least squares, then again with the points that stray most weighing least."""
    pose = fit_rigid(source, target)
    for _ in range(5):
        stray = np.linalg.norm(pose.apply(source) - target, axis=1)
        width = max(1.5 * float(np.median(stray)), 0.1)
        pose = fit_rigid(source, target, 1 / (1 + (stray / width) ** 2))
    return pose


def _resampled(collection: Collection, record: FragmentRecord, factor: float) -> FragmentRecord:
    """A fragment stored at another size beside the one that was scanned. Positions scale with it: x' = factor * x."""
    fragment = load_fragment(collection, record.id)
    h, w = fragment.alpha.shape
    matrix = np.array([[factor, 0.0, 0.0], [0.0, factor, 0.0]])
    pixels, alpha = warp_fragment(
        fragment.pixels, fragment.alpha, matrix, (round(factor * w) + 1, round(factor * h) + 1)
    )
    dpi = None if fragment.dpi is None else round(factor * fragment.dpi, 2)
    image = f"resampled/{record.id}.png"
    write_whole(collection.folder / image, partial(write_png, pixels=np.dstack([pixels, alpha]), dpi=dpi))
    # Its pixels are no longer the scan's, so neither is its place there.
    return replace(
        record,
        image=image,
        dpi=dpi,
        area_px=float(alpha.sum(dtype=np.float64) / 255),
        perimeter_px=perimeter(trace_contour(alpha)),
        offset_px=(round(factor * record.offset_px[0]), round(factor * record.offset_px[1])),
    )


def _contours_on_canvas(collection: Collection) -> dict[str, Points]:
    return {
        record.id: record.canvas_from_fragment.apply(load_fragment(collection, record.id).contour)
        for record in collection.fragments
        if record.canvas_from_fragment is not None
    }


def _listed_pair(contours: Mapping[str, Points], source: str, target: str, contact_px: float) -> TruePair:
    """A pair that a file names: its seam is where the contours come close, however wide the gap between them."""
    a, b = contours[source], contours[target]
    trees = cKDTree(a), cKDTree(b)
    seam, length = np.zeros((0, 2)), 0.0
    for gap_px in (2.0, 4.0, 8.0, 16.0, 32.0):
        seam, length = shared_stretch(a, b, *trees, gap_px)
        if length >= max(0.6 * contact_px, 10.0):
            break
    ratio = length / min(perimeter(a), perimeter(b))
    return TruePair(source, target, length, ratio, difficulty_of(ratio, DIFFICULTY_THRESHOLDS), seam)


def _written(collection: Collection, not_placed: list[str]) -> Annotated:
    """Store the truth, and a picture of the fragments where it puts them."""
    collection = replace(collection, thresholds=DIFFICULTY_THRESHOLDS)
    write_collection(collection)
    placed = [
        (load_fragment(collection, record.id), record.canvas_from_fragment)
        for record in collection.fragments
        if record.canvas_from_fragment is not None
    ]
    write_jpeg(collection.folder / "truth_sheet.jpg", compose(placed).pixels)
    return Annotated(collection, tuple(not_placed))
