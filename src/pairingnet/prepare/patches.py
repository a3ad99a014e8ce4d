"""Fragment -> what the paper's network sees: a small square of the image around every contour point.

Squares are aligned with the image's axes (the paper's network is not made to be turned). The contour is the one
of the published code: on the fragment's last pixels, smoothed (sigma 3), rounded to pixels, repeats dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter1d

from pairingnet.geometry import Points
from pairingnet.types import Fragment, Pixels

EDGE, INSIDE = 1, 2  # bits of a contour patch
_SMOOTH_POINTS = 3.0
_COORDINATE_UNIT_PX = 100.0


@dataclass(frozen=True, eq=False)
class PatchInput:
    """One fragment, ready for the network.

    points (N, 2) pixel positions of the contour; coordinates (N, 2) float32, centred, in units of 100 px;
    shape (N, k, k) uint8, bits EDGE and INSIDE; texture (N, k, k, 3) uint8.
    """

    points: Points
    coordinates: NDArray[np.float32]
    shape: NDArray[np.uint8]
    texture: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.points)


def patch_input(fragment: Fragment, patch: int = 7, texture: str = "rgb") -> PatchInput:
    """Patches of `patch` x `patch` pixels; texture "rgb", "grey", or "canny" (black and white edges)."""
    points = pixel_contour(fragment)
    half = patch // 2
    at = points.astype(np.intp)
    maps = np.where(fragment.alpha >= 128, np.uint8(INSIDE), np.uint8(0))
    rows, columns = (at[:, 1].clip(0, maps.shape[0] - 1), at[:, 0].clip(0, maps.shape[1] - 1))
    maps[rows, columns] |= EDGE
    offsets = np.arange(patch)
    window_rows = at[:, 1, None, None] + offsets[None, :, None]  # (N, k, 1), in the padded image
    window_columns = at[:, 0, None, None] + offsets[None, None, :]
    padded = np.pad(maps, half)
    colours = np.pad(textured(fragment, texture), [(half, half), (half, half), (0, 0)])
    window_rows = window_rows.clip(0, padded.shape[0] - 1)
    window_columns = window_columns.clip(0, padded.shape[1] - 1)
    centred = (points - points.mean(axis=0)) / _COORDINATE_UNIT_PX
    return PatchInput(
        points, centred.astype(np.float32), padded[window_rows, window_columns], colours[window_rows, window_columns]
    )


def pixel_contour(fragment: Fragment) -> Points:
    """(N, 2) whole pixels along the inner side of the contour, in its order; at least one."""
    contour = fragment.contour
    along = np.roll(contour, -1, axis=0) - np.roll(contour, 1, axis=0)
    inward = np.stack([-along[:, 1], along[:, 0]], axis=1) / np.maximum(np.linalg.norm(along, axis=1), 1e-9)[:, None]
    smooth = gaussian_filter1d(contour + 0.5 * inward, _SMOOTH_POINTS, axis=0, mode="wrap")
    pixels = np.rint(smooth)
    moved = (pixels != np.roll(pixels, 1, axis=0)).any(axis=1)
    moved[0] |= not moved.any()  # smoothing makes a single pixel of a piece of three or four
    return np.asarray(pixels[moved])


def textured(fragment: Fragment, texture: str) -> Pixels:
    """(H, W, 3): the fragment's colours, its grey levels, or its Canny edges in white."""
    if texture == "rgb":
        return fragment.pixels
    grey = np.asarray(cv2.cvtColor(fragment.pixels, cv2.COLOR_RGB2GRAY), dtype=np.uint8)
    if texture == "canny":
        grey = np.asarray(cv2.Canny(grey, 100, 200), dtype=np.uint8)
    elif texture != "grey":
        raise ValueError(f"texture is '{texture}'; it must be rgb, grey or canny")
    return np.repeat(grey[..., None], 3, axis=2)


def shown_inputs(fragment: Fragment) -> dict[str, Pixels]:
    """The fragment as each choice of texture and of contour encoding shows it, as pictures (H, W, 3)."""
    outside = fragment.alpha < 128
    pictures = {}
    for texture in ("rgb", "grey", "canny"):
        picture = textured(fragment, texture).copy()
        picture[outside] = 255
        pictures[texture] = picture
    at = pixel_contour(fragment).astype(np.intp)
    edge = np.zeros(outside.shape, dtype=bool)
    edge[at[:, 1], at[:, 0]] = True
    thick = cv2.dilate(edge.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0  # one pixel would not be seen
    levels = {
        "(1) edge": np.where(thick, 255, 0),
        "(2) inside-outside": np.where(outside & ~edge, 0, 255),
        "(3) both": np.where(thick, 128, np.where(outside, 0, 255)),
    }
    return pictures | {name: np.repeat(level[..., None].astype(np.uint8), 3, axis=2) for name, level in levels.items()}
