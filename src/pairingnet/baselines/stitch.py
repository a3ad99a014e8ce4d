"""A candidate as JigsawNet sees it: both pieces in one picture, and the region of interest around the stitch line.

Known from the published code: the canvas is the joint bounding box, the target (its v1) is on top, the source (its v2)
fills what is left, empty places are black, the picture is stretched to a square whatever its shape, and keeps the
values 0 to 255 in the order BGR. The region is the box of the stitch line, grown on each side by up to 31 px while the
next row or column is neither more than half nor more than 5 px empty; once up and down first, once left and right
first, and the larger one counts.
Different: what is empty comes from each fragment's own mask. There a black pixel is background, and so is black ink.
Chosen: canvases of more than 1,500 px are drawn smaller, so that large scans do not fill the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from pairingnet.geometry import Points, Rigid2D
from pairingnet.match.contact import Outline
from pairingnet.types import Fragment, Pixels

Box = tuple[int, int, int, int]  # top, left, bottom, right; rows and columns, the last ones included

_GROW_PX = 31
_EMPTY_PX = 5
_EMPTY_SHARE = 0.5
_LARGEST_PX = 1500


@dataclass(frozen=True, eq=False)
class Stitched:
    """pixels (S, S, 3) BGR, black where there is nothing; region (4,): top, left, bottom, right, from 0 to 1."""

    pixels: Pixels
    region: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Cutout:
    """A fragment's picture (H, W, 4) BGRA, black where alpha is 0, and its outline."""

    pixels: Pixels
    outline: Outline

    @classmethod
    def of(cls, fragment: Fragment, outline: Outline) -> Cutout:
        return cls(np.dstack([fragment.pixels[..., ::-1], fragment.alpha]), outline)


def stitch(source: Cutout, target: Cutout, target_from_source: Rigid2D, line: Points, side: int) -> Stitched:
    """Draw a candidate; line (K, 2): its stitch line, in pixels of the source."""
    landed = target_from_source.apply(source.outline.points)
    low = np.floor(np.minimum(landed.min(axis=0), target.outline.points.min(axis=0)))
    high = np.ceil(np.maximum(landed.max(axis=0), target.outline.points.max(axis=0)))
    scale = min(1.0, _LARGEST_PX / float((high - low).max() + 1))
    width, height = (int(n) for n in np.ceil(scale * (high - low) + 1))
    canvas_from_target = scale * np.column_stack([np.eye(2), -low])
    canvas_from_source = canvas_from_target @ np.vstack([target_from_source.matrix, [0, 0, 1]])
    below = cv2.warpAffine(source.pixels, canvas_from_source, (width, height))
    above = cv2.warpAffine(target.pixels, canvas_from_target, (width, height))
    drawn = cv2.copyTo(above, _mask(above), below)
    full = _mask(drawn)
    pixels = cv2.bitwise_and(drawn, drawn, mask=full)
    seam = (line @ canvas_from_source[:, :2].T + canvas_from_source[:, 2])[:, ::-1]  # rows and columns
    region = np.array(grown_region(seam, full > 0)) / (height, width, height, width)
    stretched = cv2.resize(pixels[..., :3], (side, side), interpolation=cv2.INTER_LINEAR)
    return Stitched(np.asarray(stretched, dtype=np.uint8), region.clip(0, 1).astype(np.float32))


def grown_region(seam: Points, full: NDArray[np.bool_]) -> Box:
    """The box of a stitch line (K, 2), rows and columns, grown into what is `full` (H, W) around it."""
    limit = np.array(full.shape) - 1
    first, last = np.floor(seam.min(axis=0)), np.ceil(seam.max(axis=0))
    (top, left), (bottom, right) = (np.clip(corner, 0, limit).astype(int).tolist() for corner in (first, last))
    start = (top, left, bottom, right)
    upright, level = grow(start, full, (0, 2, 1, 3)), grow(start, full, (1, 3, 0, 2))
    return upright if _area(upright) >= _area(level) else level


def grow(box: Box, full: NDArray[np.bool_], sides: tuple[int, ...]) -> Box:
    """Move the sides (0 top, 1 left, 2 bottom, 3 right) outwards, one after the other, pixel by pixel."""
    now = list(box)
    limits = (0, 0, full.shape[0] - 1, full.shape[1] - 1)
    for side in sides:
        step = -1 if side < 2 else 1
        for _ in range(_GROW_PX):
            following = now[side] + step
            if following * step > limits[side] * step:
                break
            upright = side % 2 == 0
            row = full[following, now[1] : now[3] + 1] if upright else full[now[0] : now[2] + 1, following]
            empty = int((~row).sum())
            if empty > _EMPTY_PX or empty > _EMPTY_SHARE * len(row):
                break
            now[side] = following
    return now[0], now[1], now[2], now[3]


def _mask(pixels: NDArray[Any]) -> Pixels:
    """(H, W) 1 where a picture (H, W, 4) is at least half there."""
    return np.asarray(pixels[..., 3] >= 128).view(np.uint8)


def _area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])
