"""What an archive holds, in SQLite: what stands here counts, whatever else lies on disk.

A fragment is in the archive from the moment its line is committed; its features are on disk before that. Lines of
removed fragments stay, marked, so that their rows in the segments are never given to others. Times are UTC.
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

from pairingnet.errors import CollectionError
from pairingnet.io.run import match_as_json, match_from_json
from pairingnet.types import PairMatch

VERSION = 1
FILE_NAME = "archive.sqlite"

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


_PLACE = ", ".join(field.name for field in fields(Place))
_ENTRY = f"number, id, path, added, {_PLACE}"


class Catalogue:
    """The open file. Reading methods give plain values; writing ones need `transaction`."""

    def __init__(self, folder: Path) -> None:
        path = folder / FILE_NAME
        if not path.is_file():
            raise CollectionError(f"There is no archive in {folder}.", "Make one with 'pairingnet archive init'.")
        # A minute of patience: readers wait while another process commits.
        self.path = path
        self._connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        try:
            self._connection.execute("PRAGMA synchronous = FULL")
            facts = self.facts()
        except sqlite3.DatabaseError as error:
            self.close()
            raise CollectionError(f"{path} cannot be read ({error}).", "Get it from a backup.") from None
        if facts.get("version") != VERSION:
            self.close()
            raise CollectionError(f"{path} has version {facts.get('version')}.", f"This program reads {VERSION}.")

    @classmethod
    def create(cls, folder: Path, facts: Mapping[str, Any]) -> None:
        """Make the file; it appears with its tables and facts, or not at all."""
        beside = folder / f".{FILE_NAME}"
        beside.unlink(missing_ok=True)
        connection = sqlite3.connect(beside, isolation_level=None)
        try:
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES}")
            told = {"version": VERSION, **facts}
            connection.executemany("INSERT INTO facts VALUES (?, ?)", [(n, json.dumps(v)) for n, v in told.items()])
            connection.execute("COMMIT")
        finally:
            connection.close()
        beside.replace(folder / FILE_NAME)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written inside counts when this ends, or nothing of it."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise

    def broken(self) -> list[str]:
        """What SQLite itself finds wrong with the file."""
        told = [str(row[0]) for row in self._connection.execute("PRAGMA integrity_check")]
        return [] if told == ["ok"] else told

    # Facts

    def facts(self) -> dict[str, Any]:
        return {name: json.loads(value) for name, value in self._connection.execute("SELECT name, value FROM facts")}

    def state(self, facts: Mapping[str, Any]) -> None:
        """Write facts down, over older ones of the same name."""
        rows = [(name, json.dumps(value)) for name, value in facts.items()]
        self._connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    # Files

    def files(self) -> dict[str, KnownFile]:
        """All files that were added, by path."""
        rows = self._connection.execute("SELECT path, name, size, time_ns, mark, problem FROM files")
        return {row[0]: KnownFile(*row) for row in rows}

    def same_content(self, mark: str) -> KnownFile | None:
        """A file with this content that gave fragments."""
        query = "SELECT path, name, size, time_ns, mark, problem FROM files WHERE mark = ? AND problem = ''"
        row = self._connection.execute(query, (mark,)).fetchone()
        return None if row is None else KnownFile(*row)

    def put_file(self, file: KnownFile) -> None:
        self._connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", astuple(file))

    def move_file(self, before: str, after: str) -> None:
        """A file lies elsewhere now."""
        self._connection.execute("UPDATE files SET path = ? WHERE path = ?", (after, before))
        self._connection.execute("UPDATE fragments SET path = ? WHERE path = ?", (after, before))

    def forget_files(self, paths: Iterable[str]) -> None:
        self._connection.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in paths])

    def expect_again(self, paths: Iterable[str]) -> None:
        """Forget what files looked like, so that they are looked at again; they keep their names."""
        self._connection.executemany("UPDATE files SET size = -1, mark = '' WHERE path = ?", [(p,) for p in paths])

    # Fragments

    def entries(self, where: str = "1", values: Sequence[Any] = ()) -> list[Entry]:
        """The fragments that are there, in the order in which they came; `where` is a condition in SQL."""
        query = f"SELECT {_ENTRY} FROM fragments WHERE removed IS NULL AND ({where}) ORDER BY number"
        rows = self._connection.execute(query, values)
        return [Entry(number, name, path, added, Place(*place)) for number, name, path, added, *place in rows]

    def places(self, numbers: Iterable[int]) -> list[Place]:
        """Where fragments lie, removed ones included."""
        query = f"SELECT {_PLACE} FROM fragments WHERE number = ?"
        return [Place(*self._connection.execute(query, (number,)).fetchone()) for number in numbers]

    def count(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM fragments WHERE removed IS NULL").fetchone()[0])

    def ends(self) -> list[End]:
        """Where the rows of each segment end, those of removed fragments included."""
        query = "SELECT segment, max(first + count), max(contour_first + contour_count) FROM fragments GROUP BY segment"
        return [End(*row) for row in self._connection.execute(f"{query} ORDER BY segment")]

    def put_fragments(self, path: str, added: Iterable[tuple[NewEntry, Place]], when: str) -> None:
        """Lines for new fragments of a file."""
        for new, place in added:
            values = (new.id, path, when, *astuple(place), new.area_px, new.perimeter_px, *new.offset_px)
            self._connection.execute(
                f"INSERT INTO fragments (id, path, added, {_PLACE}, area_px, perimeter_px, x_px, y_px) "
                f"VALUES ({', '.join('?' * len(values))})",
                values,
            )

    def remove_fragments(self, numbers: Iterable[int], when: str) -> None:
        """Mark fragments as removed; their joins go."""
        for number in numbers:
            self._connection.execute("UPDATE fragments SET removed = ? WHERE number = ?", (when, number))
            self._connection.execute("DELETE FROM joins WHERE source = ? OR target = ?", (number, number))

    def mark_joined(self, numbers: Iterable[int], when: str) -> None:
        """Remember that the joins of these were looked for."""
        values = [(when, number) for number in numbers]
        self._connection.executemany("UPDATE fragments SET joined = ? WHERE number = ?", values)

    # Joins

    def put_joins(self, joins: Iterable[tuple[int, int, PairMatch]], when: str) -> None:
        """Store joins under the numbers of their fragments."""
        rows = [(a, b, when, match.score, json.dumps(match_as_json(match))) for a, b, match in joins]
        self._connection.executemany("INSERT OR REPLACE INTO joins VALUES (?, ?, ?, ?, ?)", rows)

    def joins(self, since: str = "", made: str = "") -> list[PairMatch]:
        """Stored joins with a fragment that was added at `since` or later, made at `made` or later; likeliest first."""
        query = (
            "SELECT content FROM joins JOIN fragments a ON a.number = source JOIN fragments b ON b.number = target "
            "WHERE max(a.added, b.added) >= ? AND made >= ? ORDER BY score DESC, source, target"
        )
        return [match_from_json(json.loads(row[0])) for row in self._connection.execute(query, (since, made))]

    def forget_joins(self) -> None:
        """As if no joins had been looked for."""
        self._connection.execute("DELETE FROM joins")
        self._connection.execute("UPDATE fragments SET joined = NULL")

    def known_pairs(self, numbers: Iterable[int]) -> set[tuple[int, int]]:
        """Pairs that have a stored join, of these fragments."""
        found: set[tuple[int, int]] = set()
        for number in numbers:
            query = "SELECT source, target FROM joins WHERE source = ? OR target = ?"
            found |= {(int(a), int(b)) for a, b in self._connection.execute(query, (number, number))}
        return found


def now() -> str:
    """The time as it is stored; later ones are greater as text."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
