"""Collection folders: fragments with or without truth (docs/formats.md).

    collection.json   fragments, true pairs, thresholds, the settings that made it
    fragments/*.png   RGBA, alpha is the mask
    seams.npy         (K, 2) float32, the shared lines of all true pairs, one after the other

Poses are `canvas_from_fragment`, rigid, in pixels of the fragment's image.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pairingnet.errors import CollectionError
from pairingnet.geometry import Points, Rigid2D
from pairingnet.io.files import MALFORMED, as_lines, read_json, write_array, write_json
from pairingnet.io.fingerprint import fingerprint_of_file
from pairingnet.io.names import fault_of_id, fault_of_image, is_text
from pairingnet.types import FragmentRecord, TruePair

VERSION = 1
FILE_NAME = "collection.json"
SEAMS_NAME = "seams.npy"


@dataclass(frozen=True, eq=False)
class Collection:
    """Fragments on disk, and what is known about them.

    sources: size (width, height) of each complete picture, where known.
    """

    folder: Path
    fragments: tuple[FragmentRecord, ...]
    pairs: tuple[TruePair, ...] = ()
    thresholds: tuple[float, float] | None = None
    sources: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    made_by: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def by_id(self) -> dict[str, FragmentRecord]:
        return {record.id: record for record in self.fragments}

    def __len__(self) -> int:
        return len(self.fragments)

    def only(self, ids: Iterable[str]) -> Collection:
        """Some of the fragments, without pairs."""
        return replace(self, fragments=tuple(self[name] for name in ids), pairs=())

    def __getitem__(self, fragment_id: str) -> FragmentRecord:
        """One fragment's line; refuse an id that it does not have."""
        record = self.by_id.get(fragment_id)
        if record is None:
            near = get_close_matches(fragment_id, self.by_id, n=1)
            hint = f"Did you mean '{near[0]}'?" if near else f"Its {len(self)} fragments are listed in {FILE_NAME}."
            raise CollectionError(f"There is no fragment '{fragment_id}' in {self.folder}.", hint)
        return record

    @cached_property
    def mark(self) -> str:
        """A mark of what is in it: the fragments' images, their names, and the pairs."""
        mark = 0
        for record in self.fragments:
            mark = zlib.crc32((self.folder / record.image).read_bytes(), zlib.crc32(record.id.encode(), mark))
        for pair in self.pairs:
            mark = zlib.crc32(f"{pair.source} {pair.target}".encode(), mark)
        return f"{len(self)} fragments, {len(self.pairs)} pairs, {mark:08x}"

    def fingerprint_of(self, record: FragmentRecord) -> str:
        """Of a fragment's image, as it is now."""
        return fingerprint_of_file(self.folder / record.image)

    def part(self, name: str) -> Collection:
        """Only the fragments and pairs of one part ("train", "val", "test")."""
        kept = tuple(record for record in self.fragments if record.part == name)
        if not kept:
            parts = sorted({record.part for record in self.fragments})
            raise CollectionError(f"{self.folder} has no part '{name}'.", f"It has: {', '.join(parts)}.")
        ids = {record.id for record in kept}
        pairs = tuple(pair for pair in self.pairs if pair.source in ids and pair.target in ids)
        return replace(self, fragments=kept, pairs=pairs)

    def target_from_source(self, pair: TruePair) -> Rigid2D:
        """The true transform of a pair."""
        canvas_from_source = self[pair.source].canvas_from_fragment
        canvas_from_target = self[pair.target].canvas_from_fragment
        if canvas_from_source is None or canvas_from_target is None:
            raise CollectionError(
                f"{self.folder} does not say where '{pair.source}' and '{pair.target}' lie.",
                "Make the truth first, for example with 'pairingnet annotate'.",
            )
        return canvas_from_target.inverse() @ canvas_from_source

    def lies(self, source: str, target: str) -> Rigid2D | None:
        """target_from_source of any two fragments, neighbours or not; None: they are of different pictures, or nobody
        knows."""
        one, other = self[source], self[target]
        if one.source != other.source or one.canvas_from_fragment is None or other.canvas_from_fragment is None:
            return None
        return other.canvas_from_fragment.inverse() @ one.canvas_from_fragment


