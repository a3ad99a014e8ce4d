"""Poses in RePAIR's form: a header `rpf,x,y,rot`, and one line a piece.

The image of a piece is turned about its centre by `rot` degrees, counter-clockwise as one sees it, into an image that
is just large enough; the upper left corner of that one is laid at (x, y). So a line is a pose only together with the
size of the image. Pieces are named by their files, with or without an ending.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from pairingnet.errors import TruthError
from pairingnet.geometry import Rigid2D
from pairingnet.io.files import write_whole

COLUMNS = ("rpf", "x", "y", "rot")
Size = tuple[int, int]  # (width, height) of an image
_FORM = f"The first line is '{','.join(COLUMNS)}', the others are a name and three numbers."
_DIGITS = 6  # of degrees: far finer than a pixel at the rim of the largest piece


@dataclass(frozen=True)
class RpfLine:
    """One line of a file: where the upper left corner of the turned image lies, and by how much it is turned."""

    x_px: float
    y_px: float
    rot_deg: float


def is_rpf_file(path: Path) -> bool:
    """Whether a file begins as RePAIR's do."""
    if path.suffix.lower() not in (".txt", ".csv") or not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline(4096).decode("utf-8-sig", errors="replace")
    return set(COLUMNS) <= {name.strip() for name in first.split(",")}


def read_rpf(path: Path) -> dict[str, RpfLine]:
    """The lines of a file, by the name of the piece without its ending."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise TruthError(f"There is no file {path}.", "Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TruthError(f"{path} cannot be read as text ({error}).", _FORM) from error
    reader = csv.reader(io.StringIO(text), skipinitialspace=True)
    found: dict[str, tuple[int, RpfLine]] = {}
    try:
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in COLUMNS if name not in header]
        if missing:
            raise TruthError(f"{path}, line 1: there is no column {', '.join(missing)}.", _FORM)
        for cells in reader:
            if any(cell.strip() for cell in cells):
                _add(found, path, reader.line_num, dict(zip(header, cells, strict=False)))
    except csv.Error as error:
        raise TruthError(f"{path}, line {reader.line_num}: {error}.", _FORM) from error
    if not found:
        raise TruthError(f"{path} names no piece.", _FORM)
    return {name: line for name, (_, line) in found.items()}


def write_rpf(path: Path, poses: Mapping[str, Rigid2D], sizes: Mapping[str, Size], ending: str = ".png") -> None:
    """Store poses `canvas_from_fragment`; sizes (width, height) are those of the images."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name, pose in poses.items():
        line = rpf_of_pose(pose, sizes[name])
        writer.writerow([name + ending, f"{line.x_px:.4f}", f"{line.y_px:.4f}", f"{line.rot_deg:.{_DIGITS}f}"])
    write_whole(path, partial(Path.write_text, data=text.getvalue(), encoding="utf-8"))


def poses_of_rpf(path: Path, sizes: Mapping[str, Size]) -> dict[str, Rigid2D]:
    """Read a file; sizes (width, height) of the images of all its pieces, by their names."""
    poses = {}
    for name, line in read_rpf(path).items():
        if name not in sizes:
            near = get_close_matches(name, sizes, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else "Give the folder with the images of the pieces."
            raise TruthError(f"{path} has a pose of '{name}', of which there is no image.", hint)
        poses[name] = pose_of_rpf(line, sizes[name])
    return poses


def pose_of_rpf(line: RpfLine, size: Size) -> Rigid2D:
    """`canvas_from_fragment` of a line."""
    turn = Rigid2D(-math.radians(line.rot_deg))  # y points down: counter-clockwise on the screen is negative
    corner = np.array([line.x_px, line.y_px])
    x, y = corner + _middle(turned_size(size, line.rot_deg)) - turn.apply([_middle(size)])[0]
    return Rigid2D((turn @ Rigid2D()).angle_rad, float(x), float(y))


def rpf_of_pose(pose: Rigid2D, size: Size) -> RpfLine:
    """The line of `canvas_from_fragment`, its angle from 0 to 360 and rounded as it is written."""
    rot_deg = round(-math.degrees(pose.angle_rad), _DIGITS) % 360
    x, y = pose.apply([_middle(size)])[0] - _middle(turned_size(size, rot_deg))
    return RpfLine(float(x), float(y), rot_deg)


def turned_size(size: Size, rot_deg: float) -> Size:
    """(width, height) of the image into which a turned one fits, as Pillow's `rotate(expand=True)` makes it."""
    if rot_deg % 180 == 90:  # no row or column more for a rounding error
        return size[1], size[0]
    cosine, sine = (abs(round(f(math.radians(rot_deg)), 12)) for f in (math.cos, math.sin))
    wide, high = size[0] * cosine + size[1] * sine, size[0] * sine + size[1] * cosine
    return _around(size[0], wide), _around(size[1], high)


def _around(before: int, after: float) -> int:
    """Whole pixels, counted from the old image's corner, that hold a length about the same middle."""
    return math.ceil(round(before / 2 + after / 2, 9)) - math.floor(round(before / 2 - after / 2, 9))


def _middle(size: Size) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The centre of an image; pixel centres are at integers."""
    return (np.array(size, dtype=np.float64) - 1) / 2


def _add(found: dict[str, tuple[int, RpfLine]], path: Path, number: int, row: Mapping[str, str]) -> None:
    """One line more; refuse what is no pose, and a second one of the same piece that differs."""
    where = f"{path}, line {number}"
    if any(name not in row for name in COLUMNS):
        raise TruthError(f"{where} has fewer than {len(COLUMNS)} values.", _FORM)
    name = PurePosixPath(row["rpf"].strip().replace("\\", "/")).name
    name = name[:-4] if name.lower().endswith(".png") else name
    if not name:
        raise TruthError(f"{where} names no piece.", _FORM)
    values = []
    for column in COLUMNS[1:]:
        try:
            values.append(float(row[column]))
        except ValueError:
            values.append(math.nan)
        if not math.isfinite(values[-1]):
            raise TruthError(f"{where}: {column} of '{name}' is '{row[column].strip()}', no number.", "Mend the line.")
    before, line = found.setdefault(name, (number, RpfLine(*values)))
    if line != RpfLine(*values):
        raise TruthError(f"{where}: '{name}' has another pose in line {before}.", "Remove one of the two lines.")
