"""Fragment -> what the ring network sees: its contour at equal steps, and the picture unrolled along it.

At every contour point there is a local frame: the tangent along the contour, and the normal into the piece. All
that is sampled lies in that frame, so nothing changes when the fragment is turned. The step is chosen per
collection, so that sherds of 60 px and scans of 3,000 px look alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter1d

from pairingnet.geometry import Points, perimeter, resample_closed
from pairingnet.jit import compiled
from pairingnet.prepare.patches import textured
from pairingnet.types import Fragment, Pixels

# Where colours are sampled around a contour point, in steps: (along the tangent, into the piece). Near the edge
# three side by side, so that lines which cross a seam are seen finer than the steps.
SAMPLES = (
    *((along, depth) for depth in (0.45, 1.0, 1.7) for along in (-1 / 3, 0.0, 1 / 3)),
    *((0.0, depth) for depth in (2.6, 3.8, 5.5, 8.0)),
)
_NEAR = 9  # so many of them are near; the deep ones are sampled from a smoother picture
MIRRORED = tuple(SAMPLES.index((-along, depth)) for along, depth in SAMPLES)

_LEAST_POINTS = 16
_LEAST_STEP_PX = 1.0
_STEPS_TO_TWICE = 8  # working steps from one to the one twice as large
_LEAST_BLUR_PX = 0.3


@dataclass(frozen=True, eq=False)
class Strip:
    """One fragment, unrolled.

    points (N, 2) px at equal steps; tangents (N, 2) of length 1; colours (N, S, 3) uint8 at SAMPLES;
    inside (N, S) uint8: 255 where the sample lies within the piece.
    """

    id: str
    points: Points
    tangents: Points
    colours: Pixels
    inside: Pixels
    step_px: float

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def normals(self) -> Points:
        """(N, 2) into the piece."""
        return np.stack([-self.tangents[:, 1], self.tangents[:, 0]], axis=1)


def working_step(perimeters_px: Sequence[float], points: int) -> float:
    """The step at which the median fragment has about `points` contour points; at least a pixel.

    Steps are powers of the eighth root of two: a few fragments more or less hardly ever change it, so that features
    of a collection that grows are kept.
    """
    if not len(perimeters_px):
        return _LEAST_STEP_PX
    wanted_px = max(_LEAST_STEP_PX, float(np.median(perimeters_px)) / points)
    return float(2 ** (round(_STEPS_TO_TWICE * np.log2(wanted_px)) / _STEPS_TO_TWICE))


def unroll(fragment: Fragment, step_px: float, texture: str = "rgb") -> Strip:
    """Sample a fragment along its contour; texture "rgb", "grey" or "canny"."""
    step_px = min(step_px, perimeter(fragment.contour) / _LEAST_POINTS)
    # Pixel noise below half a step would be geometry to the network.
    spacing_px = perimeter(fragment.contour) / len(fragment.contour)
    smooth = gaussian_filter1d(fragment.contour, 0.5 * step_px / spacing_px, axis=0, mode="wrap")
    points = resample_closed(smooth, step_px)
    along = np.roll(points, -1, axis=0) - np.roll(points, 1, axis=0)
    tangents = along / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    points, tangents = as_stored(points), as_stored(tangents)
    strip = Strip(
        fragment.id, points, tangents, np.zeros(0, np.uint8), np.zeros(0, np.uint8), perimeter(points) / len(points)
    )
    colours, inside = _sample(textured(fragment, texture), fragment.alpha, strip)
    return Strip(fragment.id, points, tangents, colours, inside, strip.step_px)


def as_stored(points: Points) -> Points:
    """Points as they are after they were stored with half the digits: so nothing depends on whether they were."""
    return points.astype(np.float32).astype(np.float64)


def _sample(pixels: Pixels, alpha: Pixels, strip: Strip) -> tuple[Pixels, Pixels]:
    """Colours (N, S, 3) and cover (N, S) at SAMPLES."""
    along, depth = np.array(SAMPLES).T * strip.step_px
    at = strip.points[:, None] + along[None, :, None] * strip.tangents[:, None]
    at = at + depth[None, :, None] * strip.normals[:, None]
    values = np.concatenate(
        [
            _blurred_at(pixels, alpha, at[:, :_NEAR].reshape(-1, 2), _gaussian(0.3 * strip.step_px)),
            _blurred_at(pixels, alpha, at[:, _NEAR:].reshape(-1, 2), _gaussian(0.8 * strip.step_px)),
        ],
    )
    near, deep = np.split(values, [len(strip) * _NEAR])
    values = np.concatenate([part.reshape(len(strip), -1, 4) for part in (near, deep)], axis=1)
    cover = values[..., 3:]
    colours = values[..., :3] / np.maximum(cover, 1e-3)
    return np.rint(colours.clip(0, 255)).astype(np.uint8), np.rint(255 * cover[..., 0].clip(0, 1)).astype(np.uint8)


def _gaussian(blur_px: float) -> NDArray[np.float64]:
    """(2 R + 1,): a Gaussian kernel of sum 1, cut off at four times its width."""
    blur_px = max(blur_px, _LEAST_BLUR_PX)
    reach = int(round(8 * blur_px + 1) | 1) // 2
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / blur_px) ** 2)
    return np.asarray(kernel / kernel.sum())


@compiled
def _blurred_at(pixels: Pixels, alpha: Pixels, at: Points, kernel: NDArray[np.float64]) -> Any:
    """(K, 4): colours weighted by their cover, and the cover in [0, 1], at places (K, 2) of a picture (H, W, 3) that is
    blurred by a kernel and interpolated linearly.

    Only what is asked for is blurred: that is less than the whole picture, and the same on every machine, which
    OpenCV's filters are not.
    """
    height, width = alpha.shape
    size = len(kernel) + 1  # interpolating between two places widens the kernel by one
    reach = len(kernel) // 2
    values = np.zeros((len(at), 4))
    of_column, of_row = np.empty(size), np.empty(size)
    for k in range(len(at)):
        left, top = int(np.floor(at[k, 0])), int(np.floor(at[k, 1]))
        right_share, lower_share = at[k, 0] - left, at[k, 1] - top
        for i in range(size):
            here = kernel[i] if i < size - 1 else 0.0
            before = kernel[i - 1] if i > 0 else 0.0
            of_column[i] = (1 - right_share) * here + right_share * before
            of_row[i] = (1 - lower_share) * here + lower_share * before
        red = green = blue = cover = 0.0
        for i in range(max(0, reach - top), min(size, height - top + reach)):
            row = top - reach + i
            for j in range(max(0, reach - left), min(size, width - left + reach)):
                column = left - reach + j
                weight = of_row[i] * of_column[j] * alpha[row, column]
                red += weight * pixels[row, column, 0]
                green += weight * pixels[row, column, 1]
                blue += weight * pixels[row, column, 2]
                cover += weight
        values[k, 0], values[k, 1], values[k, 2], values[k, 3] = red / 255, green / 255, blue / 255, cover / 255
    return values
