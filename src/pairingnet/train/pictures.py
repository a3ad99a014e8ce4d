"""The pictures that were trained, watched and judged on: folders `train`, `val` and `test`, from downloaded originals.

training/pictures.csv has a line for each: the file here, its part, name and source of the original, the licence, width
and height, the sha256 of the file as used, and how it looks (`look_of`). A picture that is made anew has other bytes
than the one used wherever another program made it smaller; it has to have the same size and the same look.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import cv2
import numpy as np

from pairingnet.engine.local import progress_bar
from pairingnet.errors import CollectionError, ImageError
from pairingnet.io.files import write_whole
from pairingnet.io.images import image_files, read_image, write_jpeg
from pairingnet.types import Pixels

QUALITY = 86  # of the JPEG files that were used
_LOOKS = (9, 8)  # px of the thumbnail whose neighbouring columns are compared
_ALIKE = 8  # bits of 64 that may differ: making smaller in another way changes up to 3, another picture about 32
_SHAPE = 0.01  # by which width / height may differ from the file used


@dataclass(frozen=True)
class ListedPicture:
    """One line of the list."""

    file: str
    part: str
    original: str
    source: str
    licence: str
    width: int
    height: int
    sha256: str
    look: str


@dataclass(frozen=True)
class BuiltPictures:
    """Files that are the very bytes used; files made anew that look the same; lines about originals that are missing,
    and about those that show something else."""

    exact: tuple[str, ...]
    remade: tuple[str, ...]
    missing: tuple[str, ...]
    different: tuple[str, ...]


def build_pictures(originals: Path, out: Path, listed: Sequence[ListedPicture]) -> BuiltPictures:
    """Make what can be made of a folder of originals; files that are right already are left alone."""
    by_name = _by_name(originals)
    exact: list[str] = []
    remade: list[str] = []
    missing: list[str] = []
    different: list[str] = []
    with progress_bar() as bar:
        for each in bar.track(listed, description="pictures"):
            path = out / each.part / each.file
            if path.is_file() and sha256_of(path) == each.sha256:
                exact.append(each.file)
                continue
            found = _choose(by_name, each)
            if found is None:
                missing.append(f"{each.file}: no {each.original} ({each.source}, {each.licence})")
            elif sha256_of(found) == each.sha256:
                content = found.read_bytes()
                write_whole(path, partial(Path.write_bytes, data=content))
                exact.append(each.file)
            else:
                problem = _make_anew(found, path, each)
                (different if problem else remade).append(f"{each.file}: {found} {problem}" if problem else each.file)
    return BuiltPictures(tuple(exact), tuple(remade), tuple(missing), tuple(different))


def read_list(path: Path, licence: str = "") -> list[ListedPicture]:
    """The list; only pictures whose licence is `licence` (CC0: also CC0-1.0, but not CC0/GPL), where that is given."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            pictures = [_listed(row) for row in csv.DictReader(file)]
    except FileNotFoundError:
        raise CollectionError(f"There is no list {path}.", "It is training/pictures.csv of the repository.") from None
    except (KeyError, TypeError, ValueError) as error:
        raise CollectionError(f"{path} is no list of pictures ({error}).", "Get it anew.") from error
    chosen = [each for each in pictures if not licence or _is_of(each.licence, licence)]
    if not chosen:
        raise CollectionError(f"No picture of {path} has the licence {licence}.", "Its column 'licence' has them all.")
    return chosen


def write_list(path: Path, pictures: Iterable[ListedPicture]) -> None:
    """Store a list."""

    def write(file: Path) -> None:
        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow([field.name for field in fields(ListedPicture)])
            writer.writerows([list(vars(each).values()) for each in pictures])

    write_whole(path, write)


def listed_picture(path: Path, part: str, original: str, source: str, licence: str) -> ListedPicture:
    """The line of a file that is used."""
    pixels = read_image(path).pixels
    height, width = pixels.shape[:2]
    return ListedPicture(path.name, part, original, source, licence, width, height, sha256_of(path), look_of(pixels))


def look_of(pixels: Pixels) -> str:
    """How a picture looks, in 64 bits: whether each place of a tiny grey one is brighter than its left neighbour."""
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    tiny = cv2.resize(grey, _LOOKS, interpolation=cv2.INTER_AREA).astype(np.int16)
    return np.packbits(np.diff(tiny, axis=1) > 0).tobytes().hex()


def sha256_of(path: Path) -> str:
    """Of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _listed(row: dict[str, str]) -> ListedPicture:
    sizes = {name: int(row[name]) for name in ("width", "height")}
    texts = {name: text for name, text in row.items() if name not in sizes}
    return ListedPicture(**texts, **sizes)  # type: ignore[arg-type]


def _make_anew(original: Path, path: Path, wanted: ListedPicture) -> str:
    """Make an original as large as the file used; "", or why it is not the same picture."""
    try:
        pixels = read_image(original).pixels
    except ImageError as error:
        return f"cannot be read: {error}"
    height, width = pixels.shape[:2]
    if abs(width / height * wanted.height / wanted.width - 1) > _SHAPE or width < wanted.width:
        return f"has {width} x {height} pixels, which does not become {wanted.width} x {wanted.height}"
    made = np.asarray(cv2.resize(pixels, (wanted.width, wanted.height), interpolation=cv2.INTER_AREA), dtype=np.uint8)
    apart = bin(int(look_of(made), 16) ^ int(wanted.look, 16)).count("1")
    if apart > _ALIKE:
        return f"shows something else ({apart} of 64 bits of its look differ)"
    write_whole(path, partial(write_jpeg, pixels=made, quality=QUALITY))
    return ""


def _by_name(originals: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in image_files(originals):
        found.setdefault(path.name, []).append(path)
    return found


def _choose(by_name: dict[str, list[Path]], wanted: ListedPicture) -> Path | None:
    """The original by its own name, below a folder named like its source where several have it; or the file as used."""
    found = by_name.get(wanted.original) or by_name.get(wanted.file) or []
    return max(found, key=lambda path: wanted.source in path.parts, default=None)


def _is_of(licence: str, wanted: str) -> bool:
    """`CC0-1.0 (BnF/Gallica scans)` is CC0; `CC0/GPL` is one of two, nobody knows which."""
    return licence == wanted or licence.startswith((f"{wanted} ", f"{wanted}-"))
