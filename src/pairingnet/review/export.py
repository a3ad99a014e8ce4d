"""Groups for other programs: transparent PNG, layers (OpenRaster), SVG, tables of poses.

Poses are rigid. Those of pictures act on the fragments' own images, those of tables on what the caller says.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import cv2
import numpy as np

from pairingnet.assemble.canvas import placed_fragment
from pairingnet.errors import SettingsError, printable
from pairingnet.geometry import Points, Rigid2D
from pairingnet.io.files import write_whole
from pairingnet.io.images import shrunk
from pairingnet.types import Assembly, Fragment, Group, PairMatch, Pixels

LoadFragment = Callable[[str], Fragment]


@dataclass(frozen=True, eq=False)
class Layer:
    """One fragment in place: RGBA pixels (h, w, 4), and where their upper left corner lies on the canvas."""

    id: str
    pixels: Pixels
    x: int
    y: int


@dataclass(frozen=True, eq=False)
class Layers:
    """A group as layers on a canvas that begins at (0, 0)."""

    layers: Sequence[Layer]
    width: int
    height: int

    def flattened(self) -> Pixels:
        """All layers as one picture (H, W, 4)."""
        canvas = np.zeros((self.height, self.width, 4), dtype=np.float32)
        for layer in self.layers:
            height, width = layer.pixels.shape[:2]
            part = canvas[layer.y : layer.y + height, layer.x : layer.x + width]
            own = layer.pixels.astype(np.float32)
            alpha = own[..., 3:] / 255
            covered = alpha + part[..., 3:] / 255 * (1 - alpha)
            colour = own[..., :3] * alpha + part[..., :3] * part[..., 3:] / 255 * (1 - alpha)
            part[..., :3] = colour / np.maximum(covered, 1e-6)
            part[..., 3:] = 255 * covered
        return np.rint(canvas).astype(np.uint8)


def layers_of(group: Group, fragment: LoadFragment) -> Layers:
    """A group's fragments turned into place."""
    placed = [(name, *placed_fragment(fragment(name), pose)) for name, pose in group.poses.items()]
    left = min(x for _, (x, _), _ in placed)
    top = min(y for _, (_, y), _ in placed)
    layers = [Layer(name, pixels, x - left, y - top) for name, (x, y), pixels in placed]
    width = max(layer.x + layer.pixels.shape[1] for layer in layers)
    height = max(layer.y + layer.pixels.shape[0] for layer in layers)
    return Layers(layers, width, height)


def export(
    kind: str, assembly: Assembly, matches: Sequence[PairMatch], fragment: LoadFragment, out: Path, link: bool = False
) -> list[Path]:
    """Write a run's groups in one of FORMATS; the files that were made."""
    if kind not in FORMATS:
        raise SettingsError(f"There is no format '{kind}'.", f"Choose one of {', '.join(FORMATS)}.")
    if kind in TABLES:
        table = out / TABLES[kind]
        text = {"csv": _csv, "json": _json}[kind](assembly) if kind != "alignments" else _alignments(assembly, matches)
        write_whole(table, lambda file: file.write_text(text, encoding="utf-8"))
        return [table]
    made = []
    for number, group in enumerate(assembly.groups, start=1):
        path = out / f"group-{number:02d}.{kind}"
        if kind == "svg":
            text = _svg(group, fragment, link)
            write_whole(path, lambda file, text=text: file.write_text(text, encoding="utf-8"))  # type: ignore[misc]
        else:
            layers = layers_of(group, fragment)
            data = _png(layers.flattened()) if kind == "png" else _openraster(layers)
            write_whole(path, lambda file, data=data: file.write_bytes(data))  # type: ignore[misc]
        made.append(path)
    return made


TABLES = {"csv": "poses.csv", "json": "poses.json", "alignments": "alignments.txt"}
FORMATS = ("png", "ora", "svg", *TABLES)


def _openraster(layers: Layers) -> bytes:
    """OpenRaster: a zip with one PNG per layer; GIMP and Krita open it."""
    stack = "\n".join(
        f'  <layer name="{escape(printable(layer.id))}" src="data/layer{number}.png" x="{layer.x}" y="{layer.y}" '
        'opacity="1.0" visibility="visible"/>'
        for number, layer in reversed(list(enumerate(layers.layers)))  # the topmost comes first
    )
    xml = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<image version="0.0.3" w="{layers.width}" h="{layers.height}">\n'
        f" <stack>\n{stack}\n </stack>\n</image>\n"
    )
    flat = layers.flattened()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("mimetype", "image/openraster", zipfile.ZIP_STORED)  # must be first, and not compressed
        file.writestr("stack.xml", xml, zipfile.ZIP_DEFLATED)
        for number, layer in enumerate(layers.layers):
            file.writestr(f"data/layer{number}.png", _png(layer.pixels))
        file.writestr("mergedimage.png", _png(flat))
        file.writestr("Thumbnails/thumbnail.png", _png(shrunk(flat, 256)))
    return buffer.getvalue()


