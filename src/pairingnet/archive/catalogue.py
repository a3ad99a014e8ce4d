"""What an archive holds, in SQLite: what stands here counts, whatever else lies on disk.

A fragment is in the archive from the moment its line is committed; its features are on disk before that. Lines of
removed fragments stay, marked, so that their rows in the segments are never given to others. Times are UTC.

Whatever SQLite finds wrong is a CollectionError with the next step: a damaged file, a full disk, a folder that may only
be read.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pairingnet.errors import CollectionError, DamagedFileError
from pairingnet.io.run import match_as_json, match_from_json
from pairingnet.types import PairMatch

VERSION = 2
FILE_NAME, COPIES = "archive.sqlite", "copies"

_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE files (
    path TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, time_ns INTEGER NOT NULL,
    mark TEXT NOT NULL, problem TEXT NOT NULL
);
CREATE INDEX file_mark ON files (mark);
CREATE TABLE fragments (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, path TEXT NOT NULL, added TEXT NOT NULL,
    segment INTEGER NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL, contour_first INTEGER NOT NULL,
    contour_count INTEGER NOT NULL, step_px REAL NOT NULL, area_px REAL NOT NULL, perimeter_px REAL NOT NULL,
    x_px INTEGER NOT NULL, y_px INTEGER NOT NULL, mark INTEGER NOT NULL,
    joined TEXT, removed TEXT
);
CREATE UNIQUE INDEX fragment_id ON fragments (id) WHERE removed IS NULL;
CREATE INDEX fragment_path ON fragments (path);
CREATE INDEX fragment_added ON fragments (added);
CREATE INDEX fragment_segment ON fragments (segment);
CREATE TABLE joins (
    source INTEGER NOT NULL, target INTEGER NOT NULL, made TEXT NOT NULL, score REAL NOT NULL, content TEXT NOT NULL,
    PRIMARY KEY (source, target)
);
CREATE INDEX join_target ON joins (target);
"""
_LEVELS = """
CREATE TABLE levels (
    number INTEGER NOT NULL, bank INTEGER NOT NULL, mark INTEGER NOT NULL, PRIMARY KEY (number, bank)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Place:
    """Where a fragment's rows lie: its segment, the first of its contour points there and how many, the same for its
    outline; step_px of its strip; a mark of the bytes."""

    segment: int
    first: int
    count: int
    contour_first: int
    contour_count: int
    step_px: float
    mark: int


@dataclass(frozen=True)
class Entry:
    """A fragment's line."""

    number: int
    id: str
    path: str
    added: str
    place: Place


@dataclass(frozen=True)
class NewEntry:
    """What a new fragment's line says beside its number and its place."""

    id: str
    area_px: float
    perimeter_px: float
    offset_px: tuple[int, int]


@dataclass(frozen=True)
class KnownFile:
    """A file that was added: size and time when it was read, a mark of its content, and why it gave nothing."""

    path: str
    name: str
    size: int
    time_ns: int
    mark: str
    problem: str = ""


@dataclass(frozen=True)
class End:
    """Where the rows of a segment end that count."""

    segment: int
    rows: int
    contour_rows: int


_NEXT_STEPS = {
    "SQLITE_FULL": "Make room on its disk, and run this command again.",
    "SQLITE_IOERR": "Make room on its disk, or look at the disk, and run this command again.",
    "SQLITE_READONLY": "Check its permissions and those of its folder.",
    "SQLITE_CANTOPEN": "Check its permissions and those of its folder.",
    "SQLITE_PERM": "Check its permissions and those of its folder.",
    "SQLITE_AUTH": "Check its permissions and those of its folder.",
    "SQLITE_BUSY": "Run this command again when the other one is done.",
    "SQLITE_LOCKED": "Run this command again when the other one is done.",
    "SQLITE_PROTOCOL": "Keep archives on a disk that knows file locks.",
    "SQLITE_NOMEM": "Free some memory.",
    "SQLITE_TOOBIG": "Add fewer scans at a time.",
}
_PLACE = ", ".join(field.name for field in fields(Place))
_ENTRY = f"number, id, path, added, {_PLACE}"


