"""Several methods on one collection, each in a process of its own, into one table.

OUT/benchmark.md, .csv, .json   the table
OUT/METHOD/                     a method's answers (ask.py)
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pairingnet.benchmark.ask import ask
from pairingnet.benchmark.entrants import Given, check_names, check_weights, make_entrant
from pairingnet.benchmark.isolated import isolated
from pairingnet.benchmark.table import Table, table_of, write_table
from pairingnet.config import BenchmarkSettings
from pairingnet.errors import CollectionError
from pairingnet.evaluate.predictions import Predictions
from pairingnet.io.collection import Collection


@dataclass(frozen=True)
class Bench:
    """How methods are run: which, with what, asked what; sampled: the only methods that samples are for (empty: all);
    one process each (`apart`) tells their memory apart; threads and processes of each."""

    methods: tuple[str, ...]
    given: Given = field(default_factory=Given)
    settings: BenchmarkSettings = field(default_factory=BenchmarkSettings)
    sampled: tuple[str, ...] = ()
    apart: bool = True
    threads: int = 1
    jobs: int = 1

    def check(self) -> None:
        """Refuse what cannot be run, before anything is."""
        check_names((*self.methods, *self.sampled))
        check_weights(self.methods, self.given)

    def settings_of(self, name: str) -> BenchmarkSettings:
        """What a method is asked."""
        if self.sampled and name not in self.sampled:
            return replace(self.settings, sample_pairs=0, sample_queries=0, pool=0)
        return self.settings


def benchmark(collection: Collection, out: Path, bench: Bench, data: str) -> Table:
    """Ask every method what it was not asked before, and write the table."""
    bench.check()
    if not collection.pairs:
        raise CollectionError(
            f"{collection.folder} has no true pairs.", "Use a collection with truth ('pairingnet tear' or 'annotate')."
        )
    table = table_of(data, collection, [_answers(collection, out / name, bench, name) for name in bench.methods])
    write_table(out, "benchmark", table)
    return table


def _answers(collection: Collection, folder: Path, bench: Bench, name: str) -> Predictions:
    job = partial(ask_named, collection, folder, bench, name)
    if not bench.apart:
        return job()
    if (folder / "method.json").is_file():
        return job()  # nothing to do but to read
    print(f"{name}: asked now", file=sys.stderr, flush=True)
    return isolated(job, bench.threads)


def ask_named(collection: Collection, folder: Path, bench: Bench, name: str) -> Predictions:
    """Ask the method of a name."""
    settings = bench.settings_of(name)
    entrant = make_entrant(name, collection, folder, bench.given, settings, bench.jobs)
    if bench.threads:
        _limit_threads(bench.threads)
    return ask(collection, entrant, folder, settings)


def _limit_threads(threads: int) -> None:
    """Only what is loaded anyway: torch takes seconds to load, and half of the methods do not need it."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(threads)
