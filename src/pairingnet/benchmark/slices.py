"""Slices: collections that differ in one thing each, all made from the same pictures, with all methods on every one.

OUT/torn/...                        the torn collections; slices that are torn alike share one
OUT/SLICE/SEED/pieces/              a slice's own images, where they are not shown as they were torn (grey, canny)
OUT/SLICE/SEED/METHOD/              answers of a method (ask.py)
OUT/SLICE/SEED/benchmark.md ...     its table
OUT/slices.md, .csv, .json, .png    all slices and methods, over all seeds
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pairingnet.benchmark.run import Bench, benchmark
from pairingnet.benchmark.table import cell, write_text
from pairingnet.config import WEAR_LEVELS, SliceSettings, TearSettings
from pairingnet.errors import SettingsError
from pairingnet.evaluate.intervals import Estimate, estimate, together
from pairingnet.evaluate.scores import short_number
from pairingnet.io.collection import Collection, read_collection, write_collection
from pairingnet.io.files import write_whole
from pairingnet.io.images import write_png
from pairingnet.io.resume import remember_settings
from pairingnet.prepare.load import load_fragment
from pairingnet.prepare.patches import textured
from pairingnet.settings import read_tables, with_values
from pairingnet.synth.collect import TearJob, tear_collection

SHOWN = ("R@5", "R@20", "NDCG@10", "RR", "RR High", "<2 px", "<4 px", "no pose", "ECE")  # the other files have all
SHOWN_COSTS = ("ms a matched pair, CPU", "ms a query, CPU")

SLICES: Mapping[str, SliceSettings] = {
    "turned": SliceSettings(),
    "upright": SliceSettings(rotate=False),
    "fragment-split": SliceSettings(rotate=False, split="paper", part="test"),
    "grey": SliceSettings(texture="grey"),
    "canny": SliceSettings(texture="canny"),
    "worn-light": SliceSettings(wear="light"),
    "worn-medium": SliceSettings(wear="medium"),
    "worn-heavy": SliceSettings(wear="heavy"),
    "sherds": SliceSettings(wear="sherds"),
    "straight": SliceSettings(straight=1.0),
}
_FIRST = "first-"  # and a number: the first so many pictures


@dataclass(frozen=True, eq=False)
class Entry:
    """One method on one slice, over all seeds."""

    slice: str
    method: str
    seeds: int
    fragments: int  # of one seed, on average
    sampled: bool
    estimates: Mapping[str, Estimate]
    costs: Mapping[str, float]


def read_slices(named: str) -> dict[str, SliceSettings]:
    """The slices of a TOML file, one table each; or those of a list of names."""
    if named.endswith(".toml"):
        tables = read_tables(Path(named))
        return {name: with_values(SliceSettings(), values, f"[{name}]") for name, values in tables.items()}
    return {name: _named(name) for name in (part.strip() for part in named.split(",")) if name}


def benchmark_slices(
    pictures: Path,
    out: Path,
    bench: Bench,
    slices: Mapping[str, SliceSettings],
    seeds: Sequence[int],
    tearing: Mapping[str, Any] | None = None,
) -> list[Entry]:
    """Tear what is missing, ask every method about every slice, and write the tables and the plots."""
    bench.check()
    if not slices:
        raise SettingsError("No slice was named.", f"They are: {', '.join(SLICES)}, {_FIRST}N; or give a TOML file.")
    settings = with_values(TearSettings(), tearing or {}, "tear")
    entries: list[Entry] = []
    for name, chosen in slices.items():
        remember_settings(out / name, "slice", {**asdict(chosen), "pictures_from": pictures.name})
        found = []
        for seed in seeds:
            print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
            collection = slice_collection(pictures, out, name, chosen, settings, seed)
            own = replace(bench, settings=replace(bench.settings, seed=seed))
            data = (
                f"{pictures.name}, {name}, seed {seed}: {len(collection)} fragments, {len(collection.pairs)} true pairs"
            )
            found.append((len(collection), benchmark(collection, out / name / str(seed), own, data)))
        fragments = round(float(np.mean([count for count, _ in found])))
        for number, method in enumerate(bench.methods):
            columns = [table.columns[number] for _, table in found]
            metrics = [metric for metric in columns[0].tallies if all(metric in each.tallies for each in columns)]
            estimates = {metric: estimate(together([each.tallies[metric] for each in columns])) for metric in metrics}
            costs = {cost: float(np.mean([each.costs[cost] for each in columns])) for cost in columns[0].costs}
            sampled = any(each.sampled for each in columns)
            entries.append(Entry(name, method, len(seeds), fragments, sampled, estimates, costs))
        write_summary(out, entries)
    return entries


def slice_collection(
    pictures: Path, out: Path, name: str, chosen: SliceSettings, tearing: TearSettings, seed: int
) -> Collection:
    """The fragments of a slice, torn and shown as it says."""
    wear = WEAR_LEVELS[chosen.wear]
    wear = replace(wear, straight=max(wear.straight, chosen.straight))
    job = TearJob(replace(tearing, rotate=chosen.rotate), wear, seed)
    torn_as = "turned" if chosen.rotate else "upright"
    folder = out / "torn" / f"{torn_as}-{chosen.wear}-straight{wear.straight:g}-{chosen.split}-{seed}"
    result = tear_collection(pictures, folder, job, chosen.split)
    for problem in result.bad_files:
        print(f"left out: {problem}", file=sys.stderr)
    collection = result.collection
    if chosen.part:
        collection = collection.part(chosen.part)
    if chosen.pictures:
        collection = first_pictures(collection, chosen.pictures)
    if chosen.texture != "rgb":
        collection = recoloured(collection, out / name / str(seed) / "pieces", chosen.texture)
    return collection


def first_pictures(collection: Collection, count: int) -> Collection:
    """Only the fragments of the first pictures, and the pairs among them."""
    sources = dict(list(collection.sources.items())[:count])
    kept = tuple(record for record in collection.fragments if record.source in sources)
    ids = {record.id for record in kept}
    pairs = tuple(pair for pair in collection.pairs if pair.source in ids and pair.target in ids)
    return replace(collection, fragments=kept, pairs=pairs, sources=sources)


def recoloured(collection: Collection, out: Path, texture: str) -> Collection:
    """The same fragments in a folder of their own, grey or as edges: no method sees the colours."""
    remember_settings(out, "recoloured", {"texture": texture, "from": collection.mark})
    for record in collection.fragments:
        if not (out / record.image).is_file():
            fragment = load_fragment(collection, record.id)
            pixels = np.dstack([textured(fragment, texture), fragment.alpha])
            write_whole(out / record.image, partial(write_png, pixels=pixels))
    write_collection(replace(collection, folder=out, made_by={**collection.made_by, "texture": texture}))
    return read_collection(out)


def as_markdown(entries: Sequence[Entry]) -> str:
    """One line a slice and method."""
    names = ["slice", "method", "fragments", "seeds", *SHOWN, *SHOWN_COSTS]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for each in entries:
        told = [each.slice, each.method + (" (sampled)" if each.sampled else ""), str(each.fragments), str(each.seeds)]
        told += [cell(each.estimates[name]) if name in each.estimates else "-" for name in SHOWN]
        told += [short_number(each.costs[name]) for name in SHOWN_COSTS]
        lines.append("| " + " | ".join(told) + " |")
    return "\n".join(lines)


def as_csv(entries: Sequence[Entry]) -> str:
    """One line a slice, method and number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["slice", "method", "fragments", "seeds", "sampled", "metric", "value", "low", "high", "items"])
    for each in entries:
        head = [each.slice, each.method, each.fragments, each.seeds, each.sampled]
        for name, told in each.estimates.items():
            writer.writerow([*head, name, *(f"{v:.6g}" for v in (told.value, told.low, told.high)), told.items])
        for name, value in each.costs.items():
            writer.writerow([*head, name, f"{value:.6g}", "", "", ""])
    return text.getvalue()


