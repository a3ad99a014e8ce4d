"""Things on a scanner's glass that are no fragments: rulers and colour charts.

Both are rectangles with straight sides, which torn pieces are not. A ruler is long and carries marks at equal
distances; a chart carries a grid of flat patches of different colours. What is only a rectangle is kept: it may
be a document cut by shears.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.geometry import resample_closed
from pairingnet.types import Fragment

_LEAST_RULER_ASPECT = 4.0
_STRAIGHT = 0.04  # sides may stray from the rectangle by this share of its width (or 2 px)
_LEAST_PERIODICITY = 0.4
_LEAST_PATCHES = 6


def sheet_object(fragment: Fragment) -> str:
    """ "ruler", "colour chart", or "" for anything else."""
    upright = _upright_rectangle(fragment)
    if upright is None:
        return ""
    h, w = upright.shape[:2]
    if w >= _LEAST_RULER_ASPECT * h and _periodicity(upright) >= _LEAST_PERIODICITY:
        return "ruler"
    if _flat_patches(upright) >= _LEAST_PATCHES:
        return "colour chart"
    return ""


def _upright_rectangle(fragment: Fragment) -> NDArray[np.float32] | None:
    """The inside (h, w, 3), long side across, of a piece that is a straight-sided rectangle; else None."""
    (cx, cy), (w, h), degrees = cv2.minAreaRect(fragment.contour.astype(np.float32))
    if min(w, h) < 12:
        return None
    # Each place of the rectangle's sides asks for the contour, not the other way round: marks on a ruler's edge that
    # have the mat's colour cut it into teeth, whose gaps are narrow. Rounded corners are allowed: most, not all.
    sides = resample_closed(cv2.boxPoints(((cx, cy), (w, h), degrees)))
    to_contour, _ = cKDTree(fragment.contour).query(sides)
    if np.percentile(to_contour, 85) > max(2.0, _STRAIGHT * min(w, h)):
        return None
    turn = np.asarray(cv2.getRotationMatrix2D((cx, cy), degrees, 1.0), dtype=np.float64)
    turn[:, 2] += (w / 2 - cx, h / 2 - cy)
    upright = cv2.warpAffine(fragment.pixels, turn, (int(w), int(h)), flags=cv2.INTER_LINEAR)
    across = np.asarray(upright if w >= h else np.rot90(upright), dtype=np.float32)
    inset = max(2, round(0.03 * min(across.shape[:2])))
    return across[inset:-inset, inset:-inset]


def _periodicity(upright: NDArray[np.float32]) -> float:
    """How well the marks along the long side repeat, 0 to 1: the best autocorrelation of a strip along a side."""
    grey = upright.mean(axis=2)
    third = max(2, len(grey) // 4)
    return max(_repeat(strip.mean(axis=0)) for strip in (grey[:third], grey[-third:]))


def _repeat(signal: NDArray[np.float32]) -> float:
    """Height of the first autocorrelation peak away from zero, of a signal without its slow part."""
    slow = cv2.GaussianBlur(signal[None], (0, 0), max(8.0, len(signal) / 30))[0]
    marks = signal - slow
    if marks.std() < 2:  # grey levels: nothing is printed there
        return 0.0
    spectrum = np.abs(np.fft.rfft(marks, 2 * len(marks))) ** 2
    correlation = np.fft.irfft(spectrum)[: len(marks) // 3]
    correlation = correlation / correlation[0]
    crossing = np.flatnonzero(correlation < 0)
    return float(correlation[crossing[0] :].max(initial=0.0)) if len(crossing) else 0.0


def _flat_patches(upright: NDArray[np.float32]) -> int:
    """How many clearly different colours fill flat areas that together make up most of the rectangle."""
    small = np.asarray(
        cv2.resize(upright, (96, max(8, 96 * upright.shape[0] // upright.shape[1])), interpolation=cv2.INTER_AREA)
    )
    spread = cv2.morphologyEx(small, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)).max(axis=2)
    flat = spread < 12
    if flat.mean() < 0.4:
        return 0
    cells, counts = np.unique((small[flat] / 40).astype(int), axis=0, return_counts=True)
    patches = counts > 0.01 * flat.size
    colourful = np.ptp(cells[patches], axis=1) >= 1
    return int(patches.sum()) if colourful.sum() >= 3 else 0
