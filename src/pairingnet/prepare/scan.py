"""A scan -> its fragments: one photographed piece, or a flatbed sheet with many.

Pieces are numbered in reading order (`sheet#1`, `sheet#2` ...), rulers and colour charts for themselves (`sheet#x1`);
leaving a piece out does not change the others' numbers. A picture with one piece gives it its own name and its whole
frame, so that a pixel of the fragment is the same pixel of the picture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations

import cv2
import numpy as np
from numpy.typing import NDArray

from pairingnet.config import PrepareSettings
from pairingnet.errors import NoFragmentError
from pairingnet.geometry import perimeter, resample_closed
from pairingnet.io.images import LARGE
from pairingnet.prepare.background import Scan, estimate_background, fragment_mask, soften_edge
from pairingnet.prepare.contour import trace_contour
from pairingnet.prepare.large import check_memory, enlarged, reduced, step_of
from pairingnet.prepare.sheet_objects import sheet_object
from pairingnet.types import Fragment, Image, Pixels

_LEAST_AREA = 25.0  # px^2
_LEAST_BORDER_SHARE = 0.35  # of the border that must be of one colour to be called a background

_OUTLINE_POINTS = 256  # of an outline whose notches are looked at
_NOTCH = 0.04  # depth of a notch, as a share of the root of the area
_LEAST_PART = 0.15  # of the area
_CUT = 0.67  # length of a cut, as a share of the root of the smaller part's area
_NEARLY_CONVEX, _GAIN = 0.94, 0.055  # solidity of the parts, and how much more that is than the whole's
_TOUCHES_PX, _TOUCHES = 8, 0.25  # along the picture's edge: px, and as a share of the root of the area


@dataclass(frozen=True, eq=False)
class Prepared:
    """What was found in one picture: fragments, things left out (their note says why), remarks for a person."""

    fragments: tuple[Fragment, ...]
    left_out: tuple[Fragment, ...] = ()
    remarks: tuple[str, ...] = ()


def prepare_image(image: Image, name: str, settings: PrepareSettings | None = None) -> Prepared:
    """All fragments of a picture."""
    settings = settings or PrepareSettings()
    step = step_of(*image.size)
    if step == 1:
        return _prepared(image, name, settings)
    at_step = replace(settings, min_area=settings.min_area / step**2, margin=max(2, settings.margin // step))
    small = _prepared(reduced(image, step), name, at_step, keep_frame=math.prod(image.size) <= LARGE)
    check_memory(image, (*small.fragments, *small.left_out), step)
    fill = settings.holes != "keep"
    found, left_out = (
        tuple(enlarged(fragment, image, step, fill) for fragment in each) for each in (small.fragments, small.left_out)
    )
    return replace(small, fragments=found, left_out=left_out)


def _prepared(image: Image, name: str, settings: PrepareSettings, keep_frame: bool = True) -> Prepared:
    """All fragments of a picture, looked for pixel by pixel."""
    pixels, alpha = separate(image, settings)
    found, dirt = _components(alpha, settings.min_area)
    if not found:
        raise NoFragmentError(
            f"{image.path or name} shows no fragment.",
            "If it should, give --set tolerance (now measured) or --set min_area, or mask it by hand (PNG, alpha).",
        )
    alone, masked = len(found) == 1, has_mask(image, settings)
    kept: list[Fragment] = []
    left_out: list[Fragment] = []
    remarks: list[str] = []
    for component in found:
        # The only piece of a picture keeps the picture's frame: its pixels keep their coordinates.
        whole = alone and keep_frame
        window = _Window(0, 0, *image.size) if whole else component.window(settings.margin)
        fragment = _cut_out(pixels, alpha, component, window, name if alone else f"{name}#{len(kept) + 1}", image)
        reason = sheet_object(fragment) if settings.sheet_objects and not alone else ""
        if reason:
            left_out.append(replace(fragment, id=f"{name}#x{len(left_out) + 1}", notes=(reason,)))
            continue
        kept.append(fragment)
        if parts_at_necks(fragment.alpha) > 1 or looks_like_two(fragment):
            remarks.append(
                f"{fragment.id} may be several pieces that touch or lie on each other; lay them apart and scan again"
            )
        if not masked and _is_cut_off(alpha, component):
            remarks.append(f"{fragment.id} is cut off by the picture's edge; scan it again with some space around it")
    if dirt:
        remarks.append(f"{name}: {dirt} small {'speck was' if dirt == 1 else 'specks were'} dropped as dirt")
    if not kept:
        raise NoFragmentError(
            f"{image.path or name} shows nothing but {', '.join(f.notes[0] for f in left_out)}.",
            "Keep it with --set sheet_objects=false, or remove the file.",
        )
    return Prepared(tuple(kept), tuple(left_out), tuple(remarks))


def separate(image: Image, settings: PrepareSettings) -> tuple[Pixels, Pixels]:
    """Pixels (H, W, 3) without the mat's colour at the edges, and alpha (H, W)."""
    has_alpha = image.alpha is not None and int(image.alpha.min()) < 128
    if settings.background == "alpha" and not has_alpha:
        raise NoFragmentError(
            f"{image.path} has no transparent pixels.",
            "Leave out --set background=alpha for pictures on a mat.",
        )
    if has_mask(image, settings) and image.alpha is not None:
        filled = image.alpha if settings.holes == "keep" else _without_holes(image.alpha)
        return image.pixels, filled
    scan = Scan.of(image.pixels)
    background = estimate_background(scan, settings.tolerance)
    if background.share < _LEAST_BORDER_SHARE:
        raise NoFragmentError(
            f"{image.path} has no background of one colour (only {background.share:.0%} of its border is alike).",
            "Scan the piece on a plain mat with some space around it, or mask it by hand (PNG with alpha).",
        )
    mask = fragment_mask(scan, background, settings.shadows, settings.holes == "keep")
    return soften_edge(image.pixels, mask)


