"""Fingerprints: what tells whether something was made of the same things, whenever and wherever that was.

Time stamps do not: they lie after a folder was copied, a backup restored or a clock set.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

_BYTES = 16


def fingerprint(*parts: Any) -> str:
    """Of plain values: numbers, text, lists and mappings of such; in mappings the order does not count."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_plain)
    return fingerprint_of_bytes(text.encode())


def fingerprint_of_bytes(*parts: bytes | memoryview) -> str:
    """Of bytes, one part after the other."""
    mark = hashlib.blake2b(digest_size=_BYTES)
    for part in parts:
        mark.update(part)
    return mark.hexdigest()


def fingerprint_of_file(path: Path) -> str:
    """Of what a file holds; of none, "missing"."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_BYTES)).hexdigest()
    except FileNotFoundError:
        return "missing"


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no fingerprint")
