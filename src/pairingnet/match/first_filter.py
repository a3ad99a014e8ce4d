"""An optional first filter: one vector a fragment, the paper's search, says which pairs are worth more work.

Comparing two fragments costs a product of 128 numbers. It is blunter than the votes of contour points: it knows what
fragments look like, not how they fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairingnet.engine.jobs import run_jobs
from pairingnet.io.collection import Collection
from pairingnet.io.files import write_array
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
        paths = {record.id: folder / f"{record.id}.npy" for record in collection.fragments}
        images = {record.id: collection.folder / record.image for record in collection.fragments}
        missing = [
            name
            for name, path in paths.items()
            if not path.is_file() or path.stat().st_mtime_ns < images[name].stat().st_mtime_ns
        ]
        parts = [collection.only(missing[first : first + _CHUNK]) for first in range(0, len(missing), _CHUNK)]
        run_jobs(partial(self._store, paths), parts, 1, "vectors")
        return np.stack([np.load(path, allow_pickle=False) for path in paths.values()])

    def _store(self, paths: dict[str, Path], part: Collection) -> None:
        for features in self.method.features(load_fragments(part)):
            write_array(paths[features.id], features.vector)
