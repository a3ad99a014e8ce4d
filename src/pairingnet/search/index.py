"""Vectors under numbers, and the nearest of them by inner product: one small interface, kept by every index.

`VectorIndex` is what the search knows. `FaissIndex` lives in this process and in a file: it looks at every vector while
there are few; of many it keeps short codes (4 bits for two numbers) in cells of similar vectors, looks into the
likeliest cells, and compares the best of what it finds once more with the vectors themselves. `search/milvus.py` has
the one that lives elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from pairingnet.config import IndexSettings
from pairingnet.errors import CollectionError
from pairingnet.io.files import write_whole

Features = NDArray[np.float32]
Ids = NDArray[np.int64]
Lookup = Callable[[Ids], Features]

_BLOCK = 1024  # queries at a time
_REBUILD_BLOCK = 65_536  # vectors
_SAMPLE = 32  # vectors per cell, from which cells are learned
_WRITE_BYTES = 1 << 22  # at a time
_ROUNDS = 6  # of learning cells; more changes nothing that is found
_GRID = 2.0**11  # of features, see models/ring.py
_OUTGROWN = 4  # cells are made anew when there are so many times more vectors


class VectorIndex(Protocol):
    """Vectors (N, D) under ids (N,), whole numbers from 0 on that the caller chooses and that stay."""

    def add(self, ids: Ids, vectors: Features) -> None:
        """Take vectors in; an id that is there already gets its new vector."""

    def remove(self, ids: Ids) -> None:
        """Forget vectors; ids that are not there are no error."""

    def search(self, queries: Features, most: int) -> tuple[Features, Ids]:
        """The `most` vectors nearest to each query: inner products (Q, K), the best first, and ids (Q, K).

        Equal ones come in the order of their ids. Where there are fewer: minus infinity and -1.
        """

    def __len__(self) -> int: ...

    def save(self) -> None:
        """What was added and removed is stored when this returns."""

    def clear(self) -> None:
        """Forget everything."""

    def close(self) -> None:
        """Give back what it holds; it is not used afterwards."""


class FaissIndex:
    """The index in memory, and in a file where there is a path.

    exact: gives vectors by id, in full precision; codes are compared again with it, and the index rebuilt from it
    when it has grown. What it holds follows from the order in which vectors came: the same order, the same answers.
    """

    def __init__(
        self, width: int, exact: Lookup, settings: IndexSettings | None = None, path: Path | None = None
    ) -> None:
        self.width, self.path = width, path
        self._exact, self._settings = exact, settings or IndexSettings()
        self._index: Any = _flat(width)

    @classmethod
    def open(cls, path: Path, width: int, exact: Lookup, settings: IndexSettings | None = None) -> FaissIndex:
        """A stored index."""
        opened = cls(width, exact, settings, path)
        try:
            stored = faiss.read_index(str(path))
        except (RuntimeError, MemoryError) as error:
            raise CollectionError(f"{path} is no index ({_short(error)}).", "Make it again from its vectors.") from None
        if stored.d != width:
            raise CollectionError(f"{path} has vectors of {stored.d} numbers, not {width}.", "Make it again.")
        opened._index = stored
        opened._prepare()
        return opened

    @property
    def is_exact(self) -> bool:
        """Whether every vector is looked at."""
        return not isinstance(self._index, faiss.IndexIVFPQFastScan)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def ids(self) -> Ids:
        """(N,): the ids of all vectors, in rising order."""
        if self.is_exact:
            return np.sort(faiss.vector_to_array(self._index.id_map).astype(np.int64))
        lists = self._index.invlists
        each = [
            faiss.rev_swig_ptr(lists.get_ids(cell), lists.list_size(cell)).copy()
            for cell in range(lists.nlist)
            if lists.list_size(cell)
        ]
        return np.sort(np.concatenate(each).astype(np.int64)) if each else np.zeros(0, np.int64)

    def add(self, ids: Ids, vectors: Features) -> None:
        """Take vectors in; an id that is there already gets its new vector."""
        if not len(ids):
            return
        self.remove(ids)
        if len(self) + len(ids) > self._room():
            self._rebuild(len(self) + len(ids), vectors)
        self._index.add_with_ids(_rows(vectors), np.ascontiguousarray(ids, dtype=np.int64))

    def remove(self, ids: Ids) -> None:
        """Forget vectors; ids that are not there are no error."""
        if len(ids) and len(self):
            before = None if self.is_exact else _list_sizes(self._index)
            self._index.remove_ids(faiss.IDSelectorBatch(np.ascontiguousarray(ids, dtype=np.int64)))
            if before is not None:
                _wipe_freed(self._index, np.flatnonzero(_list_sizes(self._index) != before))

    def search(self, queries: Features, most: int) -> tuple[Features, Ids]:
        """The `most` nearest of each query: inner products (Q, K) and ids (Q, K), see `VectorIndex`."""
        similarity = np.full((len(queries), most), -np.inf, dtype=np.float32)
        found = np.full((len(queries), most), -1, dtype=np.int64)
        wanted = min(len(self), most if self.is_exact else most * self._settings.rescored)
        for first in range(0, len(queries) if wanted else 0, _BLOCK):
            block = _rows(queries[first : first + _BLOCK])
            near, ids = self._index.search(block, wanted)
            if not self.is_exact:
                near = compared_again(block, ids, self._exact)
            near, ids = best_first(near, ids, most)
            similarity[first : first + len(block), : near.shape[1]] = near
            found[first : first + len(block), : near.shape[1]] = ids
        return similarity, found

    def save(self) -> None:
        """Write the file, whole; nothing to do without a path."""
        if self.path is not None:
            write_whole(self.path, self._write)

    def _write(self, path: Path) -> None:
        """Through a file of Python's: faiss' own keeps silent about a disk that is full when it is closed."""
        failed: list[OSError] = []
        untyped: Any = faiss
        with path.open("wb") as file:

            def write(data: bytes) -> None:
                try:
                    file.write(data)
                except OSError as error:
                    failed.append(error)
                    raise

            try:
                faiss.write_index(self._index, untyped.PyCallbackIOWriter(write, _WRITE_BYTES))
            except Exception:
                # What comes through faiss is an error of its own.
                raise (
                    failed[0]
                    if failed
                    else CollectionError(f"{path} cannot be written.", "Look at its disk, and run this command again.")
                ) from None

    def clear(self) -> None:
        """Forget everything."""
        self._index = _flat(self.width)

    def close(self) -> None:
        """Nothing to give back but memory."""

    def _room(self) -> float:
        """How many vectors the index is made for."""
        if self.is_exact:
            return self._settings.exact_below
        return _OUTGROWN * float(self._index.nlist / self._settings.cells) ** 2

    def _rebuild(self, count: int, coming: Features) -> None:
        """Make cells for `count` vectors, learned from those that are here and those that come; move the former."""
        here = self.ids()
        cells = max(1, int(self._settings.cells * np.sqrt(count)))
        made = faiss.IndexIVFPQFastScan(
            faiss.IndexFlatIP(self.width), self.width, cells, self.width // 2, 4, faiss.METRIC_INNER_PRODUCT
        )
        rng = np.random.default_rng(0)
        chosen = np.sort(rng.choice(count, min(count, _SAMPLE * cells), replace=False))
        old, new = chosen[chosen < len(here)], chosen[chosen >= len(here)] - len(here)
        made.cp.niter = _ROUNDS
        for learning in (made.cp, made.pq.cp):
            learning.min_points_per_centroid = 1  # a few vectors per cell are fewer than faiss likes, and enough
        with _one_thread():
            made.train(np.concatenate([self._exact(here[old]), _rows(coming)[new]]).astype(np.float32))
        _onto_grid(made)
        for first in range(0, len(here), _REBUILD_BLOCK):
            some = here[first : first + _REBUILD_BLOCK]
            made.add_with_ids(_rows(self._exact(some)), some)
        self._index = made
        self._prepare()

    def _prepare(self) -> None:
        if not self.is_exact:
            self._index.nprobe = min(self._settings.probes, self._index.nlist)


def compared_again(queries: Features, ids: Ids, exact: Lookup) -> Features:
    """(Q, K): inner products of queries (Q, D) with the vectors themselves; minus infinity where the id is -1."""
    known = ids >= 0
    if not known.any():
        return np.full(ids.shape, -np.inf, dtype=np.float32)
    vectors = exact(np.where(known, ids, ids.max(initial=0)).reshape(-1)).reshape(*ids.shape, -1)
    return np.where(known, np.einsum("qd,qkd->qk", queries, vectors), -np.inf).astype(np.float32)


def best_first(similarity: Features, ids: Ids, most: int) -> tuple[Features, Ids]:
    """Each row (Q, K) sorted by similarity, then by id, and cut."""
    order = np.lexsort((ids, -similarity), axis=1)[:, :most]
    return np.take_along_axis(similarity, order, axis=1), np.take_along_axis(ids, order, axis=1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Several threads add up in another order, and cells that are learned come out a little different."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _onto_grid(index: Any) -> None:
    """What was learned, as multiples of 2^-11 (before anything is in the index): products with features, which are such
    multiples too, are exact then, so that every machine looks into the same cells."""
    cells: Any = faiss.downcast_index(index.quantizer)
    centres = faiss.rev_swig_ptr(cells.get_xb(), cells.ntotal * cells.d)
    centres[:] = np.round(centres * _GRID) / _GRID
    codes = faiss.vector_to_array(index.pq.centroids)
    faiss.copy_array_to_vector(np.round(codes * _GRID) / _GRID, index.pq.centroids)


def _list_sizes(index: Any) -> Ids:
    return np.array([index.invlists.list_size(cell) for cell in range(index.nlist)])


def _wipe_freed(index: Any, cells: Ids) -> None:
    """Clear the codes that removed vectors left at the end of their cells: faiss would add the next ones onto them."""
    lists: Any = faiss.downcast_InvertedLists(index.invlists)
    packer = lists.packer
    nothing = np.zeros(packer.code_size, np.uint8)
    for cell in cells.tolist():
        whole, used = divmod(lists.list_size(cell), packer.nvec)
        if used:
            stored = faiss.rev_swig_ptr(lists.get_codes(cell), (whole + 1) * packer.block_size)
            last = stored[whole * packer.block_size :].reshape(1, -1)
            for place in range(used, packer.nvec):
                packer.pack_1(nothing, place, last)


def _flat(width: int) -> Any:
    return faiss.IndexIDMap(faiss.IndexFlatIP(width))


def _rows(vectors: Features) -> Features:
    return np.ascontiguousarray(vectors, dtype=np.float32)


def _short(error: Exception) -> str:
    """The last part of faiss' message; the rest is its source code."""
    return str(error).strip().rpartition(":")[2].strip() or "unknown"
