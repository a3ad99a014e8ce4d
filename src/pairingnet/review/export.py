"""Groups for other programs: transparent PNG, layers (OpenRaster), SVG, tables of poses.

Poses are rigid. Those of pictures act on the fragments' own images, those of tables on the scans, as in the files of
the run. Pictures have the resolution of their scans, where that is known.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from urllib.parse import quote

import cv2
import numpy as np

from pairingnet.assembly.canvas import placed_fragment
from pairingnet.errors import SettingsError, printable
from pairingnet.geometry import Points, Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.io.files import write_whole
from pairingnet.io.frames import moved_assembly, piece_offsets
from pairingnet.io.images import shrunk, write_png
from pairingnet.prepare.load import load_fragment
from pairingnet.types import Assembly, Fragment, Group, PairMatch, Pixels

LoadFragment = Callable[[str], Fragment]
_MM_AN_INCH = 25.4


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
    kind: str,
    assembly: Assembly,
    matches: Sequence[PairMatch],
    collection: Collection,
    out: Path,
    link: bool = False,
) -> list[Path]:
    """Write a run's groups in one of FORMATS; the files that were made.

    assembly and matches: in pixels of the scans; collection: the pieces; link: SVG names the pieces' files instead of
    holding their pixels.
    """
    if kind not in FORMATS:
        raise SettingsError(f"There is no format '{kind}'.", f"Choose one of {', '.join(FORMATS)}.")
    if kind == "csv":
        # Excel takes a table for UTF-8 only where it begins with this mark.
        return [_written(out / TABLES[kind], "\ufeff" + _csv(assembly, collection))]
    if kind in TABLES:
        return [_written(out / TABLES[kind], _json(assembly) if kind == "json" else _alignments(assembly, matches))]
    made = []
    fragment = partial(load_fragment, collection)
    for number, group in enumerate(moved_assembly(assembly, piece_offsets(collection)).groups, start=1):
        path, dpi = out / f"group-{number:02d}.{kind}", dpi_of(group, collection)
        if kind == "svg":
            links = {name: _link(out, collection.folder / collection.by_id[name].image) for name in group.poses}
            _written(path, _svg(group, fragment, dpi, links if link else {}))
        else:
            layers = layers_of(group, fragment)
            if kind == "png":
                write_whole(path, partial(write_png, pixels=layers.flattened(), dpi=dpi))
            else:
                write_whole(path, partial(Path.write_bytes, data=_openraster(layers, dpi)))
        made.append(path)
    return made


TABLES = {"csv": "poses.csv", "json": "poses.json", "alignments": "alignments.txt"}
FORMATS = ("png", "ora", "svg", *TABLES)


def dpi_of(group: Group, collection: Collection) -> float | None:
    """The resolution of a group's pixels; None where a piece has none, or another one."""
    found = {collection.by_id[name].dpi for name in group.poses}
    return found.pop() if len(found) == 1 else None


def _written(path: Path, text: str) -> Path:
    write_whole(path, partial(Path.write_text, data=text, encoding="utf-8"))
    return path


def _link(folder: Path, file: Path) -> str:
    """A file as seen from a folder, as a link: `#`, blanks and letters of all languages are written as `%23`."""
    try:
        return quote(Path(os.path.relpath(file.resolve(), folder.resolve())).as_posix())
    except ValueError:  # on another drive
        return file.resolve().as_uri()


def _openraster(layers: Layers, dpi: float | None) -> bytes:
    """OpenRaster: a zip with one PNG per layer; GIMP and Krita open it."""
    resolution = "" if dpi is None else f' xres="{dpi:.0f}" yres="{dpi:.0f}"'
    stack = "\n".join(
        f'  <layer name="{escape(printable(layer.id))}" src="data/layer{number}.png" x="{layer.x}" y="{layer.y}" '
        'opacity="1.0" visibility="visible"/>'
        for number, layer in reversed(list(enumerate(layers.layers)))  # the topmost comes first
    )
    xml = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<image version="0.0.3" w="{layers.width}" h="{layers.height}"'
        f"{resolution}>\n"
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


def _svg(group: Group, fragment: LoadFragment, dpi: float | None, links: Mapping[str, str]) -> str:
    """Each piece as it is, with the transform that puts it in place; embedded, or linked where there is a link."""
    images = []
    edges: list[Points] = []
    for name, pose in group.poses.items():
        piece = fragment(name)
        height, width = piece.alpha.shape
        edges.append(pose.apply(piece.contour) + 0.5)
        source = links.get(name) or _data_uri(piece.rgba)
        a, b, c, d, e, f = _svg_matrix(pose)
        images.append(
            f' <image id="{escape(printable(name))}" width="{width}" height="{height}" '
            f'transform="matrix({a:.6f} {b:.6f} {c:.6f} {d:.6f} {e:.3f} {f:.3f})" href="{source}"/>'
        )
    points = np.vstack(edges)
    # Soft edges reach a little beyond the contours.
    (left, top), (right, bottom) = np.floor(points.min(axis=0)) - 2, np.ceil(points.max(axis=0)) + 2
    box = f"{left:.0f} {top:.0f} {right - left:.0f} {bottom - top:.0f}"
    size = ""
    if dpi is not None:
        width_mm, height_mm = _MM_AN_INCH * (right - left) / dpi, _MM_AN_INCH * (bottom - top) / dpi
        size = f' width="{width_mm:.2f}mm" height="{height_mm:.2f}mm"'
    body = "\n".join(images)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}"{size}>\n{body}\n</svg>\n'


def _svg_matrix(pose: Rigid2D) -> tuple[float, float, float, float, float, float]:
    """SVG counts from a pixel's corner, we from its centre."""
    moved = Rigid2D(0.0, 0.5, 0.5) @ pose @ Rigid2D(0.0, -0.5, -0.5)
    (a, c, e), (b, d, f) = moved.matrix
    return float(a), float(b), float(c), float(d), float(e), float(f)


def _csv(assembly: Assembly, collection: Collection) -> str:
    """One line a placed fragment: its group, the scan it is in and where its image begins there, and its pose, which
    acts on pixels of the scan."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["group", "fragment", "scan", "offset_x_px", "offset_y_px", "angle_deg", "x_px", "y_px"])
    for number, group in enumerate(assembly.groups, start=1):
        for name, pose in group.poses.items():
            record = collection.by_id[name]
            place = [f"{np.degrees(pose.angle_rad):.4f}", f"{pose.x_px:.3f}", f"{pose.y_px:.3f}"]
            writer.writerow([number, _as_text(name), _as_text(record.origin), *record.offset_px, *place])
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
