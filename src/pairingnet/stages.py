"""The stages between pieces and joins. Each looks at what the run folder holds and does only what is missing."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

from pairingnet.config import SolveSettings
from pairingnet.engine.jobs import Workers, run_jobs
from pairingnet.io.collection import Collection
from pairingnet.io.files import write_json
from pairingnet.io.run import append_joins, read_joins
from pairingnet.match.candidates import Candidates
from pairingnet.match.many import Source, match_many, method_of, write_levels
from pairingnet.match.ring import RingFeatures
from pairingnet.match.store import feature_path, read_features, write_features
from pairingnet.match.weights import load_model
from pairingnet.prepare.load import load_fragments
from pairingnet.prepare.strip import working_step
from pairingnet.types import PairMatch

_CHUNK = 16  # fragments in a job


def source_of(collection: Collection, weights: Path, run: Path, device: str = "cpu") -> Source:
    """Where the stages of a run find what they need; the working scale is the one it began with."""
    path = run / "scale.json"
    if not path.is_file():
        points = load_model(weights).network.settings.points
        write_json(path, {"step_px": working_step([record.perimeter_px for record in collection.fragments], points)})
    return Source(weights, run / "features", run / "levels.npz", step_of(run), device)


def step_of(run: Path) -> float:
    """The working scale of a run."""
    return float(json.loads((run / "scale.json").read_text(encoding="utf-8"))["step_px"])


def forget_changed(collection: Collection, source: Source, joins: Path) -> None:
    """Drop what is known of fragments whose images have changed since."""
    changed = set()
    for record in collection.fragments:
        known = feature_path(source.features, record.id)
        image = collection.folder / record.image
        if known.is_file() and known.stat().st_mtime_ns < image.stat().st_mtime_ns:
            known.unlink()
            changed.add(record.id)
    if changed:
        kept = [join for join in read_joins(joins) if not {join.source, join.target} & changed]
        joins.unlink(missing_ok=True)
        append_joins(joins, kept)


def compute_features(collection: Collection, source: Source, jobs: Workers = 0) -> list[RingFeatures]:
    """Features of all fragments, with what each of their points finds anywhere."""
    ids = [record.id for record in collection.fragments]
    missing = [name for name in ids if not feature_path(source.features, name).is_file()]
    # Each job gets the lines of its own fragments: to read the whole list in every job would take longer than the job.
    parts = [collection.only(missing[first : first + _CHUNK]) for first in range(0, len(missing), _CHUNK)]
    # One process feeds a graphics card; several would only fight for it.
    run_jobs(partial(_store_features, source), parts, jobs if source.device == "cpu" else 1, "features")
    features = method_of(source).know([read_features(source.features, name) for name in ids])
    write_levels(source.levels, features)
    return features


def find_candidates(features: Sequence[RingFeatures], source: Source, most: int) -> Candidates:
    """The most promising others of each fragment."""
    ranked, scores = method_of(source).rank(features, most)
    return Candidates(tuple(each.id for each in features), ranked, scores)


def pairs_to_match(
    features: Sequence[RingFeatures], source: Source, settings: SolveSettings, known: Path
) -> list[tuple[str, str]]:
    """All pairs of a small collection, the candidates of a large one; those are kept in a file."""
    ids = [each.id for each in features]
    if len(ids) <= settings.all_pairs_up_to:
        return list(combinations(ids, 2))
    mark = f"{zlib.crc32(b''.join(each.side.queries.tobytes() for each in features)):08x}"
    if known.is_file():
        told = json.loads(known.read_text(encoding="utf-8"))
        if told["made_from"] == mark:
            return [(entry["source"], entry["target"]) for entry in told["candidates"]]
    pairs = find_candidates(features, source, settings.candidates).pairs()
    entries = [{"source": a, "target": b} for a, b in pairs]
    write_json(known, {"version": 1, "made_from": mark, "candidates": entries})
    return pairs


def match_missing(
    pairs: Sequence[tuple[str, str]], source: Source, path: Path, jobs: Workers = 0
) -> tuple[list[PairMatch], int]:
    """Lay pairs on each other unless that was done before; all joins, the likeliest first, and how many are new."""
    known = {join.pair: join for join in read_joins(path)}
    missing = [pair for pair in pairs if frozenset(pair) not in known]
    match_many(source, missing, jobs, lambda part: append_joins(path, part))
    known = {join.pair: join for join in read_joins(path)}
    joins = [known[frozenset(pair)] for pair in pairs if frozenset(pair) in known]
    return sorted(joins, key=lambda match: (-match.score, match.source, match.target)), len(missing)


def _store_features(source: Source, part: Collection) -> None:
    for features in method_of(source).features(load_fragments(part)):
        write_features(source.features, features)
