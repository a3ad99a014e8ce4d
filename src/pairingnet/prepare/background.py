"""Which pixels are mat and which are fragment, in a picture without alpha.

The mat is what the picture's border shows: one colour, which may drift slowly across the scan. It is estimated
on each picture by itself. A pixel belongs to the mat if its surroundings have that colour and are as plain as
the mat is (or are a soft shadow on it), *and* it is connected to the border by such pixels; so a fragment may
have the mat's colour inside. Surroundings are judged on a smoothed picture, which noise cannot fool; the last
pixels before a fragment's edge are then judged one by one against the mat right beside them. Colours are
compared in Lab, where distances are about what an eye sees (1 is just visible).
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from pairingnet.types import Pixels

Lab = NDArray[np.float32]  # (..., 3): L 0..100, a and b about -100..100
Mask = NDArray[np.bool_]

_SMOOTH_PX = 1.5  # sigma of the smoothed picture
_LITTLE_PX = 0.7  # sigma of the one in which narrow inlets are seen
_INLET_PX = 40  # how deep an inlet may be
_CLEARLY = 3.0  # times as far from the mat's colour as mat may be: what lies around an inlet
_SAME_COLOUR = 14.0  # farther than this from the border's main colour is something else
_SHADOW_DEPTH = 45.0  # a shadow is at most this much darker
_SHADOW_SLOPE = 3.0  # and changes at most this much from pixel to pixel; a fragment's edge is steeper
_CHANNEL_PX = 2  # narrower ways into a fragment are noise, not mat
_EDGE_PX = 4  # how wide a soft edge may be
_CLEAR_CONTRAST = 40.0  # grey levels between mat and fragment that make a mixture measurable
_OFF_LINE = 50.0  # grey levels by which a mixture may stray from the line between the two colours
_RIM_PX = 4  # how far from an edge the smoothed picture is not to be trusted

_CROSS = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]], dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class Background:
    """The mat: its colour in Lab as a plane over the picture, and how far its pixels stray from it.

    plane (3, 3): rows are constant, per x, per y (x and y from -1 to 1); tolerance: colour distance of smoothed
    pixels, pixel_tolerance: of single ones; slope: colour change per smoothed pixel; share: of the border that
    is mat.
    """

    plane: NDArray[np.float64]
    tolerance: float
    pixel_tolerance: float
    slope: float
    share: float

    def colour(self, shape: tuple[int, ...]) -> Lab:
        """(H, W, 3) the mat's colour at every pixel."""
        y, x = np.meshgrid(np.linspace(-1, 1, shape[0]), np.linspace(-1, 1, shape[1]), indexing="ij")
        return np.asarray(np.stack([np.ones_like(x), x, y], axis=-1) @ self.plane, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Scan:
    """A picture in Lab (H, W, 3), as it is and smoothed, and how fast the smoothed colours change (H, W)."""

    lab: Lab
    smooth: Lab
    slope: NDArray[np.float32]

    @classmethod
    def of(cls, pixels: Pixels) -> Scan:
        lab = np.asarray(cv2.cvtColor(pixels.astype(np.float32) / 255, cv2.COLOR_RGB2Lab), dtype=np.float32)
        smooth = np.asarray(cv2.GaussianBlur(lab, (0, 0), _SMOOTH_PX), dtype=np.float32)
        across, down = (cv2.Scharr(smooth, cv2.CV_32F, *axis) / 32 for axis in ((1, 0), (0, 1)))
        slope = np.sqrt((across**2 + down**2).sum(axis=2))
        return cls(lab, smooth, np.asarray(slope, dtype=np.float32))


def estimate_background(scan: Scan, tolerance: float = 0.0) -> Background:
    """The mat of a picture, from its border; `tolerance` 0 means measured."""
    rows, columns, at = _border(scan.lab.shape)
    colours = scan.smooth[rows, columns]
    same = np.linalg.norm(colours - _main_colour(colours), axis=1) < _SAME_COLOUR
    terms = np.column_stack([np.ones(len(at)), at])
    plane, stray = np.zeros((3, 3)), np.zeros(len(at))
    for _ in range(3):  # what the first fit shows to be something else is left out of the next
        plane, *_ = np.linalg.lstsq(terms[same], colours[same], rcond=None)
        stray = np.linalg.norm(colours - terms @ plane, axis=1)
        same = stray < _SAME_COLOUR
    limit = tolerance or _spread(stray[same], 4.0, 14.0)
    mat = stray <= limit
    pixel_stray = np.linalg.norm(scan.lab[rows, columns] - terms @ plane, axis=1)
    return Background(
        plane,
        limit,
        max(limit, _spread(pixel_stray[mat], 6.0, 25.0)),
        _spread(scan.slope[rows, columns][mat], 0.8, 4.0),
        float(mat.mean()),
    )


def fragment_mask(scan: Scan, background: Background, shadows: bool = True, keep_holes: bool = False) -> Pixels:
    """(H, W), 255 on fragments, 0 on the mat."""
    mat = background.colour(scan.lab.shape)
    plain = np.linalg.norm(scan.smooth - mat, axis=2) <= background.tolerance
    plain &= scan.slope <= background.slope
    outside = _reached_from_border(plain)
    if shadows:
        outside = _with_shadows(outside, scan, mat, background.tolerance)
    outside = _into_inlets(outside, scan, mat, background.tolerance)
    outside = _up_to_the_edge(outside, scan, background.pixel_tolerance)
    mask = ~outside
    if keep_holes:
        holes = _up_to_the_edge(_large_parts(plain & mask), scan, background.pixel_tolerance)
        mask &= ~holes
    return np.asarray(cv2.morphologyEx(_bytes(mask), cv2.MORPH_OPEN, _CROSS), dtype=np.uint8)


def soften_edge(pixels: Pixels, mask: Pixels) -> tuple[Pixels, Pixels]:
    """Sub-pixel alpha on the mask's edge, and the mat's colour taken out of the edge's pixels.

    A pixel near the edge is a mixture of the mat a few pixels outside and the fragment a few pixels inside; its
    share of the latter is its alpha. The mask follows first: pixels that are mostly mat are peeled off its edge.
    Where fragment and mat are alike, or the pixel is no mixture of the two, the mask decides.
    """
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * _EDGE_PX + 3, 2 * _EDGE_PX + 3))
    inner, outer = np.asarray(cv2.erode(mask, disc)) > 0, np.asarray(cv2.dilate(mask, _CROSS)) == 0
    near = np.asarray(cv2.dilate(mask, _CROSS) != cv2.erode(mask, disc))
    if not inner.any() or not outer.any():
        return pixels, mask
    colours = pixels.astype(np.float32)
    own, mat = colour_of_nearest(colours, inner, near), colour_of_nearest(colours, outer, near)
    span = own - mat
    contrast = (span**2).sum(axis=1)
    mixed = ((colours[near] - mat) * span).sum(axis=1) / np.maximum(contrast, 1)
    share = mask.astype(np.float32) / 255
    # Ink that runs over the edge lies on no line between paper and mat: it is no mixture, and the mask decides there.
    off_line = ((mat + mixed.clip(0, 1)[:, None] * span - colours[near]) ** 2).sum(axis=1)
    measurable = (contrast > _CLEAR_CONTRAST**2) & (off_line < _OFF_LINE**2)
    share[near] = np.where(measurable, mixed.clip(0, 1), share[near])

    mask = mask.copy()
    for _ in range(_EDGE_PX):
        rim = (mask > 0) & (np.asarray(cv2.erode(mask, _CROSS)) == 0)
        mask[rim & (share < 0.5)] = 0
    edge = np.asarray(cv2.dilate(mask, _CROSS) != cv2.erode(mask, _CROSS)) & near
    alpha, cleaned = mask.copy(), pixels.copy()
    alpha[edge] = np.rint(255 * share[edge])
    there = edge[near]
    unmixed = mat[there] + (colours[edge] - mat[there]) / np.maximum(share[edge], 0.5)[:, None]
    cleaned[edge] = np.rint(unmixed).clip(0, 255)
    return cleaned, alpha


