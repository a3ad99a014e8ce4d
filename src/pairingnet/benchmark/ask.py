"""Ask one method about a collection: features, true pairs, search, assembly. Each stage does what is missing.

OUT/run/settings.json   who is asked about what; a folder with other answers is refused
OUT/sample.json         which pairs and queries, where a limit does not allow all of them
OUT/joins.jsonl         every pair that was laid on each other, as soon as it is known
OUT/candidates.npz      whom each query found before anything was laid on it
OUT/costs.jsonl         what all that cost
OUT/method.json ...     the finished predictions (evaluate/predictions.py)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pairingnet.benchmark.costs import Ledger, read_costs, seconds_a_pair
from pairingnet.benchmark.entrants import RANKED, Entrant, MethodEntrant
from pairingnet.benchmark.sampling import Work, pool_of, sample_of, sample_within, shuffled_pairs, shuffled_queries
from pairingnet.config import BenchmarkSettings
from pairingnet.evaluate.predictions import (
    Method,
    Pair,
    Predictions,
    Sample,
    known_predictions,
    read_predictions,
    store_predictions,
)
from pairingnet.io.collection import Collection
from pairingnet.io.files import write_json, write_whole
from pairingnet.io.resume import remember_settings
from pairingnet.io.run import append_joins, match_as_json, match_from_json, read_joins
from pairingnet.match.candidates import Candidates, rank_by_joins
from pairingnet.types import PairMatch

EVERYTHING = BenchmarkSettings(limit_s=0)
_WARM = 2  # pairs that also load and compile, so that they do not tell how long a pair takes
_PROBED = 16  # pairs that tell


def predict(collection: Collection, method: Method, out: Path) -> Predictions:
    """Ask a method about all fragments and all true pairs, unless `out` holds its answers already."""
    return ask(collection, MethodEntrant(method, collection), out, EVERYTHING)


def wanted_of(collection: Collection, entrant: Entrant, settings: BenchmarkSettings) -> dict[str, Any]:
    """Who is asked about what, as plain values."""
    names = ("sample_pairs", "sample_queries", "pool", "limit_s")
    sampling = {name: getattr(settings, name) for name in names if getattr(settings, name)}
    if sampling:
        sampling["sample_seed"] = settings.seed
    told = {"method": entrant.name, "collection": collection.mark, **entrant.describe(), **sampling}
    plain: dict[str, Any] = json.loads(json.dumps(told))
    return plain


def ask(collection: Collection, entrant: Entrant, out: Path, settings: BenchmarkSettings = EVERYTHING) -> Predictions:
    """Ask about the true pairs and the fragments that the settings name, unless `out` holds the answers already."""
    wanted = wanted_of(collection, entrant, settings)
    known = known_predictions(out, wanted)
    if known is not None:
        return known
    remember_settings(out, "run", wanted)
    desk = _Desk(collection, entrant, out)
    desk.ledger.start()
    entrant.know()
    desk.ledger.note("features")
    desk.lay("start", shuffled_pairs(collection, settings.seed)[:_WARM])
    sample = _sample(desk, settings)
    if not sample.is_all:
        print(f"{entrant.name}: {describe_sample(collection, sample)}", file=sys.stderr, flush=True)
    true = [(pair.source, pair.target) for pair in collection.pairs] if sample.pairs is None else list(sample.pairs)
    desk.lay("matching", true)
    candidates = desk.candidates(sample, settings.seed)
    joins, assembly = desk.joins, None
    if entrant.judged:
        pairs = candidates.pairs()
        desk.lay("search", pairs)
        candidates = rank_by_joins(candidates, joins.values())
        desk.ledger.note("search")
        if sample.is_all:
            # What the search has found, and no true pair that was only asked for to be judged.
            together = entrant.assemble([joins[frozenset(pair)] for pair in pairs])
            desk.ledger.note("assembly")
            if together is not None:
                matches, assembly = together
                candidates = rank_by_joins(candidates.with_joins(matches), [*joins.values(), *matches])
                joins = {join.pair: join for join in matches} | joins
    costs, peak_mb = read_costs(out / "costs.jsonl")
    ranked, scores = candidates.ranked[:, :RANKED], candidates.scores[:, :RANKED]
    shown = Candidates(candidates.ids, ranked, scores).pairs() if entrant.judged else []
    told = dict.fromkeys([*map(frozenset, true), *map(frozenset, shown)])
    matches = sorted((joins[pair] for pair in told), key=lambda match: (-match.score, match.source, match.target))
    store_predictions(out, wanted, candidates.ids, ranked, scores, matches, costs, peak_mb, sample, assembly)
    return read_predictions(out)


def describe_sample(collection: Collection, sample: Sample) -> str:
    """What was asked, in words."""
    count = len(collection.pairs)
    pairs = f"{count if sample.pairs is None else len(sample.pairs)} of {count} true pairs"
    everyone = len({name for pair in collection.pairs for name in (pair.source, pair.target)})
    queries = f"{everyone if sample.queries is None else len(sample.queries)} of {everyone} queries"
    pool = f", each among {sample.pool} fragments" if sample.pool else ""
    return f"sampled, {pairs}, {queries}{pool} ({sample.reason})"


@dataclass(eq=False)
class _Desk:
    """Where one method's answers are collected."""

    collection: Collection
    entrant: Entrant
    out: Path
    joins: dict[frozenset[str], PairMatch] = field(init=False)
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.joins = {join.pair: join for join in read_joins(self.out / "joins.jsonl")}
        self.ledger = Ledger(self.out / "costs.jsonl")

    def lay(self, stage: str, pairs: Sequence[Pair]) -> None:
        """Lay the pairs that were not laid before."""
        missing = [pair for pair in pairs if frozenset(pair) not in self.joins]
        self.ledger.start()

        def laid(found: Sequence[PairMatch]) -> None:
            append_joins(self.out / "joins.jsonl", found)
            # What counts is what was stored, rounded: an interrupted run ends with the same numbers.
            stored = (match_from_json(match_as_json(join)) for join in found)
            self.joins |= {join.pair: join for join in stored}
            self.ledger.note(stage, len(found))

        if missing:
            self.entrant.lay(missing, laid)
            self.ledger.note(stage)  # processes tell what they took when they end

    def candidates(self, sample: Sample, seed: int) -> Candidates:
        """The candidates of the queries of a sample, each among its pool."""
        number = {record.id: i for i, record in enumerate(self.collection.fragments)}
        queries = list(number.values()) if sample.queries is None else [number[name] for name in sample.queries]
        if not sample.pool:
            return self._all_candidates(self.entrant.most).only(dict.fromkeys(queries), self.entrant.most)
        neighbours: dict[int, list[int]] = {query: [] for query in number.values()}
        for pair in self.collection.pairs:
            neighbours[number[pair.source]].append(number[pair.target])
            neighbours[number[pair.target]].append(number[pair.source])
        pools = {query: pool_of(query, neighbours[query], len(number), sample.pool, seed) for query in queries}
        return self._all_candidates(len(number) - 1).only(pools, self.entrant.most)

    def _all_candidates(self, most: int) -> Candidates:
        """Those of every fragment; kept in a file."""
        path = self.out / "candidates.npz"
        ids = tuple(record.id for record in self.collection.fragments)
        if path.is_file():
            with np.load(path, allow_pickle=False) as stored:
                return Candidates(ids, stored["ranked"], stored["scores"])
        self.ledger.start()
        found = self.entrant.candidates(most)
        self.ledger.note("search")
        write_whole(path, lambda file: np.savez_compressed(file, ranked=found.ranked, scores=found.scores))
        return found


