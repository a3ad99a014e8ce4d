"""One writer per folder: the second waits, then is refused with who holds it.

FOLDER/lock.sqlite   empty; held by BEGIN EXCLUSIVE, which SQLite gives on every system that it runs on
       lock.json     who holds it; only a note, so that others can say it

The lock itself is one of the operating system: it ends with its process, however that ends, so nothing is ever left to
be cleared by hand. Both files may lie there when nobody writes.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pairingnet.errors import CollectionError

WAIT_S = 60.0
LOCK, NOTE = "lock.sqlite", "lock.json"
LOCK_FILES = frozenset((LOCK, NOTE))  # a folder with nothing but these is empty
_AGAIN_S = 0.1  # between two tries
_LONGEST = 200  # characters of a note that are shown

_of_thread = threading.local()


@dataclass(frozen=True)
class Holder:
    """Who writes to a folder: the command, the number of its process, the machine, and since when (UTC)."""

    doing: str
    process: int
    machine: str
    since: str

    def __str__(self) -> str:
        told = f"'{self.doing}' (process {self.process} on {self.machine}, since {self.since})"
        return "".join(sign if sign.isprintable() else "?" for sign in told)[:_LONGEST]


@contextmanager
def one_writer(
    folder: Path, doing: str, wait_s: float = WAIT_S, told: Callable[[str], None] = lambda _: None
) -> Iterator[None]:
    """Be the only one who writes to a folder, which is made where it is missing.

    Whoever comes second waits up to `wait_s` seconds; `told` hears once whom for. Then it is refused. The thread that
    holds a folder may take it again within.
    """
    held: set[tuple[int, Path]] = _of_thread.__dict__.setdefault("held", set())
    mine = os.getpid(), folder.resolve()  # a forked child copies the set, but not the lock
    if mine in held:
        yield
        return
    lock = _opened(folder)
    try:
        _take(lock, folder, wait_s, told)
        held.add(mine)
        _leave_note(folder, doing)
        try:
            yield
        finally:
            held.discard(mine)
            with suppress(OSError):
                (folder / NOTE).unlink()
    finally:
        lock.close()


def holder_of(folder: Path) -> Holder | None:
    """Who left the note in a folder; None where nobody did, or it cannot be read."""
    try:
        told = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        return Holder(str(told["doing"]), int(told["process"]), str(told["machine"]), str(told["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _opened(folder: Path) -> sqlite3.Connection:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Closed wherever the work ends, which may be another thread than the one that began it.
        return sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise _not_writable(folder, error) from None


def _take(lock: sqlite3.Connection, folder: Path, wait_s: float, told: Callable[[str], None]) -> None:
    """Wait until the lock is ours, but not for ever."""
    end, waits = time.monotonic() + wait_s, False
    while True:
        try:
            lock.execute("PRAGMA journal_mode = MEMORY")  # no third file
            lock.execute("BEGIN EXCLUSIVE")
            # Of a file that may only be read SQLite gives this lock to anybody who asks.
            if not (os.access(folder / LOCK, os.W_OK) and os.access(folder, os.W_OK)):
                raise _not_writable(folder, PermissionError("it may only be read"))
            return
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorname", "") != "SQLITE_BUSY":
                raise _not_writable(folder, error) from None
        holder = holder_of(folder) or "Another process"
        if time.monotonic() >= end:
            raise CollectionError(
                f"{holder} is writing to {folder}.", "Run this command again when it is done, or stop it."
            )
        if not waits:
            told(f"{holder} is writing to {folder}; waiting up to {wait_s:.0f} s.")
            waits = True
        time.sleep(min(_AGAIN_S, max(0.0, end - time.monotonic())))


def _leave_note(folder: Path, doing: str) -> None:
    """Say who holds the lock; it holds without that as well."""
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    holder = Holder(doing, os.getpid(), platform.node(), since)
    beside = folder / f".{NOTE}"  # nobody else writes: this one name is enough
    with suppress(OSError):
        beside.write_text(json.dumps(asdict(holder)) + "\n", encoding="utf-8")
        beside.replace(folder / NOTE)


def _not_writable(folder: Path, error: Exception) -> CollectionError:
    if getattr(error, "sqlite_errorname", "") in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
        return CollectionError(f"{folder / LOCK} is damaged ({error}).", "Delete it; it holds nothing.")
    return CollectionError(
        f"{folder} cannot be written to ({error}).", "Check its permissions, or work on a copy of it."
    )
