"""Which true pairs and which queries a method is asked about.

Samples are the beginnings of one shuffled list, so that methods with equal samples are asked the same, and a small
sample is part of a larger one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairingnet.config import BenchmarkSettings
from pairingnet.evaluate.predictions import Pair, Sample
from pairingnet.io.collection import Collection

LEAST_PAIRS, LEAST_QUERIES = 20, 4  # of a sample that a limit asks for
_FOR_PAIRS = 0.3  # of the limit; searching has the rest


def shuffled_pairs(collection: Collection, seed: int) -> list[Pair]:
    """The true pairs in random order."""
    order = np.random.default_rng([seed, 1]).permutation(len(collection.pairs))
    return [(collection.pairs[i].source, collection.pairs[i].target) for i in order]


def shuffled_queries(collection: Collection, seed: int) -> list[str]:
    """The fragments that have neighbours, in random order: others have no right answer."""
    have = {name for pair in collection.pairs for name in (pair.source, pair.target)}
    names = [record.id for record in collection.fragments if record.id in have]
    return [names[i] for i in np.random.default_rng([seed, 2]).permutation(len(names))]


def pool_of(query: int, neighbours: Sequence[int], count: int, size: int, seed: int) -> NDArray[np.intp]:
    """Numbers of the neighbours of a query, and of others at random, `size` together where there are so many."""
    others = np.setdiff1d(np.arange(count), [query, *neighbours])
    wanted = min(max(0, size - len(neighbours)), len(others))
    chosen = np.random.default_rng([seed, 3, query]).choice(others, wanted, replace=False)
    return np.sort(np.concatenate([np.array(neighbours, dtype=np.intp), chosen]))


def sample_of(collection: Collection, settings: BenchmarkSettings) -> Sample:
    """The sample that the settings ask for; all where they ask for none."""
    pairs, queries = shuffled_pairs(collection, settings.seed), shuffled_queries(collection, settings.seed)
    some_pairs = 0 < settings.sample_pairs < len(pairs)
    some_queries = 0 < settings.sample_queries < len(queries)
    pool = settings.pool if 0 < settings.pool < len(collection) - 1 else 0
    return Sample(
        tuple(pairs[: settings.sample_pairs]) if some_pairs else None,
        tuple(queries[: settings.sample_queries]) if some_queries else None,
        pool,
        "as asked" if some_pairs or some_queries or pool else "",
    )


@dataclass(frozen=True)
class Work:
    """What asking would take: pairs to match; queries, pairs to lay for all of them together, and for one of them alone
    (of two that are both asked, the pair between them is laid once); seconds for a pair of either kind."""

    pairs: int
    queries: int
    search_pairs: int
    pairs_a_query: int
    match_s: float
    search_s: float

    @property
    def total_s(self) -> float:
        return self.pairs * self.match_s + self.search_pairs * self.search_s


def sample_within(limit_s: float, work: Work, collection: Collection, seed: int) -> Sample:
    """As much as can be asked within a limit; all where that is enough."""
    if work.total_s <= limit_s:
        return Sample()
    searching_s = work.search_pairs * work.search_s
    # Where one of the two is cheap, the other has what it leaves.
    for_pairs_s = max(_FOR_PAIRS * limit_s, limit_s - searching_s)
    pairs = max(LEAST_PAIRS, int(for_pairs_s / work.match_s))
    left_s = limit_s - min(pairs, work.pairs) * work.match_s
    a_query_s = work.pairs_a_query * work.search_s
    enough = searching_s <= max(0.0, left_s)
    queries = work.queries if enough else max(LEAST_QUERIES, int(left_s / a_query_s))
    return Sample(
        tuple(shuffled_pairs(collection, seed)[:pairs]) if pairs < work.pairs else None,
        tuple(shuffled_queries(collection, seed)[:queries]) if queries < work.queries else None,
        reason=f"all of it would take about {_lasting(work.total_s)}, the limit is {_lasting(limit_s)}",
    )


def _lasting(seconds: float) -> str:
    """`40 s`, `24 min` or `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
