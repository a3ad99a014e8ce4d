"""Real fragments -> true poses and pairs, from a complete picture or from a file with poses.

The paper's way: SIFT key points in the fragment and the complete picture, nearest descriptors by FLANN, a
robust fit. A scan and a picture rarely have the same scale, so the fit is a similarity first; then the scale
that the fragments agree on becomes the canvas's, and every pose is fitted again as a rigid one. A fragment of
another scale (another scanner, another distance) is stored resampled to the common one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.assemble.canvas import compose
from pairingnet.engine.local import progress_bar
from pairingnet.errors import TruthError
from pairingnet.geometry import Points, Rigid2D, fit_rigid, perimeter
from pairingnet.io.collection import Collection, write_collection
from pairingnet.io.files import write_whole
from pairingnet.io.images import read_image, write_jpeg, write_png
from pairingnet.io.truth import KnownPoses
from pairingnet.prepare.contour import trace_contour
from pairingnet.prepare.load import load_fragment
from pairingnet.synth.truth import DIFFICULTY_THRESHOLDS, difficulty_of, shared_stretch, true_pairs
from pairingnet.types import Fragment, FragmentRecord, Pixels, TruePair

_RATIO = 0.8  # the best descriptor must be this much closer than the second best
_FIT_PX = 3.0  # picture pixels a key point may stray from the fit
_LEAST_POINTS = 8  # agreeing key points that place a fragment
_LEAST_SHARE = 0.15  # of the matched key points that must agree
_SAME_SCALE = 0.015


@dataclass(frozen=True, eq=False)
class Placement:
    """Key points of a fragment (K, 2) and the picture (K, 2) that agree, and picture pixels per fragment pixel."""

    in_fragment: Points
    in_picture: Points
    scale: float


@dataclass(frozen=True)
class Annotated:
    """A collection with truth, and the fragments that could not be placed, with the reason."""

    collection: Collection
    not_placed: tuple[str, ...]


def annotate_from_picture(
    collection: Collection, picture_path: Path, max_gap_px: float = 6.0, min_overlap_px: float = 50.0
) -> Annotated:
    """Place the fragments of a collection in a complete picture; the collection is written again with truth."""
    picture = PictureIndex(read_image(picture_path).pixels)
    placements: dict[str, Placement] = {}
    not_placed: list[str] = []
    with progress_bar() as bar:
        for record in bar.track(collection.fragments, description="placing"):
            found = picture.place(load_fragment(collection, record.id))
            if isinstance(found, Placement):
                placements[record.id] = found
            else:
                not_placed.append(f"{record.id}: {found}")
    if not placements:
        raise TruthError(
            f"No fragment of {collection.folder} was found in {picture_path}.",
            "Check that they belong together, and that the picture is sharp enough.",
        )
    scale = common_scale([placement.scale for placement in placements.values()])
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
    max_gap_px: float = 6.0,
    min_overlap_px: float = 50.0,
) -> Annotated:
    """Give the fragments of a collection the poses of a file; pairs are the file's, where it lists them."""
    records, not_placed = [], []
    for position, record in enumerate(collection.fragments):
        name = str(position) if known.by_position else Path(record.origin or record.id).stem
        pose = known.poses.get(name)
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
        self._points, self._descriptors = _key_points(pixels, None)
        self._matcher = cv2.FlannBasedMatcher({"algorithm": 1, "trees": 4}, {"checks": 64})
        if len(self._points) >= 2:
            self._matcher.add([self._descriptors])
            self._matcher.train()

    def place(self, fragment: Fragment) -> Placement | str:
        """Where a fragment lies, or why that cannot be told."""
        if len(self._points) < 2:
            return "the picture has no key points"
        points, descriptors = _key_points(fragment.pixels, fragment.alpha)
        if len(points) < _LEAST_POINTS:
            return f"it has only {len(points)} key points (too plain)"
        matches = self._matcher.knnMatch(descriptors, k=2)
        good = [m for m, second in matches if m.distance < _RATIO * second.distance]
        if len(good) < _LEAST_POINTS:
            return f"only {len(good)} of its key points are found in the picture"
        in_fragment = points[[m.queryIdx for m in good]]
        in_picture = self._points[[m.trainIdx for m in good]]
        matrix, agree = cv2.estimateAffinePartial2D(
            in_fragment,
            in_picture,
            method=cv2.RANSAC,
            ransacReprojThreshold=_FIT_PX,
            maxIters=5000,
            confidence=0.999,
        )
        count = 0 if matrix is None else int(agree.sum())
        if count < max(_LEAST_POINTS, _LEAST_SHARE * len(good)):
            return f"only {count} of {len(good)} key points agree on one place"
        kept = agree.ravel() > 0
        scale = float(np.hypot(matrix[0, 0], matrix[1, 0]))
        return Placement(in_fragment[kept], in_picture[kept], scale)


def common_scale(scales: list[float]) -> float:
    """The scale most fragments have; exactly 1 where they differ from it by less than can be measured."""
    middle = float(np.median(scales))
    near = [scale for scale in scales if abs(scale / middle - 1) < _SAME_SCALE]
    middle = float(np.median(near))
    return 1.0 if abs(middle - 1) < 0.002 else middle


def _key_points(pixels: Pixels, alpha: Pixels | None) -> tuple[Points, NDArray[np.float32]]:
    """Positions (K, 2) and descriptors (K, 128); with alpha, only where the whole neighbourhood is inside."""
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    mask = None
    if alpha is not None:
        mask = cv2.erode(np.where(alpha >= 128, np.uint8(255), np.uint8(0)), np.ones((7, 7), np.uint8))
    # A low threshold: plain pieces have weak key points only, and the fit tells good from bad.
    detector = cv2.SIFT.create(nfeatures=0, contrastThreshold=0.01)
    found, descriptors = detector.detectAndCompute(grey, mask)
    if not len(found):
        return np.zeros((0, 2)), np.zeros((0, 128), dtype=np.float32)
    return np.array([point.pt for point in found], dtype=np.float64), np.asarray(descriptors, dtype=np.float32)


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
    """A fragment stored at another size. Positions scale with it: x' = factor * x."""
    fragment = load_fragment(collection, record.id)
    h, w = fragment.alpha.shape
    size = (round(factor * w) + 1, round(factor * h) + 1)
    matrix = np.array([[factor, 0.0, 0.0], [0.0, factor, 0.0]])
    flags = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
    rgba = np.asarray(cv2.warpAffine(fragment.rgba, matrix, size, flags=flags), dtype=np.uint8)
    dpi = None if fragment.dpi is None else factor * fragment.dpi
    write_whole(collection.folder / record.image, partial(write_png, pixels=rgba, dpi=dpi))
    contour = trace_contour(rgba[..., 3])
    area = float(rgba[..., 3].sum(dtype=np.float64) / 255)
    return replace(record, dpi=dpi, area_px=area, perimeter_px=perimeter(contour))


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
