"""Pictures of joins and groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import cv2
import numpy as np

from pairingnet.assembly.canvas import compose
from pairingnet.geometry import Points, Rigid2D
from pairingnet.io.images import shrunk
from pairingnet.types import Fragment, Group, PairMatch, Pixels

_SEAM_RGB = (230, 30, 120)
_PAPER = (255, 255, 255)


@dataclass(frozen=True, eq=False)
class GroupPicture:
    """pixels (H, W, 3) on white; outlines: each fragment's contour (N, 2) in pixels of the picture."""

    pixels: Pixels
    outlines: Mapping[str, Points]


def group_picture(fragments: Mapping[str, Fragment], group: Group) -> GroupPicture:
    """A group as a picture, in the size of its fragments."""
    canvas = compose([(fragments[name], pose) for name, pose in group.poses.items()], background=_PAPER)
    outlines = {name: pose.apply(fragments[name].contour[::3]) - canvas.origin_px for name, pose in group.poses.items()}
    return GroupPicture(canvas.pixels, outlines)


def join_picture(source: Fragment, target: Fragment, match: PairMatch, longest_px: int = 420) -> Pixels:
    """Both pieces as they are, and joined, with the shared stretch in colour."""
    if match.target_from_source is None:
        return _beside(source.on_paper(), target.on_paper(), longest_px)
    joined = compose([(target, Rigid2D()), (source, match.target_from_source)], background=_PAPER)
    picture = joined.pixels.copy()
    seam = match.points[:, 1] - joined.origin_px
    for part in _runs(seam):
        line = np.rint(8 * part).astype(np.int32)
        width = max(1, round(max(picture.shape[:2]) / 250))
        cv2.polylines(picture, [line], False, _SEAM_RGB, width, cv2.LINE_AA, 3)
    parts = [_with_stretch(source, match.points[:, 0]), _with_stretch(target, match.points[:, 1]), picture]
    return np.hstack([_fitted(part, longest_px) for part in parts])


def _with_stretch(fragment: Fragment, points: Points) -> Pixels:
    picture = fragment.on_paper()
    for part in _runs(points):
        line = np.rint(8 * part).astype(np.int32)
        width = max(1, round(max(picture.shape[:2]) / 120))
        cv2.polylines(picture, [line], False, _SEAM_RGB, width, cv2.LINE_AA, 3)
    return picture


def _runs(points: Points) -> list[Points]:
    """Points of a stretch cut where it jumps."""
    if len(points) < 2:
        return []
    apart = np.linalg.norm(np.diff(points, axis=0), axis=1)
    cuts = np.flatnonzero(apart > 6 * max(1.0, float(np.median(apart)))) + 1
    return [part for part in np.split(points, cuts) if len(part) > 1]


def _beside(left: Pixels, right: Pixels, longest_px: int) -> Pixels:
    return np.hstack([_fitted(left, longest_px), _fitted(right, longest_px)])


def _fitted(picture: Pixels, size_px: int, margin_px: int = 8) -> Pixels:
    """A square with the picture in its middle."""
    small = shrunk(picture, size_px - 2 * margin_px)
    square = np.full((size_px, size_px, 3), 255, dtype=np.uint8)
    height, width = small.shape[:2]
    y, x = (size_px - height) // 2, (size_px - width) // 2
    square[y : y + height, x : x + width] = small
    return square
