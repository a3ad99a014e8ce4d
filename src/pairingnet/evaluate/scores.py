"""Predictions and truth -> the paper's table: one row for all pairs and one for each difficulty."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairingnet.evaluate.metrics import (
    STRICT_THRESHOLDS_PX,
    MatchErrors,
    both_directions,
    by_difficulty,
    match_errors,
    match_scores,
    ndcg_at_k,
    recall_at_k,
)
from pairingnet.evaluate.predictions import Predictions
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.types import TruePair

KS = (5, 10, 20)


@dataclass(frozen=True)
class ScoreRow:
    """One line of the table."""

    method: str
    difficulty: str
    pairs: int
    values: dict[str, float]


def score(collection: Collection, predictions: Predictions) -> list[ScoreRow]:
    """All metrics of the paper, and RR at 2, 4 and 8 px, of a method that was asked everything. Neighbours are looked
    for in both directions."""
    pairs = true_numbers(collection, predictions.ids)
    errors = pair_errors(collection, predictions)
    rows = []
    for difficulty, where in by_difficulty([pair.difficulty for pair in collection.pairs]).items():
        queries = both_directions(pairs[where])
        matching = match_scores([errors[i] for i in where])
        searched = queries if predictions.ranked.size else queries[:0]  # a method that ranks nobody has no R@k
        values = {f"R@{k}": recall_at_k(predictions.ranked, searched, k) for k in KS}
        values |= {f"NDCG@{k}": ndcg_at_k(predictions.ranked, searched, k) for k in KS}
        values |= {"RR": matching.rr, "HD": matching.hd_px, "RE": matching.re_rad, "NTE e-4": 1e4 * matching.nte}
        values |= {f"<{limit:.0f} px": matching.within[limit] for limit in STRICT_THRESHOLDS_PX}
        rows.append(ScoreRow(predictions.method, difficulty, len(where), values))
    return rows


def true_numbers(collection: Collection, ids: Sequence[str]) -> NDArray[np.intp]:
    """(P, 2): the true pairs, as places in the list of ids."""
    number = {name: i for i, name in enumerate(ids)}
    pairs = [(number[pair.source], number[pair.target]) for pair in collection.pairs]
    return np.array(pairs, dtype=np.intp).reshape(-1, 2)


def pair_errors(collection: Collection, predictions: Predictions) -> list[MatchErrors]:
    """The errors of every true pair, in the collection's order."""
    return [
        errors_of(collection, pair, predictions.transforms.get((pair.source, pair.target))) for pair in collection.pairs
    ]


def as_markdown(rows: Sequence[ScoreRow]) -> str:
    """The table for a page, and for the eye."""
    names = list(rows[0].values) if rows else []
    lines = ["| method | difficulty | pairs | " + " | ".join(names) + " |", "|---" * (3 + len(names)) + "|"]
    for row in rows:
        cells = [short_number(value) for value in row.values.values()]
        lines.append("| " + " | ".join([row.method, row.difficulty, str(row.pairs), *cells]) + " |")
    return "\n".join(lines)


def as_csv(rows: Sequence[ScoreRow]) -> str:
    """The table for a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "difficulty", "pairs", *(rows[0].values if rows else [])])
    for row in rows:
        cells = ["" if np.isnan(value) else f"{value:.6g}" for value in row.values.values()]
        writer.writerow([row.method, row.difficulty, row.pairs, *cells])
    return text.getvalue()


def as_json(rows: Sequence[ScoreRow]) -> str:
    """The table for a program; what is not known is null."""
    told = []
    for row in rows:
        values = {name: None if np.isnan(value) else value for name, value in row.values.items()}
        told.append({"method": row.method, "difficulty": row.difficulty, "pairs": row.pairs, **values})
    return json.dumps(told, indent=1)


def errors_of(collection: Collection, pair: TruePair, found: Rigid2D | None) -> MatchErrors:
    """The errors of one true pair."""
    source, target = collection.by_id[pair.source], collection.by_id[pair.target]
    assert source.canvas_from_fragment is not None
    shared = source.canvas_from_fragment.inverse().apply(pair.seam)
    return match_errors(found, collection.target_from_source(pair), shared, source.area_px, target.area_px)


def short_number(value: float) -> str:
    """Three digits behind the point, or one for what is large; "-" for nothing."""
    if np.isnan(value):
        return "-"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"
