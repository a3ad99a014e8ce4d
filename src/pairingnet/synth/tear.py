"""Algorithm 1 of the paper: a picture becomes pieces.

Every cut divides a piece's mask in the picture's own pixels, so the pieces tile the picture exactly: no
overlap, no gap. A cut is a line in the frame of its chord (x along the chord, y across it); line numbers in
the comments are those of Algorithm 1. docs/conventions.md lists what the pseudo-code leaves open and what we
chose.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from pairingnet.config import TearSettings
from pairingnet.geometry import Points, Rigid2D

Mask = NDArray[np.uint8]  # (H, W), 1 inside

_STUBBORN_ATTEMPTS = 15  # lines tried through a piece that is too large, as in the published generator


@dataclass(frozen=True, eq=False)
class Piece:
    """Where a piece lies: its mask (h, w), 1 inside, and the mask's upper left pixel in the picture."""

    mask: Mask
    left: int
    top: int
    area: int


def tear_picture(
    size: tuple[int, int], settings: TearSettings, rng: np.random.Generator, straight: float = 0.0
) -> list[Piece]:
    """Cut a picture of `size` (width, height) into pieces, ordered from top to bottom.

    `straight` is the share of cuts that are one straight line.
    """
    width, height = size
    pieces = [_piece(np.ones((height, width), dtype=np.uint8), 0, 0)]
    for _ in range(settings.t_max):  # line 2
        picked = int(rng.integers(len(pieces)))  # line 3
        _replace(pieces, picked, cut_piece(pieces[picked], settings, rng, straight))
    _cut_large_ones(pieces, settings, rng, straight, settings.max_share * width * height)
    # An order by place, so that the history of the cuts does not show.
    return sorted(pieces, key=lambda piece: (piece.top, piece.left))


def cut_piece(
    piece: Piece, settings: TearSettings, rng: np.random.Generator, straight: float = 0.0
) -> tuple[Piece, Piece] | None:
    """One cut through a piece, or None where the line does not give two pieces of the required size."""
    halves = _split(piece, _cutting_line(piece.mask, settings, rng, straight))
    if halves is None or not all(_large_enough(half, settings) for half in halves):  # line 33
        return None
    return halves


def _cutting_line(mask: Mask, settings: TearSettings, rng: np.random.Generator, straight: float) -> Points:
    """Points of a cut, from outside the piece on one side to outside it on the other."""
    picture_from_chord, radius = _chord(mask, settings.tau, rng)
    height, width = _extent(mask, picture_from_chord)
    x = np.arange(-np.ceil(1.1 * radius), np.ceil(1.1 * radius) + 1)
    if rng.random() < straight:
        return picture_from_chord.apply(np.stack([x, np.zeros_like(x)], axis=1))
    bends = _bends(mask, picture_from_chord, height, settings, rng)
    knots = np.vstack([[x[0], 0.0], bends, [x[-1], 0.0]])
    y = np.interp(x, knots[:, 0], knots[:, 1])
    for start, end in zip(knots[:-1, 0], knots[1:, 0], strict=True):  # line 22
        if rng.random() < settings.rho:  # line 29
            on_line = settings.wave_span == "line"
            span = np.ones(len(x), dtype=bool) if on_line else (x >= start) & (x <= end)
            wave = _irregular(x[span], width, height, settings, rng)
            if not on_line:  # the segment keeps its two ends
                wave -= np.linspace(wave[0], wave[-1], len(wave))
            y[span] += wave
    return picture_from_chord.apply(np.stack([x, y], axis=1))


def _chord(mask: Mask, tau: float, rng: np.random.Generator) -> tuple[Rigid2D, float]:
    """Lines 3-12: two points on the circumcircle of the bounding box, almost opposite each other.

    Returns the frame with its origin in the chord's middle and x along the chord, and the circle's radius.
    """
    h, w = mask.shape
    centre = np.array([(w - 1) / 2, (h - 1) / 2])
    radius = float(np.hypot(w, h)) / 2
    # The smaller arc is uniform above tau * pi: drawing it directly is what the rejection loop does.
    arc, start = rng.uniform(tau, 1) * np.pi, rng.uniform(-np.pi, np.pi)
    a, b = (centre + radius * np.array([np.cos(t), np.sin(t)]) for t in (start, start + arc))
    middle, along = (a + b) / 2, b - a
    return Rigid2D(float(np.arctan2(along[1], along[0])), float(middle[0]), float(middle[1])), radius


def _extent(mask: Mask, picture_from_chord: Rigid2D) -> tuple[float, float]:
    """Line 4: H and W, height across the chord and width along it."""
    edge, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    points = picture_from_chord.inverse().apply(np.vstack([line.reshape(-1, 2) for line in edge]))
    width, height = np.ptp(points, axis=0)
    return float(height), float(width)