def read_collection(folder: str | Path) -> Collection:
    """Open a collection folder (or its collection.json). Images are read when asked for."""
    folder = Path(folder)
    path = folder if folder.is_file() else folder / FILE_NAME
    folder = path.parent
    content = _content(path)
    try:
        fragments = tuple(_record(entry) for entry in content["fragments"])
        seams = _seams(folder, content)
        pairs = tuple(_pair(entry, seams) for entry in content.get("pairs", []))
        thresholds = content.get("difficulty_thresholds")
        sources = {
            str(entry["id"]): (int(entry["width"]), int(entry["height"])) for entry in content.get("sources", [])
        }
        limits = None if thresholds is None else (float(thresholds[0]), float(thresholds[1]))
        made_by = dict(content.get("made_by", {}))
    except KeyError as error:
        raise CollectionError(f"{path} lacks the field {error}.", "See docs/formats.md.") from error
    except MALFORMED as error:
        raise CollectionError(f"{path} has a bad value: {error}.", "See docs/formats.md.") from error
    _check_ids(path, fragments, pairs)
    return Collection(folder, fragments, pairs, limits, sources, made_by)


def write_collection(collection: Collection, checked: bool = False) -> bool:
    """Store everything but the images, which are there already. False where the same stood there before.

    checked: with a checksum, so that damage is noticed; for files that nobody edits.
    """
    _check_ids(collection.folder, collection.fragments, collection.pairs)
    seams, spans = _packed_seams(collection.pairs)
    content: dict[str, Any] = {"version": VERSION, "made_by": dict(collection.made_by)}
    if collection.thresholds is not None:
        content["difficulty_thresholds"] = list(collection.thresholds)
    content["sources"] = [{"id": s, "width": w, "height": h} for s, (w, h) in collection.sources.items()]
    content["fragments"] = [record_as_json(record) for record in collection.fragments]
    content["pairs"] = [pair_as_json(pair, span) for pair, span in zip(collection.pairs, spans, strict=True)]
    path, beside = collection.folder / FILE_NAME, collection.folder / SEAMS_NAME
    same_content = not checked and path.is_file() and path.read_text(encoding="utf-8") == as_lines(content)
    if same_content and (not len(seams) or _stored(beside, seams)):
        return False
    if len(seams):
        write_array(beside, seams)
    write_json(path, content, checked)
    return True


def record_as_json(record: FragmentRecord) -> dict[str, Any]:
    """One entry of "fragments"; what is unknown is left out, except the pose."""
    pose = record.canvas_from_fragment
    entry: dict[str, Any] = {
        "id": record.id,
        "image": record.image,
        "source": record.source,
        "canvas_from_fragment": None if pose is None else np.round(pose.matrix, 9).tolist(),
    }
    if record.part:
        entry["part"] = record.part
    if record.dpi is not None:
        entry["dpi"] = record.dpi
    if record.area_px:
        entry["area_px"] = round(record.area_px, 1)
        entry["perimeter_px"] = round(record.perimeter_px, 1)
    if record.fingerprint:
        entry["fingerprint"] = record.fingerprint
    if record.origin:
        entry["origin"] = record.origin
        entry["offset_px"] = list(record.offset_px)
    return entry


def pair_as_json(pair: TruePair, span: tuple[int, int]) -> dict[str, Any]:
    """One entry of "pairs"; `seam` is [first, count] in seams.npy."""
    return {
        "source": pair.source,
        "target": pair.target,
        "overlap_px": round(pair.overlap_px, 1),
        "overlap_ratio": round(pair.overlap_ratio, 5),
        "difficulty": pair.difficulty,
        "seam": list(span),
    }


