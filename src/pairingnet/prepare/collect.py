"""A folder of scans -> a collection without truth, with pictures to check it by.

OUT/prepared/NAME/collection.json   what one file gave (or why it gave nothing), written when it is done, with
                                    fingerprints of the file and of all that was made of it
OUT/fragments/ID.png                the fragments
OUT/overlays/NAME.jpg               mask and contour on the scan
OUT/collection.json                 all files together, written last
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path

from pairingnet import __version__
from pairingnet.config import PrepareSettings
from pairingnet.engine.jobs import Workers, run_jobs
from pairingnet.errors import CollectionError, NoFragmentError, PairingNetError
from pairingnet.geometry import perimeter
from pairingnet.io.collection import FILE_NAME, Collection, read_collection, write_collection
from pairingnet.io.files import write_whole
from pairingnet.io.fingerprint import fingerprint, fingerprint_of_file
from pairingnet.io.images import MAX_PIXELS, write_fragment, write_jpeg
from pairingnet.io.resume import Scans, named_scans, remember_settings
from pairingnet.prepare.copies import exact_copies, pixel_mark
from pairingnet.prepare.files import fault_of_file, prepared_pages
from pairingnet.prepare.load import load_fragment
from pairingnet.prepare.scan import Prepared
from pairingnet.prepare.sheets import contact_sheet, outline_overlay
from pairingnet.settings import as_dict
from pairingnet.types import Fragment, FragmentRecord

_SHEET_FRAGMENTS = 96
_LEFT_OUT, _REMARKS = "left_out", "remarks"  # what `made_by` says of files and pieces


@dataclass(frozen=True)
class PrepareJob:
    """What decides what is found, and what of it is wanted.

    exclude: ids or patterns (`sheet#3`, `sheet#*`) to leave out, or after `!` to take back in; the last one that fits
    counts. It may change from run to run.
    """

    settings: PrepareSettings
    exclude: tuple[str, ...] = ()
    max_pixels: int = MAX_PIXELS


@dataclass(frozen=True)
class PreparedResult:
    """The collection, how many files were prepared now, what a person should know, what was left out, and the files
    that stand for all of them."""

    collection: Collection
    prepared_now: int
    remarks: tuple[str, ...]
    bad_files: tuple[str, ...]
    files: tuple[Path, ...]


def prepare_collection(
    scans: Path, out: Path, job: PrepareJob, jobs: Workers = 1, store: bool = True, leave_out: Path | None = None
) -> PreparedResult:
    """Find the fragments in all files of a folder; files are left alone whose content was prepared before, in the same
    way, if what they gave is still there.

    A collection that has got its truth since is not written over. With `store` False none is written at all:
    the caller adds the truth and writes it. What lies in `leave_out` (or in `out`) is no scan.
    """
    scanned = scan_files(scans, leave_out or out)
    files = scanned.files
    remember_settings(out, "prepared", as_dict(job.settings))
    if store:
        _keep_truth(out)
    missing = [(name, path) for name, path in files.items() if not _is_prepared(out, name, _made_of(path, job))]
    run_jobs(partial(_prepare_one, out=out, job=job), missing, jobs, "preparing")
    each = [read_collection(out / "prepared" / name) for name in files]
    problems = tuple(str(part.made_by["problem"]) for part in each if part.made_by["problem"])
    bad_files = (*problems, *scanned.refused)
    if not any(part.fragments for part in each):
        raise NoFragmentError(f"No fragment was found in {scans}: {bad_files[0]}", "Mend the files and try again.")
    fragments, remarks = _wanted(each, job.exclude)
    if not fragments:
        raise NoFragmentError(f"Everything found in {scans} is excluded.", "Leave out --exclude, or some of it.")
    made_by = {"command": "prepare", "exclude": list(job.exclude), **as_dict(job.settings)}
    made_by |= {_LEFT_OUT: bad_files, _REMARKS: remarks}
    collection = Collection(out, fragments, made_by=made_by)
    sheet = out / "contact_sheet.jpg"
    if store and (write_collection(collection) or missing or not sheet.is_file()):
        first = islice(collection.fragments, _SHEET_FRAGMENTS)
        write_jpeg(sheet, contact_sheet(load_fragment(collection, record.id) for record in first))
    done_now = sum(1 for name, _ in missing if not read_collection(out / "prepared" / name).made_by["problem"])
    return PreparedResult(collection, done_now, tuple(remarks), bad_files, (out / FILE_NAME, sheet))


def _wanted(each: Sequence[Collection], exclude: Sequence[str]) -> tuple[tuple[FragmentRecord, ...], list[str]]:
    """The fragments of all files, each once, without those that are excluded; and what a person should know."""
    found = [record for part in each for record in part.fragments]
    wanted = [record for record in found if not _matches(record.id, exclude)]
    marks = {name: mark for part in each for name, mark in part.made_by.get("marks", {}).items()}
    copies = exact_copies({record.id: marks.get(record.id, record.id) for record in wanted})
    remarks = [str(remark) for part in each for remark in part.made_by["remarks"]]
    remarks += [f"{record.id} was left out: excluded" for record in found if record not in wanted]
    remarks += [f"{copy} was left out: it is an exact copy of {name}" for copy, name in copies.items()]
    return tuple(record for record in wanted if record.id not in copies), remarks


def left_out_of(collection: Collection) -> tuple[str, ...]:
    """What was wrong with the files that gave nothing."""
    return tuple(map(str, collection.made_by.get(_LEFT_OUT, ())))


def remarks_of(collection: Collection) -> tuple[str, ...]:
    """What a person should know of how the fragments were found."""
    return tuple(map(str, collection.made_by.get(_REMARKS, ())))


def scan_files(scans: Path, leave_out: Path) -> Scans:
    """The pictures in a folder under their names; of a folder that was prepared, only the pieces that count."""
    with suppress(CollectionError):
        if (scans / FILE_NAME).is_file():
            return Scans({record.id: scans / record.image for record in read_collection(scans).fragments})
    return named_scans(scans, leave_out)


def refuse_other_scans(scans: Path, out: Path, settings: PrepareSettings, leave_out: Path) -> None:
    """Raise where there are no pictures, or not one of those that were prepared before: that is another collection."""
    before = {path.parent.name for path in (out / "prepared").glob(f"*/{FILE_NAME}")}
    files = scan_files(scans, leave_out).files
    if not before or before & files.keys():
        return
    made_of = {_prepared_from(out, name) for name in before}
    if not made_of & {_made_of(path, PrepareJob(settings)) for path in files.values()}:
        raise CollectionError(
            f"{leave_out} holds a run of other scans ({min(before)} ...; none of them is in {scans}).",
            "Choose another folder for the run, so that nothing is lost.",
        )


def _matches(fragment_id: str, patterns: Sequence[str]) -> bool:
    out = False
    for pattern in patterns:
        name = pattern.removeprefix("!")
        if fragment_id == name or fnmatchcase(fragment_id, name):
            out = name == pattern
    return out


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
    overlays: dict[str, str] = {}
    marks: dict[str, str] = {}
    problem = ""
    made_of = _made_of(path, job)
    try:
        records, remarks, overlays, marks = _fragments_of(name, path, out, job)
    except Exception as error:
        problem = fault_of_file(path, error)
    made_by = {"made_of": made_of, "remarks": remarks, "problem": problem, "overlays": overlays, "marks": marks}
    write_collection(Collection(out / "prepared" / name, tuple(records), made_by=made_by), checked=True)


def _fragments_of(
    name: str, path: Path, out: Path, job: PrepareJob
) -> tuple[list[FragmentRecord], list[str], dict[str, str], dict[str, str]]:
    """What a file shows, stored: a line for each fragment, remarks, overlays with their fingerprints, and marks of the
    fragments' pixels."""
    records: list[FragmentRecord] = []
    remarks: list[str] = []
    overlays: dict[str, str] = {}
    marks: dict[str, str] = {}
    for page_name, image, found in prepared_pages(name, path, job.settings, job.max_pixels):
        records += [_store(fragment, name, out) for fragment in found.fragments]
        marks |= {fragment.id: pixel_mark(fragment) for fragment in found.fragments}
        remarks += _remarks(found)
        if found.fragments:
            overlay = outline_overlay(image.pixels, found.fragments, found.left_out)
            drawn = f"overlays/{page_name}.jpg"
            write_whole(out / drawn, partial(write_jpeg, pixels=overlay))
            overlays[drawn] = fingerprint_of_file(out / drawn)
    return records, remarks, overlays, marks


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
        fingerprint=fingerprint_of_file(out / image),
    )


