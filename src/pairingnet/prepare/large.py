"""Pictures too large to be looked at pixel by pixel: pieces are found at a reduced size and cut out in full.

Finding takes a hundred bytes and most of a microsecond per pixel, and needs no more than some megapixels: an edge that
is found there to a third of a pixel is found to one or two pixels of the scan, far below the step of a contour. What
lies inside a piece are the scan's own pixels; only its soft edge comes from the reduced picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from pairingnet.errors import ImageError
from pairingnet.prepare.background import colour_of_nearest
from pairingnet.prepare.contour import trace_contour
from pairingnet.types import Fragment, Image, Pixels

FIND_PX = 12_000_000  # pixels in which pieces are looked for
MEMORY = 2_600_000_000  # bytes of a picture together with the pieces that are cut out of it
_STRIP_PX = 4_000_000  # pixels that are worked on at a time


def step_of(width: int, height: int, most: int = FIND_PX) -> int:
    """How many pixels of a picture, along each side, become one where pieces are looked for."""
    return max(1, math.ceil(math.sqrt(width * height / most)))


def reduced(image: Image, step: int) -> Image:
    """The same picture, `step` times smaller; the last few rows and columns that fill no pixel are left out."""
    alpha = None if image.alpha is None else _averaged(image.alpha, step)
    return replace(image, pixels=_averaged(image.pixels, step), alpha=alpha)


def enlarged(fragment: Fragment, image: Image, step: int, fill_holes: bool = True) -> Fragment:
    """A fragment found in a reduced picture (its pixels black where alpha is 0), cut out of the picture itself."""
    height, width = (step * side for side in fragment.alpha.shape)
    left, top = (step * side for side in fragment.offset_px)
    beyond = _filled_outwards(fragment)
    alpha, pixels = np.zeros((height, width), np.uint8), np.zeros((height, width, 3), np.uint8)
    masked = image.alpha is not None and int(image.alpha.min()) < 128
    for rows in _strips(height, width, step):
        soft = _upsampled(fragment.alpha, rows, step)
        strip = np.asarray(cv2.LUT(soft, _steep(step)), dtype=np.uint8)
        own = _cropped(image.pixels, top, left, rows, width)
        if masked and image.alpha is not None:  # the person who masked it knows better
            edge = np.where(soft > 0, _cropped(image.alpha, top, left, rows, width), 0)
            strip = np.maximum(edge, np.where(soft == 255, strip, 0)) if fill_holes else edge
        else:
            y, x = np.nonzero((soft < 255) & (strip > 0))
            own[y, x] = _between(beyond, (y + rows.start + 0.5) / step - 0.5, (x + 0.5) / step - 0.5)
        alpha[rows] = strip
        pixels[rows] = cv2.bitwise_and(own, own, mask=strip)
    return replace(fragment, pixels=pixels, alpha=alpha, contour=trace_contour(alpha), offset_px=(left, top))


def check_memory(image: Image, fragments: tuple[Fragment, ...], step: int) -> None:
    """Refuse a picture that does not fit into the memory together with what is cut out of it."""
    boxes = step**2 * sum(fragment.alpha.size for fragment in fragments)
    most = (MEMORY - (3 if image.alpha is None else 4) * math.prod(image.size)) // 4
    if boxes > most:
        raise ImageError(
            f"The boxes around the pieces of {image.path} have {boxes / 1e6:.0f} megapixels together; "
            f"on a scan of this size {most / 1e6:.0f} can be cut out.",
            "Scan at a lower resolution, or fewer pieces at a time.",
        )


def _averaged(array: Pixels, step: int) -> Pixels:
    height, width = array.shape[0] // step, array.shape[1] // step
    small = np.empty((height, width, *array.shape[2:]), dtype=np.uint8)
    for rows in _strips(height, width * step * step, 1):
        part = np.ascontiguousarray(array[step * rows.start : step * min(rows.stop, height), : step * width])
        small[rows] = cv2.resize(part, (width, len(part) // step), interpolation=cv2.INTER_AREA)
    return small


def _upsampled(small: Pixels, rows: slice, step: int) -> Pixels:
    """Some rows of the array (h, w, ...) made `step` times larger, with soft transitions."""
    first, last = rows.start // step, min(rows.stop // step, len(small))
    before, after = max(first - 1, 0), min(last + 1, len(small))  # what the transitions at its ends come from
    part = np.ascontiguousarray(small[before:after])
    large = cv2.resize(part, (step * part.shape[1], step * len(part)), interpolation=cv2.INTER_LINEAR)
    return np.asarray(large[step * (first - before) : step * (last - before)], dtype=np.uint8)


def _between(picture: Pixels, y: NDArray[np.float64], x: NDArray[np.float64]) -> Pixels:
    """(K, 3): colours at places between the pixels of a picture (h, w, 3)."""
    top, left = (
        np.clip(np.floor(at).astype(int), 0, side - 2) for at, side in zip((y, x), picture.shape[:2], strict=True)
    )
    down, across = np.clip(y - top, 0, 1)[:, None], np.clip(x - left, 0, 1)[:, None]
    above = picture[top, left] * (1 - across) + picture[top, left + 1] * across
    below = picture[top + 1, left] * (1 - across) + picture[top + 1, left + 1] * across
    return np.asarray(np.rint(above * (1 - down) + below * down), dtype=np.uint8)


def _cropped(array: Pixels, top: int, left: int, rows: slice, width: int) -> Pixels:
    """Rows of a window of an array (H, W, ...); zero where it reaches beyond."""
    height = rows.stop - rows.start
    part = np.zeros((height, width, *array.shape[2:]), dtype=np.uint8)
    first, start = max(top + rows.start, 0), max(left, 0)
    there = array[first : max(top + rows.stop, 0), start : max(left + width, 0)]
    y, x = first - top - rows.start, start - left
    part[y : y + there.shape[0], x : x + there.shape[1]] = there
    return np.asarray(part, dtype=np.uint8)


def _filled_outwards(fragment: Fragment) -> Pixels:
    """Pixels with the colours of the piece carried on beyond its edge, where they would be mixed with black."""
    inside = fragment.alpha > 0
    near = np.asarray(cv2.dilate(inside.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0) & ~inside
    filled = fragment.pixels.copy()
    if inside.any() and near.any():
        filled[near] = colour_of_nearest(fragment.pixels.astype(np.float32), inside, near).astype(np.uint8)
    return filled


def _steep(step: int) -> Pixels:
    """What makes a transition over `step` pixels one over a single pixel."""
    levels = np.rint((np.arange(256) - 127.5) * step + 127.5)
    return np.asarray(levels.clip(0, 255), dtype=np.uint8)


def _strips(height: int, width: int, step: int) -> Iterator[slice]:
    """Rows of a large array, some at a time, a multiple of `step`."""
    rows = step * max(1, _STRIP_PX // (max(width, 1) * step))
    return (slice(first, min(first + rows, height)) for first in range(0, height, rows))