def _border(shape: tuple[int, ...]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Rows (K,), columns (K,) and positions (K, 2) in -1..1 of the pixels along the border."""
    h, w = shape[:2]
    width = max(2, round(0.01 * min(h, w)))
    frame = np.zeros((h, w), dtype=bool)
    frame[:width], frame[-width:], frame[:, :width], frame[:, -width:] = True, True, True, True
    rows, columns = np.nonzero(frame)
    thin = slice(None, None, max(1, len(rows) // 40_000))
    rows, columns = rows[thin], columns[thin]
    at = np.column_stack([2 * columns / max(w - 1, 1) - 1, 2 * rows / max(h - 1, 1) - 1])
    return rows, columns, at


def _spread(values: NDArray[np.float32] | NDArray[np.float64], least: float, most: float) -> float:
    """A limit that almost all of the mat's own values stay below."""
    measured = 1.5 * float(np.percentile(values, 99)) if len(values) else least
    return float(np.clip(measured, least, most))


def _main_colour(colours: Lab) -> NDArray[np.float64]:
    """The densest colour: the fullest cell of a coarse grid, then the median around it."""
    cells, counts = np.unique(np.floor(colours / 8).astype(int), axis=0, return_counts=True)
    centre = 8.0 * cells[np.argmax(counts)] + 4
    for _ in range(4):
        near = np.linalg.norm(colours - centre, axis=1) < _SAME_COLOUR
        centre = np.median(colours[near], axis=0)
    return np.asarray(centre, dtype=np.float64)


def _reached_from_border(candidates: NDArray[np.bool_], channel_px: int = _CHANNEL_PX) -> NDArray[np.bool_]:
    """The candidates connected to the border by ways that are not too narrow."""
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * channel_px + 1, 2 * channel_px + 1))
    # Beyond the border everything is mat, so pieces that touch the border do not close ways along it.
    padded = np.pad(candidates, 2 * channel_px + 1, constant_values=True).astype(np.uint8)
    wide = cv2.morphologyEx(padded, cv2.MORPH_OPEN, kernel)
    _, labels = cv2.connectedComponents(wide, connectivity=4)
    reached = (labels == labels[0, 0]).astype(np.uint8)
    # The opening also rounded off the mat's corners, deep in a fragment's notches: give those back.
    grown = np.asarray(cv2.dilate(reached, kernel), dtype=np.uint8) & padded
    inset = slice(2 * channel_px + 1, -(2 * channel_px + 1))
    return np.asarray(grown[inset, inset] > 0)


