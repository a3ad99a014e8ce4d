"""One table of all methods: for the eye and a page (methods side by side), for a spreadsheet, for a program.

The code here sees names and numbers only.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pairingnet.evaluate.intervals import Estimate, Tally, estimate
from pairingnet.evaluate.predictions import Cost, Predictions
from pairingnet.evaluate.scores import short_number
from pairingnet.evaluate.tallies import METRICS, asked_pairs, bounds, tallies
from pairingnet.io.collection import Collection
from pairingnet.io.files import write_whole

STAGES = ("features", "start", "search", "matching", "assembly")  # start: loading, compiling, the first two pairs
_NAN = float("nan")


@dataclass(frozen=True, eq=False)
class Column:
    """One method: its tallies by metric, its costs by name, and what it was asked."""

    method: str
    tallies: Mapping[str, Tally]
    costs: Mapping[str, float]
    pairs: str
    queries: str
    sampled: str = ""  # why it was not asked everything

    def estimates(self) -> dict[str, Estimate]:
        """Every metric, NaN where the method does not allow it."""
        nothing = Estimate(_NAN, _NAN, _NAN, 0)
        return {name: estimate(self.tallies[name]) if name in self.tallies else nothing for name in METRICS}


@dataclass(frozen=True, eq=False)
class Table:
    """Methods side by side; data: what they were asked about; bounds: the best R@k that any ranking can reach."""

    data: str
    columns: tuple[Column, ...]
    bounds: Mapping[str, float] = field(default_factory=dict)


def column_of(collection: Collection, predictions: Predictions, name: str = "") -> Column:
    """What a method's stored answers amount to."""
    sample = predictions.sample
    all_pairs = len(collection.pairs)
    everyone = len({name for pair in collection.pairs for name in (pair.source, pair.target)})
    queries = everyone if sample.queries is None else len(sample.queries)
    return Column(
        name or predictions.method,
        tallies(collection, predictions),
        costs_of(predictions, queries),
        _of(len(asked_pairs(collection, predictions)), all_pairs),
        (_of(queries, everyone) if predictions.ranked.size else "none")
        + (f", each among {sample.pool}" if sample.pool else ""),
        sample.reason,
    )


def table_of(data: str, collection: Collection, predictions: Sequence[Predictions]) -> Table:
    """The table of several methods that were asked about one collection."""
    return Table(data, tuple(column_of(collection, each) for each in predictions), bounds(collection))


def costs_of(predictions: Predictions, queries: int) -> dict[str, float]:
    """Seconds of each stage, and milliseconds of a matched pair, of a query and of a pair laid in the search."""
    told: dict[str, float] = {}
    for stage in STAGES:
        cost = predictions.costs.get(stage)
        told[f"{stage}, wall s"] = _NAN if cost is None else cost.wall_s
        told[f"{stage}, CPU s"] = _NAN if cost is None else cost.cpu_s
    matching, search = (predictions.costs.get(stage, Cost()) for stage in ("matching", "search"))
    for what, cost, count in (
        ("matched pair", matching, matching.pairs),
        ("query", search, queries if "search" in predictions.costs else 0),
        ("pair laid in the search", search, search.pairs),
    ):
        told[f"ms a {what}, wall"] = 1e3 * cost.wall_s / count if count else _NAN
        told[f"ms a {what}, CPU"] = 1e3 * cost.cpu_s / count if count else _NAN
    return {**told, "peak memory, MB": predictions.peak_mb}


def as_markdown(table: Table) -> str:
    """Metrics below each other, methods side by side; intervals in brackets."""
    names = [column.method + (" (sampled)" if column.sampled else "") for column in table.columns]
    lines = ["| | " + " | ".join(names) + " |", "|---" * (1 + len(names)) + "|"]
    lines += [_line("true pairs", [column.pairs for column in table.columns])]
    lines += [_line("queries", [column.queries for column in table.columns])]
    estimates = [column.estimates() for column in table.columns]
    lines += [_line(_with_bound(name, table), [cell(each[name]) for each in estimates]) for name in METRICS]
    costs = list(table.columns[0].costs) if table.columns else []
    lines += [_line(name, [short_number(column.costs[name]) for column in table.columns]) for name in costs]
    notes = [f"{column.method} was asked a sample: {column.sampled}." for column in table.columns if column.sampled]
    told = f"{table.data}. In brackets: 95 % intervals, by drawing whole pictures again."
    return "\n".join([told, *notes, "", *lines])


def as_csv(table: Table) -> str:
    """One line a method; every metric with the ends of its interval."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = as_rows(table)
    writer.writerow(rows[0] if rows else [])
    writer.writerows([_plain(value) for value in row.values()] for row in rows)
    return text.getvalue()


def as_json(table: Table) -> str:
    """The same for programs; what is not known is null."""
    rows = [{name: _or_null(value) for name, value in row.items()} for row in as_rows(table)]
    return json.dumps({"version": 1, "data": table.data, "bounds": dict(table.bounds), "methods": rows}, indent=1)


def as_rows(table: Table) -> list[dict[str, Any]]:
    """One mapping a method."""
    rows = []
    for column in table.columns:
        row: dict[str, Any] = {"method": column.method, "sampled": column.sampled}
        row |= {"true pairs": column.pairs, "queries": column.queries}
        for name, told in column.estimates().items():
            row |= {name: told.value, f"{name} low": told.low, f"{name} high": told.high, f"{name} items": told.items}
        rows.append(row | dict(column.costs))
    return rows


def write_table(out: Path, name: str, table: Table) -> None:
    """OUT/NAME.md, .csv and .json."""
    for ending, text in (("md", as_markdown(table) + "\n"), ("csv", as_csv(table)), ("json", as_json(table) + "\n")):
        write_text(out / f"{name}.{ending}", text)


def write_text(path: Path, text: str) -> None:
    """A text, whole or not there."""
    write_whole(path, lambda file: file.write_text(text, encoding="utf-8"))


def cell(told: Estimate) -> str:
    """`0.914 [0.902, 0.926]`."""
    if np.isnan(told.low):
        return short_number(told.value)
    return f"{short_number(told.value)} [{short_number(told.low)}, {short_number(told.high)}]"


def _with_bound(name: str, table: Table) -> str:
    return f"{name} (at most {table.bounds[name]:.3f})" if name in table.bounds else name


def _line(name: str, cells: Sequence[str]) -> str:
    return "| " + " | ".join([name, *cells]) + " |"


def _of(some: int, everything: int) -> str:
    return f"{everything}" if some == everything else f"{some} of {everything}"


def _plain(value: Any) -> Any:
    return ("" if np.isnan(value) else f"{value:.6g}") if isinstance(value, float) else value


def _or_null(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value
