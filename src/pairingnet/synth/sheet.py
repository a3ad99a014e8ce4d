"""Fragments laid out on a scanner's glass: a sheet with a mat, noise, soft shadows and a ruler.

For testing the way from a scan to fragments, where the truth is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from pairingnet.types import Fragment, Pixels


def lay_out(
    fragments: Sequence[Fragment],
    rng: np.random.Generator,
    mat: tuple[int, int, int] = (128, 128, 128),
    columns: int = 5,
    spacing_px: int = 30,
    noise: float = 0.0,
    shadow: float = 0.0,
    ruler: bool = False,
) -> Pixels:
    """A sheet (H, W, 3) with the fragments in rows, in order, a ruler below.

    noise: sigma in grey levels; shadow: how dark the shadow to the lower right of each piece is, 0 to 1.
    """
    cell_h = max(f.alpha.shape[0] for f in fragments) + spacing_px
    cell_w = max(f.alpha.shape[1] for f in fragments) + spacing_px
    rows = -(-len(fragments) // columns)
    height = rows * cell_h + spacing_px + (ruler_height := 140 if ruler else 0)
    width = max(columns * cell_w, 900 if ruler else 0) + spacing_px
    sheet = np.empty((height, width, 3), dtype=np.float32)
    sheet[:] = mat
    alpha = np.zeros((height, width), dtype=np.float32)
    colours = np.zeros((height, width, 3), dtype=np.float32)
    for number, fragment in enumerate(fragments):
        top, left = spacing_px + (number // columns) * cell_h, spacing_px + (number % columns) * cell_w
        h, w = fragment.alpha.shape
        alpha[top : top + h, left : left + w] = fragment.alpha / np.float32(255)
        colours[top : top + h, left : left + w] = fragment.pixels
    if ruler:
        top = height - ruler_height
        alpha[top : top + 90, spacing_px:-spacing_px] = 1
        colours[top : top + 90, spacing_px:-spacing_px] = _ruler(width - 2 * spacing_px)
    if shadow > 0:
        shade = cv2.GaussianBlur(cv2.warpAffine(alpha, np.array([[1.0, 0, 5], [0, 1, 5]]), (width, height)), (0, 0), 6)
        sheet *= 1 - shadow * np.asarray(shade)[..., None]
    sheet = colours * alpha[..., None] + sheet * (1 - alpha[..., None])
    if noise > 0:
        sheet += rng.normal(0, noise, sheet.shape).astype(np.float32)
    return np.asarray(sheet.clip(0, 255).astype(np.uint8))


def _ruler(length_px: int, height_px: int = 90) -> Pixels:
    """A wooden ruler with a mark every 8 px, longer ones every 40."""
    ruler = np.empty((height_px, length_px, 3), dtype=np.uint8)
    ruler[:] = (222, 190, 130)
    for x in range(12, length_px - 12, 8):
        long = (x - 12) % 40 == 0
        ruler[: 34 if long else 18, x : x + 2] = (30, 30, 30)
        if long:
            number = str((x - 12) // 40)
            cv2.putText(ruler, number, (x - 6, 60), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (30, 30, 30), 1, cv2.LINE_AA)
    return ruler
