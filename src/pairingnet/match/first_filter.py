"""An optional first filter: one vector a fragment, the paper's search, says which pairs are worth more work.

Comparing two fragments costs a product of 128 numbers. It is blunter than the votes of contour points: it knows what
fragments look like, not how they fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairingnet.engine.jobs import run_jobs
from pairingnet.io.arrays import SUFFIX, read_arrays, write_arrays
from pairingnet.io.collection import Collection
from pairingnet.io.fingerprint import fingerprint
from pairingnet.match.paper import PaperMethod
from pairingnet.prepare.load import load_fragments
from pairingnet.search.cosine import rank_by_cosine

_CHUNK = 16  # fragments in a job


@dataclass(frozen=True, eq=False)
class FirstFilter:
    """Who makes the vectors, and how many others each fragment keeps."""

    method: PaperMethod
    keep: int

    def describe(self) -> dict[str, Any]:
        """What a run folder remembers of it."""
        return {"first_filter": self.method.weights, "first_filter_keep": self.keep}

    def passing(self, pairs: Iterable[tuple[str, str]], collection: Collection, folder: Path) -> list[tuple[str, str]]:
        """Those pairs of which either is among the others that the other one keeps. Vectors are kept in a folder."""
        ids = [record.id for record in collection.fragments]
        ranked, _ = rank_by_cosine(self.vectors(collection, folder), self.keep)
        kept = {ids[a]: {ids[b] for b in row if b >= 0} for a, row in enumerate(ranked)}
        return [(a, b) for a, b in pairs if b in kept[a] or a in kept[b]]

    def vectors(self, collection: Collection, folder: Path) -> NDArray[np.float32]:
        """(F, G) of length 1, in the collection's order; made where the folder lacks them, or the image has changed."""
        made_of = {
            record.id: fingerprint("vector", self.method.weights, collection.fingerprint_of(record))
            for record in collection.fragments
        }
        found = {name: read_arrays(_path(folder, name), mark) for name, mark in made_of.items()}
        missing = [name for name, arrays in found.items() if arrays is None]
        parts = [collection.only(missing[first : first + _CHUNK]) for first in range(0, len(missing), _CHUNK)]
        made = run_jobs(partial(self._store, folder, made_of), parts, 1, "vectors")
        vectors = {name: arrays["vector"] for name, arrays in found.items() if arrays is not None}
        vectors |= {name: vector for part in made for name, vector in part.items()}
        return np.stack([vectors[name] for name in made_of])

    def _store(self, folder: Path, made_of: Mapping[str, str], part: Collection) -> dict[str, NDArray[np.float32]]:
        made = {features.id: features.vector for features in self.method.features(load_fragments(part))}
        for name, vector in made.items():
            write_arrays(_path(folder, name), {"vector": vector}, made_of[name])
        return made


def _path(folder: Path, fragment_id: str) -> Path:
    return folder / f"{fragment_id}{SUFFIX}"