def _with_shadows(outside: Mask, scan: Scan, mat: Lab, tolerance: float) -> Mask:
    """The mat and the soft shadows on it: darker, of the same hue, fading slowly, and not far from plain mat."""
    darker = mat[..., 0] - scan.smooth[..., 0]
    chroma = np.linalg.norm(scan.smooth[..., 1:] - mat[..., 1:], axis=2)
    soft = (darker > 0) & (darker < _SHADOW_DEPTH) & (scan.slope < _SHADOW_SLOPE)
    # A shadow takes its mat's colour with it: on a coloured mat chroma falls as lightness does.
    soft &= chroma < tolerance + 0.5 * darker * np.linalg.norm(mat[..., 1:], axis=2) / np.maximum(mat[..., 0], 1)
    reach_px = float(np.clip(0.015 * max(scan.slope.shape), 8, 40))
    return _reached_from_border(outside | (soft & _near(outside, reach_px)))


def _into_inlets(outside: Mask, scan: Scan, mat: Lab, tolerance: float) -> Mask:
    """The mat and what goes on from it into inlets, where smoothing has mixed it with the fragment on both sides:
    pixels of its colour, smoothed much less. The fragment around an inlet must be clearly of another colour: one that
    is nearly the mat's would be eaten."""
    stray = np.linalg.norm(cv2.GaussianBlur(scan.lab, (0, 0), _LITTLE_PX) - mat, axis=2)
    inlets = (stray <= tolerance) & _near(outside, _INLET_PX)
    added = _reached_from_border(outside | inlets, channel_px=1) & ~outside
    count, number = cv2.connectedComponents(_bytes(added), connectivity=8)
    rim = _near(added, _RIM_PX) & ~added & ~outside
    if count == 1 or not rim.any():
        return outside
    of_nearest = colour_of_nearest(np.repeat(number[..., None].astype(np.float32), 3, axis=2), added, rim)[:, 0]
    beside = of_nearest.astype(np.intp)
    contrast = np.bincount(beside, stray[rim], count) / np.maximum(1, np.bincount(beside, minlength=count))
    return np.asarray(outside | (added & (contrast > _CLEARLY * tolerance)[number]))


def _up_to_the_edge(outside: Mask, scan: Scan, pixel_tolerance: float) -> Mask:
    """Add the pixels within a few px of the mat that look like the mat (or shadow) right beside them."""
    if not outside.any():
        return outside
    rim = _near(outside, _RIM_PX) & ~outside
    beside = colour_of_nearest(scan.smooth, outside, rim)
    grown = outside.copy()
    grown[rim] = np.linalg.norm(scan.lab[rim] - beside, axis=1) <= pixel_tolerance
    return grown


def _near(mask: Mask, reach_px: float) -> Mask:
    """What lies within a distance of a mask."""
    return np.asarray(cv2.distanceTransform(_bytes(~mask), cv2.DIST_L2, 5) <= reach_px)


def colour_of_nearest(colours: NDArray[np.float32], known: Mask, wanted: Mask) -> NDArray[np.float32]:
    """(K, 3): for every wanted pixel the colour of the nearest known one."""
    _, nearest = cv2.distanceTransformWithLabels(
        np.where(known, np.uint8(0), np.uint8(1)), cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL
    )
    position_of = np.zeros(int(np.max(nearest)) + 1, dtype=np.intp)
    position_of[nearest[known]] = np.flatnonzero(known)
    return np.asarray(colours.reshape(-1, 3)[position_of[nearest[wanted]]])


def _large_parts(candidates: Mask) -> Mask:
    """Enclosed mat-coloured areas large enough to be holes rather than specks."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(_bytes(candidates), connectivity=4)
    large = np.asarray(stats[:, cv2.CC_STAT_AREA] >= 25)
    large[0] = False
    return np.asarray(large[labels])


def _bytes(mask: Mask) -> Pixels:
    return np.where(mask, np.uint8(255), np.uint8(0))
