"""Fragments at their poses, painted on one canvas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairingnet.geometry import Points, Rigid2D
from pairingnet.prepare.warp import warp_fragment
from pairingnet.types import Fragment, Pixels


@dataclass(frozen=True, eq=False)
class Canvas:
    """pixels (H, W, 3); cover (H, W): how many fragments lie on each pixel; labels (H, W): which one is on
    top, -1 for none; origin_px: the canvas coordinates of pixel (0, 0)."""

    pixels: Pixels
    cover: NDArray[np.uint8]
    labels: NDArray[np.int32]
    origin_px: tuple[int, int]

    @property
    def overlap(self) -> float:
        """Share of the covered pixels on which two or more fragments lie."""
        return float((self.cover > 1).sum() / max(1, (self.cover > 0).sum()))


def compose(
    placed: Iterable[tuple[Fragment, Rigid2D]],
    size: tuple[int, int] | None = None,
    background: tuple[int, int, int] = (255, 255, 255),
) -> Canvas:
    """Paint fragments at `canvas_from_fragment`; later ones lie on top.

    With `size` (width, height) the canvas is that picture's; without, it is as large as the fragments need.
    """
    placed = list(placed)
    left, top, width, height = (0, 0, *size) if size is not None else _bounds(placed)
    pixels = np.full((height, width, 3), background, dtype=np.uint8)
    cover = np.zeros((height, width), dtype=np.uint8)
    labels = np.full((height, width), -1, dtype=np.int32)
    for number, (fragment, canvas_from_fragment) in enumerate(placed):
        image_from_fragment = Rigid2D(0.0, -left, -top) @ canvas_from_fragment
        (x, y), warped = placed_fragment(fragment, image_from_fragment)
        rows, columns, kept = _clip(x, y, warped, (height, width))
        alpha = kept[..., 3:].astype(np.float32) / 255
        below = pixels[rows, columns]
        pixels[rows, columns] = np.rint(kept[..., :3] * alpha + below * (1 - alpha)).astype(np.uint8)
        inside = kept[..., 3] >= 128
        cover[rows, columns] += inside
        labels[rows, columns][inside] = number
    return Canvas(pixels, cover, labels, (left, top))


def _bounds(placed: list[tuple[Fragment, Rigid2D]]) -> tuple[int, int, int, int]:
    """left, top, width, height of all fragments."""
    if not placed:
        return 0, 0, 1, 1
    points = np.vstack([pose.apply(_ends_of_rows(fragment)) for fragment, pose in placed])
    low, high = np.floor(points.min(axis=0)).astype(int), np.ceil(points.max(axis=0)).astype(int)
    return int(low[0]), int(low[1]), int(high[0] - low[0]) + 1, int(high[1] - low[1]) + 1


def _ends_of_rows(fragment: Fragment) -> Points:
    """The first and the last pixel of each row: all corners are among them. (The contour is smooth and cuts the finest
    tips.)"""
    there = fragment.alpha > 0
    rows = np.flatnonzero(there.any(axis=1))
    first = there[rows].argmax(axis=1)
    last = there.shape[1] - 1 - there[rows, ::-1].argmax(axis=1)
    return np.column_stack([np.concatenate([first, last]), np.concatenate([rows, rows])]).astype(np.float64)


def placed_fragment(fragment: Fragment, image_from_fragment: Rigid2D) -> tuple[tuple[int, int], Pixels]:
    """A fragment turned into place: RGBA (h, w, 4) and the pixel where its upper left corner goes."""
    points = image_from_fragment.apply(_ends_of_rows(fragment))
    low, high = np.floor(points.min(axis=0)) - 1, np.ceil(points.max(axis=0)) + 1
    width, height = (high - low).astype(int) + 1
    matrix = (Rigid2D(0.0, -low[0], -low[1]) @ image_from_fragment).matrix
    pixels, alpha = warp_fragment(fragment.pixels, fragment.alpha, matrix, (int(width), int(height)))
    return (int(low[0]), int(low[1])), np.dstack([pixels, alpha])


def _clip(x: int, y: int, warped: Pixels, shape: tuple[int, int]) -> tuple[slice, slice, Pixels]:
    """The rows and columns of the canvas that a warped fragment falls on, and that part of it."""
    h, w = warped.shape[:2]
    top, left = max(y, 0), max(x, 0)
    bottom, right = max(min(y + h, shape[0]), top), max(min(x + w, shape[1]), left)
    return slice(top, bottom), slice(left, right), warped[top - y : bottom - y, left - x : right - x]