def _remarks(found: Prepared) -> Sequence[str]:
    left_out = [f"{fragment.id} was left out: {fragment.notes[0]}" for fragment in found.left_out]
    return [*found.remarks, *left_out]


def _made_of(path: Path, job: PrepareJob) -> str:
    """Of all that decides what a file gives."""
    return fingerprint("prepare", __version__, as_dict(job.settings), fingerprint_of_file(path))


def _prepared_from(out: Path, name: str) -> str:
    """What `_made_of` was of a file that was prepared before."""
    try:
        return str(read_collection(out / "prepared" / name).made_by.get("made_of", ""))
    except PairingNetError:
        return ""


def _is_prepared(out: Path, name: str, made_of: str) -> bool:
    """Whether a file gave fragments, was the same then, and all that it gave is whole."""
    try:
        before = read_collection(out / "prepared" / name)
        made_by = before.made_by
        if made_by["problem"] or made_by["made_of"] != made_of:  # what gave nothing is tried again
            return False
        made = {record.image: record.fingerprint for record in before.fragments} | dict(made_by["overlays"])
    except (PairingNetError, KeyError):
        return False
    return all(fingerprint_of_file(out / image) == mark for image, mark in made.items())


def _forget(out: Path, name: str) -> None:
    """Remove what a file gave when it was different."""
    try:
        before = read_collection(out / "prepared" / name)
    except PairingNetError:
        return
    for record in before.fragments:
        (out / record.image).unlink(missing_ok=True)
