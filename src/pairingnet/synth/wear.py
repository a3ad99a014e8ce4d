"""What time and the scanner do: edges wear off, chips break out, colours drift, the scan adds its own.

The truth does not change with wear: a seam is where two pieces were joined before it. A setting that is 0 draws no
random numbers, so that a kind of wear gives the same bytes whatever others are added.
"""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from pairingnet.config import WearSettings
from pairingnet.io.images import jpeg_round_trip
from pairingnet.synth.surface import smooth_field, suffered
from pairingnet.types import Pixels

_CORNER = -0.3  # cosine of the angle inside a corner: sharper than some 107 degrees


def wear_of_picture(wear: WearSettings, rng: np.random.Generator) -> WearSettings:
    """The wear of one picture: its gaps are wider or narrower than those of others."""
    if not wear.gap_pictures:
        return wear
    return replace(wear, gap=wear.gap * (1 + wear.gap_pictures * rng.uniform(-1, 1)))


def wear_edge(mask: Pixels, wear: WearSettings, rng: np.random.Generator) -> Pixels:
    """What is left of a piece: erosion of smoothly varying depth, gaps, chips and round corners. mask (H, W), 255
    inside."""
    if not (wear.erosion or wear.rubbed or wear.chips or wear.gaps or wear.rounded or wear.gap or wear.corners):
        return mask
    padded = np.pad(mask, 1)
    edge = _edge_points(padded)
    lost = _erosion_depth(padded.shape, edge, wear, rng)
    for _ in range(rng.poisson(wear.gaps)):
        lost += _gap(padded.shape, edge, wear, rng)
    if wear.rubbed > 0:
        lost += 2 * wear.rubbed * smooth_field(padded.shape, 6.0, rng)
    if wear.gap > 0:
        lost += _half_of_gap(padded.shape, wear, rng)
    depth = np.asarray(cv2.distanceTransform(padded, cv2.DIST_L2, 5))
    worn = np.where(depth > lost, padded, 0).astype(np.uint8)
    for _ in range(rng.poisson(wear.chips * len(edge) / 1000)):
        _break_out(worn, edge[rng.integers(len(edge))], wear.chip_size, rng)
    if wear.corners > 0:
        _break_corners(worn, wear, rng)
    if wear.rounded > 0:
        size = 2 * round(wear.rounded) + 1
        worn = np.asarray(
            cv2.morphologyEx(worn, cv2.MORPH_OPEN, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (size, size)))
        )
    return _one_part(worn)[1:-1, 1:-1]


def wear_surface(pixels: Pixels, alpha: Pixels, wear: WearSettings, rng: np.random.Generator) -> Pixels:
    """Colour shift, blur, scanner noise and JPEG on a fragment's pixels (H, W, 3); black outside stays black."""
    if not (wear.colour or wear.blur or wear.noise or wear.jpeg) and not _suffers(wear):
        return pixels
    image = pixels.astype(np.float32)
    inside = alpha > 0
    if _suffers(wear):
        image = suffered(image, alpha, wear, rng)
    if wear.colour > 0:
        image = _drift(image, wear.colour, rng)
    if wear.blur > 0:
        image = _blur_inside(image, alpha, rng.uniform(0, wear.blur))
    if wear.noise > 0:
        image += rng.normal(0, rng.uniform(0, wear.noise), image.shape).astype(np.float32)
    worn = image.clip(0, 255).astype(np.uint8)
    if wear.jpeg > 0:
        # A scan shows the piece on a mat; compressing it on that mat makes the ringing real scans have.
        mat = np.full(3, rng.integers(0, 256), dtype=np.uint8)
        worn = jpeg_round_trip(np.where(inside[..., None], worn, mat), int(rng.integers(wear.jpeg, 101)))
    return np.where(inside[..., None], worn, 0).astype(np.uint8)


def _suffers(wear: WearSettings) -> bool:
    return bool(wear.flakes or wear.fading or wear.dirt or wear.marks or wear.light)


def _edge_points(mask: Pixels) -> NDArray[np.int32]:
    lines, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    return np.asarray(max(lines, key=len), dtype=np.int32).reshape(-1, 2)