def has_mask(image: Image, settings: PrepareSettings) -> bool:
    """Whether a picture says itself, by its alpha, what is fragment."""
    return image.alpha is not None and int(image.alpha.min()) < 128 and settings.background != "border"


def looks_like_two(fragment: Fragment) -> bool:
    """Whether one cut between two notches of a piece gives two parts that are each nearly convex, as the whole is not:
    so two pieces look that lie on each other."""
    line = resample_closed(fragment.contour, perimeter(fragment.contour) / _OUTLINE_POINTS).astype(np.float32)
    whole = abs(cv2.contourArea(line))
    notches = [at for at, depth in _notches(line) if depth > _NOTCH * np.sqrt(whole)]
    for first, last in combinations(sorted(notches), 2):
        parts = line[first : last + 1], np.vstack([line[last:], line[: first + 1]])
        areas = [abs(cv2.contourArea(part)) for part in parts]
        if min(areas) < _LEAST_PART * whole or abs(sum(areas) - whole) > 0.02 * whole:
            continue  # a sliver, or the cut runs outside
        width = float(np.linalg.norm(line[first] - line[last])) / np.sqrt(min(areas))
        solidity = sum(areas) / sum(map(_hull_area, parts))
        if width < _CUT and solidity > _NEARLY_CONVEX and solidity - whole / _hull_area(line) > _GAIN:
            return True
    return False


def _notches(line: NDArray[np.float32]) -> list[tuple[int, float]]:
    """The deepest point of each notch in an outline (N, 2), and how deep it is, px."""
    fine = np.rint(16 * line).astype(np.int32)
    hull = np.sort(cv2.convexHull(fine, returnPoints=False), axis=0)  # in the order of the outline
    defects = cv2.convexityDefects(fine, hull)
    return [] if defects is None else [(int(at), depth / 256 / 16) for _, _, at, depth in defects.reshape(-1, 4)]


def _hull_area(line: NDArray[np.float32]) -> float:
    return abs(cv2.contourArea(cv2.convexHull(line)))


def _is_cut_off(alpha: Pixels, component: _Component) -> bool:
    """Whether a piece goes on beyond the picture: it lies along one of its edges, and does not just touch it."""
    (height, width), (h, w) = alpha.shape, component.inside.shape
    sides = [
        component.inside[0].sum() if component.top == 0 else 0,
        component.inside[-1].sum() if component.top + h == height else 0,
        component.inside[:, 0].sum() if component.left == 0 else 0,
        component.inside[:, -1].sum() if component.left + w == width else 0,
    ]
    return bool(max(sides) > max(_TOUCHES_PX, _TOUCHES * np.sqrt(component.inside.sum())))


def parts_at_necks(alpha: Pixels) -> int:
    """In how many substantial parts a piece falls when its narrow necks are cut: touching pieces give 2 or more."""
    inside = np.pad((alpha >= 128).astype(np.uint8), 1)
    depth = np.asarray(cv2.distanceTransform(inside, cv2.DIST_L2, 5))
    area = float(inside.sum())
    most = 1
    # A neck is narrow against the size of what it joins.
    for neck_px in np.sqrt(area) * np.array([0.02, 0.05, 0.1]):
        if neck_px < 2:
            continue
        count, _, stats, _ = cv2.connectedComponentsWithStats((depth > neck_px).astype(np.uint8))
        most = max(most, int((stats[1:count, cv2.CC_STAT_AREA] > 0.15 * area).sum()))
    return most


