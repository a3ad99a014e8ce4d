"""Whether the catalogue is what was written, and a copy of it for when it is not.

ARCHIVE/seal.json     the catalogue's checksum, unless somebody is changing it or was killed at that; the copy's
        copies/N.sqlite    the catalogue as it was when a command last ended

The seal is broken before anything changes and set again when a command ends, so a seal that does not fit means damage.
Where there is none, SQLite is asked, which notices less. Catalogues above `MOST` bytes would make every command wait
for this; they are sealed and copied by `archive check` alone.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pairingnet.archive.catalogue import COPIES, FILE_NAME, Catalogue, now
from pairingnet.errors import CollectionError, DamagedFileError
from pairingnet.io.files import read_json, write_json
from pairingnet.io.lock import one_writer

MOST = 100_000_000
_SEAL, _DAMAGED = "seal.json", "archive.damaged.sqlite"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Seal:
    """Marks of the catalogue (None: it is being changed) and of its copy, the copy's number, and when it was made."""

    catalogue: str | None = None
    copy: str | None = None
    number: int = 0
    made: str = ""


def file_mark(path: Path) -> str:
    """The same as `content_mark`, of files of any size."""
    size = mark = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            size, mark = size + len(block), zlib.crc32(block, mark)
    return f"{size}-{mark:08x}"


def check_seal(folder: Path, thorough: bool = False) -> None:
    """Refuse a catalogue that is not what was written; a large one only if `thorough`. Others may be changing it
    meanwhile."""
    path, seal = folder / FILE_NAME, _read(folder)
    if path.stat().st_size > MOST and not thorough:
        return
    while seal.catalogue is not None:
        if file_mark(path) == seal.catalogue:
            return
        then = _read(folder)
        if then == seal:
            raise Catalogue.damage(path, "its checksum is another one")
        seal = then
    with closing(Catalogue(folder)) as catalogue:
        broken = catalogue.broken()
    if broken:
        raise Catalogue.damage(path, broken[0])


@contextmanager
def broken_seal(folder: Path) -> Iterator[None]:
    """The catalogue may be changed within; sealed and copied when this ends, unless it is killed or finds damage."""
    check_seal(folder)  # nothing that is damaged is ever sealed
    before = _read(folder)
    _write(folder, Seal(None, before.copy, before.number, before.made))
    is_whole = True
    try:
        yield
    except DamagedFileError:
        is_whole = False
        raise
    finally:
        with suppress(OSError):  # such as a full disk: then there is no seal, which is no damage
            if is_whole:
                seal(folder)


def seal(folder: Path, thorough: bool = False) -> bool:
    """Note the checksum of the catalogue, and keep a copy of it; whether a new one was made.

    thorough: of whatever size it is, and where the copy is not what it was.
    """
    path, before = folder / FILE_NAME, _read(folder)
    if path.stat().st_size > MOST and not thorough:
        return False
    mark, kept = file_mark(path), _copy_path(folder, before)
    if mark == before.copy and kept.is_file() and (not thorough or file_mark(kept) == mark):
        _write(folder, Seal(mark, before.copy, before.number, before.made))
        return False
    after = Seal(mark, mark, before.number + 1, now())
    _copied(path, _copy_path(folder, after))
    _write(folder, after)
    for old in (folder / COPIES).iterdir():
        if old != _copy_path(folder, after):
            old.unlink(missing_ok=True)
    return True


def restore(folder: Path) -> str | None:
    """Where the catalogue is damaged, bring back its copy; what a person should know, None where all was well."""
    path = folder / FILE_NAME
    if not path.exists() and not (folder / COPIES).is_dir():
        return None  # no archive at all: opening it says so
    with one_writer(folder, "archive check"):
        if path.exists():
            try:
                check_seal(folder, thorough=True)
                return None
            except DamagedFileError:
                pass
        kept = _newest_copy(folder)
        if kept is None:
            raise CollectionError(f"{path} is damaged, and there is no copy of it.", "Get it from a backup.")
        if path.exists():
            _copied(path, folder / _DAMAGED)
        (folder / f"{FILE_NAME}-journal").unlink(missing_ok=True)  # it is of the damaged one
        _copied(kept, path)
        made = _read(folder).made
        seal(folder, thorough=True)
    when = f" of {made}" if made else ""
    return f"brought the catalogue back from its copy{when}; what was added or removed since has to be again"


def _newest_copy(folder: Path) -> Path | None:
    """A copy that is whole."""
    seal = _read(folder)
    for path in sorted((folder / COPIES).glob("[0-9]*.sqlite"), key=lambda each: each.stat().st_mtime_ns)[::-1]:
        try:
            if path == _copy_path(folder, seal) and file_mark(path) == seal.copy:
                return path
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as copy:
                # Without its seal: better than nothing, as far as SQLite can tell.
                if not seal.copy and copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]:
                    return path
        except (OSError, sqlite3.Error):
            continue
    return None


def _copied(source: Path, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    beside = path.with_name(f".{path.name}")
    shutil.copyfile(source, beside)
    with beside.open("r+b") as file:
        os.fsync(file.fileno())
    beside.replace(path)


def _copy_path(folder: Path, seal: Seal) -> Path:
    return folder / COPIES / f"{seal.number}.sqlite"


def _read(folder: Path) -> Seal:
    """The seal; none where it is missing or itself damaged."""
    try:
        seal = Seal(**read_json(folder / _SEAL, checked=True))
        return seal if isinstance(seal.number, int) else Seal()  # a path is made of it
    except (CollectionError, TypeError):
        return Seal()


def _write(folder: Path, seal: Seal) -> None:
    write_json(folder / _SEAL, asdict(seal), checked=True)
