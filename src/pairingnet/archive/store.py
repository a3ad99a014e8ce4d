"""Features of an archive on disk: segments that only grow, read without loading them.

segments/000001/points.f4      (n, 2) contour points in px     tangents.f4   (n, 2)
                colours.u1     (n, S, 3) at SAMPLES            queries.f2, keys.f2   (n, D)
                contour.f4     (m, 2) outlines                 levels-B.f4   (n, 2) of queries and keys, by bank B

Files are plain rows, little-endian, nothing else. Only rows that the catalogue knows count; what a killed process left
beyond them is written over. A contour point's id in the index is `segment * ROWS + row`: it never changes.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pairingnet.archive.catalogue import End, Place
from pairingnet.errors import CollectionError, DamagedFileError
from pairingnet.match.contact import Outline
from pairingnet.match.evidence import Side
from pairingnet.match.ring import RingFeatures
from pairingnet.prepare.strip import SAMPLES, Strip
from pairingnet.search.index import Features, Ids

ROWS = 1 << 21  # contour points in a segment, at most
_SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "points": ("<f4", (2,)),
    "tangents": ("<f4", (2,)),
    "colours": ("|u1", (len(SAMPLES), 3)),
    "queries": ("<f2", ()),  # and keys: as wide as the network makes them
    "keys": ("<f2", ()),
    "contour": ("<f4", (2,)),
}
_CONTOUR = "contour"


class Store:
    """The segments of an archive; width: numbers per feature."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.width = folder, width
        self._mapped: dict[Path, NDArray[np.generic]] = {}

    # Writing

    def append(self, ends: Sequence[End], added: Sequence[RingFeatures], bank: int) -> list[Place]:
        """Write features behind the rows that count; they are on disk when this returns, and count when the catalogue
        says so. `bank` tells which levels they carry."""
        end = ends[-1] if ends else End(1, 0, 0)
        places: list[Place] = []
        for segment, group in _in_segments(end, added):
            start = end if segment == end.segment else End(segment, 0, 0)
            arrays = [_arrays(each) for each in group]
            row, contour_row = start.rows, start.contour_rows
            for each, own in zip(group, arrays, strict=True):
                count, contour_count = len(own["points"]), len(own[_CONTOUR])
                step_px = float(each.side.strip.step_px)
                places.append(Place(segment, row, count, contour_row, contour_count, step_px, _mark(own)))
                row, contour_row = row + count, contour_row + contour_count
            for name in _SHAPES:
                first = start.contour_rows if name == _CONTOUR else start.rows
                self._write(self._path(segment, name), first, [own[name] for own in arrays])
            self._write(self._level_path(segment, bank), start.rows, [levels_of(each).astype("<f4") for each in group])
        return places

    def write_levels(self, place: Place, bank: int, levels: Features) -> int:
        """Levels (n, 2) of one fragment by a bank that is not in use yet, made last by `settle_levels`; their mark."""
        path = self._level_path(place.segment, bank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.seek(8 * place.first)
            file.write(levels.astype("<f4").tobytes())
        return levels_mark(levels)

    def settle_levels(self, bank: int, ends: Iterable[End]) -> None:
        """Levels by a bank are on disk when this returns, as many as there are rows: those of removed fragments too."""
        for end in ends:
            path = self._level_path(end.segment, bank)
            with path.open("r+b" if path.exists() else "w+b") as file:
                if _size(path) < end.rows * self._row_bytes(path):
                    file.truncate(end.rows * self._row_bytes(path))
                os.fsync(file.fileno())
            sync_folder(path.parent)
        self._mapped.clear()

    def drop_levels(self, before: int) -> None:
        """Remove levels by older banks."""
        for path in self.folder.glob("*/levels-*.f4"):
            if int(path.stem.removeprefix("levels-")) < before:
                self._mapped.pop(path, None)
                path.unlink(missing_ok=True)

    def _write(self, path: Path, first: int, arrays: Iterable[NDArray[np.generic]]) -> None:
        data = b"".join(array.tobytes() for array in arrays)
        is_new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w+b" if is_new else "r+b") as file:
            file.seek(first * self._row_bytes(path))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
                sync_folder(folder)

    # Reading

    def read(self, fragment_id: str, place: Place, bank: int | None, level_mark: int | None = None) -> RingFeatures:
        """One fragment, with its levels by a bank; without any for None. What is not as it was written is refused;
        levels without a mark are not compared with it."""
        a = self._whole(place, fragment_id)
        strip = Strip(
            fragment_id,
            np.array(a["points"], dtype=np.float64),
            np.array(a["tangents"], dtype=np.float64),
            np.array(a["colours"], dtype=np.uint8),
            np.zeros((0, 0), np.uint8),
            place.step_px,
        )
        levels = np.zeros((0, 2), np.float32) if bank is None else self.levels(place, bank, level_mark)
        queries, keys = np.array(a["queries"], dtype=np.float32), np.array(a["keys"], dtype=np.float32)
        side = Side(strip, queries, keys, levels[:, 0].copy(), levels[:, 1].copy())
        return RingFeatures(fragment_id, side, Outline(np.array(a[_CONTOUR], dtype=np.float64)))

    def keys_of(self, place: Place, fragment_id: str = "") -> Features:
        """(n, D): the keys of one fragment."""
        return np.array(self._whole(place, fragment_id)["keys"], dtype=np.float32)

    def levels(self, place: Place, bank: int, mark: int | None = None) -> Features:
        """(n, 2): what a fragment's queries and keys find anywhere, if they are those of the mark."""
        path = self._level_path(place.segment, bank)
        rows = self._rows(path, place.first + place.count)
        levels = np.array(rows[place.first : place.first + place.count], dtype=np.float32)
        if mark is not None and levels_mark(levels) != mark:
            raise self._damage(path)
        return levels

    def rows_of(self, name: str, ids: Ids) -> Features:
        """(N, D): queries or keys of single contour points, by their ids."""
        return self._gather(ids, {int(s): self._path(int(s), name) for s in np.unique(ids // ROWS)}, self.width)

    def key_levels(self, ids: Ids, bank: int) -> Features:
        """(N,): the levels of single keys."""
        paths = {int(s): self._level_path(int(s), bank) for s in np.unique(ids // ROWS)}
        return self._gather(ids, paths, 2)[:, 1]

    def _gather(self, ids: Ids, paths: dict[int, Path], width: int) -> Features:
        found = np.zeros((len(ids), width), dtype=np.float32)
        for segment, path in paths.items():
            own = ids // ROWS == segment
            rows = ids[own] % ROWS
            found[own] = self._rows(path, int(rows.max()) + 1)[rows]
        return found

    def is_whole(self, place: Place) -> bool:
        """Whether a fragment's bytes are those that were written."""
        try:
            self._whole(place)
            return True
        except CollectionError:
            return False

    def missing(self, ends: Iterable[End], bank: int) -> list[Path]:
        """Files that are shorter than what counts."""
        short = []
        for end in ends:
            wanted = {self._path(end.segment, name): end.rows for name in _SHAPES}
            wanted |= {
                self._path(end.segment, _CONTOUR): end.contour_rows,
                self._level_path(end.segment, bank): end.rows,
            }
            short += [path for path, rows in wanted.items() if _size(path) < rows * self._row_bytes(path)]
        return short

    def lengthen(self, ends: Iterable[End]) -> None:
        """Fill files that are too short with zeros: what was there is lost, what comes next needs its place."""
        for end in ends:
            for name in _SHAPES:
                path = self._path(end.segment, name)
                wanted = (end.contour_rows if name == _CONTOUR else end.rows) * self._row_bytes(path)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("r+b" if path.exists() else "w+b") as file:
                    if _size(path) < wanted:
                        file.truncate(wanted)
                    os.fsync(file.fileno())
        self._mapped.clear()

    def trim(self, ends: Iterable[End]) -> int:
        """Cut off what lies beyond the rows that count, such as a killed process leaves; how many bytes that were."""
        ends = list(ends)
        cut = 0
        for end in ends:
            for path in sorted((self.folder / _name(end.segment)).glob("*.[fu][124]")):
                rows = end.contour_rows if path.stem == _CONTOUR else end.rows
                beyond = _size(path) - rows * self._row_bytes(path)
                if beyond > 0:
                    os.truncate(path, rows * self._row_bytes(path))
                    cut += beyond
        for folder in self.folder.glob("*"):
            if folder.name not in {_name(end.segment) for end in ends}:
                cut += sum(_size(path) for path in folder.iterdir())
                shutil.rmtree(folder)
        self._mapped.clear()
        return cut

    def _whole(self, place: Place, fragment_id: str = "") -> dict[str, NDArray[np.generic]]:
        """All rows of a fragment, which are those that were written."""
        rows = {name: self._part(name, place) for name in _SHAPES}
        if _mark(rows) != place.mark:
            raise self._damage(
                self.folder / _name(place.segment), f" in what it holds of {fragment_id or 'a fragment'}"
            )
        return rows

    def _damage(self, path: Path, where: str = "") -> DamagedFileError:
        return DamagedFileError(f"{path} is damaged{where}.", f"Run 'pairingnet archive check {self.folder.parent}'.")

    def _part(self, name: str, place: Place) -> NDArray[np.generic]:
        first, count = (place.contour_first, place.contour_count) if name == _CONTOUR else (place.first, place.count)
        return self._rows(self._path(place.segment, name), first + count)[first : first + count]

    def _rows(self, path: Path, needed: int) -> NDArray[np.generic]:
        """A file as rows, mapped into memory; mapped again when it has grown."""
        mapped = self._mapped.get(path)
        if mapped is None or len(mapped) < needed:
            kind, shape = self._row(path)
            count = _size(path) // self._row_bytes(path)
            if count < needed:
                raise self._damage(path, ": it is too short")
            mapped = np.memmap(path, dtype=kind, mode="r", shape=(count, *shape))
            self._mapped[path] = mapped
        return mapped

    def _row(self, path: Path) -> tuple[str, tuple[int, ...]]:
        if path.name.startswith("levels-"):
            return "<f4", (2,)
        kind, shape = _SHAPES[path.stem]
        return kind, shape or (self.width,)

    def _row_bytes(self, path: Path) -> int:
        kind, shape = self._row(path)
        return int(np.dtype(kind).itemsize * np.prod(shape))

    def _path(self, segment: int, name: str) -> Path:
        return self.folder / _name(segment) / f"{name}.{_SHAPES[name][0][1:]}"

    def _level_path(self, segment: int, bank: int) -> Path:
        return self.folder / _name(segment) / f"levels-{bank}.f4"


def first_id(place: Place) -> int:
    """The id of a fragment's first contour point; the others follow."""
    return place.segment * ROWS + place.first


def point_ids(place: Place, every: int = 1) -> Ids:
    """The ids of every n-th contour point of a fragment."""
    return first_id(place) + np.arange(0, place.count, every, dtype=np.int64)


def sync_folder(folder: Path) -> None:
    """Names in a folder are on disk when this returns."""
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _in_segments(end: End, added: Sequence[RingFeatures]) -> list[tuple[int, list[RingFeatures]]]:
    """Fragments by the segment that has room for them."""
    groups: list[tuple[int, list[RingFeatures]]] = [(end.segment, [])]
    rows = end.rows
    for each in added:
        if rows + len(each.points) > ROWS:
            groups.append((groups[-1][0] + 1, []))
            rows = 0
        groups[-1][1].append(each)
        rows += len(each.points)
    return [group for group in groups if group[1]]


def _arrays(features: RingFeatures) -> dict[str, NDArray[np.generic]]:
    """The rows of a fragment, as they are written."""
    side, strip = features.side, features.side.strip
    values = {
        "points": strip.points,
        "tangents": strip.tangents,
        "colours": strip.colours,
        "queries": side.queries,
        "keys": side.keys,
        "contour": features.outline.points,
    }
    return {name: np.ascontiguousarray(value, dtype=_SHAPES[name][0]) for name, value in values.items()}


def _mark(arrays: dict[str, NDArray[np.generic]]) -> int:
    mark = 0
    for name in _SHAPES:
        mark = zlib.crc32(np.ascontiguousarray(arrays[name]).tobytes(), mark)
    return mark


def levels_of(features: RingFeatures) -> Features:
    """(n, 2): levels of a fragment's queries and keys."""
    return np.stack([features.side.query_level, features.side.key_level], axis=1).astype(np.float32)


def levels_mark(levels: Features) -> int:
    """A mark of levels (n, 2), as they are written."""
    return zlib.crc32(np.ascontiguousarray(levels, dtype="<f4").tobytes())


def _name(segment: int) -> str:
    return f"{segment:06d}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
