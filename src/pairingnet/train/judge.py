"""Our own system, asked about a collection with truth: the pipeline's stages, then its answers as predictions."""

from __future__ import annotations

import time
from pathlib import Path

from pairingnet import pipeline
from pairingnet.evaluate.predictions import Predictions, known_predictions, read_predictions, store_predictions
from pairingnet.io.collection import Collection
from pairingnet.io.resume import content_mark


def predict_ring(collection: Collection, weights: Path, out: Path, most: int = 40, jobs: int = 0) -> Predictions:
    """Ask about all fragments and all true pairs, unless `out` holds the answers already."""
    wanted = {"method": "ring", "collection": collection.mark, "weights": content_mark(weights), "candidates": most}
    known = known_predictions(out, wanted)
    if known is not None:
        return known
    seconds = {}
    source = pipeline.source_of(collection, weights, out)
    began = time.perf_counter()
    features = pipeline.compute_features(collection, source, jobs)
    seconds["features"], began = time.perf_counter() - began, time.perf_counter()
    candidates = pipeline.find_candidates(features, source, most)
    seconds["search"], began = time.perf_counter() - began, time.perf_counter()
    true = [(pair.source, pair.target) for pair in collection.pairs]
    named = {frozenset(pair) for pair in true}
    asked = true + [pair for pair in candidates.pairs() if frozenset(pair) not in named]
    matches, _ = pipeline.match_missing(asked, source, out / "joins.jsonl", jobs)
    seconds["matching"] = time.perf_counter() - began
    ranked = pipeline.rank_by_probability(candidates, matches)
    store_predictions(out, wanted, ranked.ids, ranked.ranked, ranked.scores, matches, seconds)
    return read_predictions(out)
