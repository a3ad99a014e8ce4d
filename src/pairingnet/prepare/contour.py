"""Mask -> contour: closed, oriented, sub-pixel.

The contour is the line where alpha is one half. A mask's boundary therefore runs between the last pixel inside
and the first one outside, and two pieces of one picture share the same line. Rounding the pixel staircase with
a small Gaussian keeps that: what it takes from one piece it gives to the other.
"""

from __future__ import annotations

import math

import cv2
import numpy as np
from contourpy import LineType, contour_generator

from pairingnet.geometry import Points, resample_closed, signed_area
from pairingnet.types import Pixels

_MOST_PX = 12_000_000  # pixels of a mask that is traced as it is
_REDUCED_PX = 3_000_000  # and of one that is traced at a reduced size


def trace_contour(alpha: Pixels, smooth_px: float = 1.0, step_px: float = 1.0) -> Points:
    """Outer contour (N, 2) of the largest piece in a mask (H, W); (0, 2) where there is none.

    Signed area positive, points at equal arc length, the same whatever lies around the piece in the image. Masks of
    more than some megapixels are traced at a reduced size: to a third of a pixel of that size.
    """
    box = _occupied(alpha)
    if box is None:
        return np.zeros((0, 2))
    left, top, right, bottom = box
    pixels = (right - left) * (bottom - top)
    if pixels > _MOST_PX:
        step = math.ceil(math.sqrt(pixels / _REDUCED_PX))
        height, width = -(-(bottom - top) // step), -(-(right - left) // step)
        whole = np.zeros((step * height, step * width), dtype=np.uint8)
        whole[: bottom - top, : right - left] = alpha[top:bottom, left:right]
        small = np.asarray(cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA), dtype=np.uint8)
        line = trace_contour(small, smooth_px, step_px)
        return resample_closed(step * (line + 0.5) - 0.5, step_px) + (left, top) if len(line) else line
    pad = 2 + int(np.ceil(4 * smooth_px))
    field = np.zeros((bottom - top + 2 * pad, right - left + 2 * pad), dtype=np.float32)
    field[pad:-pad, pad:-pad] = alpha[top:bottom, left:right]
    if smooth_px > 0:
        field = np.asarray(cv2.GaussianBlur(field, (0, 0), smooth_px))
    lines = contour_generator(z=field, line_type=LineType.Separate).lines(127.5)
    closed = [np.asarray(line)[:-1] for line in lines if len(line) > 3]
    if not closed:
        return np.zeros((0, 2))
    outer = max(closed, key=lambda line: abs(signed_area(line)))
    if signed_area(outer) < 0:
        outer = outer[::-1]
    return resample_closed(outer, step_px) + (left - pad, top - pad)


def _occupied(alpha: Pixels) -> tuple[int, int, int, int] | None:
    """left, top, right, bottom (exclusive) of what is at least half inside."""
    columns = np.flatnonzero((alpha >= 128).any(axis=0))
    rows = np.flatnonzero((alpha >= 128).any(axis=1))
    if not len(columns):
        return None
    # One pixel more on each side: soft edges reach beyond the half-way line.
    left, top = max(columns[0] - 1, 0), max(rows[0] - 1, 0)
    right, bottom = min(columns[-1] + 2, alpha.shape[1]), min(rows[-1] + 2, alpha.shape[0])
    return int(left), int(top), int(right), int(bottom)
