"""A fragment as the comparison methods know it: its contour as a polygon, whose sides have a length and a colour.

Zhang & Li 2014, step 1, as far as it is known (docs/baselines.md): the contour is cut at its two farthest points, each
chain is simplified (Douglas-Peucker), and the contour between two corners is a segment. All is done once a fragment.
Places are complex numbers x + iy here, so that many rigid motions z -> turn z + shift are one product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, QhullError
from scipy.spatial.distance import cdist

from pairingnet.config import CandidateSettings
from pairingnet.geometry import Points, perimeter
from pairingnet.match.contact import Outline
from pairingnet.types import Fragment

Complex = NDArray[np.complex128]
AXES = np.array([1, 1j])  # points @ AXES are complex numbers

_INNER = 200  # places spread over a piece that tell how much of it another one covers
_DEEP_PX = 2.0  # a place counts as covered from this depth on


@dataclass(frozen=True, eq=False)
class Segments:
    """S stretches of a contour between polygon corners: start, end and centroid (S,) as complex numbers, length (S,)
    in px along the contour, mean colour (S, 3) RGB."""

    start: Complex
    end: Complex
    centroid: Complex
    length_px: NDArray[np.float64]
    colour: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.start)

    def only(self, kept: NDArray[np.bool_]) -> Segments:
        """Some of them."""
        return Segments(self.start[kept], self.end[kept], self.centroid[kept], self.length_px[kept], self.colour[kept])


@dataclass(frozen=True, eq=False)
class Core:
    """What lies deep inside of a piece: mask (H, W), from a corner x + iy on; and inner (G,), places spread over all of
    the piece, as complex numbers."""

    mask: NDArray[np.bool_]
    corner: complex
    inner: Complex

    def covers(self, places: Complex) -> NDArray[np.bool_]:
        """Which places, in an array of any shape, lie deep inside."""
        at = places - self.corner
        height, width = self.mask.shape
        # The mask has an empty border: what lies beyond it is moved there.
        x = np.rint(at.real).clip(0, width - 1).astype(np.intp)
        y = np.rint(at.imag).clip(0, height - 1).astype(np.intp)
        return np.asarray(self.mask[y, x])


@dataclass(frozen=True, eq=False)
class Piece:
    """outline: the contour (N, 2); colours (N, 3): of the picture a little inside of it."""

    id: str
    outline: Outline
    colours: NDArray[np.float64]
    segments: Segments
    core: Core

    @cached_property
    def contour(self) -> Complex:
        return np.asarray(self.outline.points @ AXES)


def describe_piece(fragment: Fragment, settings: CandidateSettings) -> Piece:
    """All that candidates need to know of a fragment."""
    outline = Outline(fragment.contour)
    colours = border_colours(fragment, outline, settings.depth)
    corners = polygon(outline.points, settings.tolerance * perimeter(outline.points))
    segments = cut(outline.points, colours, corners)
    return Piece(
        fragment.id,
        outline,
        colours,
        segments.only(segments.length_px >= settings.shortest),
        core_of(outline.points),
    )


def border_colours(fragment: Fragment, outline: Outline, depth_px: float) -> NDArray[np.float64]:
    """(N, 3) colours `depth_px` inside of the contour; on the edge itself they may mix with the background."""
    height, width = fragment.alpha.shape
    inward = np.stack([-outline.tangents[:, 1], outline.tangents[:, 0]], axis=1)
    colours = np.zeros((len(outline.points), 3))
    unknown = np.ones(len(colours), dtype=bool)
    for depth in (depth_px, 0.5 * depth_px, 0.0):  # less deep where the piece is thinner than that
        at = np.rint(outline.points + depth * inward).astype(np.intp)
        x, y = at[:, 0].clip(0, width - 1), at[:, 1].clip(0, height - 1)
        found = unknown & (fragment.alpha[y, x] >= 128)
        colours[found] = fragment.pixels[y[found], x[found]]
        unknown &= ~found
    if unknown.any() and not unknown.all():
        colours[unknown] = colours[~unknown].mean(axis=0)
    return colours


def polygon(contour: Points, tolerance_px: float) -> NDArray[np.intp]:
    """Numbers of the contour points that are corners of its polygon, in order."""
    first, second = sorted(farthest_points(contour))
    numbers = np.arange(len(contour))
    chains = (numbers[first : second + 1], np.append(numbers[second:], numbers[: first + 1]))
    return np.unique(np.concatenate([_corners(contour, chain, tolerance_px) for chain in chains]))


def farthest_points(contour: Points) -> tuple[int, int]:
    """Numbers of the two points that are farthest from each other; both lie on the convex hull."""
    try:
        hull = np.asarray(ConvexHull(contour).vertices, dtype=np.intp)
    except QhullError:  # all on one line
        hull = np.arange(len(contour))
    apart = cdist(contour[hull], contour[hull])
    a, b = np.unravel_index(int(apart.argmax()), apart.shape)
    return int(hull[a]), int(hull[b])


def _corners(points: Points, chain: NDArray[np.intp], tolerance_px: float) -> NDArray[np.intp]:
    """Douglas-Peucker on an open chain of point numbers; the numbers that are kept."""
    line = points[chain].astype(np.float32)
    kept = cv2.approxPolyDP(line, tolerance_px, closed=False)[:, 0]
    # OpenCV gives the places only: each is the next point of the chain that lies there.
    place = {(float(x), float(y)): number for (x, y), number in zip(line[::-1], chain[::-1], strict=True)}
    return np.array([place[float(x), float(y)] for x, y in kept], dtype=np.intp)


def cut(contour: Points, colours: NDArray[np.float64], corners: NDArray[np.intp]) -> Segments:
    """The segments between successive corners of a closed contour."""
    z = contour @ AXES
    ends = np.append(corners[1:], corners[:1] + len(z))
    # Sums up to each point, over the contour twice, so that the last segment may run over the start.
    twice = np.concatenate([z, z])
    steps = np.abs(np.diff(np.append(twice, twice[0])))
    counts = (ends - corners).astype(np.float64)

    def total(values: NDArray[Any]) -> NDArray[Any]:
        sums = np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)])
        return np.asarray(sums[ends] - sums[corners])

    return Segments(
        start=z[corners],
        end=twice[ends],
        centroid=np.asarray(total(0.5 * (twice + np.roll(twice, -1))) / counts, dtype=np.complex128),
        length_px=total(steps),
        colour=total(np.concatenate([colours, colours])) / counts[:, None],
    )


def core_of(contour: Points) -> Core:
    """The inside of a contour."""
    low, high = contour.min(axis=0), contour.max(axis=0)
    width, height = np.ceil(high - low).astype(int) + 3
    filled = np.zeros((height, width), dtype=np.uint8)
    cv2.fillPoly(filled, [np.rint(contour - low + 1).astype(np.int32)], 1)
    step = max(1.0, float(np.sqrt(np.prod(high - low) / _INNER)))
    x, y = np.meshgrid(np.arange(step / 2, high[0] - low[0], step), np.arange(step / 2, high[1] - low[1], step))
    inner = (x + 1j * y)[filled[np.rint(y + 1).astype(np.intp), np.rint(x + 1).astype(np.intp)] > 0]
    deep = cv2.distanceTransform(filled, cv2.DIST_L2, 5) > _DEEP_PX
    corner = complex(*(low - 1))
    return Core(np.asarray(deep), corner, inner + corner + (1 + 1j))
