"""The same piece twice: a scan that was saved under two names gives fragments that are equal to the last pixel."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from pairingnet.types import Fragment


def pixel_mark(fragment: Fragment) -> str:
    """A mark of what a fragment shows: equal where every pixel of the piece is, wherever it lies in its image."""
    rows, columns = (np.flatnonzero((fragment.alpha > 0).any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return ""
    box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    digest = hashlib.blake2b(digest_size=16)
    for alpha, pixels in zip(fragment.alpha[box], fragment.pixels[box], strict=True):  # a copy would fill the memory
        digest.update(alpha.tobytes())
        digest.update(pixels.tobytes())
    return f"{len(columns)}x{len(rows)}-{digest.hexdigest()}"


def exact_copies(marks: Mapping[str, str]) -> dict[str, str]:
    """The ids of copies, each with the id of the first fragment that has the same mark."""
    first: dict[str, str] = {}
    for name, mark in marks.items():
        first.setdefault(mark, name)
    return {name: first[mark] for name, mark in marks.items() if first[mark] != name}
