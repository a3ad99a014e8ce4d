"""The index of vectors in Milvus: a file by milvus-lite, a server or a cluster by its address (extra `milvus`).

A file is searched exactly, by one process at a time. A server keeps 8-bit codes in cells, answers any number of
processes, and its answers are compared once more with the vectors themselves.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from pairingnet.config import IndexSettings
from pairingnet.errors import CollectionError, DamagedFileError, SettingsError
from pairingnet.search.index import Features, Ids, Lookup, best_first, compared_again

_BLOCK = 4096  # vectors or ids in a request
_QUERIES = 256  # in a request
_CELLS = 4096  # of each part of a server's index
_TOKEN = "MILVUS_TOKEN"  # where a server asks for one


def is_server(address: str) -> bool:
    """Whether an address is that of a server; others are files."""
    return "://" in address


class MilvusIndex:
    """The collection `name` at an address; made where it is not there."""

    def __init__(
        self, address: str, name: str, width: int, exact: Lookup, settings: IndexSettings | None = None
    ) -> None:
        self.address, self.name, self.width = address, name, width
        self._exact, self._settings = exact, settings or IndexSettings()
        self._client = _connected(address)
        try:
            with self._asking():
                if not self._client.has_collection(name):
                    self._make()
                self._client.load_collection(name)
                stored = self._client.describe_collection(name)
        except CollectionError:
            self.close()
            raise
        found = next(field["params"]["dim"] for field in stored["fields"] if field["name"] == "vector")
        if int(found) != width:
            self.close()
            raise CollectionError(f"{name} at {address} has vectors of {found} numbers, not {width}.", "Make it again.")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """What Milvus complains of, as an error of ours."""
        try:
            yield
        except Exception as error:  # its errors have no common base that is public
            raise _failure(self.address, error) from error

    def _make(self) -> None:
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self.width)
        parameters = self._client.prepare_index_params()
        kind: dict[str, Any] = {"index_type": "FLAT"}
        if is_server(self.address):
            kind = {"index_type": "IVF_SQ8", "params": {"nlist": _CELLS}}
        parameters.add_index("vector", metric_type="IP", **kind)
        # Strong: what was added is found by the next search, whoever asks.
        self._client.create_collection(self.name, schema=schema, index_params=parameters, consistency_level="Strong")

    def __len__(self) -> int:
        with self._asking():
            told = self._client.query(self.name, output_fields=["count(*)"])
        return int(told[0]["count(*)"])

    def add(self, ids: Ids, vectors: Features) -> None:
        """Take vectors in; an id that is there already gets its new vector."""
        for block in _blocks(len(ids)):
            rows = zip(ids[block].tolist(), np.asarray(vectors[block], dtype=np.float32), strict=True)
            with self._asking():
                self._client.upsert(self.name, [{"id": number, "vector": vector} for number, vector in rows])

    def remove(self, ids: Ids) -> None:
        """Forget vectors; ids that are not there are no error."""
        for block in _blocks(len(ids)):
            with self._asking():
                self._client.delete(self.name, ids=ids[block].tolist())

    def search(self, queries: Features, most: int) -> tuple[Features, Ids]:
        """The `most` nearest of each query: inner products (Q, K) and ids (Q, K), see `VectorIndex`."""
        server = is_server(self.address)
        wanted = most * self._settings.rescored if server else most
        parameters = {"metric_type": "IP", "params": {"nprobe": self._settings.probes} if server else {}}
        similarity = np.full((len(queries), most), -np.inf, dtype=np.float32)
        found = np.full((len(queries), most), -1, dtype=np.int64)
        for first in range(0, len(queries), _QUERIES):
            block = np.asarray(queries[first : first + _QUERIES], dtype=np.float32)
            with self._asking():
                told = self._client.search(
                    self.name, data=list(block), limit=wanted, search_params=parameters, output_fields=["id"]
                )
            near, ids = _tables(told, wanted)
            if server:
                near = compared_again(block, ids, self._exact)
            rows = slice(first, first + len(block))
            similarity[rows], found[rows] = best_first(near, ids, most)
        return similarity, found

    def save(self) -> None:
        """What was added and removed is stored when this returns."""
        with self._asking():
            self._client.flush(self.name)

    def clear(self) -> None:
        """Forget everything."""
        with self._asking():
            self._client.drop_collection(self.name)
            self._make()
            self._client.load_collection(self.name)

    def close(self) -> None:
        self._client.close()


def remove_milvus_file(path: Path) -> None:
    """Delete what milvus-lite keeps at a path: a file or a folder, by its version."""
    with suppress(ImportError):
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_server(str(path))  # this process may still have it open
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _connected(address: str) -> Any:
    try:
        from pymilvus import MilvusClient
    except ImportError:
        raise SettingsError("Milvus is not installed.", "pip install 'pairingnet[milvus]'") from None
    try:
        return MilvusClient(address, token=os.environ.get(_TOKEN, "")) if is_server(address) else MilvusClient(address)
    except Exception as error:
        raise _failure(address, error) from error


def _failure(address: str, error: Exception) -> CollectionError:
    if is_server(address):
        return CollectionError(
            f"Milvus at {address} failed ({error}).", "Start it, check the address, or see its own log."
        )
    step = f"Run 'pairingnet archive check {Path(address).parent}'."
    return DamagedFileError(f"{address} is damaged, or another process has it open ({error}).", step)


def _tables(told: Any, most: int) -> tuple[Features, Ids]:
    """Similarities and ids (Q, K) from Milvus' lists, which may be shorter."""
    similarity = np.full((len(told), most), -np.inf, dtype=np.float32)
    ids = np.full((len(told), most), -1, dtype=np.int64)
    for row, hits in enumerate(told):
        similarity[row, : len(hits)] = [hit["distance"] for hit in hits]
        ids[row, : len(hits)] = [hit["id"] for hit in hits]
    return similarity, ids


def _blocks(count: int) -> Iterator[slice]:
    return (slice(first, first + _BLOCK) for first in range(0, count, _BLOCK))
