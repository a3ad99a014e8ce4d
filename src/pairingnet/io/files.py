"""Files that are either whole or not there: what is written under another name first survives a crash.

A stored JSON object, or one line of a list of them, may begin with the checksum of the rest of it:

    "checksum": the first 16 digits of the SHA-256 of the rest, as `json.dumps(rest, separators=(",", ":"))`

The rest is taken in the order in which it stands there, so spaces and line ends do not matter and every value does.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairingnet.errors import CollectionError, DamagedFileError

CHECKSUM = "checksum"
_DIGITS = 16
# What reading JSON raises where it says other things than were expected.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a neighbour of `path`, then put it in place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Its name is short whatever that of `path`, and nobody else's, on no other machine either.
    beside = path.with_name(f".{uuid.uuid4().hex}{path.suffix}")
    try:
        write(beside)
        beside.replace(path)
    except OSError as error:
        if error.filename not in (None, str(beside)):
            raise  # it is about another file
        raise _named(path, error) from error
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any], checked: bool = False) -> None:
    """JSON as `as_lines` writes it; `checked`: with a checksum as its first entry."""
    told = {CHECKSUM: _checksum(content), **content} if checked else content
    write_whole(path, lambda file: file.write_text(as_lines(told), encoding="utf-8"))


def read_json(
    path: Path, next_step: str = "Get it from a backup, or make it again.", checked: bool = False
) -> dict[str, Any]:
    """A stored JSON object, without its checksum, which must be right where there is one, or, `checked`, in any case.

    What is not there is a CollectionError, what is not as it was written a DamagedFileError; both end with `next_step`.
    """
    try:
        return _verified(path.read_bytes(), checked)
    except FileNotFoundError:
        raise CollectionError(f"There is no {path}.", next_step) from None
    except OSError as error:
        raise CollectionError(f"{path} cannot be read ({error.strerror}).", next_step) from None
    except _NotWholeError as error:
        raise DamagedFileError(f"{path} is damaged ({error}).", next_step) from None


def as_checked_line(entry: Mapping[str, Any]) -> str:
    """One line of JSON with a checksum as its first entry."""
    return json.dumps({CHECKSUM: _checksum(entry), **entry})


@dataclass(frozen=True)
class CheckedLines:
    """The whole entries of a file of lines, in order; the numbers of the lines that are damaged, from 1 on, and whether
    the last of them is only a line without an end, as a process that was killed leaves it."""

    entries: tuple[dict[str, Any], ...]
    damaged: tuple[int, ...] = ()
    ends_early: bool = False


def read_checked_lines(path: Path, checked: bool = True) -> CheckedLines:
    """Lines of `as_checked_line`; none where there is no file. `checked`: a line without a checksum is damaged."""
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return CheckedLines(())
    except OSError as error:
        raise CollectionError(f"{path} cannot be read ({error.strerror}).", "Check the file.") from None
    entries: list[dict[str, Any]] = []
    damaged: list[int] = []
    for number, line in enumerate([*lines, last] if last else lines, start=1):
        try:
            entries.append(_verified(line, checked))
        except _NotWholeError:
            damaged.append(number)
    return CheckedLines(tuple(entries), tuple(damaged), bool(last) and damaged[-1:] == [len(lines) + 1])


def write_array(path: Path, array: NDArray[Any]) -> None:
    """One array as .npy."""
    write_whole(path, lambda file: np.save(file, array, allow_pickle=False))


def as_lines(content: Mapping[str, Any]) -> str:
    """JSON that a person can read and a diff can follow: one line per entry of a list of objects."""
    rows = []
    for key, value in content.items():
        if isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
            entries = ",\n".join(f"  {json.dumps(entry)}" for entry in value)
            rows.append(f"{json.dumps(key)}: [\n{entries}\n ]")
        else:
            rows.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n " + ",\n ".join(rows) + "\n}\n"


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Add whole lines to a file that only grows; they are on disk when this returns, and none of them when it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{line}\n" for line in lines).encode()
    with path.open("a+b", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        # A line that was cut off when a process was killed must not swallow the next one.
        if before:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                data = b"\n" + data
        try:
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except OSError as error:  # such as a full disk
            file.truncate(before)
            raise _named(path, error) from error


def _named(path: Path, error: OSError) -> OSError:
    """The error, with the file that it is about: what writes into an open file does not know its name."""
    return OSError(error.errno or 0, error.strerror or str(error), str(path))


class _NotWholeError(Exception):
    """Why some bytes are not what was written."""


def _verified(data: bytes, checked: bool) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _NotWholeError(f"no JSON: {error}") from None
    if not isinstance(content, dict):
        raise _NotWholeError("no JSON object")
    told = content.pop(CHECKSUM, None)
    if told is None and checked:
        raise _NotWholeError("its checksum is missing")
    if told is not None and told != _checksum(content):
        raise _NotWholeError("its checksum is another one")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()[:_DIGITS]
