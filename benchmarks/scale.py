"""How an archive grows, measured: docs/archive.md, section "Sizes".

python -m benchmarks.scale --shared FOLDER [--fragments 1000 3000 10000 30000] [--drawn 10000 100000 1000000]

Torn: pictures of FOLDER/photos are torn again and again, with another seed each time, until the archive has so many
fragments; at each size: seconds to add one, to search one, to find all joins, memory in all processes while joins are
found, bytes on disk, and how many of the true neighbours that an exact search of all contour points finds are found as
well.

Drawn: the torn archive of the first size among many more fragments whose features are drawn from the measured
distribution (a mixture of Gaussians around the cells of the real ones, each with its own spread and its own levels).
Only the index is asked here: what it costs, and what of the exact answer among the real ones is left.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.memory import Watch
from pairingnet.archive.add import add
from pairingnet.archive.folder import Archive, ArchiveKeys, init_archive
from pairingnet.archive.joins import candidates_of, find_joins
from pairingnet.archive.store import ROWS, point_ids
from pairingnet.config import WEAR_LEVELS, IndexSettings, TearSettings, VoteSettings
from pairingnet.engine.jobs import run_jobs
from pairingnet.io.collection import Collection
from pairingnet.io.images import image_files, read_image
from pairingnet.search.index import FaissIndex, Features, Ids
from pairingnet.search.votes import Partners, votes_of
from pairingnet.synth.collect import TearJob, tear_one_picture

_EXACT = IndexSettings(exact_below=10**12)
_EVERY_POINT = VoteSettings(ask_every=4, keep_every=1, partners=24)
_POINTS = 450  # contour points of a drawn fragment
_AT_A_TIME = 48  # pictures torn before their pieces are added
_OF_A_PICTURE = 21  # pieces, on average
_FIRST_DRAWN = 1 << 50  # ids of drawn points begin here, behind all real ones
_FIRST_FRAGMENT = 10**9  # and the numbers of their fragments


@dataclass(frozen=True)
class Truth:
    """All fragments that were torn, by id, and which of them are neighbours; both ways."""

    torn: set[str]
    neighbours: dict[str, set[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--fragments", type=int, nargs="*", default=[1000, 3000, 10_000, 30_000])
    parser.add_argument("--drawn", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--asked", type=int, default=40, help="fragments whose searches are measured")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--joins-up-to", type=int, default=30_000, help="find all joins of no larger archive")
    parser.add_argument(
        "--exact-up-to", type=int, default=10_000, help="compare with exact search in no larger archive"
    )
    parser.add_argument("--scratch", type=Path, help="where the archive is kept, to be continued")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = given.scratch or Path(temporary)
        archive, truth = _torn(given, scratch)
        with archive:
            _drawn(archive, truth, given.drawn, given.asked, scratch)


# Torn


def _torn(given: argparse.Namespace, scratch: Path) -> tuple[Archive, Truth]:
    folder = scratch / "archive"
    if not folder.exists():
        init_archive(folder)
    archive, truth = Archive(folder), Truth(set(), {})
    pictures = _pictures(given.shared)
    print(
        "| fragments | s to add one | ms to search one | of that candidates | recall of exact | index B / fragment "
        "| disk kB / fragment | s for all joins | GB in all processes |\n|---|---|---|---|---|---|---|---|---|"
    )
    measured: list[tuple[int, float, float]] = []
    for size in sorted(given.fragments):
        seconds, before = 0.0, archive.catalogue.count()
        while len(truth.torn) < size:
            missing = size - len(truth.torn)
            some = list(islice(pictures, min(_AT_A_TIME, -(-missing // _OF_A_PICTURE))))
            seconds += _add_pictures(archive, truth, some, scratch, given.jobs)
        count = archive.catalogue.count()
        asked = _asked(archive, truth, given.asked)
        with Watch() as watch:
            whole_ms, candidate_ms, found = _searches(archive, asked)
            joins_s = _all_joins(archive, given.jobs) if size <= given.joins_up_to else float("nan")
        recall = _recall_of_exact(archive, truth, found) if size <= given.exact_up_to else float("nan")
        index = sum(path.stat().st_size for path in (folder / "index").rglob("*") if path.is_file())
        disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(
            f"| {count} | {seconds / max(1, count - before):.3f} | {whole_ms:.0f} | {candidate_ms:.0f} | {recall:.3f} "
            f"| {index / count:.0f} | {disk / count / 1e3:.0f} | {joins_s:.0f} | {watch.most_gb:.2f} |",
            flush=True,
        )
        measured.append((count, candidate_ms, joins_s))
    for (less, one_ms, all_s), (more, later_ms, later_s) in pairwise(measured):
        if more == less:  # the archive that goes on was larger already
            continue
        grown = np.log(more / less)
        print(
            f"\n{less} to {more}: candidates of one grow as N^{np.log(later_ms / one_ms) / grown:.2f}, "
            f"all joins as N^{np.log(later_s / all_s) / grown:.2f}"
        )
    return archive, truth


def _pictures(shared: Path) -> Iterator[tuple[Path, int]]:
    """Every picture with seed 0, then every one with seed 1 ..."""
    files = image_files(shared / "photos")
    seed = 0
    while True:
        yield from ((path, seed) for path in files)
        seed += 1


def _add_pictures(
    archive: Archive, truth: Truth, pictures: Sequence[tuple[Path, int]], scratch: Path, jobs: int
) -> float:
    """Tear pictures, add their pieces, remember who was whose neighbour; the images go. Seconds of the adding."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        torn = run_jobs(partial(_tear, Path(folder)), pictures, jobs, "tearing")
        for collection in torn:
            truth.torn.update(record.id for record in collection.fragments)
            for pair in collection.pairs:
                truth.neighbours.setdefault(pair.source, set()).add(pair.target)
                truth.neighbours.setdefault(pair.target, set()).add(pair.source)
        # A killed benchmark goes on: what is there stays, but its neighbours are known only from tearing again.
        there = {entry.id for entry in archive.catalogue.entries()}
        new = [each for each in torn if not {record.id for record in each.fragments} <= there]
        began = time.perf_counter()
        if new:
            add(archive, [each.folder / "fragments" for each in new], jobs)
        return time.perf_counter() - began


