"""An archive folder, opened: what it is made with, its fragments, its index.

ARCHIVE/archive.sqlite        the catalogue; what it does not know does not count
        weights.safetensors   the network, so that all features come from the same one
        segments/             features (`store.py`)
        banks/B.npz           points of the collection that tell what anything in it is like
        index/N/              the index and which fragments are in it; derived, made again where it is missing
        milvus.db             the index instead, where that is a file of milvus-lite
        seal.json, copies/    the catalogue's checksum and a copy of it (`seal.py`)
        lock.sqlite           held by the one process that writes (`io/lock.py`)

Whatever is read is compared with a checksum before it is used: the catalogue by its seal, the weights and the banks by
facts, features and levels by marks in the catalogue, the index by its own list of marks. Single keys that an index of
cells compares once more are the exception: there are too many, and the fragments they lead to are read whole.
"""

from __future__ import annotations

import io
import os
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from pairingnet.archive.catalogue import FILE_NAME, Catalogue, Entry
from pairingnet.archive.seal import broken_seal, check_seal, file_mark
from pairingnet.archive.store import Store, first_id, point_ids, sync_folder
from pairingnet.config import ArchiveSettings
from pairingnet.errors import CollectionError, DamagedFileError, SettingsError
from pairingnet.io.files import read_json, write_json, write_whole
from pairingnet.io.lock import LOCK_FILES, WAIT_S, one_writer
from pairingnet.io.resume import content_mark
from pairingnet.match.ring import BANK, LOOKED_AT, RingFeatures, RingMethod
from pairingnet.match.weights import SHIPPED, Bank, load_model
from pairingnet.search.index import FaissIndex, Features, Ids, VectorIndex
from pairingnet.search.votes import Partners, votes_of
from pairingnet.settings import archive_settings, as_dict

FAISS = "faiss"
MILVUS_FILE = "milvus"
MILVUS_DB = "milvus.db"
_NOTHING = np.zeros((0, 2), dtype=np.int64)
_WEIGHTS = "weights.safetensors"
_VECTORS = "vectors.faiss"
_INCLUDED = "fragments.npy"
_MARKS = "marks.json"
_BANK_MARKS = "bank_marks"  # a fact: the marks of this bank and the one before, by their numbers
_BANK_LAST = "bank_last"  # a fact: the highest number of a fragment when this bank was drawn
_USUAL_LOOSE = "usual_loose"  # a fact: steps, and the bank that was in use
_SYNC_BLOCK = 512  # fragments


def init_archive(
    folder: Path,
    settings: ArchiveSettings | None = None,
    weights: Path = SHIPPED,
    step_px: float | None = None,
    index: str = FAISS,
) -> None:
    """Make an empty archive; the step of its contours is fixed now, or by what is added first.

    index: "faiss"; "milvus", for a file by milvus-lite; or the address of a Milvus server.
    """
    if index not in (FAISS, MILVUS_FILE) and "://" not in index:
        raise SettingsError(f"There is no index '{index}'.", "Choose faiss, milvus, or an address: http://host:19530.")
    if step_px is not None and step_px < 1:
        raise SettingsError(f"The step is {step_px} px.", "It must be 1 or more.")
    _refuse_what_is_there(folder)
    width = load_model(weights).network.settings.features  # refuses what is no weights file
    facts = {
        "name": uuid.uuid4().hex,
        "settings": as_dict(settings or ArchiveSettings()),
        "weights": content_mark(weights),
        "width": width,
        "step_px": step_px,
        "index": index,
        "bank": 0,
        "bank_fragments": 0,
    }
    with one_writer(folder, "archive init"), _room_on_disk(folder):
        _refuse_what_is_there(folder)
        write_whole(folder / _WEIGHTS, lambda file: _copy(weights, file))
        Catalogue.create(folder, facts)
        sync_folder(folder)
        with broken_seal(folder):
            pass