def _bends(
    mask: Mask, picture_from_chord: Rigid2D, height: float, settings: TearSettings, rng: np.random.Generator
) -> Points:
    """Lines 13-19: points (m, 2) inside the piece, in the chord's frame, ordered along it."""
    count = int(rng.integers(0, settings.n_max + 1))
    if count == 0:
        return np.zeros((0, 2))
    # Every fourth pixel is enough to choose from, and sixteen times quicker to measure.
    coarse = np.pad(mask[::4, ::4], 1)
    depth = 4 * np.asarray(cv2.distanceTransform(coarse, cv2.DIST_L2, 5))[1:-1, 1:-1]
    # Algorithm 1 would search for ever in a piece that is nowhere 2 * d_min wide.
    deep = min(settings.d_min, float(depth.max()) / 2)
    candidates = 4 * np.argwhere(depth > deep)[:, ::-1]
    points = picture_from_chord.inverse().apply(candidates)
    points = points[np.abs(points[:, 1]) <= settings.corridor * height]
    if len(points) < count:
        return np.zeros((0, 2))
    chosen = points[rng.choice(len(points), count, replace=False)]
    return chosen[np.argsort(chosen[:, 0])]


def _irregular(
    x: NDArray[np.float64], width: float, height: float, settings: TearSettings, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Lines 23-27: a sum of n waves of falling amplitude along the chord.

    Amplitude, period and phase are drawn for each wave, as the published generator does; drawn once, all waves
    would start in step and the line would look like a saw.
    """
    i = np.arange(1, settings.n)  # i = 0 is a constant: it moves the cut, and its chord is random already
    amplitude = rng.normal(settings.s1 * height, settings.s2 * height, len(i)) / (1 + i)
    period = np.maximum(rng.normal(settings.s3 * width, settings.s4 * width, len(i)), 0.25 * width + 1)
    phase = rng.uniform(-np.pi, np.pi, len(i))
    waves = amplitude * np.sin(2 * np.pi * i / period * x[:, None] + phase)
    return np.asarray(waves.sum(axis=1))


def _split(piece: Piece, line: Points) -> tuple[Piece, Piece] | None:
    """Line 32: the two sides of a line, each in one part and without holes; None where that is impossible."""
    side = _side_of(piece.mask.shape, line)
    first = piece.mask & side
    second = piece.mask & ~side
    if not (_is_simple(first) and _is_simple(second)):
        # The line left the piece and came back. Its largest part on each side counts; the crumbs go to the
        # first piece, which they touch, because the whole was in one part.
        first = _largest(first)
        second = _largest(piece.mask & ~first)
        first = piece.mask & ~second
        if not (_is_simple(first) and _is_simple(second)):
            return None
    return _piece(first, piece.left, piece.top), _piece(second, piece.left, piece.top)


def _side_of(shape: tuple[int, ...], line: Points) -> Mask:
    """1 on the left of the line: the line closed by a detour far outside."""
    along = line[-1] - line[0]
    away = 4 * np.array([along[1], -along[0]])
    outline = np.vstack([line, line[-1] + away, line[0] + away])
    side = np.zeros(shape, dtype=np.uint8)
    cv2.fillPoly(side, [np.rint(outline * 16).astype(np.int32)], 1, shift=4)
    return side


def _largest(mask: Mask) -> Mask:
    """The largest connected part; all zero where there is none."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=4)
    stats[0, cv2.CC_STAT_AREA] = 0
    return np.asarray(labels == int(np.argmax(stats[:, cv2.CC_STAT_AREA])), dtype=np.uint8) & mask


def _is_simple(mask: Mask) -> bool:
    """In one part, and without holes: it has exactly one border line."""
    lines, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    return len(lines) == 1


def _large_enough(piece: Piece, settings: TearSettings) -> bool:
    """Line 33, and what the published generator asks beside it."""
    h, w = piece.mask.shape
    return (
        h >= settings.h_min
        and w >= settings.w_min
        and piece.area >= settings.h_min * settings.w_min
        and max(h, w) <= settings.max_aspect * min(h, w)
        and piece.area >= settings.min_fill * h * w
    )


def _cut_large_ones(
    pieces: list[Piece], settings: TearSettings, rng: np.random.Generator, straight: float, limit: float
) -> None:
    """Cut what is still larger than `limit`; a piece that cannot be cut stays."""
    stubborn = 0
    while stubborn < len(pieces):
        pieces.sort(key=lambda piece: piece.area, reverse=True)
        if pieces[stubborn].area <= limit:
            return
        attempts = (cut_piece(pieces[stubborn], settings, rng, straight) for _ in range(_STUBBORN_ATTEMPTS))
        halves = next((halves for halves in attempts if halves is not None), None)
        stubborn += halves is None
        _replace(pieces, stubborn, halves)


def _replace(pieces: list[Piece], index: int, halves: tuple[Piece, Piece] | None) -> None:
    if halves is not None:
        pieces[index : index + 1] = halves


def _piece(mask: Mask, left: int, top: int) -> Piece:
    """Crop a mask to what is inside."""
    x, y, w, h = cv2.boundingRect(mask)
    cropped = np.ascontiguousarray(mask[y : y + h, x : x + w])
    return Piece(cropped, left + x, top + y, int(cv2.countNonZero(cropped)))
