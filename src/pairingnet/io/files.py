"""Files that are either whole or not there: what is written under another name first survives a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What reading JSON raises where it says other things than were expected.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a neighbour of `path`, then put it in place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    try:
        write(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """JSON as `as_lines` writes it."""
    write_whole(path, lambda file: file.write_text(as_lines(content), encoding="utf-8"))


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
    """Add whole lines to a file that only grows; they are on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        # A line that was cut off when a process was killed must not swallow the next one.
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write("".join(f"{line}\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())