def _tear(folder: Path, picture: tuple[Path, int]) -> Collection:
    path, seed = picture
    name = f"{path.stem}-{seed}"
    job = TearJob(TearSettings(), WEAR_LEVELS["none"], seed)
    return tear_one_picture(read_image(path).pixels, name, job, folder / name, "fragments")


def _asked(archive: Archive, truth: Truth, most: int) -> list[int]:
    """Numbers of fragments with neighbours, spread over the archive."""
    known = [entry.number for entry in archive.catalogue.entries() if entry.id in truth.neighbours]
    return [known[i] for i in np.unique(np.linspace(0, len(known) - 1, most).astype(int))]


def _searches(archive: Archive, asked: Sequence[int]) -> tuple[float, float, dict[int, list[int]]]:
    """ms to search one fragment, ms of that for its candidates, and the candidates of all that were asked."""
    keys = archive.keys()
    entries = {entry.number: entry for entry in keys.table.entries}
    whole, search, found = [], [], {}
    for number in asked:
        features = archive.read(entries[number])
        began = time.perf_counter()
        found[number] = candidates_of(archive, keys, features.side, own=number)
        search.append(time.perf_counter() - began)
        for other in found[number]:
            archive.method.match(features, archive.read(entries[other]))
        whole.append(time.perf_counter() - began)
    keys.close()
    return 1e3 * float(np.median(whole)), 1e3 * float(np.median(search)), found


def _recall_of_exact(archive: Archive, truth: Truth, found: dict[int, list[int]]) -> float:
    """The share of the true neighbours found by exact search of all contour points that are among the candidates."""
    exact = _exact_keys(archive)
    entries = {entry.number: entry for entry in exact.table.entries}
    all_hits = both = 0
    for number, candidates in found.items():
        side = archive.read(entries[number]).side
        by_exact = votes_of(side, exact, archive.method.scale, number, _EVERY_POINT)[0]
        true = truth.neighbours[entries[number].id]
        hits = {int(other) for other in by_exact[: archive.settings.candidates] if entries[int(other)].id in true}
        all_hits, both = all_hits + len(hits), both + len(hits & set(candidates))
    return both / max(1, all_hits)


def _exact_keys(archive: Archive) -> ArchiveKeys:
    """Every contour point of every fragment, each looked at."""
    keys = archive.keys()
    index = FaissIndex(archive.store.width, lambda ids: archive.store.rows_of("keys", ids), _EXACT)
    ids = np.concatenate([point_ids(entry.place) for entry in keys.table.entries])
    index.add(ids, archive.store.rows_of("keys", ids))
    return ArchiveKeys(index, keys.table, archive.store, archive.bank_number)


def _all_joins(archive: Archive, jobs: int) -> float:
    """Seconds to find all joins, as if none had been looked for."""
    with archive.writing(), archive.catalogue.transaction():
        archive.catalogue.forget_joins()
    began = time.perf_counter()
    find_joins(archive, jobs=jobs)
    return time.perf_counter() - began


# Drawn