@dataclass(frozen=True)
class _Window:
    """A rectangle that may reach beyond an image; there it is zero."""

    left: int
    top: int
    width: int
    height: int

    def of(self, array: Pixels) -> Pixels:
        h, w = array.shape[:2]
        before = max(-self.top, 0), max(-self.left, 0)
        after = max(self.top + self.height - h, 0), max(self.left + self.width - w, 0)
        rows = slice(max(self.top, 0), self.top + self.height)
        columns = slice(max(self.left, 0), self.left + self.width)
        pad = [(before[0], after[0]), (before[1], after[1])] + [(0, 0)] * (array.ndim - 2)
        return np.pad(array[rows, columns], pad)


@dataclass(frozen=True, eq=False)
class _Component:
    """One connected thing in a mask: its box and its pixels (h, w)."""

    left: int
    top: int
    inside: NDArray[np.bool_]

    def window(self, margin: int) -> _Window:
        h, w = self.inside.shape
        return _Window(self.left - margin, self.top - margin, w + 2 * margin, h + 2 * margin)


def _components(alpha: Pixels, min_area: float) -> tuple[list[_Component], int]:
    """Everything large enough to be a piece, in reading order, and how many specks there were beside."""
    count, labels, stats, _ = cv2.connectedComponentsWithStats((alpha >= 128).astype(np.uint8), connectivity=4)
    areas = stats[1:count, cv2.CC_STAT_AREA]
    if not len(areas):
        return [], 0
    # Below a few pixels there is no contour to speak of.
    limit = max(min_area or max(400.0, 0.01 * float(areas.max())), _LEAST_AREA)
    kept = [1 + int(i) for i in np.flatnonzero(areas >= limit)]
    components = []
    for label in _reading_order(np.asarray(stats, dtype=np.int32), kept):
        x, y, w, h = (int(v) for v in stats[label, :4])
        components.append(_Component(x, y, labels[y : y + h, x : x + w] == label))
    return components, len(areas) - len(kept)


def _reading_order(stats: NDArray[np.int32], labels: list[int]) -> list[int]:
    """Rows from the top, each from the left; a row is what begins above the middle of its first piece."""
    waiting = sorted(labels, key=lambda label: int(stats[label, cv2.CC_STAT_TOP]))
    ordered: list[int] = []
    while waiting:
        first = waiting[0]
        middle = stats[first, cv2.CC_STAT_TOP] + stats[first, cv2.CC_STAT_HEIGHT] / 2
        row = [label for label in waiting if stats[label, cv2.CC_STAT_TOP] <= middle]
        ordered += sorted(row, key=lambda label: int(stats[label, cv2.CC_STAT_LEFT]))
        waiting = [label for label in waiting if label not in row]
    return ordered


def _cut_out(
    pixels: Pixels, alpha: Pixels, component: _Component, window: _Window, fragment_id: str, image: Image
) -> Fragment:
    """One component as a fragment, in a window of the picture around it."""
    h, w = component.inside.shape
    top, left = component.top - window.top, component.left - window.left
    own = np.zeros((window.height, window.width), dtype=np.uint8)
    own[top : top + h, left : left + w] = component.inside
    # Its own pixels and the soft ones right beside them, nothing of a close neighbour.
    own = np.asarray(cv2.dilate(own, np.ones((3, 3), np.uint8)))
    cut_alpha = np.where(own > 0, window.of(alpha), 0).astype(np.uint8)
    cut_pixels = np.where(cut_alpha[..., None] > 0, window.of(pixels), 0).astype(np.uint8)
    offset = (window.left, window.top)
    return Fragment(fragment_id, cut_pixels, cut_alpha, trace_contour(cut_alpha), image.dpi, image.path, offset)


def _without_holes(alpha: Pixels) -> Pixels:
    """Enclosed transparent areas made opaque."""
    outlines, _ = cv2.findContours((alpha >= 128).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    filled = np.zeros_like(alpha)
    cv2.drawContours(filled, outlines, -1, 255, cv2.FILLED)
    # The outline's own pixels keep their soft alpha.
    inner = cv2.erode(filled, np.ones((3, 3), np.uint8))
    return np.maximum(alpha, inner)
