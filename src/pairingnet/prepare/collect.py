"""A folder of scans -> a collection without truth, with pictures to check it by.

OUT/prepared/NAME/collection.json   what one file gave (or why it gave nothing), written when it is done
OUT/fragments/ID.png                the fragments
OUT/overlays/NAME.jpg               mask and contour on the scan
OUT/collection.json                 all files together, written last
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path

from pairingnet.config import PrepareSettings
from pairingnet.engine.jobs import Workers, run_jobs
from pairingnet.errors import CollectionError, NoFragmentError, PairingNetError
from pairingnet.geometry import perimeter
from pairingnet.io.collection import FILE_NAME, Collection, read_collection, write_collection
from pairingnet.io.files import write_json, write_whole
from pairingnet.io.images import MAX_PIXELS, write_fragment, write_jpeg
from pairingnet.io.resume import named_scans, remember_settings
from pairingnet.prepare.copies import exact_copies, pixel_mark
from pairingnet.prepare.files import fault_of_file, prepared_pages
from pairingnet.prepare.load import load_fragment
from pairingnet.prepare.scan import Prepared
from pairingnet.prepare.sheets import contact_sheet, outline_overlay
from pairingnet.settings import as_dict
from pairingnet.types import Fragment, FragmentRecord

_SHEET_FRAGMENTS = 96
_NOT_READ = "not_read.json"


@dataclass(frozen=True)
class PrepareJob:
    """What decides what is found, and what of it is wanted.

    exclude: ids or patterns (`sheet#3`, `sheet#*`) to leave out; it may change from run to run.
    """

    settings: PrepareSettings
    exclude: tuple[str, ...] = ()
    max_pixels: int = MAX_PIXELS


@dataclass(frozen=True)
class PreparedResult:
    """The collection, how many files were prepared now, what a person should know, and what was left out."""

    collection: Collection
    prepared_now: int
    remarks: tuple[str, ...]
    bad_files: tuple[str, ...]


def prepare_collection(
    scans: Path, out: Path, job: PrepareJob, jobs: Workers = 1, store: bool = True, leave_out: Path | None = None
) -> PreparedResult:
    """Find the fragments in all files of a folder; files prepared before and not changed since are left alone.

    A collection that has got its truth since is not written over. With `store` False none is written at all:
    the caller adds the truth and writes it. What lies in `leave_out` (or in `out`) is no scan.
    """
    named = named_scans(scans, leave_out or out)
    files = named.files
    remember_settings(out, "prepared", as_dict(job.settings))
    if store:
        _keep_truth(out)
    missing = [(name, path) for name, path in files.items() if _state(path) != _good_state_then(out, name)]
    run_jobs(partial(_prepare_one, out=out, job=job), missing, jobs, "preparing")
    each = [read_collection(out / "prepared" / name) for name in files]
    problems = tuple(str(part.made_by["problem"]) for part in each if part.made_by["problem"])
    bad_files = (*problems, *named.refused)
    write_json(out / "prepared" / _NOT_READ, {"files": list(named.refused)})
    found = [record for part in each for record in part.fragments]
    if not found:
        raise NoFragmentError(f"No fragment was found in {scans}: {bad_files[0]}", "Mend the files and try again.")
    wanted = [record for record in found if not _matches(record.id, job.exclude)]
    marks = {name: mark for part in each for name, mark in part.made_by.get("marks", {}).items()}
    copies = exact_copies({record.id: marks.get(record.id, record.id) for record in wanted})
    fragments = tuple(record for record in wanted if record.id not in copies)
    if not fragments:
        raise NoFragmentError(f"Everything found in {scans} is excluded.", "Leave out --exclude, or some of it.")
    made_by = {"command": "prepare", "exclude": list(job.exclude), **as_dict(job.settings)}
    collection = Collection(out, fragments, made_by=made_by)
    if store and (write_collection(collection) or missing):
        first = islice(collection.fragments, _SHEET_FRAGMENTS)
        sheet = contact_sheet(load_fragment(collection, record.id) for record in first)
        write_jpeg(out / "contact_sheet.jpg", sheet)
    remarks = [str(remark) for part in each for remark in part.made_by["remarks"]]
    remarks += [f"{record.id} was left out: excluded" for record in found if record not in wanted]
    remarks += [f"{copy} was left out: it is an exact copy of {name}" for copy, name in copies.items()]
    done_now = sum(1 for name, _ in missing if not read_collection(out / "prepared" / name).made_by["problem"])
    return PreparedResult(collection, done_now, tuple(remarks), bad_files)


def problems_of(out: Path) -> tuple[str, ...]:
    """What was wrong with the files that gave nothing."""
    each = [read_collection(path.parent) for path in sorted((out / "prepared").glob(f"*/{FILE_NAME}"))]
    problems = tuple(str(part.made_by["problem"]) for part in each if part.made_by["problem"])
    return (*problems, *_not_read(out))


def _not_read(out: Path) -> list[str]:
    """What was said of files that are not read."""
    try:
        told = json.loads((out / "prepared" / _NOT_READ).read_text(encoding="utf-8"))
        return [str(line) for line in told["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _matches(fragment_id: str, patterns: Sequence[str]) -> bool:
    return any(fragment_id == pattern or fnmatchcase(fragment_id, pattern) for pattern in patterns)


def _keep_truth(out: Path) -> None:
    if (out / FILE_NAME).is_file() and "annotated" in read_collection(out).made_by:
        raise CollectionError(
            f"{out} holds a collection with truth.", "Prepare into another folder, or run 'pairingnet annotate' again."
        )


def _prepare_one(named: tuple[str, Path], out: Path, job: PrepareJob) -> None:
    """Prepare one file and store what came of it, good or bad."""
    name, path = named
    _forget(out, name)
    records: list[FragmentRecord] = []
    remarks: list[str] = []
    marks: dict[str, str] = {}
    problem = ""
    state = _state(path)
    try:
        records, remarks, marks = _fragments_of(name, path, out, job)
    except Exception as error:
        problem = fault_of_file(path, error)
    made_by = {"file": state, "remarks": remarks, "problem": problem, "marks": marks}
    write_collection(Collection(out / "prepared" / name, tuple(records), made_by=made_by))


def _fragments_of(
    name: str, path: Path, out: Path, job: PrepareJob
) -> tuple[list[FragmentRecord], list[str], dict[str, str]]:
    """What a file shows, stored: a line for each fragment, remarks, and marks of the fragments' pixels."""
    records: list[FragmentRecord] = []
    remarks: list[str] = []
    marks: dict[str, str] = {}
    for page_name, image, found in prepared_pages(name, path, job.settings, job.max_pixels):
        records += [_store(fragment, name, out) for fragment in found.fragments]
        marks |= {fragment.id: pixel_mark(fragment) for fragment in found.fragments}
        remarks += _remarks(found)
        if found.fragments:
            overlay = outline_overlay(image.pixels, found.fragments, found.left_out)
            write_whole(out / "overlays" / f"{page_name}.jpg", partial(write_jpeg, pixels=overlay))
    return records, remarks, marks