class Catalogue:
    """The open file. Reading methods give plain values; writing ones need `transaction`."""

    def __init__(self, folder: Path) -> None:
        path = folder / FILE_NAME
        if not path.is_file() and (folder / COPIES).is_dir():
            raise self.damage(path, "it is missing")
        if not path.is_file():
            raise CollectionError(f"There is no archive in {folder}.", "Make one with 'pairingnet archive init'.")
        # A minute of patience: readers wait while another process commits.
        self.path = path
        self._connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        try:
            self._do("PRAGMA synchronous = FULL")
            if self.facts().get("version") == 1:
                self._from_version_1()
            version = self.facts().get("version")
            if version != VERSION:
                raise CollectionError(f"{path} has version {version}.", f"This program reads {VERSION}.")
        except BaseException:
            self.close()
            raise

    def _from_version_1(self) -> None:
        """It did not know the marks of levels; they come with the next bank, or by `archive check`."""
        with self.transaction():
            if self.facts().get("version") == 1:  # nobody else was faster
                self._do(_LEVELS)
                self.state({"version": VERSION})

    @classmethod
    def create(cls, folder: Path, facts: Mapping[str, Any]) -> None:
        """Make the file; it appears with its tables and facts, or not at all."""
        beside = folder / f".{FILE_NAME}"
        beside.unlink(missing_ok=True)
        connection = sqlite3.connect(beside, isolation_level=None)
        try:
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} {_LEVELS}")
            told = {"version": VERSION, **facts}
            connection.executemany("INSERT INTO facts VALUES (?, ?)", [(n, json.dumps(v)) for n, v in told.items()])
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise _explained(beside, error) from None
        finally:
            connection.close()
        beside.replace(folder / FILE_NAME)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written inside counts when this ends, or nothing of it."""
        self._do("BEGIN IMMEDIATE")
        try:
            yield
            self._do("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite itself ends it where the disk is full
                self._do("ROLLBACK")
            raise

    def broken(self) -> list[str]:
        """What SQLite itself finds wrong with the file."""
        try:
            told = [str(row[0]) for row in self._do("PRAGMA integrity_check")]
        except DamagedFileError as error:
            return [error.problem]
        return [] if told == ["ok"] else told

    def _do(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run a query; all of its rows."""
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise _explained(self.path, error) from None

    def _do_many(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        try:
            self._connection.executemany(query, rows)
        except sqlite3.Error as error:
            raise _explained(self.path, error) from None

    @staticmethod
    def damage(path: Path, how: str) -> DamagedFileError:
        """What to say of a catalogue that is not what was written."""
        step = f"Run 'pairingnet archive check {path.parent}', which brings back a copy of it."
        return DamagedFileError(f"{path} is damaged ({how}).", step)

    # Facts

    def facts(self) -> dict[str, Any]:
        try:
            return {name: json.loads(value) for name, value in self._do("SELECT name, value FROM facts")}
        except (TypeError, ValueError) as error:
            raise self.damage(self.path, f"a fact of it is no JSON: {error}") from None

    def state(self, facts: Mapping[str, Any]) -> None:
        """Write facts down, over older ones of the same name."""
        rows = [(name, json.dumps(value)) for name, value in facts.items()]
        self._do_many("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    # Files

    def files(self) -> dict[str, KnownFile]:
        """All files that were added, by path."""
        rows = self._do("SELECT path, name, size, time_ns, mark, problem FROM files")
        return {row[0]: KnownFile(*row) for row in rows}

    def same_content(self, mark: str) -> KnownFile | None:
        """A file with this content that gave fragments."""
        query = "SELECT path, name, size, time_ns, mark, problem FROM files WHERE mark = ? AND problem = ''"
        rows = self._do(f"{query} LIMIT 1", (mark,))
        return KnownFile(*rows[0]) if rows else None

    def put_file(self, file: KnownFile) -> None:
        self._do("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", astuple(file))

    def move_file(self, before: str, after: str) -> None:
        """A file lies elsewhere now."""
        self._do("UPDATE files SET path = ? WHERE path = ?", (after, before))
        self._do("UPDATE fragments SET path = ? WHERE path = ?", (after, before))

    def forget_files(self, paths: Iterable[str]) -> None:
        self._do_many("DELETE FROM files WHERE path = ?", [(path,) for path in paths])

    def expect_again(self, paths: Iterable[str]) -> None:
        """Forget what files looked like, so that they are looked at again; they keep their names."""
        self._do_many("UPDATE files SET size = -1, mark = '' WHERE path = ?", [(p,) for p in paths])

    # Fragments

    def entries(self, where: str = "1", values: Sequence[Any] = ()) -> list[Entry]:
        """The fragments that are there, in the order in which they came; `where` is a condition in SQL."""
        query = f"SELECT {_ENTRY} FROM fragments WHERE removed IS NULL AND ({where}) ORDER BY number"
        rows = self._do(query, values)
        return [Entry(number, name, path, added, Place(*place)) for number, name, path, added, *place in rows]

    def places(self, numbers: Iterable[int]) -> list[Place]:
        """Where fragments lie, removed ones included; those that never were are left out."""
        query = f"SELECT {_PLACE} FROM fragments WHERE number = ?"
        return [Place(*row) for number in numbers for row in self._do(query, (number,))]

    def count(self) -> int:
        return int(self._do("SELECT count(*) FROM fragments WHERE removed IS NULL")[0][0])

    def ends(self) -> list[End]:
        """Where the rows of each segment end, those of removed fragments included."""
        query = "SELECT segment, max(first + count), max(contour_first + contour_count) FROM fragments GROUP BY segment"
        return [End(*row) for row in self._do(f"{query} ORDER BY segment")]

    def put_fragments(self, path: str, added: Iterable[tuple[NewEntry, Place]], when: str) -> list[int]:
        """Lines for new fragments of a file; their numbers."""
        numbers: list[int] = []
        for new, place in added:
            values = (new.id, path, when, *astuple(place), new.area_px, new.perimeter_px, *new.offset_px)
            told = self._do(
                f"INSERT INTO fragments (id, path, added, {_PLACE}, area_px, perimeter_px, x_px, y_px) "
                f"VALUES ({', '.join('?' * len(values))}) RETURNING number",
                values,
            )
            numbers.append(int(told[0][0]))
        return numbers

    def remove_fragments(self, numbers: Iterable[int], when: str) -> None:
        """Mark fragments as removed; their joins go."""
        for number in numbers:
            self._do("UPDATE fragments SET removed = ? WHERE number = ?", (when, number))
            self._do("DELETE FROM joins WHERE source = ? OR target = ?", (number, number))

    def mark_joined(self, numbers: Iterable[int], when: str) -> None:
        """Remember that the joins of these were looked for."""
        values = [(when, number) for number in numbers]
        self._do_many("UPDATE fragments SET joined = ? WHERE number = ?", values)

    # Levels

    def put_level_marks(self, bank: int, marks: Iterable[tuple[int, int]]) -> None:
        """Marks of the levels of fragments by a bank: (number, mark)."""
        rows = [(number, bank, mark) for number, mark in marks]
        self._do_many("INSERT OR REPLACE INTO levels VALUES (?, ?, ?)", rows)

    def level_mark(self, number: int, bank: int) -> int | None:
        """The mark of a fragment's levels by a bank; None where none was made, or the bank is long gone."""
        rows = self._do("SELECT mark FROM levels WHERE number = ? AND bank = ?", (number, bank))
        return int(rows[0][0]) if rows else None

    def forget_level_marks(self, before: int) -> None:
        """Forget marks by older banks."""
        self._do("DELETE FROM levels WHERE bank < ?", (before,))

    # Joins

    def look_again(self, numbers: Iterable[int]) -> None:
        """As if no joins had been looked for of these; those that are stored stay."""
        self._do_many("UPDATE fragments SET joined = NULL WHERE number = ?", [(number,) for number in numbers])

    def put_joins(self, joins: Iterable[tuple[int, int, PairMatch]], when: str) -> None:
        """Store joins under the numbers of their fragments."""
        rows = [(a, b, when, match.score, json.dumps(match_as_json(match))) for a, b, match in joins]
        self._do_many("INSERT OR REPLACE INTO joins VALUES (?, ?, ?, ?, ?)", rows)

    def joins(self, since: str = "", made: str = "") -> list[PairMatch]:
        """Stored joins with a fragment that was added at `since` or later, made at `made` or later; likeliest first."""
        query = (
            "SELECT content FROM joins JOIN fragments a ON a.number = source JOIN fragments b ON b.number = target "
            "WHERE max(a.added, b.added) >= ? AND made >= ? ORDER BY score DESC, a.id, b.id"
        )
        rows = self._do(query, (since, made))
        try:
            return [match_from_json(json.loads(row[0])) for row in rows]
        except (TypeError, ValueError, KeyError) as error:
            raise self.damage(self.path, f"a join of it is no join: {error}") from None

    def forget_joins(self) -> None:
        """As if no joins had been looked for."""
        self._do("DELETE FROM joins")
        self._do("UPDATE fragments SET joined = NULL")

    def known_pairs(self, numbers: Iterable[int]) -> set[tuple[int, int]]:
        """Pairs that have a stored join, of these fragments; the smaller number first."""
        found: set[tuple[int, int]] = set()
        for number in numbers:
            query = "SELECT source, target FROM joins WHERE source = ? OR target = ?"
            found |= {(min(pair), max(pair)) for pair in self._do(query, (number, number))}
        return found


def _explained(path: Path, error: sqlite3.Error) -> CollectionError:
    """The error, with what to do; mistakes of this program stay what they are."""
    kind = "_".join(getattr(error, "sqlite_errorname", "").split("_")[:2])  # without what SQLite adds for itself
    if kind in _NEXT_STEPS:
        return CollectionError(f"{path} cannot be used ({error}).", _NEXT_STEPS[kind])
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
        raise error
    return Catalogue.damage(path, str(error))


def now() -> str:
    """The time as it is stored; later ones are greater as text."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
