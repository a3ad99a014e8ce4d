"""Pictures of fragments for the eye: contact sheets, and overlays of mask and contour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from pairingnet.geometry import Points
from pairingnet.io.images import shrunk
from pairingnet.types import Fragment, Pixels

_PAPER = (236, 236, 232)
_INK = (40, 40, 40)
_LINE = (230, 30, 60)
_TINT = (40, 170, 90)


def contact_sheet(fragments: Iterable[Fragment], columns: int = 8, tile_px: int = 180) -> Pixels:
    """Fragments side by side at one common scale, each with its id, as (H, W, 3)."""
    most = tile_px - 8
    # Each is made small as it comes: all of them in full would not fit into the memory.
    small = [(fragment.id, max(fragment.alpha.shape), _on_paper(fragment, most)) for fragment in fragments]
    largest = max((longest for _, longest, _ in small), default=1)
    tiles = [_tile(name, picture, min(longest, most * longest / largest), tile_px) for name, longest, picture in small]
    columns = min(columns, max(len(tiles), 1))
    blank = np.full((tile_px + 18, tile_px, 3), _PAPER, dtype=np.uint8)
    tiles += [blank] * (-len(tiles) % columns or (0 if tiles else 1))
    rows = [np.hstack(tiles[i : i + columns]) for i in range(0, len(tiles), columns)]
    return np.vstack(rows)


def outline_overlay(
    pixels: Pixels, fragments: Sequence[Fragment], excluded: Sequence[Fragment] = (), long_side_px: int = 1600
) -> Pixels:
    """A scan with what was found in it: inside tinted green, contour red, ids; what was left out crossed."""
    scale = min(1.0, long_side_px / max(pixels.shape[:2]))
    view = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA).astype(np.uint8)
    for fragment in fragments:
        outline = _drawn(fragment.contour + fragment.offset_px, scale)
        inside = np.zeros(view.shape[:2], dtype=np.uint8)
        cv2.fillPoly(inside, outline, 255, shift=4)
        view[inside > 0] = (0.78 * view[inside > 0] + 0.22 * np.array(_TINT)).astype(np.uint8)
        cv2.polylines(view, outline, True, _LINE, 2, cv2.LINE_AA, shift=4)
    for fragment in excluded:
        cv2.polylines(view, _drawn(fragment.contour + fragment.offset_px, scale), True, (120, 120, 120), 2, shift=4)
    for fragment in (*fragments, *excluded):
        label = fragment.id if fragment in fragments else f"{fragment.id}: {fragment.notes[0]}"
        at = scale * (fragment.contour.mean(axis=0) + fragment.offset_px)
        _write(view, label, (int(at[0]) - 4 * len(label), int(at[1])))
    return view


def _on_paper(fragment: Fragment, most_px: int) -> Pixels:
    """A fragment as it looks on paper, at most so large."""
    premultiplied = cv2.multiply(fragment.pixels, cv2.merge([fragment.alpha] * 3), scale=1 / 255)
    picture = shrunk(np.asarray(premultiplied, dtype=np.uint8), most_px).astype(np.float32)
    beside = 1 - shrunk(np.ascontiguousarray(fragment.alpha), most_px)[..., None].astype(np.float32) / 255
    return np.asarray((picture + beside * np.array(_PAPER)).clip(0, 255), dtype=np.uint8)


def _tile(name: str, picture: Pixels, longest_px: float, tile_px: int) -> Pixels:
    tile = np.full((tile_px + 18, tile_px, 3), _PAPER, dtype=np.uint8)
    small = shrunk(picture, max(1, round(longest_px)))
    h, w = small.shape[:2]
    top, left = (tile_px - h) // 2, (tile_px - w) // 2
    tile[top : top + h, left : left + w] = small
    _write(tile, _shortened(name, tile_px - 8), (4, tile_px + 10))
    return tile


def _shortened(text: str, width_px: int) -> str:
    """As much of a name as there is room for: its end, where the number is, and as much of its beginning."""
    short, kept = text, len(text)
    while kept > 3 and _size(short)[0] > width_px:
        kept -= 1
        short = f"{text[: kept - kept // 2]}...{text[len(text) - kept // 2 :]}"
    return short


def _size(text: str) -> tuple[int, int]:
    (width, height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.4, 1)
    return width, height


def _write(view: Pixels, text: str, at: tuple[int, int]) -> None:
    """Dark letters on a light plate."""
    (width, height), below = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.4, 1)
    x, y = max(at[0], 2), max(at[1], height + 2)
    cv2.rectangle(view, (x - 2, y - height - 2), (x + width + 2, y + below), _PAPER, cv2.FILLED)
    cv2.putText(view, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 0.4, _INK, 1, cv2.LINE_AA)


def _drawn(contour: Points, scale: float) -> list[NDArray[np.int32]]:
    """OpenCV draws in sixteenths of a pixel."""
    return [np.rint(16 * scale * contour).astype(np.int32)]