class Mixture:
    """Keys and their levels as measured: cells of similar keys, each with its share, mean, spread and levels."""

    def __init__(self, keys: Features, levels: Features, cells: int = 1024) -> None:
        cells = max(1, min(cells, len(keys) // 40))
        clusters = faiss.Kmeans(keys.shape[1], cells, seed=1, spherical=True, min_points_per_centroid=1)
        clusters.train(keys)
        cell = clusters.index.search(keys, 1)[1][:, 0]
        self.means = np.zeros((cells, keys.shape[1]), np.float32)
        self.spreads = np.zeros_like(self.means)
        self.levels = np.zeros((cells, 2), np.float32)
        self.shares = np.bincount(cell, minlength=cells) / len(cell)
        for number in np.unique(cell):
            own = keys[cell == number]
            self.means[number], self.spreads[number] = own.mean(axis=0), own.std(axis=0)
            self.levels[number] = levels[cell == number].mean(), levels[cell == number].std()

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Features, Features]:
        """Keys (count, D) of length 1, and their levels (count,)."""
        cell = rng.choice(len(self.shares), count, p=self.shares)
        noise = rng.standard_normal((count, self.means.shape[1]), dtype=np.float32)
        keys = self.means[cell] + self.spreads[cell] * noise
        levels = self.levels[cell, 0] + self.levels[cell, 1] * rng.standard_normal(count, dtype=np.float32)
        return keys / np.linalg.norm(keys, axis=1, keepdims=True), levels


class Crowd:
    """Keys of an archive among drawn ones, whose fragments have numbers beyond all real ones."""

    def __init__(self, real: ArchiveKeys, index: FaissIndex, levels: NDArray[np.float16], points: int) -> None:
        self._real, self._index, self._levels, self._points = real, index, levels, points

    def nearest(self, asking: Features, most: int) -> Partners:
        similarity, found = self._index.search(asking, most)
        drawn = found >= _FIRST_DRAWN
        row = np.where(drawn, found - _FIRST_DRAWN, 0)
        told = self._real.explain(similarity, np.where(drawn, -1, found))
        owner = np.where(drawn, _FIRST_FRAGMENT + row // self._points, told.owner)
        level = np.where(drawn, self._levels[row].astype(np.float32), told.level)
        return replace(told, owner=owner, place=np.where(drawn, row % self._points, told.place), level=level)


def _drawn(archive: Archive, truth: Truth, sizes: Sequence[int], most: int, scratch: Path) -> None:
    """The index among more and more drawn fragments."""
    every = archive.settings.votes.keep_every
    keys = archive.keys()
    entries = {entry.number: entry for entry in keys.table.entries}
    rng = np.random.default_rng(0)
    some = [list(entries.values())[i] for i in rng.permutation(len(entries))[:1000]]
    known = np.concatenate([archive.store.keys_of(entry.place)[::every] for entry in some])
    levels = np.concatenate([archive.store.levels(entry.place, archive.bank_number)[::every, 1] for entry in some])
    mixture = Mixture(known, levels)
    asked = _asked(archive, truth, most)
    best: dict[int, set[int]] = {}
    settings, scale = archive.settings, archive.method.scale
    points = len(range(0, _POINTS, every))
    print("\n| fragments | vectors | s to index | index B / fragment | ms for candidates | of those alone |")
    print("|---|---|---|---|---|---|")
    for size in (0, *sorted(sizes)):
        began = time.perf_counter()
        index, drawn_levels = _crowded(archive, keys, mixture, size * points, scratch)
        index_s = time.perf_counter() - began
        crowd = Crowd(keys, index, drawn_levels, points)
        seconds, kept, alone = [], 0, 0
        for number in asked:
            side = archive.read(entries[number]).side
            began = time.perf_counter()
            others, _ = votes_of(side, crowd, scale, number, settings.votes)
            seconds.append(time.perf_counter() - began)
            true = {entry.number for entry in entries.values() if entry.id in truth.neighbours[entries[number].id]}
            hits = {int(other) for other in others[: settings.candidates]} & true
            best.setdefault(number, hits)
            kept, alone = kept + len(hits & best[number]), alone + len(best[number])
        index.path = scratch / "crowd.faiss"
        index.save()
        count = size + len(entries)
        print(
            f"| {count} | {len(index)} | {index_s:.0f} | {index.path.stat().st_size / count:.0f} "
            f"| {1e3 * float(np.median(seconds)):.0f} | {kept / max(1, alone):.3f} |",
            flush=True,
        )
        index.path.unlink()


def _crowded(
    archive: Archive, keys: ArchiveKeys, mixture: Mixture, count: int, scratch: Path
) -> tuple[FaissIndex, NDArray[np.float16]]:
    """An index of the archive's keys and of `count` drawn ones; their vectors lie on disk, as those of an archive."""
    width, every = archive.store.width, archive.settings.votes.keep_every
    vectors = np.memmap(scratch / "crowd.f2", np.float16, "w+", shape=(max(1, count), width))
    levels = np.zeros(max(1, count), np.float16)

    def exact(ids: Ids) -> Features:
        drawn = ids >= _FIRST_DRAWN
        found = np.zeros((len(ids), width), np.float32)
        found[drawn] = vectors[ids[drawn] - _FIRST_DRAWN]
        found[~drawn] = archive.store.rows_of("keys", ids[~drawn])
        return found

    index = FaissIndex(width, exact, archive.settings.index)
    ids = np.concatenate([point_ids(entry.place, every) for entry in keys.table.entries])
    index.add(ids, exact(ids))
    rng = np.random.default_rng(1)
    for first in range(0, count, ROWS):
        rows = slice(first, min(first + ROWS, count))
        drawn, drawn_levels = mixture.draw(rows.stop - first, rng)
        vectors[rows], levels[rows] = drawn, drawn_levels
        index.add(_FIRST_DRAWN + np.arange(first, rows.stop), drawn)
    return index, levels


if __name__ == "__main__":
    main()
