"""Moving a fragment's pixels without letting what is outside bleed in."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from pairingnet.types import Pixels


def warp_fragment(
    pixels: Pixels, alpha: Pixels, matrix: NDArray[np.float64], size: tuple[int, int]
) -> tuple[Pixels, Pixels]:
    """Pixels (H, W, 3) and alpha (H, W) carried by a 2x3 matrix into an image of `size` (width, height).

    Colours are weighted by alpha while they are interpolated, so the black outside does not darken the edge.
    """
    weight = alpha.astype(np.float32)[..., None] / 255
    premultiplied = np.dstack([pixels * weight, weight])
    shrink = float(np.sqrt(abs(np.linalg.det(matrix[:, :2]))))
    if shrink < 1:  # several pixels fall into one: average them first
        premultiplied = np.asarray(cv2.GaussianBlur(premultiplied, (0, 0), 0.5 / shrink), dtype=np.float32)
    warped = np.asarray(cv2.warpAffine(premultiplied, matrix, size, flags=cv2.INTER_LINEAR))
    colours = warped[..., :3] / np.maximum(warped[..., 3:], 1e-6)
    out_alpha = np.rint(255 * warped[..., 3]).clip(0, 255).astype(np.uint8)
    out_pixels = np.where(out_alpha[..., None] > 0, np.rint(colours), 0).clip(0, 255).astype(np.uint8)
    return out_pixels, out_alpha
