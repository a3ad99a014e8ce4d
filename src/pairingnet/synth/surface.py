"""What the ground and the years do to the face of a piece: it flakes, fades, is stained and scratched, and is lit anew.

Images are float32 (H, W, 3); alpha (H, W), above 0 inside. Each step draws random numbers only where it is asked for.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from pairingnet.config import WearSettings
from pairingnet.types import Pixels

Image = NDArray[np.float32]

_PLASTER = np.array([205.0, 196.0, 180.0], dtype=np.float32)  # what lies below the paint: lime and sand
_SOIL = np.array([0.62, 0.52, 0.40], dtype=np.float32)  # what a thick stain leaves of the light


def suffered(image: Image, alpha: Pixels, wear: WearSettings, rng: np.random.Generator) -> Image:
    """All of it, in the order in which it happens."""
    if wear.flakes > 0:
        image = _flaked(image, alpha, wear.flakes, rng)
    if wear.marks > 0:
        image = _scratched(image, wear.marks, rng)
    if wear.fading > 0:
        image = _faded(image, alpha, float(rng.uniform(0, wear.fading)))
    if wear.dirt > 0:
        image = _stained(image, wear.dirt, rng)
    if wear.light > 0:
        image = _lit_aslant(image, wear.light, rng)
    return image.clip(0, 255)


def smooth_field(shape: tuple[int, ...], scale_px: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """A random field (H, W) in [0, 1] that changes over about `scale_px`."""
    h, w = shape[:2]
    grid = rng.random((int(h / scale_px) + 4, int(w / scale_px) + 4), dtype=np.float32)
    fine = cv2.resize(grid, None, fx=scale_px, fy=scale_px, interpolation=cv2.INTER_CUBIC)
    top, left = (int(n) for n in rng.integers(0, max(1, int(scale_px)), 2))
    return np.asarray(fine[top : top + h, left : left + w]).clip(0, 1)


def plaster(shape: tuple[int, ...], rng: np.random.Generator) -> Image:
    """Bare plaster (H, W, 3): cloudy, sandy, of a tint of its own."""
    clouds = smooth_field(shape, 40.0, rng) - 0.5
    sand = rng.normal(0, 1, shape[:2]).astype(np.float32)
    tint = _PLASTER * rng.uniform(0.9, 1.1, 3).astype(np.float32)
    return np.asarray(tint + (30 * clouds + 5 * sand)[..., None], dtype=np.float32)


def _flaked(image: Image, alpha: Pixels, share: float, rng: np.random.Generator) -> Image:
    """Paint that has come off in patches with sharp rims; more of it near the edge."""
    shape = alpha.shape
    depth = np.asarray(cv2.distanceTransform((alpha > 0).astype(np.uint8), cv2.DIST_L2, 5))
    loose = smooth_field(shape, 35.0, rng) + 0.5 * smooth_field(shape, 9.0, rng) + 0.5 * np.exp(-depth / 12)
    inside = alpha > 0
    if not inside.any():
        return image
    bare = (loose > np.quantile(loose[inside], 1 - share)) & inside
    below = plaster(shape, rng)
    # The layer of paint casts a narrow shadow.
    shadow = cv2.GaussianBlur(np.roll(bare.astype(np.float32), (1, 1), axis=(0, 1)), (0, 0), 0.8) - bare
    shaded = image * (1 - 0.35 * shadow.clip(0, 1))[..., None]
    return np.where(bare[..., None], below, shaded).astype(np.float32)


def _scratched(image: Image, per_area: float, rng: np.random.Generator) -> Image:
    """Strokes of a tool, most in one direction, each a light line beside a dark one."""
    height, width = image.shape[:2]
    relief = np.zeros((height, width), dtype=np.float32)
    along = rng.uniform(0, np.pi)
    for _ in range(rng.poisson(per_area * height * width / 1e4)):
        angle = along + rng.normal(0, 0.25)
        half = rng.lognormal(2.7, 0.5) * np.array([np.cos(angle), np.sin(angle)])
        middle = rng.uniform(0, 1, 2) * (width, height)
        ends = np.rint(16 * np.array([middle - half, middle + half])).astype(int)
        cv2.line(relief, ends[0], ends[1], float(rng.uniform(15, 45)), 1, cv2.LINE_AA, shift=4)
    return np.asarray(image + (relief - np.roll(relief, (1, 1), axis=(0, 1)))[..., None], dtype=np.float32)


def _faded(image: Image, alpha: Pixels, share: float) -> Image:
    """Colours move towards the piece's own pale grey."""
    inside = alpha > 0
    if not inside.any():
        return image
    pale = 0.5 * (float(image[inside].mean()) + float(_PLASTER.mean()))
    grey = image.mean(axis=2, keepdims=True)
    return np.asarray((1 - share) * image + share * (0.5 * grey + 0.5 * pale), dtype=np.float32)


def _stained(image: Image, strength: float, rng: np.random.Generator) -> Image:
    """Soil and soot: a few soft dark clouds, and specks."""
    shape = image.shape[:2]
    clouds = (1.6 * (smooth_field(shape, 60.0, rng) - 0.45)).clip(0, 1)
    specks = (smooth_field(shape, 4.0, rng) > 0.92).astype(np.float32) * 0.5
    thick = (strength * (clouds + specks)).clip(0, 1)[..., None]
    return np.asarray(image * (1 - thick * (1 - _SOIL)), dtype=np.float32)


def _lit_aslant(image: Image, spread: float, rng: np.random.Generator) -> Image:
    """Lit from one side: brighter there, darker on the other, in a direction of the piece's own."""
    height, width = image.shape[:2]
    angle, more = rng.uniform(0, 2 * np.pi), rng.normal(0, spread)
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    return np.asarray(image * (1 + more * (x * np.cos(angle) + y * np.sin(angle)))[..., None], dtype=np.float32)