def _store(fragment: Fragment, source: str, out: Path) -> FragmentRecord:
    image = f"fragments/{fragment.id}.png"
    write_whole(out / image, partial(write_fragment, pixels=fragment.pixels, alpha=fragment.alpha, dpi=fragment.dpi))
    return FragmentRecord(
        fragment.id,
        image,
        dpi=fragment.dpi,
        area_px=fragment.area_px,
        perimeter_px=perimeter(fragment.contour),
        origin=Path(fragment.origin).name or source,
        offset_px=fragment.offset_px,
    )


def _remarks(found: Prepared) -> Sequence[str]:
    left_out = [f"{fragment.id} was left out: {fragment.notes[0]}" for fragment in found.left_out]
    return [*found.remarks, *left_out]


def _state(path: Path) -> list[int]:
    """Size and time of a file: it is prepared again when they change."""
    try:
        status = path.stat()
    except OSError:  # it is gone, or was never there: to read it says why
        return []
    return [status.st_size, status.st_mtime_ns]


def _good_state_then(out: Path, name: str) -> list[int] | None:
    """The file's state when it gave fragments; None if it never did, so that it is tried again."""
    try:
        made_by = read_collection(out / "prepared" / name).made_by
    except PairingNetError:
        return None
    return None if made_by.get("problem", "unknown") else list(made_by.get("file", ()))


def _forget(out: Path, name: str) -> None:
    """Remove what a file gave when it was different."""
    try:
        before = read_collection(out / "prepared" / name)
    except PairingNetError:
        return
    for record in before.fragments:
        (out / record.image).unlink(missing_ok=True)