def as_json(entries: Sequence[Entry]) -> str:
    """The same for programs; what is not known is null."""
    told = [
        {
            **{name: getattr(each, name) for name in ("slice", "method", "fragments", "seeds", "sampled")},
            "metrics": {name: _without_nan(asdict(value)) for name, value in each.estimates.items()},
            "costs": _without_nan(each.costs),
        }
        for each in entries
    ]
    return json.dumps({"version": 1, "slices": told}, indent=1)


def write_summary(out: Path, entries: Sequence[Entry]) -> None:
    """The table in all its forms, and the plots."""
    from pairingnet.evaluate.plots import slices_figure

    for ending, text in (("md", as_markdown(entries) + "\n"), ("csv", as_csv(entries)), ("json", as_json(entries))):
        write_text(out / f"slices.{ending}", text)
    shown = {
        name: {(each.slice, each.method): each.estimates[name] for each in entries if name in each.estimates}
        for name in ("R@5", "RR")
    }
    per_pair = {(each.slice, each.method): each.costs[SHOWN_COSTS[0]] for each in entries}
    slices_figure(shown, per_pair, out / "slices.png")


def _named(name: str) -> SliceSettings:
    number = name.removeprefix(_FIRST)
    if name.startswith(_FIRST) and number.isdigit() and int(number):
        return SliceSettings(pictures=int(number))
    if name not in SLICES:
        raise SettingsError(
            f"There is no slice '{name}'.", f"They are: {', '.join(SLICES)}, {_FIRST}N; or a TOML file."
        )
    return SLICES[name]


def _without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    return {n: None if isinstance(v, float) and np.isnan(v) else v for n, v in values.items()}
