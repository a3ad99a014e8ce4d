"""True poses from files of others: `truth.json`, and the text form that JigsawNet reads.

Both give `canvas_from_fragment` for the image file as it lies on disk.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pairingnet.errors import TruthError
from pairingnet.geometry import Rigid2D
from pairingnet.io.files import MALFORMED


@dataclass(frozen=True)
class KnownPoses:
    """Poses by fragment name (file stem, or position in the list of files), and pairs where they are listed.

    pairs: source, target and the length of their contact in pixels.
    """

    poses: dict[str, Rigid2D]
    pairs: tuple[tuple[str, str, float], ...] | None = None
    by_position: bool = field(default=False)


def is_truth_file(path: Path) -> bool:
    """Whether a path is a file with poses rather than a picture."""
    return path.suffix.lower() in (".json", ".txt")


def read_truth(path: Path) -> KnownPoses:
    """Read either form; the ending decides."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TruthError(f"There is no file {path}.", "Check the path.") from None
    except UnicodeDecodeError as error:
        raise TruthError(f"{path} is not a text file.", "Give truth.json or JigsawNet's text form.") from error
    try:
        return _from_json(json.loads(text)) if path.suffix.lower() == ".json" else _from_text(text)
    except MALFORMED as error:
        raise TruthError(
            f"{path} cannot be understood ({error}).", "docs/formats.md shows the forms that can be read."
        ) from error


def _from_json(content: Any) -> KnownPoses:
    poses = {
        Path(entry["file"]).stem: Rigid2D.from_matrix(entry["canvas_from_fragment"]) for entry in content["fragments"]
    }
    listed = content.get("pairs")
    if listed is None:
        return KnownPoses(poses)
    pairs = tuple((Path(p["source"]).stem, Path(p["target"]).stem, float(p.get("contact_px", 0))) for p in listed)
    return KnownPoses(poses, pairs)


def _from_text(text: str) -> KnownPoses:
    """Per fragment one line with its number, then nine numbers: a 3x3 matrix that acts on (row, column, 1)."""
    poses: dict[str, Rigid2D] = {}
    numbers: list[float] = []
    name = ""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 1 and not numbers:
            name = words[0]
            continue
        numbers += [float(word) for word in words]
        if len(numbers) > 9:
            raise ValueError(f"fragment {name} has more than nine numbers")
        if len(numbers) == 9:
            poses[name] = _rigid_of_rows_and_columns(np.array(numbers).reshape(3, 3))
            numbers = []
    if numbers or not poses:
        raise ValueError("it is not a list of a number and nine numbers for each fragment")
    return KnownPoses(poses, by_position=True)


def _rigid_of_rows_and_columns(matrix: np.ndarray[Any, np.dtype[np.float64]]) -> Rigid2D:
    """A matrix on (row, column) as a transform on (x, y): both axes swapped on both sides."""
    swap = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    return Rigid2D.from_matrix(swap @ matrix @ swap)
