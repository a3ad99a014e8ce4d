"""Which fragments are for training, which for validation, which for the test.

"picture": no picture in two parts. Folders named train, val and test say which is which; other pictures are
shuffled 5:1:4. "paper": the fragments are shuffled 5:1:4, as the paper did, so that its parts share pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

PARTS = ("train", "val", "test")
RATIO = (5, 1, 4)
SPLITS = ("picture", "paper")


def split_by_picture(pictures: Iterable[tuple[str, Sequence[str]]], seed: int) -> dict[str, str]:
    """The part of each picture, given its name and the folders it lies in, outermost first."""
    named = {name: _part_in(folders) for name, folders in pictures}
    rest = [name for name, part in named.items() if not part]
    return {name: part for name, part in named.items() if part} | _shuffled(rest, seed)


def split_by_fragment(fragments: Iterable[str], seed: int) -> dict[str, str]:
    """The part of each fragment, whatever picture it is from."""
    return _shuffled(list(fragments), seed)


def _part_in(folders: Sequence[str]) -> str:
    """The innermost folder that is named after a part, or ""."""
    return next((folder for folder in reversed(folders) if folder in PARTS), "")


def _shuffled(names: list[str], seed: int) -> dict[str, str]:
    names = sorted(names)
    order = np.random.default_rng(seed).permutation(len(names))
    total, ends = sum(RATIO), np.cumsum(RATIO)
    part_of = {}
    for position, index in enumerate(order):
        place = int(np.searchsorted(ends, position * total / len(names), side="right"))
        part_of[names[index]] = PARTS[place]
    return part_of
