"""From images on disk to ranked candidates of all fragments, and how the time grows: docs/results.md, "Candidates".

python -m benchmarks.candidates --shared FOLDER [--sizes 500 1000 2000 3280 10000] [--weights FILE] [--plot FILE]

Fragments are those of photos/test, turned at random, all mixed; where they are too few, the pictures are torn again
with other seeds (fewer true neighbours are found then: the same places of a picture lie on several pieces). Each size
is measured in a process of its own, on all cores.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from pairingnet.benchmark.costs import peak_mb
from pairingnet.benchmark.isolated import isolated
from pairingnet.config import WEAR_LEVELS, TearSettings
from pairingnet.io.collection import Collection, read_collection, write_collection
from pairingnet.match.weights import SHIPPED
from pairingnet.stages import compute_features, find_candidates, source_of, statistics_of
from pairingnet.synth.collect import TearJob, tear_collection
from pairingnet.types import FragmentRecord, TruePair

TOP = (5, 10, 20, 30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 1000, 2000, 3280])
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    columns = ["fragments", "features s", "search s", "all s", "GB, largest process", *(f"true in {k}" for k in TOP)]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for size in sorted(given.sizes):
            collection = mixed(given.shared / "photos" / "test", Path(scratch), size)
            rows.append(isolated(partial(measure, collection, given.weights, Path(scratch) / f"run-{size}"), threads=0))
            print(rows[-1].as_line(), flush=True)
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        for name in ("features_s", "search_s"):
            growth = np.log(getattr(last, name) / getattr(first, name)) / np.log(last.fragments / first.fragments)
            print(f"{name.removesuffix('_s')} grows as N^{growth:.2f}")
    if given.plot is not None:
        draw(rows, given.plot)


@dataclass(frozen=True)
class Row:
    """What one size took."""

    fragments: int
    features_s: float
    search_s: float
    peak_gb: float
    found: tuple[float, ...]

    def as_line(self) -> str:
        numbers = [str(self.fragments), f"{self.features_s:.1f}", f"{self.search_s:.1f}"]
        numbers += [f"{self.features_s + self.search_s:.1f}", f"{self.peak_gb:.2f}"]
        return "| " + " | ".join([*numbers, *(f"{share:.3f}" for share in self.found)]) + " |"


def mixed(pictures: Path, scratch: Path, size: int) -> Collection:
    """The first `size` fragments of the pictures, torn as often as needed."""
    fragments: list[FragmentRecord] = []
    pairs: list[TruePair] = []
    seed = 0
    while len(fragments) < size:
        seed += 1
        folder = scratch / f"torn-{seed}"
        torn = tear_collection(pictures, folder, TearJob(TearSettings(), WEAR_LEVELS["none"], seed), jobs=0).collection
        named = {record.id: f"{record.id}-{seed}" for record in torn.fragments}
        for record in torn.fragments:
            image = f"{folder.name}/{record.image}"
            fragments.append(replace(record, id=named[record.id], source=f"{record.source}-{seed}", image=image))
        pairs += [replace(p, source=named[p.source], target=named[p.target]) for p in torn.pairs]
    kept = fragments[:size]
    ids = {record.id for record in kept}
    among = tuple(pair for pair in pairs if pair.source in ids and pair.target in ids)
    write_collection(Collection(scratch, tuple(kept), among))
    return read_collection(scratch)


def measure(collection: Collection, weights: Path, run: Path) -> Row:
    """Features and candidates, from nothing."""
    run.mkdir()
    began = time.perf_counter()
    source = source_of(collection, weights, run)
    features = compute_features(collection, source)
    statistics, source = statistics_of(features, source)
    features = [statistics.applied_to(each) for each in features]
    searched = time.perf_counter()
    found = find_candidates(features, source, max(TOP))
    ended = time.perf_counter()
    number = {name: i for i, name in enumerate(found.ids)}
    neighbours: dict[int, set[int]] = {}
    for pair in collection.pairs:
        a, b = number[pair.source], number[pair.target]
        neighbours.setdefault(a, set()).add(b)
        neighbours.setdefault(b, set()).add(a)
    shares = [
        float(np.mean([len(true & set(found.ranked[a, :most].tolist())) / len(true) for a, true in neighbours.items()]))
        for most in TOP
    ]
    return Row(len(collection), searched - began, ended - searched, peak_mb() / 1e3, tuple(shares))


def draw(rows: list[Row], path: Path) -> None:
    """Seconds over fragments, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes = np.array([row.fragments for row in rows], dtype=float)
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.loglog(sizes, [row.features_s for row in rows], "o-", label="features")
    axes.loglog(sizes, [row.search_s for row in rows], "s-", label="search")
    axes.loglog(sizes, rows[0].search_s * (sizes / sizes[0]) ** 2, ":", color="grey", label="square of the number")
    axes.set(xlabel="fragments", ylabel="seconds, two cores")
    axes.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