def _refuse_what_is_there(folder: Path) -> None:
    if (folder / FILE_NAME).exists():
        raise CollectionError(f"{folder} is an archive already.", "Add to it with 'pairingnet archive add'.")
    left = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if left - {_WEIGHTS, f".{FILE_NAME}"} - LOCK_FILES:  # those are what an interrupted start leaves
        raise CollectionError(f"{folder} is not empty.", "Choose a new folder, so that nothing is lost.")


def restore_weights(folder: Path) -> str | None:
    """Where the weights are damaged and are those that ship, copy them again; what was done, None for nothing."""
    with closing(Catalogue(folder)) as catalogue:
        wanted, path = catalogue.facts().get("weights"), folder / _WEIGHTS
    if (path.is_file() and content_mark(path) == wanted) or content_mark(SHIPPED) != wanted:
        return None
    with one_writer(folder, "archive check"), _room_on_disk(folder):
        write_whole(path, lambda file: _copy(SHIPPED, file))
    return "copied the weights again, which are those that ship"


class Archive:
    """An open archive. Reading needs nothing else; writing happens inside `writing`.

    part_of_a_command: a process of one that has looked at the catalogue already, and may be changing it.
    wait_s: how long to wait for others who write.
    """

    def __init__(self, folder: str | Path, part_of_a_command: bool = False, wait_s: float = WAIT_S) -> None:
        self.folder, self.wait_s = Path(folder), wait_s
        self._is_writing = False
        if not part_of_a_command and (self.folder / FILE_NAME).is_file():
            check_seal(self.folder)
        self.catalogue = Catalogue(self.folder)
        try:
            facts = self.catalogue.facts()
            self.settings = archive_settings(facts["settings"])
            self.store = Store(self.folder / "segments", int(facts["width"]))
            self.weights = self.folder / _WEIGHTS
            if not self.weights.is_file() or content_mark(self.weights) != facts["weights"]:
                raise DamagedFileError(
                    f"{self.weights} is not what the archive was made with ({facts['weights']}).",
                    f"Run 'pairingnet archive check {self.folder}'; others than those that ship: from a backup.",
                )
        except KeyError as error:
            self.close()
            raise Catalogue.damage(self.catalogue.path, f"it does not know its {error}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.catalogue.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def step_px(self) -> float | None:
        """The step of all contours; None before the first fragment is added."""
        told = self.catalogue.facts()["step_px"]
        return None if told is None else float(told)

    @property
    def bank_number(self) -> int:
        return int(self.catalogue.facts()["bank"])

    @cached_property
    def method(self) -> RingMethod:
        """The network at the archive's scale."""
        if self.step_px is None:
            raise CollectionError(f"{self.folder} is empty.", "Add scans with 'pairingnet archive add'.")
        return RingMethod(load_model(self.weights), self.step_px)

    def check_sizes(self) -> None:
        """Refuse an archive whose files are shorter than what counts; done whenever one is opened to be used."""
        short = self.store.missing(self.catalogue.ends(), self.bank_number)
        if short:
            raise CollectionError(
                f"{short[0]} is shorter than it should be.", f"Run 'pairingnet archive check {self.folder}'."
            )

    def read(self, entry: Entry) -> RingFeatures:
        """A fragment's features; they know how many others there are, and how worn."""
        bank = self.bank_number
        features = self.store.read(entry.id, entry.place, bank, self.catalogue.level_mark(entry.number, bank))
        crowd, usual_loose = self._others
        return replace(features, side=replace(features.side, crowd=crowd, usual_loose=usual_loose))

    @cached_property
    def _others(self) -> tuple[int, float]:
        return self.catalogue.count(), float(self.catalogue.facts().get(_USUAL_LOOSE, {}).get("steps", "nan"))

    def bank(self, number: int | None = None) -> Bank:
        """Points of the collection, queries and keys (B, D); empty before there are any."""
        number = self.bank_number if number is None else number
        empty = np.zeros((0, self.store.width), np.float32)
        if number == 0:
            return {"queries": empty, "keys": empty}
        path = self._bank_path(number)
        step = f"Run 'pairingnet archive check {self.folder}'."
        mark = self.catalogue.facts().get(_BANK_MARKS, {}).get(str(number))
        try:
            data = path.read_bytes()
            if mark is not None and f"{len(data)}-{zlib.crc32(data):08x}" != mark:
                raise DamagedFileError(f"{path} is damaged.", step)
            with np.load(io.BytesIO(data), allow_pickle=False) as stored:
                return {name: stored[name].astype(np.float32) for name in ("queries", "keys")}
        # One without a mark is of an earlier version; whatever a zip file can be, it is no bank.
        except (OSError, ValueError, KeyError, EOFError, BadZipFile, NotImplementedError) as error:
            raise DamagedFileError(f"{path} cannot be read ({error}).", step) from None

    @contextmanager
    def writing(self, doing: str = "archive", told: Callable[[str], None] = lambda _: None) -> Iterator[None]:
        """Only one process at a time, see `one_writer`; the catalogue is sealed and copied when this ends."""
        if self._is_writing:
            yield
            return
        with one_writer(self.folder, doing, self.wait_s, told), _room_on_disk(self.folder), broken_seal(self.folder):
            self._is_writing = True
            try:
                yield
            finally:
                self._is_writing = False

    # Background

    def refresh_bank(self) -> bool:
        """Draw the background anew where the number of fragments has doubled since; whether it was.

        Levels of all fragments follow. They and the bank are on disk before the catalogue names them.
        """
        facts = self.catalogue.facts()
        before, count = int(facts["bank_fragments"]), self.catalogue.count()
        if count == 0 or count < 2 * before or before >= max(1, self.settings.bank_until):
            return False
        self.draw_bank()
        return True

    def draw_bank(self, again: bool = False) -> None:
        """A new bank from the fragments that are there, and the levels by it.

        again: what was drawn last, where it or its levels are damaged; the same bytes, unless fragments were removed.
        """
        entries, facts = self.catalogue.entries(), self.catalogue.facts()
        number, drawn, last = self.bank_number + 1, len(entries), entries[-1].number if entries else 0
        if again and number > 1:
            drawn, last = int(facts["bank_fragments"]), int(facts.get(_BANK_LAST, last))
        bank = self._bank_of(entries, last, again)
        path = self._bank_path(number)
        write_whole(path, lambda file: _save_bank(file, bank))
        sync_folder(path.parent)
        marks: list[tuple[int, int]] = []
        for entry in entries:
            # Levels are not asked of the old bank: it may be what has to be replaced.
            known = self.method.know([self.store.read(entry.id, entry.place, None)], bank)[0].side
            levels = np.stack([known.query_level, known.key_level], axis=1)
            marks.append((entry.number, self.store.write_levels(entry.place, number, levels)))
        self.store.settle_levels(number, self.catalogue.ends())
        before = facts.get(_BANK_MARKS, {}).get(str(number - 1))
        bank_marks = {str(number): file_mark(path)} | ({str(number - 1): before} if before else {})
        with self.catalogue.transaction():
            self.catalogue.state({"bank": number, "bank_fragments": drawn})
            self.catalogue.state({_BANK_LAST: last, _BANK_MARKS: bank_marks})
            if again and facts.get(_USUAL_LOOSE, {}).get("bank") == number - 1:
                self.catalogue.state({_USUAL_LOOSE: {**facts[_USUAL_LOOSE], "bank": number}})
            self.catalogue.put_level_marks(number, marks)
            self.catalogue.forget_level_marks(before=number - 1)
        # The bank before stays for those who are still reading with it.
        self.store.drop_levels(before=number - 1)
        for old in path.parent.glob("*.npz"):
            if old.stem.isdigit() and int(old.stem) < number - 1:
                old.unlink(missing_ok=True)

    def _bank_of(self, entries: Sequence[Entry], last: int, again: bool) -> Bank:
        """A bank of the fragments up to a number; the present one, where it is whole and wanted again."""
        if again and self.bank_number > 0:
            with suppress(DamagedFileError):
                return self.bank()
        return self._some_points([entry for entry in entries if entry.number <= last], last)

    def _some_points(self, entries: Sequence[Entry], seed: int) -> Bank:
        """Points at random, every contour point with the same chance."""
        if not entries:
            return self.bank(0)
        rng = np.random.default_rng(seed)
        ends = np.cumsum([entry.place.count for entry in entries])
        chosen = np.sort(rng.choice(int(ends[-1]), min(BANK, int(ends[-1])), replace=False))
        owner = np.searchsorted(ends, chosen, side="right")
        within = chosen - (ends - [entry.place.count for entry in entries])[owner]
        ids = np.array([first_id(entries[i].place) for i in owner], dtype=np.int64) + within
        return {name: self.store.rows_of(name, ids) for name in ("queries", "keys")}

    def _bank_path(self, number: int) -> Path:
        return self.folder / "banks" / f"{number}.npz"

    # Index

    def keys(self) -> ArchiveKeys:
        """The keys of all fragments, ready to be asked; an index that is behind catches up first, in memory."""
        self.check_sizes()
        table = Table.of(self.catalogue.entries())
        index, included = self._open_index()
        if not np.array_equal(included, table.marked()):
            self._catch_up(index, included, table)
        return ArchiveKeys(index, table, self.store, self.bank_number, self.catalogue.level_mark)

    def update_index(self, from_nothing: bool = False) -> bool:
        """Bring the stored index up to date; whether there was anything to do. Only inside `writing`."""
        table = Table.of(self.catalogue.entries())
        try:
            index, included = self._open_index()
        except DamagedFileError:  # a file of Milvus; it is derived as well
            self._forget_index()
            index, included = self._open_index()
        try:
            if from_nothing:
                index.clear()
                included = included[:0]
            elif np.array_equal(included, table.marked()) and self._stored() is not None:
                self._look_at_wear(index, table)
                return False
            self._catch_up(index, included, table)
            self._save_index(index, table)
            self._look_at_wear(index, table)
        finally:
            index.close()
        return True

    def _look_at_wear(self, index: VectorIndex, table: Table) -> None:
        """Note how loosely the surest joins lie, once for each bank: then the fragments have doubled."""
        number = self.bank_number
        if len(table.entries) < 2 or self.catalogue.facts().get(_USUAL_LOOSE, {}).get("bank") == number:
            return
        keys = ArchiveKeys(index, table, self.store, number, self.catalogue.level_mark)
        by_number = {entry.number: entry for entry in table.entries}

        def with_candidates(entry: Entry) -> tuple[RingFeatures, list[RingFeatures]]:
            one = self.read(entry)
            others, _ = votes_of(one.side, keys, self.method.scale, entry.number, self.settings.votes)
            return one, [self.read(by_number[int(other)]) for other in others[:2]]

        chosen = table.entries[:: -(-len(table.entries) // LOOKED_AT)]
        steps = self.method.usual_loose(with_candidates(entry) for entry in chosen)
        with self.catalogue.transaction():
            self.catalogue.state({_USUAL_LOOSE: {"bank": number, "steps": steps}})
        self.__dict__.pop("_others", None)

    def index_is_broken(self) -> bool:
        """Whether the stored index cannot be read, is not what was written, or holds another number of vectors than it
        says."""
        stored = self._stored()
        if stored is None:
            return False
        try:
            self._included(stored)
            index, included = self._open_index()
        except CollectionError:
            return True
        count, every = len(index), self.settings.votes.keep_every
        index.close()
        return count != sum(len(point_ids(place, every)) for place in self.catalogue.places(included[:, 0].tolist()))

    @property
    def index_is_shared(self) -> bool:
        """Whether several processes can ask the index at a time: a file of milvus-lite has one owner."""
        where = str(self.catalogue.facts()["index"])
        return where != MILVUS_FILE

    def _open_index(self) -> tuple[VectorIndex, Ids]:
        """The stored index, or an empty one, and the fragments in it: their numbers and marks (F, 2)."""
        stored, facts = self._stored(), self.catalogue.facts()
        where, settings = str(facts["index"]), self.settings.index
        if where != FAISS:
            from pairingnet.search.milvus import MilvusIndex

            included = _NOTHING
            with nullcontext() if where == MILVUS_FILE else suppress(DamagedFileError):
                included = _NOTHING if stored is None else self._included(stored)
            address = str(self.folder / MILVUS_DB) if where == MILVUS_FILE else where
            name = f"pairingnet_{facts['name']}"
            return MilvusIndex(address, name, self.store.width, self._exact, settings), included
        if stored is not None:
            # It is derived: a broken one is as good as none, and so is one that another process just replaces.
            with suppress(CollectionError, OSError):
                included = self._included(stored)
                return FaissIndex.open(stored / _VECTORS, self.store.width, self._exact, settings), included
        return FaissIndex(self.store.width, self._exact, settings), _NOTHING

    def _included(self, stored: Path) -> Ids:
        """Numbers and marks (F, 2) of the fragments in a stored index, all of whose files are what was written."""
        step = f"Run 'pairingnet archive check {self.folder}'."
        for name, mark in read_json(stored / _MARKS, step, checked=True).items():
            path = Path(os.path.normpath(stored / name))
            inside = self.folder.resolve() in path.resolve().parents
            if not inside or not path.is_file() or file_mark(path) != mark:
                raise DamagedFileError(f"{path} is damaged.", step)
        try:
            included: Ids = np.load(stored / _INCLUDED, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            included = np.zeros(0, dtype=np.int64)
        if included.ndim != 2 or included.shape[1] != 2 or included.dtype != np.int64:
            raise DamagedFileError(f"{stored / _INCLUDED} is no list of fragments.", step)
        return included

    def _forget_index(self) -> None:
        """Delete what is stored of an index that is damaged; that of a server stays where it is."""
        shutil.rmtree(self.folder / "index", ignore_errors=True)
        if self.catalogue.facts()["index"] == MILVUS_FILE:
            from pairingnet.search.milvus import remove_milvus_file

            remove_milvus_file(self.folder / MILVUS_DB)

    def _exact(self, ids: Ids) -> Features:
        return self.store.rows_of("keys", ids)

    def _catch_up(self, index: VectorIndex, included: Ids, table: Table) -> None:
        """Take out what is gone, put in what has come; `included` are numbers and marks (F, 2)."""
        gone = np.setdiff1d(included[:, 0], table.numbers)
        places = self.catalogue.places(gone.tolist())
        before = {entry.number: entry.place.mark for entry in table.entries}
        stay = [(number, mark) for number, mark in included.tolist() if number in before]
        if len(places) < len(gone) or any(before[number] != mark for number, mark in stay):
            # It is of another history of this archive, such as one before a backup was restored.
            index.clear()
            gone, stay = gone[:0], []
        if len(gone):
            index.remove(np.concatenate([point_ids(place) for place in places]))
        there = {number for number, _ in stay}
        new = [entry for entry in table.entries if entry.number not in there]
        for first in range(0, len(new), _SYNC_BLOCK):
            block = new[first : first + _SYNC_BLOCK]
            every = self.settings.votes.keep_every
            ids = np.concatenate([point_ids(entry.place, every) for entry in block])
            index.add(ids, np.concatenate([self.store.keys_of(entry.place, entry.id)[::every] for entry in block]))

    def _save_index(self, index: VectorIndex, table: Table) -> None:
        """Store index and list together: a folder with both appears at once, then the old one goes."""
        before = self._stored()
        number = 1 if before is None else int(before.name) + 1
        root = self.folder / "index"
        beside = root / f".{number:06d}"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        if isinstance(index, FaissIndex):
            index.path = beside / _VECTORS
        index.save()
        np.save(beside / _INCLUDED, table.marked(), allow_pickle=False)
        files = [*beside.iterdir(), *(path for path in (self.folder / MILVUS_DB).rglob("*") if path.is_file())]
        marks = {_name_from(beside, path): file_mark(path) for path in sorted(files)}
        write_json(beside / _MARKS, marks, checked=True)
        for path in beside.iterdir():
            _sync_file(path)
        beside.rename(root / f"{number:06d}")
        sync_folder(root)
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    def _stored(self) -> Path | None:
        """The folder of the newest index that was stored whole."""
        folders = (self.folder / "index").glob("[0-9]*")
        found = sorted(path for path in folders if path.name.isdecimal() and (path / _MARKS).is_file())
        return found[-1] if found else None


@dataclass(frozen=True, eq=False)
class Table:
    """Which rows are whose: entries (F,), their numbers (F,), the ids of their first points (F,), rising, and how many
    points they have (F,)."""

    entries: Sequence[Entry]
    numbers: Ids
    firsts: Ids
    counts: Ids

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Table:
        # Numbers and rows rise together: both are given in the order of adding.
        numbers = np.array([entry.number for entry in entries], dtype=np.int64)
        firsts = np.array([first_id(entry.place) for entry in entries], dtype=np.int64)
        return cls(entries, numbers, firsts, np.array([entry.place.count for entry in entries], dtype=np.int64))

    def marked(self) -> Ids:
        """(F, 2): numbers and marks."""
        marks = np.array([entry.place.mark for entry in self.entries], dtype=np.int64)
        return np.stack([self.numbers, marks], axis=1)


class ArchiveKeys:
    """The keys of an archive, to be asked by `search.votes`; a fragment's number is that of the catalogue."""

    def __init__(
        self,
        index: VectorIndex,
        table: Table,
        store: Store,
        bank: int,
        level_mark: Callable[[int, int], int | None] = lambda _number, _bank: None,
    ) -> None:
        self.index, self.table, self._store, self._bank = index, table, store, bank
        self._level_mark, self._compared = level_mark, set[int]()

    def close(self) -> None:
        self.index.close()

    def nearest(self, asking: Features, most: int) -> Partners:
        """The best partners of queries (Q, D)."""
        return self.explain(*self.index.search(asking, most))

    def explain(self, similarity: Features, found: Ids) -> Partners:
        """What the answers of an index stand for: similarities and ids (Q, P), -1 for none."""
        table, nobody = self.table, np.full(found.shape, -1, dtype=np.int64)
        if not len(table.numbers):
            return Partners(similarity, nobody, np.zeros_like(found), np.zeros(found.shape, dtype=np.float32))
        row = np.searchsorted(table.firsts, found, side="right") - 1
        place = found - table.firsts[row]
        # An index elsewhere may still know points of fragments that are gone.
        known = (found >= 0) & (row >= 0) & (place < table.counts[row])
        level = np.zeros(found.shape, dtype=np.float32)
        self._compare_levels(np.unique(row[known]))
        level[known] = self._store.key_levels(found[known], self._bank)
        return Partners(similarity, np.where(known, table.numbers[row], nobody), np.where(known, place, 0), level)

    def _compare_levels(self, rows: Ids) -> None:
        """Refuse levels that are not those that were written; each fragment's are looked at once."""
        for row in set(rows.tolist()) - self._compared:
            entry = self.table.entries[row]
            self._store.levels(entry.place, self._bank, self._level_mark(entry.number, self._bank))
            self._compared.add(row)


@contextmanager
def _room_on_disk(folder: Path) -> Iterator[None]:
    """A full disk is said as such; numpy and others tell of it without a path."""
    try:
        yield
    except ConnectionError:
        raise  # whoever listened is gone
    except OSError as error:
        if error.filename is not None and folder.absolute() not in Path(error.filename).absolute().parents:
            raise
        raise CollectionError(
            f"{folder} cannot be written to ({error.strerror or error}).",
            "Make room on its disk, or check its permissions, and run this command again: what it told of is kept.",
        ) from error


def _name_from(folder: Path, path: Path) -> str:
    """`vectors.faiss`, or `../../milvus.db/LOCK`."""
    return Path(os.path.relpath(path, folder)).as_posix()


def _copy(source: Path, file: Path) -> None:
    file.write_bytes(source.read_bytes())
    _sync_file(file)


def _save_bank(file: Path, bank: Bank) -> None:
    np.savez(file, **{name: values.astype(np.float16) for name, values in bank.items()})  # type: ignore[arg-type]
    _sync_file(file)


def _sync_file(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
