"""Which pixels are mat and which are fragment, in a picture without alpha.

The mat is what the picture's border shows: one colour, which may drift slowly across the scan. It is estimated
on each picture by itself. A pixel belongs to the mat if it has that colour (or is a soft shadow on it) *and* is
connected to the border by such pixels; so a fragment may have the mat's colour inside. Colours are compared in
Lab, where distances are about what an eye sees (1 is just visible).
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from pairingnet.types import Pixels

Lab = NDArray[np.float32]  # (..., 3): L 0..100, a and b about -100..100

_LEAST_TOLERANCE, _MOST_TOLERANCE = 6.0, 20.0
_SAME_COLOUR = 14.0  # farther than this from the border's main colour is something else
_SHADOW_DEPTH = 45.0  # a shadow is at most this much darker
_SHADOW_SLOPE = 3.0  # and changes at most this much from pixel to pixel; a fragment's edge is steeper
_CHANNEL_PX = 2  # narrower ways into a fragment are noise, not mat


@dataclass(frozen=True, eq=False)
class Background:
    """The mat: its colour in Lab as a plane over the picture, and how far its pixels stray from it.

    plane (3, 3): rows are constant, per x, per y (x and y from -1 to 1); share: of the border that it covers.
    """

    plane: NDArray[np.float64]
    tolerance: float
    share: float

    def colour(self, shape: tuple[int, ...]) -> Lab:
        """(H, W, 3) the mat's colour at every pixel."""
        y, x = np.meshgrid(np.linspace(-1, 1, shape[0]), np.linspace(-1, 1, shape[1]), indexing="ij")
        return np.asarray(np.stack([np.ones_like(x), x, y], axis=-1) @ self.plane, dtype=np.float32)


def lab_of(pixels: Pixels) -> Lab:
    """(H, W, 3) RGB as Lab."""
    return np.asarray(cv2.cvtColor(pixels.astype(np.float32) / 255, cv2.COLOR_RGB2Lab))


def estimate_background(lab: Lab, tolerance: float = 0.0) -> Background:
    """The mat of a picture (H, W, 3), from its border; `tolerance` 0 means measured."""
    at, colours = _border(lab)
    same = np.linalg.norm(colours - _main_colour(colours), axis=1) < _SAME_COLOUR
    terms = np.column_stack([np.ones(len(at)), at])
    plane = np.zeros((3, 3))
    for _ in range(3):  # what the first fit shows to be something else is left out of the next
        plane, *_ = np.linalg.lstsq(terms[same], colours[same], rcond=None)
        stray = np.linalg.norm(colours - terms @ plane, axis=1)
        same = stray < _SAME_COLOUR
    measured = 1.5 * float(np.percentile(stray[same], 99)) if same.any() else 0.0
    limit = tolerance or float(np.clip(measured, _LEAST_TOLERANCE, _MOST_TOLERANCE))
    return Background(plane, limit, float((stray <= limit).mean()))


def fragment_mask(lab: Lab, background: Background, shadows: bool = True, keep_holes: bool = False) -> Pixels:
    """(H, W), 255 on fragments, 0 on the mat."""
    mat = background.colour(lab.shape)
    distance = np.linalg.norm(lab - mat, axis=2)
    plain = distance <= background.tolerance
    outside = _reached_from_border(plain)
    if shadows:
        outside = _with_shadows(outside, lab, mat, background.tolerance)
    mask = ~outside
    if keep_holes:
        mask &= ~_real_holes(plain & mask, mask)
    cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    return np.asarray(cv2.morphologyEx(np.where(mask, np.uint8(255), np.uint8(0)), cv2.MORPH_OPEN, cross))


def soften_edge(pixels: Pixels, mask: Pixels, background: Background) -> tuple[Pixels, Pixels]:
    """Sub-pixel alpha on the mask's edge, and the mat's colour taken out of the edge's pixels.

    An edge pixel is a mixture of the mat and the fragment's colour a few pixels further in; its share of the
    latter is its alpha. Where the two are alike the mask decides. Only the two pixels beside the edge change.
    """
    cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    band = cv2.dilate(mask, cross) != cv2.erode(mask, cross)
    inner = np.asarray(cv2.erode(mask, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (5, 5))))
    rows, columns = np.nonzero(band)
    if not len(rows) or not inner.any():
        return pixels, mask
    _, nearest = cv2.distanceTransformWithLabels(
        np.where(inner > 0, np.uint8(0), np.uint8(1)), cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL
    )
    colour_of = np.zeros((int(nearest.max()) + 1, 3), dtype=np.float32)
    colour_of[nearest[inner > 0]] = pixels[inner > 0]
    own = colour_of[nearest[rows, columns]]
    mat = _rgb_of(background.colour(pixels.shape)[rows, columns])
    here = pixels[rows, columns].astype(np.float32)
    span = own - mat
    contrast = (span**2).sum(axis=1)
    share = ((here - mat) * span).sum(axis=1) / np.maximum(contrast, 1)
    clear = contrast > 40.0**2
    share = np.where(clear, share.clip(0, 1), mask[rows, columns] / 255)
    alpha, cleaned = mask.copy(), pixels.copy()
    alpha[rows, columns] = np.rint(255 * share)
    unmixed = mat + (here - mat) / np.maximum(share, 0.5)[:, None]
    cleaned[rows, columns] = np.where(clear[:, None], unmixed, here).clip(0, 255)
    return cleaned, alpha