def _content(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise CollectionError(
            f"There is no {FILE_NAME} in {path.parent}.",
            "Make one with 'pairingnet tear' (from pictures) or 'pairingnet prepare' (from scans).",
        )
    content = read_json(path, "Make the collection again.")
    if content.get("version") != VERSION:
        raise CollectionError(
            f"{path} has version {content.get('version')}, this program reads version {VERSION}.",
            "Make the collection again with this version, or use the program that made it.",
        )
    return content


def _record(entry: Mapping[str, Any]) -> FragmentRecord:
    pose = entry["canvas_from_fragment"]
    offset = entry.get("offset_px", (0, 0))
    return FragmentRecord(
        id=entry["id"],
        image=entry["image"],
        source=_text(entry.get("source", "")),
        canvas_from_fragment=None if pose is None else Rigid2D.from_matrix(pose),
        part=_text(entry.get("part", "")),
        dpi=None if entry.get("dpi") is None else _number(entry["dpi"]),
        area_px=_number(entry.get("area_px", 0.0)),
        perimeter_px=_number(entry.get("perimeter_px", 0.0)),
        origin=_text(entry.get("origin", "")),
        offset_px=(int(offset[0]), int(offset[1])),
        fingerprint=entry.get("fingerprint", ""),
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not is_text(value):
        raise ValueError(f"{value!r} is no text")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _seams(folder: Path, content: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    if not any("seam" in entry for entry in content.get("pairs", [])):
        return np.zeros((0, 2), dtype=np.float32)
    try:
        seams = np.load(folder / SEAMS_NAME, mmap_mode="r", allow_pickle=False)
        if not isinstance(seams, np.ndarray) or seams.ndim != 2 or seams.shape[1] != 2 or seams.dtype.kind != "f":
            raise ValueError("it is no list of points")
        return np.asarray(seams)
    except Exception as error:  # numpy raises all kinds of things on broken data
        raise CollectionError(
            f"{folder / SEAMS_NAME} is missing or broken ({error}).", "Make the collection again."
        ) from error


def _pair(entry: Mapping[str, Any], seams: np.ndarray[Any, np.dtype[np.float32]]) -> TruePair:
    first, count = entry.get("seam", (0, 0))
    if first < 0 or count < 0 or first + count > len(seams):
        raise ValueError(f"the seam of {entry['source']} and {entry['target']} ends beyond {SEAMS_NAME}")
    return TruePair(
        entry["source"],
        entry["target"],
        float(entry["overlap_px"]),
        float(entry["overlap_ratio"]),
        _text(entry["difficulty"]),
        _finite(seams[first : first + count]),
    )


def _finite(points: np.ndarray[Any, np.dtype[np.float32]]) -> Points:
    if not np.isfinite(points).all():
        raise ValueError(f"{SEAMS_NAME} has points that are no numbers")
    return np.asarray(points, dtype=np.float64)


def _stored(path: Path, array: np.ndarray[Any, np.dtype[np.float32]]) -> bool:
    return path.is_file() and np.array_equal(np.load(path, allow_pickle=False), array)


def _packed_seams(
    pairs: Sequence[TruePair],
) -> tuple[np.ndarray[Any, np.dtype[np.float32]], list[tuple[int, int]]]:
    counts = [len(pair.seam) for pair in pairs]
    firsts = np.concatenate([[0], np.cumsum(counts)]).astype(int)
    stacked = np.concatenate([pair.seam for pair in pairs]) if pairs else np.zeros((0, 2))
    return stacked.astype(np.float32), [(int(f), c) for f, c in zip(firsts[:-1], counts, strict=True)]


def _check_ids(path: Path, fragments: Sequence[FragmentRecord], pairs: Sequence[TruePair]) -> None:
    for record in fragments:
        fault = fault_of_id(record.id)
        if fault:
            raise CollectionError(f"{path} has the id {record.id!r}: {fault}.", "Give the fragment another id.")
        fault = fault_of_image(record.image)
        if fault:
            raise CollectionError(
                f"{path} has the image {record.image!r}: {fault}.", "Give a path below the collection's folder."
            )
    counts = Counter(record.id for record in fragments)
    twice = next((i for i, count in counts.items() if count > 1), None)
    if twice is not None:
        raise CollectionError(f"{path} lists the fragment '{twice}' twice.", "Give each fragment its own id.")
    both = (name for pair in pairs for name in (pair.source, pair.target))
    unknown = next((name for name in both if not isinstance(name, str) or name not in counts), None)
    if unknown is not None:
        raise CollectionError(f"{path} has a pair of '{unknown}', which it does not list.", "Mend or remake it.")