def _sample(desk: _Desk, settings: BenchmarkSettings) -> Sample:
    """What is asked: what the settings name, or as much as their limit allows, decided once."""
    asked = sample_of(desk.collection, settings)
    if not settings.limit_s or not asked.is_all:
        return asked
    path = desk.out / "sample.json"
    if not path.is_file():
        work = _measure(desk, settings)
        write_json(path, asdict(sample_within(settings.limit_s, work, desk.collection, settings.seed)))
    told = json.loads(path.read_text(encoding="utf-8"))
    pairs, queries = told["pairs"], told["queries"]
    return Sample(
        None if pairs is None else tuple((a, b) for a, b in pairs),
        None if queries is None else tuple(queries),
        told["pool"],
        told["reason"],
    )


def _measure(desk: _Desk, settings: BenchmarkSettings) -> Work:
    """Lay a few pairs of the beginning of every sample, and see how long that takes."""
    pairs = shuffled_pairs(desk.collection, settings.seed)
    queries = shuffled_queries(desk.collection, settings.seed)
    if not pairs:
        return Work(0, 0, 0, 0, 0.0, 0.0)
    match_s = _seconds_each(desk, "matching", pairs)
    if not desk.entrant.judged:
        return Work(len(pairs), len(queries), 0, 0, match_s, 0.0)
    count = len(desk.candidates(Sample(), settings.seed).pairs())
    first = desk.candidates(Sample(queries=(queries[0],)), settings.seed).pairs()
    search_s = _seconds_each(desk, "search", first[:: max(1, len(first) // _PROBED)])
    return Work(len(pairs), len(queries), max(0, count - len(pairs)), len(first), match_s, search_s)


def _seconds_each(desk: _Desk, stage: str, pairs: Sequence[Pair]) -> float:
    """Seconds for one of the first pairs; a stopped run has asked some of them before."""
    desk.lay(stage, pairs[:_PROBED])
    return seconds_a_pair(desk.out / "costs.jsonl", stage)