def _border(lab: Lab) -> tuple[NDArray[np.float64], Lab]:
    """Positions (K, 2) in -1..1 and colours (K, 3) of the pixels along the border."""
    h, w = lab.shape[:2]
    width = max(2, round(0.01 * min(h, w)))
    frame = np.zeros((h, w), dtype=bool)
    frame[:width], frame[-width:], frame[:, :width], frame[:, -width:] = True, True, True, True
    rows, columns = np.nonzero(frame)
    thin = slice(None, None, max(1, len(rows) // 40_000))
    rows, columns = rows[thin], columns[thin]
    at = np.column_stack([2 * columns / max(w - 1, 1) - 1, 2 * rows / max(h - 1, 1) - 1])
    return at, lab[rows, columns]


def _main_colour(colours: Lab) -> NDArray[np.float64]:
    """The densest colour: the fullest cell of a coarse grid, then the median around it."""
    cells, counts = np.unique(np.floor(colours / 8).astype(int), axis=0, return_counts=True)
    centre = 8.0 * cells[np.argmax(counts)] + 4
    for _ in range(4):
        near = np.linalg.norm(colours - centre, axis=1) < _SAME_COLOUR
        centre = np.median(colours[near], axis=0)
    return np.asarray(centre, dtype=np.float64)


def _reached_from_border(candidates: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The candidates connected to the border by ways that are not too narrow."""
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * _CHANNEL_PX + 1, 2 * _CHANNEL_PX + 1))
    # Beyond the border everything is mat, so pieces that touch the border do not close ways along it.
    padded = np.pad(candidates, 2 * _CHANNEL_PX + 1, constant_values=True).astype(np.uint8)
    wide = cv2.morphologyEx(padded, cv2.MORPH_OPEN, kernel)
    _, labels = cv2.connectedComponents(wide, connectivity=4)
    reached = (labels == labels[0, 0]).astype(np.uint8)
    # The opening also rounded off the mat's corners, deep in a fragment's notches: give those back.
    grown = cv2.dilate(reached, kernel) & padded
    inset = slice(2 * _CHANNEL_PX + 1, -(2 * _CHANNEL_PX + 1))
    return np.asarray(grown[inset, inset] > 0)


def _with_shadows(outside: NDArray[np.bool_], lab: Lab, mat: Lab, tolerance: float) -> NDArray[np.bool_]:
    """The mat and the soft shadows on it: darker, of the same hue, fading slowly, and not far from plain mat."""
    darker = mat[..., 0] - lab[..., 0]
    chroma = np.linalg.norm(lab[..., 1:] - mat[..., 1:], axis=2)
    lightness = np.asarray(cv2.GaussianBlur(lab[..., 0], (0, 0), 1.0))
    slope = np.hypot(cv2.Scharr(lightness, cv2.CV_32F, 1, 0), cv2.Scharr(lightness, cv2.CV_32F, 0, 1)) / 32
    soft = (darker > 0) & (darker < _SHADOW_DEPTH) & (slope < _SHADOW_SLOPE)
    # A shadow takes its mat's colour with it: on a coloured mat chroma falls as lightness does.
    soft &= chroma < tolerance + 0.5 * darker * np.linalg.norm(mat[..., 1:], axis=2) / np.maximum(mat[..., 0], 1)
    reach = int(np.clip(0.015 * max(lab.shape[:2]), 8, 40))
    near = cv2.dilate(outside.astype(np.uint8), cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach + 1,) * 2))
    return _reached_from_border(outside | (soft & (near > 0)))


def _real_holes(candidates: NDArray[np.bool_], mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Enclosed mat-coloured areas large enough to be holes rather than specks."""
    count, labels, stats, _ = cv2.connectedComponentsWithStats(candidates.astype(np.uint8), connectivity=4)
    large = stats[:, cv2.CC_STAT_AREA] >= max(25, 0.0005 * mask.sum())
    large[0] = False
    return np.asarray(large[labels]) if count > 1 else np.zeros_like(candidates)


def _rgb_of(lab: Lab) -> NDArray[np.float32]:
    """(K, 3) Lab as RGB 0..255."""
    return 255 * np.asarray(cv2.cvtColor(lab[None], cv2.COLOR_Lab2RGB))[0]
