"""Piece -> fragment: its own pixels, turned, with its pose.

Colours are interpolated from the piece's own pixels only (premultiplied by the mask): nothing of a neighbour
leaks into a fragment's edge, and pixels outside the mask are black.
"""

from __future__ import annotations

import cv2
import numpy as np

from pairingnet.geometry import Rigid2D
from pairingnet.types import Pixels


def extract_piece(
    picture: Pixels, mask: Pixels, left: int, top: int, angle_rad: float, margin_px: int
) -> tuple[Pixels, Pixels, Rigid2D]:
    """Cut one piece out of a picture and turn it.

    picture (H, W, 3); mask (h, w), 255 inside, its upper left pixel at (left, top) of the picture.
    Returns pixels (h', w', 3), alpha (h', w') and canvas_from_fragment.
    """
    x, y, w, h = cv2.boundingRect(mask)
    left, top, inside = left + x, top + y, mask[y : y + h, x : x + w]
    crop = picture[top : top + h, left : left + w]
    own = np.asarray(cv2.bitwise_and(crop, crop, mask=inside), dtype=np.uint8)
    if angle_rad == 0:
        border = [(margin_px, margin_px), (margin_px, margin_px)]
        canvas_from_fragment = Rigid2D(0.0, float(left - margin_px), float(top - margin_px))
        return np.pad(own, [*border, (0, 0)]), np.pad(inside, border), canvas_from_fragment

    fragment_from_crop, size = _frame_around(inside, angle_rad, margin_px)
    matrix = fragment_from_crop.matrix
    pixels = np.asarray(cv2.warpAffine(own, matrix, size, flags=cv2.INTER_LINEAR), dtype=np.uint8)
    alpha = np.asarray(cv2.warpAffine(inside, matrix, size, flags=cv2.INTER_LINEAR), dtype=np.uint8)
    soft = (alpha > 0) & (alpha < 255)
    pixels[soft] = np.minimum(pixels[soft] * (255 / alpha[soft, None]), 255)
    pixels = np.asarray(cv2.bitwise_and(pixels, pixels, mask=alpha), dtype=np.uint8)
    return pixels, alpha, Rigid2D(0.0, float(left), float(top)) @ fragment_from_crop.inverse()


def _frame_around(mask: Pixels, angle_rad: float, margin_px: int) -> tuple[Rigid2D, tuple[int, int]]:
    """`fragment_from_crop` that turns a mask and shifts it into a snug image, and that image's (w, h)."""
    outline, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    corners = Rigid2D(angle_rad).apply(np.vstack([line.reshape(-1, 2) for line in outline]))
    low, high = np.floor(corners.min(axis=0)), np.ceil(corners.max(axis=0))
    shift = margin_px - low
    width, height = (high - low).astype(int) + 1 + 2 * margin_px
    return Rigid2D(angle_rad, float(shift[0]), float(shift[1])), (int(width), int(height))