def _svg(group: Group, fragment: LoadFragment, link: bool) -> str:
    """Each piece as it is, with the transform that puts it in place; embedded, or linked by its file."""
    images = []
    corners: list[Points] = []
    for name, pose in group.poses.items():
        piece = fragment(name)
        height, width = piece.alpha.shape
        corners.append(pose.apply([[0, 0], [width, 0], [width, height], [0, height]]))
        source = f"../pieces/fragments/{escape(name)}.png" if link else _data_uri(piece.rgba)
        a, b, c, d, e, f = _svg_matrix(pose)
        images.append(
            f' <image id="{escape(printable(name))}" width="{width}" height="{height}" '
            f'transform="matrix({a:.6f} {b:.6f} {c:.6f} {d:.6f} {e:.3f} {f:.3f})" href="{source}"/>'
        )
    points = np.vstack(corners)
    (left, top), (right, bottom) = np.floor(points.min(axis=0)), np.ceil(points.max(axis=0))
    box = f"{left:.0f} {top:.0f} {right - left:.0f} {bottom - top:.0f}"
    body = "\n".join(images)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}">\n{body}\n</svg>\n'


def _svg_matrix(pose: Rigid2D) -> tuple[float, float, float, float, float, float]:
    """SVG counts from a pixel's corner, we from its centre."""
    moved = Rigid2D(0.0, 0.5, 0.5) @ pose @ Rigid2D(0.0, -0.5, -0.5)
    (a, c, e), (b, d, f) = moved.matrix
    return float(a), float(b), float(c), float(d), float(e), float(f)


def _csv(assembly: Assembly) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["group", "fragment", "angle_deg", "x_px", "y_px"])
    for number, group in enumerate(assembly.groups, start=1):
        for name, pose in group.poses.items():
            writer.writerow(
                [number, _as_text(name), f"{np.degrees(pose.angle_rad):.4f}", f"{pose.x_px:.3f}", f"{pose.y_px:.3f}"]
            )
    return text.getvalue()


def _as_text(name: str) -> str:
    """A name that a spreadsheet takes for text: what begins like a formula would be computed."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name


def _json(assembly: Assembly) -> str:
    groups = [{name: np.round(pose.matrix, 6).tolist() for name, pose in g.poses.items()} for g in assembly.groups]
    return json.dumps({"version": 1, "groups": groups, "singles": list(assembly.singles)}, indent=1) + "\n"


def _alignments(assembly: Assembly, matches: Sequence[PairMatch]) -> str:
    """JigsawNet's form: nodes, then pairs with a matrix on (row, column, 1) that carries the second into the first,
    and the stitch line as column row pairs of the second."""
    number = _numbers(assembly)
    lines = [f"Node {i}" for i in range(len(number))]
    for match in matches:
        if match.target_from_source is None or match.source not in number or match.target not in number:
            continue
        # Their second fragment moves; ours is the source.
        m = match.target_from_source.matrix
        matrix = [m[1, 1], m[1, 0], m[1, 2], m[0, 1], m[0, 0], m[0, 2], 0, 0, 1]
        seam = " ".join(f"{x:.0f} {y:.0f}" for x, y in match.points[:, 0])
        entries = " ".join(f"{value:.6f}" for value in matrix)
        lines.append(
            f"{number[match.target]} {number[match.source]} {match.probability:.6f} {entries} line {seam}".rstrip()
        )
    return "\n".join(lines) + "\n"


def _numbers(assembly: Assembly) -> Mapping[str, int]:
    names = sorted([*assembly.singles, *(name for group in assembly.groups for name in group.poses)])
    return {name: i for i, name in enumerate(names)}


def _png(pixels: Pixels) -> bytes:
    order = cv2.COLOR_RGBA2BGRA if pixels.shape[2] == 4 else cv2.COLOR_RGB2BGR
    return bytes(cv2.imencode(".png", cv2.cvtColor(pixels, order))[1].tobytes())


def _data_uri(pixels: Pixels) -> str:
    return "data:image/png;base64," + base64.b64encode(_png(pixels)).decode()
