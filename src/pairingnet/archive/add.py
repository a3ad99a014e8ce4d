"""Scans -> fragments of an archive: only what is new or has changed is worked on.

The order of writes makes it safe to kill: features and levels are on disk first, then one commit of the catalogue makes
the fragments of a handful of files part of the archive, then the index follows, which can be made again.
Files are committed in their order whatever process is done first, so that the archive does not depend on how many work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from pairingnet.archive.catalogue import Entry, KnownFile, NewEntry, now
from pairingnet.archive.folder import Archive
from pairingnet.archive.store import levels_mark, levels_of
from pairingnet.config import PrepareSettings
from pairingnet.engine.jobs import Workers, run_jobs
from pairingnet.errors import CollectionError
from pairingnet.geometry import perimeter
from pairingnet.io.images import MAX_PIXELS
from pairingnet.io.resume import named_scans
from pairingnet.match.ring import RingFeatures
from pairingnet.match.weights import load_model
from pairingnet.prepare.files import fault_of_file, prepared_pages
from pairingnet.prepare.strip import working_step
from pairingnet.types import Fragment

_CHUNK = 4  # files in a job, and in a commit
_SCALE_FILES = 200  # that tell the step of the first ones


@dataclass(frozen=True)
class Added:
    """ids of the fragments that were added; how many replaced older ones or were known before; files that gave
    nothing, and why; what a person should know."""

    ids: tuple[str, ...]
    replaced: int
    known: int
    bad_files: tuple[str, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class _Job:
    """A file to look at, and its name in the archive."""

    name: str
    path: Path


@dataclass(frozen=True, eq=False)
class _Found:
    """What a file gave: fragments with their features and lines, and by which bank their levels are; a problem; or
    another path under which the archive knows the content."""

    file: KnownFile
    fragments: tuple[tuple[RingFeatures, NewEntry], ...] = ()
    bank: int = 0
    remarks: tuple[str, ...] = ()
    known_as: str = ""


def add(
    archive: Archive,
    inputs: Sequence[Path],
    jobs: Workers = 1,
    told: Callable[[str], None] = lambda _: None,
    max_pixels: int = MAX_PIXELS,
    waits: Callable[[str], None] = lambda _: None,
) -> Added:
    """Add the fragments in files and folders; `told` hears of each fragment when it is safely in the archive, `waits`
    of who else is writing, where that has to be waited for."""
    with archive.writing("archive add", told=waits):
        archive.check_sizes()
        missing, refused = _missing(archive, inputs)
        if archive.step_px is None and missing:
            _choose_step(archive, missing, max_pixels)
        keeper = _Keeper(archive, told)
        chunks = list(enumerate(missing[first : first + _CHUNK] for first in range(0, len(missing), _CHUNK)))
        run_jobs(partial(_look_at, archive.folder, max_pixels), chunks, jobs, "adding", keeper.take)
        archive.update_index()
    added = keeper.added()
    return replace(added, bad_files=(*added.bad_files, *refused))


def remove(archive: Archive, names: Sequence[str], waits: Callable[[str], None] = lambda _: None) -> list[str]:
    """Remove fragments by id, by a pattern (`sheet#*`), or by the file they came from; the ids that went."""
    with archive.writing("archive remove", told=waits):
        entries = archive.catalogue.entries()
        gone: dict[int, Entry] = {}
        for name in names:
            path = str(Path(name).resolve())
            found = [entry for entry in entries if _means(name, entry) or entry.path == path]
            if not found:
                raise CollectionError(f"There is no fragment '{name}' in {archive.folder}.", "Nothing was removed.")
            gone |= {entry.number: entry for entry in found}
        left = {entry.path for entry in entries if entry.number not in gone}
        with archive.catalogue.transaction():
            archive.catalogue.remove_fragments(gone, now())
            # A file without fragments is forgotten: adding it again is what a person then means.
            archive.catalogue.forget_files({entry.path for entry in gone.values()} - left)
        archive.update_index()
    return [entry.id for entry in gone.values()]


def _means(pattern: str, entry: Entry) -> bool:
    return entry.id == pattern or fnmatchcase(entry.id, pattern)


def _missing(archive: Archive, inputs: Sequence[Path]) -> tuple[list[_Job], list[str]]:
    """Files that are new, have changed since, or gave nothing the last time; and what is said of those not read."""
    known = archive.catalogue.files()
    taken = {file.name for file in known.values()}
    jobs: dict[str, _Job] = {}
    refused: list[str] = []
    for each in inputs:
        scans = named_scans(each, archive.folder)
        refused += scans.refused
        for wanted, path in scans.files.items():
            key = str(path.resolve())
            before = known.get(key)
            if key in jobs or (before is not None and not before.problem and _is_as_then(path, before)):
                continue
            name = before.name if before is not None else _free(wanted, taken)
            taken.add(name)
            jobs[key] = _Job(name, Path(key))
    return list(jobs.values()), refused


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number where another file has it."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _is_as_then(path: Path, file: KnownFile) -> bool:
    try:
        return _state(path) == (file.size, file.time_ns)
    except OSError:
        return False  # it has gone since it was found: to read it says so


def _choose_step(archive: Archive, jobs: Sequence[_Job], max_pixels: int) -> None:
    """The step at which the median of the first fragments has as many points as the network is made for."""
    some = [jobs[i] for i in np.unique(np.linspace(0, len(jobs) - 1, min(_SCALE_FILES, len(jobs))).astype(int))]
    perimeters: list[float] = []
    for job in some:
        try:
            found = _fragments(job.name, job.path, archive.settings.prepare, max_pixels)
            perimeters += [perimeter(fragment.contour) for fragment, _ in found]
        except Exception:
            continue  # it is told of when the file is added
    if perimeters:
        step_px = working_step(perimeters, load_model(archive.weights).network.settings.points)
        with archive.catalogue.transaction():
            archive.catalogue.state({"step_px": step_px})


def _look_at(folder: Path, max_pixels: int, numbered: tuple[int, list[_Job]]) -> tuple[int, list[_Found]]:
    """Prepare files and compute features; nothing is written."""
    number, jobs = numbered
    archive = _opened(folder)
    bank = _bank_of_now(archive)
    return number, [_found(archive, job, bank, max_pixels) for job in jobs]


def _bank_of_now(archive: Archive) -> int:
    """The number of the bank in use, which is read; another process may just be replacing it."""
    while True:
        number = archive.bank_number
        try:
            _bank(archive.folder, number)
            return number
        except CollectionError:
            if number == archive.bank_number:
                raise


@lru_cache(maxsize=1)
def _opened(folder: Path) -> Archive:
    return Archive(folder, part_of_a_command=True)


@lru_cache(maxsize=2)
def _bank(folder: Path, number: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return dict(_opened(folder).bank(number))


def _found(archive: Archive, job: _Job, bank: int, max_pixels: int) -> _Found:
    try:
        size, time_ns = _state(job.path)
        file = KnownFile(str(job.path), job.name, size, time_ns, _content_mark(job.path))
    except OSError as error:
        problem = f"{job.path} cannot be opened ({error.strerror}). Check its permissions, or remove it."
        return _Found(KnownFile(str(job.path), job.name, -1, 0, "", problem))
    same = archive.catalogue.same_content(file.mark)
    if same is not None:
        return _Found(file, known_as=same.path)
    try:
        found = _fragments(job.name, job.path, archive.settings.prepare, max_pixels)
        fragments = [fragment for fragment, _ in found]
        features = archive.method.know(list(archive.method.features(fragments)), _bank(archive.folder, bank))
    except Exception as error:
        return _Found(replace(file, problem=fault_of_file(job.path, error)))
    remarks = tuple(dict.fromkeys(remark for _, told in found for remark in told))
    return _Found(file, tuple(zip(features, map(_entry, fragments), strict=True)), bank, remarks)


def _fragments(
    name: str, path: Path, settings: PrepareSettings, max_pixels: int
) -> list[tuple[Fragment, tuple[str, ...]]]:
    """The fragments that a file shows, each with the remarks about its page."""
    return [
        (fragment, found.remarks)
        for _, _, found in prepared_pages(name, path, settings, max_pixels)
        for fragment in found.fragments
    ]


def _entry(fragment: Fragment) -> NewEntry:
    area_px, perimeter_px = round(fragment.area_px, 1), round(perimeter(fragment.contour), 1)
    return NewEntry(fragment.id, area_px, perimeter_px, fragment.offset_px)


def _content_mark(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Keeper:
    """Takes what was found, in any order, and commits it in the order of the files."""

    def __init__(self, archive: Archive, told: Callable[[str], None]) -> None:
        self._archive, self._told = archive, told
        self._waiting: dict[int, list[_Found]] = {}
        self._next = 0
        self._ids: list[str] = []
        self._replaced = self._known = 0
        self._problems: list[str] = []
        self._remarks: list[str] = []

    def take(self, numbered: tuple[int, list[_Found]]) -> None:
        number, found = numbered
        self._waiting[number] = found
        while self._next in self._waiting:
            self._commit(self._waiting.pop(self._next))
            self._next += 1

    def added(self) -> Added:
        return Added(tuple(self._ids), self._replaced, self._known, tuple(self._problems), tuple(self._remarks))

    def _commit(self, found: Sequence[_Found]) -> None:
        """Features on disk, then one transaction for all of these files."""
        archive, catalogue = self._archive, self._archive.catalogue
        fresh = self._fresh(found)
        bank = archive.bank_number
        pieces = [one for each in fresh for one in self._levelled(each, bank)]
        places = iter(archive.store.append(catalogue.ends(), pieces, bank))
        marks = iter([levels_mark(levels_of(one)) for one in pieces])
        when, ids = now(), []
        with catalogue.transaction():
            for each in found:
                if each in fresh:
                    old = catalogue.entries("path = ?", (each.file.path,))
                    catalogue.remove_fragments([entry.number for entry in old], when)
                    self._replaced += len(old)
                    lines = [(line, next(places)) for _, line in each.fragments]
                    numbers = catalogue.put_fragments(each.file.path, lines, when)
                    catalogue.put_level_marks(bank, [(number, next(marks)) for number in numbers])
                    ids += [line.id for _, line in each.fragments]
                if each in fresh or each.file.problem or each.known_as == each.file.path:
                    catalogue.put_file(each.file)
                elif each.known_as and not Path(each.known_as).exists():
                    catalogue.move_file(each.known_as, each.file.path)
        # From here on they count, and are told of: never before.
        self._ids += ids
        for name in ids:
            self._told(name)
        archive.refresh_bank()

    def _fresh(self, found: Sequence[_Found]) -> list[_Found]:
        """Those with fragments that the archive does not have yet; what there is to say of the others."""
        fresh: dict[str, _Found] = {}
        for each in found:
            self._remarks += each.remarks
            # What another process committed while this one worked is seen only here.
            same = self._archive.catalogue.same_content(each.file.mark)
            known_as = each.known_as or (same.path if same else "")
            if each.file.mark in fresh:
                known_as = fresh[each.file.mark].file.path
            if each.file.problem:
                self._problems.append(each.file.problem)
            elif known_as:
                self._known += 1
                if known_as != each.file.path:
                    self._remarks.append(f"{each.file.path} has the same content as {known_as}")
            else:
                fresh[each.file.mark] = each
        return list(fresh.values())

    def _levelled(self, found: _Found, bank: int) -> list[RingFeatures]:
        """Features with levels by the bank of now: it may have been drawn anew since."""
        features = [one for one, _ in found.fragments]
        return features if found.bank == bank else self._archive.method.know(features, self._archive.bank(bank))
