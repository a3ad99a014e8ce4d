"""What is known of a collection as a whole, and what every match in it is judged by.

How well two points go together says little where each goes with many others: scores are normalised by what a cohort
of the collection's own points reaches (cohort score normalisation, as in speaker verification). Two numbers more: how
many fragments there are, for among many more fit by chance, and how loosely the surest matches lie, for worn pieces
never lie tightly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairingnet.io.arrays import read_arrays, write_arrays
from pairingnet.match.ring import RingFeatures, RingMethod


@dataclass(frozen=True, eq=False)
class CollectionStatistics:
    """levels: of each fragment (N, 2), what its queries and keys reach in the cohort; num_fragments;
    typical_residual_steps: between the contours of the surest matches, NaN where there are none; fingerprint: of the
    features that all this follows from."""

    levels: Mapping[str, NDArray[np.float32]]
    num_fragments: int
    typical_residual_steps: float
    fingerprint: str

    def applied_to(self, features: RingFeatures) -> RingFeatures:
        """A fragment that knows its collection."""
        of_query, of_key = np.ascontiguousarray(self.levels[features.id].T)
        side = replace(
            features.side,
            query_level=of_query,
            key_level=of_key,
            crowd=self.num_fragments,
            usual_loose=self.typical_residual_steps,
        )
        return replace(features, side=side)


def collection_statistics(
    method: RingMethod, features: Sequence[RingFeatures], fingerprint: str
) -> CollectionStatistics:
    """Measure a collection; the order of its fragments does not count."""
    known = method.know(features)
    levels = {each.id: np.stack([each.side.query_level, each.side.key_level], axis=1) for each in known}
    residual = known[0].side.usual_loose if known else float("nan")
    return CollectionStatistics(levels, len(known), residual, fingerprint)


def write_statistics(path: Path, statistics: CollectionStatistics) -> None:
    """Store them for processes that match."""
    ids = sorted(statistics.levels)
    each = [statistics.levels[name] for name in ids]
    arrays: dict[str, NDArray[Any]] = {
        "ids": np.frombuffer(json.dumps(ids).encode(), np.uint8),
        "counts": np.array([len(levels) for levels in each], dtype=np.int64),
        "levels": np.concatenate(each) if each else np.zeros((0, 2), np.float32),
        "typical_residual_steps": np.array([statistics.typical_residual_steps]),
    }
    write_arrays(path, arrays, statistics.fingerprint)


def read_statistics(path: Path, fingerprint: str) -> CollectionStatistics | None:
    """As they were stored; None where there are none of just these features."""
    stored = read_arrays(path, fingerprint)
    if stored is None:
        return None
    ids = json.loads(stored["ids"].tobytes())
    levels = np.split(stored["levels"], np.cumsum(stored["counts"])[:-1])
    by_id = dict(zip(ids, levels, strict=True))
    return CollectionStatistics(by_id, len(ids), float(stored["typical_residual_steps"][0]), fingerprint)
