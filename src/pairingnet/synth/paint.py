"""Pictures of walls and pots, made from nothing: where no photographs of plaster and pottery are at hand.

A wall is plaster, painted in fields, with bands, lines, garlands and figures; a pot is its clay, with bands, meanders
and strokes. They have what real ones have and photographs lack: large plain areas, straight and curved bands that run
across many pieces, few colours, and a grain of their own. The same seed gives the same picture.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from pairingnet.io.files import write_whole
from pairingnet.io.images import write_png
from pairingnet.synth.surface import plaster, smooth_field
from pairingnet.types import Pixels

Image = NDArray[np.float32]
Colour = NDArray[np.float32]

# What painters of walls had: red and yellow ochre, green earth, blue frit, lime, soot, cinnabar.
_PIGMENTS = np.array(
    [(140, 52, 38), (188, 138, 62), (96, 112, 84), (72, 96, 122), (226, 216, 196), (48, 42, 40), (168, 60, 44)],
    dtype=np.float32,
)
_CLAYS = np.array([(186, 112, 74), (164, 92, 62), (196, 156, 116), (120, 88, 70), (208, 186, 150)], dtype=np.float32)
_SLIPS = np.array([(40, 32, 30), (92, 36, 28), (228, 214, 188), (120, 60, 40)], dtype=np.float32)
_SHIFT = 4  # binary digits of a pixel in OpenCV's drawing


def fresco(size: tuple[int, int], rng: np.random.Generator) -> Pixels:
    """A painted wall, `size` (width, height): RGB (H, W, 3)."""
    width, height = size
    ground = plaster((height, width), rng)
    paint = np.zeros((height, width, 3), dtype=np.float32)
    paint[:] = _some(_PIGMENTS, rng)
    for _ in range(int(rng.integers(1, 4))):  # fields
        _field(paint, _some(_PIGMENTS, rng), rng)
    for _ in range(int(rng.integers(3, 8))):
        _band(paint, _some(_PIGMENTS, rng), rng)
    for _ in range(int(rng.integers(2, 6))):
        _garland(paint, _some(_PIGMENTS, rng), rng)
    for _ in range(int(rng.integers(1, 5))):
        _figure(paint, rng)
    _strokes(paint, _PIGMENTS, 0.6, rng)
    # Paint lies thick here and thin there, and takes part in the grain of the plaster.
    thick = (0.72 + 0.4 * (smooth_field(paint.shape, 50.0, rng) - 0.5))[..., None]
    grain = (ground - ground.mean(axis=(0, 1)))[..., :1]
    return _photographed(thick * paint + (1 - thick) * ground + 0.5 * grain, rng)


def pottery(size: tuple[int, int], rng: np.random.Generator) -> Pixels:
    """The wall of a pot, unrolled: clay, turned on the wheel, with painted bands; RGB (H, W, 3)."""
    width, height = size
    clay = _some(_CLAYS, rng)
    paint = np.zeros((height, width, 3), dtype=np.float32)
    paint[:] = clay
    paint += 12 * (smooth_field((height, height), 4.0, rng)[:, :1] - 0.5)[..., None]  # grooves of the wheel
    level = rng.uniform(0.02, 0.1) * height
    while level < height:
        wide = rng.uniform(0.008, 0.09) * height
        slip = _some(_SLIPS, rng)
        choice = rng.integers(4)
        if choice == 0:
            cv2.rectangle(paint, (0, round(level)), (width, round(level + wide / 2)), slip.tolist(), cv2.FILLED)
        elif choice == 1:
            _meander(paint, slip, level, max(wide, 24.0))
        elif choice == 2:
            _waves(paint, slip, level, wide, rng)
        else:
            _rays(paint, slip, level, max(2 * wide, 30.0), rng)
        level += wide * rng.uniform(1.3, 3.5) + 12
    _strokes(paint, _SLIPS, 0.15, rng)
    grit = (smooth_field(paint.shape, 3.0, rng) > 0.9).astype(np.float32)
    paint += (18 * (smooth_field(paint.shape, 70.0, rng) - 0.5) - 22 * grit * rng.uniform(0.2, 1))[..., None]
    return _photographed(paint + rng.normal(0, 3, paint.shape[:2])[..., None], rng)


def paint_pictures(out: Path, kind: str, count: int, seed: int, size: tuple[int, int] = (1400, 1000)) -> list[Path]:
    """Pictures OUT/KIND-0001.png and so on; each depends on the seed and its number alone."""
    paths = [out / f"{kind}-{number:04d}.png" for number in range(1, count + 1)]
    for number, path in enumerate(paths, start=1):
        rng = np.random.default_rng([seed, number, list(PAINTERS).index(kind)])
        write_whole(path, partial(write_png, pixels=PAINTERS[kind](size, rng)))
    return paths


PAINTERS: dict[str, Callable[[tuple[int, int], np.random.Generator], Pixels]] = {"fresco": fresco, "pottery": pottery}


def _photographed(image: NDArray[np.floating], rng: np.random.Generator) -> Pixels:
    """Uneven light, a lens, a sensor."""
    soft = cv2.GaussianBlur(image.astype(np.float32), (0, 0), float(rng.uniform(0.5, 1.0)))
    lit = soft * (1 + 0.15 * (smooth_field(soft.shape, 0.5 * max(soft.shape[:2]), rng) - 0.5))[..., None]
    return np.asarray(np.rint((lit + rng.normal(0, 1.5, lit.shape)).clip(0, 255)), dtype=np.uint8)


def _some(colours: NDArray[np.float32], rng: np.random.Generator) -> Colour:
    """One of the colours, a little lighter or darker."""
    return np.asarray(colours[rng.integers(len(colours))] * rng.uniform(0.8, 1.15), dtype=np.float32).clip(0, 255)


def _field(paint: Image, colour: Colour, rng: np.random.Generator) -> None:
    """An upright panel with a border of two lines."""
    height, width = paint.shape[:2]
    x, y = rng.uniform(-0.2, 0.7) * width, rng.uniform(-0.2, 0.7) * height
    w, h = rng.uniform(0.3, 0.8) * width, rng.uniform(0.3, 0.8) * height
    cv2.rectangle(paint, (round(x), round(y)), (round(x + w), round(y + h)), colour.tolist(), cv2.FILLED)
    for inset in (rng.uniform(8, 20), rng.uniform(26, 50)):
        first, last = (round(x + inset), round(y + inset)), (round(x + w - inset), round(y + h - inset))
        cv2.rectangle(paint, first, last, _some(_PIGMENTS, rng).tolist(), int(rng.integers(2, 9)), cv2.LINE_AA)


def _band(paint: Image, colour: Colour, rng: np.random.Generator) -> None:
    """A straight band with thin lines beside it, level, upright or aslant."""
    height, width = paint.shape[:2]
    angle = rng.choice([0.0, np.pi / 2, rng.uniform(0, np.pi)], p=[0.4, 0.4, 0.2])
    along, across = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
    middle = rng.uniform(0, 1, 2) * (width, height)
    thick = float(rng.uniform(6, 50))
    _line(paint, middle - 3e3 * along, middle + 3e3 * along, colour, thick)
    for side in (-1, 1):
        if rng.random() < 0.6:
            aside = middle + side * across * (thick / 2 + rng.uniform(4, 14))
            _line(paint, aside - 3e3 * along, aside + 3e3 * along, _some(_PIGMENTS, rng), float(rng.uniform(1, 4)))


def _garland(paint: Image, colour: Colour, rng: np.random.Generator) -> None:
    """A curved line with leaves along it."""
    height, width = paint.shape[:2]
    knots = rng.uniform(-0.1, 1.1, (4, 2)) * (width, height)
    t = np.linspace(0, 1, 120)[:, None]
    curve = sum(c * t**k * (1 - t) ** (3 - k) * knots[k] for k, c in enumerate((1, 3, 3, 1)))
    points = np.asarray(curve)
    _curve(paint, points, colour, float(rng.uniform(2, 7)))
    leaf, size = _some(_PIGMENTS, rng), rng.uniform(6, 18)
    for number in range(4, 116, int(rng.integers(3, 7))):
        way = points[number + 1] - points[number]
        angle = np.degrees(np.arctan2(way[1], way[0])) + rng.choice([-50, 50])
        at = points[number] + size * np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])
        cv2.ellipse(paint, _whole(at), _whole([size, size / 3]), float(angle), 0, 360, leaf.tolist(), -1, cv2.LINE_AA)


def _figure(paint: Image, rng: np.random.Generator) -> None:
    """Something like a figure: soft bodies in folds, outlined; a face or a fruit."""
    height, width = paint.shape[:2]
    middle = rng.uniform(0.1, 0.9, 2) * (width, height)
    size = rng.uniform(0.06, 0.16) * max(width, height)
    skin, cloth = _some(_PIGMENTS, rng), _some(_PIGMENTS, rng)
    for colour, offset, radius in ((cloth, (0.0, 0.9), 1.0), (skin, (0.0, -0.4), 0.45), (cloth, (0.5, 1.4), 0.7)):
        angles = np.linspace(0, 2 * np.pi, 80, endpoint=False)
        reach = radius * size * (1 + sum(rng.normal(0, 0.12 / k) * np.cos(k * angles + k) for k in range(1, 5)))
        outline = middle + size * np.array(offset) + np.stack([reach * np.cos(angles), reach * np.sin(angles)], axis=1)
        body = np.zeros(paint.shape[:2], dtype=np.float32)
        cv2.fillPoly(body, [np.rint(outline * 2**_SHIFT).astype(np.int32)], 1.0, cv2.LINE_AA, _SHIFT)
        shade = 1 + 0.5 * (smooth_field(paint.shape, 0.35 * size, rng) - 0.5)
        paint += body[..., None] * (colour * shade[..., None] - paint)
        _curve(paint, np.vstack([outline, outline[:1]]), 0.45 * colour, float(rng.uniform(1.5, 4)))
        for _ in range(int(rng.integers(2, 6))):  # folds
            a, b = outline[rng.integers(80)], outline[rng.integers(80)]
            bent = np.stack([a + (b - a) * t + size * 0.1 * np.sin(np.pi * t) for t in np.linspace(0.1, 0.8, 20)])
            _curve(paint, bent, 0.6 * colour, float(rng.uniform(1, 3)))


def _strokes(paint: Image, colours: NDArray[np.float32], per_area: float, rng: np.random.Generator) -> None:
    """Short strokes of the brush, anywhere."""
    height, width = paint.shape[:2]
    for _ in range(rng.poisson(per_area * height * width / 1e4)):
        at, angle = rng.uniform(0, 1, 2) * (width, height), rng.uniform(0, np.pi)
        half = rng.uniform(3, 16) * np.array([np.cos(angle), np.sin(angle)])
        _line(paint, at - half, at + half, _some(colours, rng), float(rng.uniform(1, 4)))


def _meander(paint: Image, colour: Colour, level: float, wide: float) -> None:
    """The key pattern, all the way round."""
    unit = wide / 5
    turns = np.array([(0, 4), (0, 0), (4, 0), (4, 3), (2, 3), (2, 2), (3, 2), (3, 1), (1, 1), (1, 4), (5, 4)])
    count = int(paint.shape[1] / (5 * unit)) + 1
    points = np.concatenate([(turns + (5 * number, 0)) * unit for number in range(count)]) + (0, level)
    _curve(paint, points, colour, 0.4 * unit)


def _waves(paint: Image, colour: Colour, level: float, wide: float, rng: np.random.Generator) -> None:
    x = np.arange(0, paint.shape[1], 3.0)
    period = rng.uniform(1.5, 4) * wide + 10
    for number in range(int(rng.integers(1, 4))):
        y = level + wide / 2 + 8 * number + wide / 3 * np.sin(2 * np.pi * x / period)
        _curve(paint, np.stack([x, y], axis=1), colour, float(rng.uniform(2, 5)))


def _rays(paint: Image, colour: Colour, level: float, wide: float, rng: np.random.Generator) -> None:
    """Triangles or strokes side by side."""
    each = float(rng.uniform(0.3, 0.9) * wide)
    for x in np.arange(0, paint.shape[1], each):
        corners = np.array([(x, level + wide), (x + 0.7 * each, level + wide), (x + 0.35 * each, level)])
        cv2.fillPoly(paint, [np.rint(corners * 2**_SHIFT).astype(np.int32)], colour.tolist(), cv2.LINE_AA, _SHIFT)


def _line(paint: Image, start: NDArray[np.float64], end: NDArray[np.float64], colour: Colour, thick: float) -> None:
    _curve(paint, np.stack([start, end]), colour, thick)


def _curve(paint: Image, points: NDArray[np.float64], colour: Colour, thick: float) -> None:
    line = np.rint(points * 2**_SHIFT).astype(np.int32)
    cv2.polylines(paint, [line], False, np.asarray(colour).tolist(), max(1, round(thick)), cv2.LINE_AA, _SHIFT)


def _whole(pair: object) -> tuple[int, int]:
    x, y = np.rint(np.asarray(pair, dtype=np.float64)).astype(int)
    return int(x), int(y)
