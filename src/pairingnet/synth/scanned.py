"""A piece on a mat, scanned, and found again: its mask is then what a scan gives, not the exact one."""

from __future__ import annotations

import cv2
import numpy as np

from pairingnet.errors import NoFragmentError
from pairingnet.io.images import jpeg_round_trip
from pairingnet.prepare.scan import prepare_image
from pairingnet.types import Image, Pixels

_AROUND_PX = 16  # of mat
_UNLIKE = 90.0  # distance of the mat's colour from the piece's, at least


def scanned(pixels: Pixels, alpha: Pixels, quality: int, rng: np.random.Generator) -> tuple[Pixels, Pixels]:
    """Pixels (H, W, 3) and alpha (H, W) as a scan of the piece gives them; as they are, where it would not be found."""
    mat = _mat(pixels[alpha > 127], rng)
    around = [(_AROUND_PX, _AROUND_PX)] * 2
    cover = np.pad(alpha, around)[..., None].astype(np.float32) / 255
    laid = np.pad(pixels, [*around, (0, 0)]) * cover + mat * (1 - cover)
    soft = cv2.GaussianBlur(laid, (0, 0), float(rng.uniform(0.3, 0.7))) + rng.normal(0, 1.5, laid.shape)
    scan = jpeg_round_trip(np.rint(soft.clip(0, 255)).astype(np.uint8), quality)
    try:
        found = prepare_image(Image(scan), "scan").fragments
    except NoFragmentError:
        return pixels, alpha
    if len(found) != 1 or found[0].alpha.shape != cover.shape[:2]:
        return pixels, alpha
    inner = slice(_AROUND_PX, -_AROUND_PX)
    return found[0].pixels[inner, inner], found[0].alpha[inner, inner]


def _mat(colours: Pixels, rng: np.random.Generator) -> np.ndarray:
    """A colour unlike the piece's usual ones: what one would choose to lay it on."""
    usual = np.median(colours, axis=0) if len(colours) else np.zeros(3)
    while True:
        mat = rng.uniform(0, 255, 3)
        if np.linalg.norm(mat - usual) > _UNLIKE:
            return mat