def _erosion_depth(
    shape: tuple[int, ...], edge: NDArray[np.int32], wear: WearSettings, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Depth lost (H, W): slow change along the edge (K, 2), and a fine roughness on top."""
    if wear.erosion == 0:
        return np.zeros(shape, dtype=np.float32)
    slow = smooth_field(shape, wear.erosion_scale, rng)
    if wear.spared > 0:
        at_edge = slow[edge[:, 1], edge[:, 0]]
        least, most = np.quantile(at_edge, [wear.spared, 1])
        slow = ((slow - least) / max(most - least, 1e-3)).clip(0, 1)
    rough = smooth_field(shape, 5.0, rng) - 0.5
    return (2 * wear.erosion * slow + min(wear.erosion, 2.0) * rough).astype(np.float32)


def _gap(
    shape: tuple[int, ...], edge: NDArray[np.int32], wear: WearSettings, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Extra depth (H, W) around one stretch of the edge, deepest in its middle."""
    x, y = edge[rng.integers(len(edge))]
    half = wear.gap_length * rng.uniform(0.5, 1.5) / 2
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    closeness = 1 - ((columns - x) ** 2 + (rows - y) ** 2) / max(half, 1.0) ** 2
    return np.asarray(wear.gap_depth * rng.uniform(0.5, 1.5) * np.maximum(closeness, 0), dtype=np.float32)


def _half_of_gap(shape: tuple[int, ...], wear: WearSettings, rng: np.random.Generator) -> NDArray[np.float32]:
    """Depth (H, W) of half a gap, constant or slowly changing. (A pixel at the edge is half a pixel deep, not one.)"""
    slow = 2 * smooth_field(shape, wear.gap_scale, rng) - 1 if wear.gap_varies else np.zeros(shape, dtype=np.float32)
    return np.asarray(wear.gap / 2 * (1 + wear.gap_varies * slow) + 0.5, dtype=np.float32)


def _break_corners(mask: Pixels, wear: WearSettings, rng: np.random.Generator) -> None:
    """Break some corners off, along a line that is bent once."""
    lines, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    if not lines:
        return
    line = max(lines, key=len)
    bends = cv2.approxPolyDP(line, 0.012 * cv2.arcLength(line, True), True).reshape(-1, 2).astype(np.float64)
    clockwise = cv2.contourArea(bends.astype(np.float32), oriented=True) > 0
    for number, at in enumerate(bends):
        back, on = bends[number - 1] - at, bends[(number + 1) % len(bends)] - at
        lengths = np.linalg.norm([back, on], axis=1)
        turns_in = (on[0] * back[1] - on[1] * back[0] > 0) == clockwise
        if not turns_in or lengths.min() < 1 or back @ on / lengths.prod() < _CORNER or rng.random() >= wear.corners:
            continue
        reach = np.minimum(wear.corner_size * rng.uniform(0.5, 1.5, 2), 0.45 * lengths)
        ends = at + np.stack([back / lengths[0] * reach[0], on / lengths[1] * reach[1]])
        bent = ends.mean(axis=0) + rng.uniform(-0.25, 0.25) * (at - ends.mean(axis=0))
        beyond = at - 0.5 * (ends.mean(axis=0) - at)  # the contour is not quite its polygon
        cv2.fillPoly(mask, [np.rint([ends[0], beyond, ends[1], bent]).astype(np.int32)], 0)


def _break_out(mask: Pixels, at: NDArray[np.int32], size_px: float, rng: np.random.Generator) -> None:
    """Remove an irregular blob around a point of the edge."""
    angles = np.sort(rng.uniform(0, 2 * np.pi, 9))
    radii = size_px * rng.lognormal(0, 0.4) * rng.uniform(0.6, 1.3, len(angles))
    blob = at + np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    cv2.fillPoly(mask, [np.rint(blob).astype(np.int32)], 0)


def _one_part(mask: Pixels) -> Pixels:
    """The largest connected part, its holes filled."""
    lines, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    kept = np.zeros_like(mask)
    if lines:
        cv2.drawContours(kept, [max(lines, key=cv2.contourArea)], -1, 255, cv2.FILLED)
    return kept


def _drift(image: NDArray[np.float32], spread: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """Another lamp, another day: gamma, contrast, brightness and a tint of its own."""
    gamma = float(np.exp(rng.normal(0, spread)))
    contrast = 1 + rng.normal(0, spread)
    tint = 1 + rng.normal(0, spread / 2, 3)
    brightness = 255 * rng.normal(0, spread / 3)
    shifted = 255 * (image / 255) ** gamma
    return ((shifted - 128) * contrast + 128 + brightness).astype(np.float32) * tint.astype(np.float32)


def _blur_inside(image: NDArray[np.float32], alpha: Pixels, sigma_px: float) -> NDArray[np.float32]:
    """Blur with the piece's own pixels only."""
    if sigma_px < 0.1:
        return image
    weight = alpha.astype(np.float32) / 255
    colour = cv2.GaussianBlur(image * weight[..., None], (0, 0), sigma_px)
    return np.asarray(colour / np.maximum(cv2.GaussianBlur(weight, (0, 0), sigma_px), 1e-3)[..., None])
