"""The system on one page: scans -> fragments -> features -> candidates -> matches -> groups -> report.

Each stage looks at what the run folder holds and does only what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pairingnet.assemble.merge import Decisions, assemble
from pairingnet.config import SolveSettings, as_dict
from pairingnet.engine.local import run_jobs
from pairingnet.io.collection import Collection, read_collection
from pairingnet.io.files import write_json, write_whole
from pairingnet.io.images import write_png
from pairingnet.io.resume import content_mark, remember_settings
from pairingnet.io.run import append_joins, read_joins, write_assembly, write_matches
from pairingnet.match.many import Source, match_many, method_of, write_levels
from pairingnet.match.ring import RingFeatures
from pairingnet.match.store import feature_path, read_features, write_features
from pairingnet.match.weights import SHIPPED, load_ring
from pairingnet.prepare.collect import PrepareJob, prepare_collection
from pairingnet.prepare.load import load_fragment
from pairingnet.prepare.strip import working_step
from pairingnet.review.pictures import group_picture
from pairingnet.review.report import Report, write_report
from pairingnet.types import Assembly, Fragment, PairMatch

_CHUNK = 16  # fragments in a job


@dataclass(frozen=True, eq=False)
class Solution:
    """What a run found, and where it lies; news is False where there was nothing to do."""

    run: Path
    collection: Collection
    matches: tuple[PairMatch, ...]
    assembly: Assembly
    left_out: tuple[str, ...]
    news: bool


def solve(
    scans: str | Path,
    run: str | Path,
    settings: SolveSettings | None = None,
    weights: Path = SHIPPED,
    jobs: int = 0,
    decisions: Decisions | None = None,
) -> Solution:
    """Find the fragments in a folder of scans, which of them were neighbours, and put them together."""
    scans, run, settings = Path(scans), Path(run), settings or SolveSettings()
    remember_settings(run, "run", {**as_dict(settings), "weights": content_mark(weights)})
    prepared = prepare_collection(scans, run / "pieces", PrepareJob(settings.prepare), jobs, leave_out=run)
    collection = prepared.collection
    source = source_of(collection, weights, run)
    forget_changed(collection, source, run / "joins.jsonl")
    features = compute_features(collection, source, jobs)
    asked = pairs_to_match(features, source, settings)
    joins, made_now = match_missing(asked, source, run / "joins.jsonl", jobs)
    matches = [match for match in joins if match.probability >= settings.least]
    outlines = {each.id: each.outline for each in features}
    assembly = assemble(outlines, matches, source.step_px, settings.assemble, decisions)
    news = bool(made_now or prepared.prepared_now or not (run / "report.html").is_file())
    if news or decisions is not None:
        store_results(run, collection, matches, assembly, prepared.bad_files)
    return Solution(run, collection, tuple(matches), assembly, prepared.bad_files, news)


def source_of(collection: Collection, weights: Path, run: Path) -> Source:
    """Where the stages of a run find what they need; the working scale is the one it began with."""
    path = run / "scale.json"
    if not path.is_file():
        network, _ = load_ring(weights)
        step_px = working_step([record.perimeter_px for record in collection.fragments], network.settings.points)
        write_json(path, {"step_px": step_px})
    step_px = float(json.loads(path.read_text(encoding="utf-8"))["step_px"])
    return Source(weights, run / "features", run / "levels.npz", step_px)


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


def compute_features(collection: Collection, source: Source, jobs: int = 0) -> list[RingFeatures]:
    """Features of all fragments, with what each of their points finds anywhere."""
    ids = [record.id for record in collection.fragments]
    missing = [name for name in ids if not feature_path(source.features, name).is_file()]
    chunks = [missing[first : first + _CHUNK] for first in range(0, len(missing), _CHUNK)]
    run_jobs(partial(_store_features, collection.folder, source), chunks, jobs, "features")
    features = method_of(source).know([read_features(source.features, name) for name in ids])
    write_levels(source.levels, features)
    return features


@dataclass(frozen=True, eq=False)
class Candidates:
    """ids (F,); ranked (F, K) numbers of the best others, -1 for none; scores (F, K)."""

    ids: tuple[str, ...]
    ranked: NDArray[np.intp]
    scores: NDArray[np.float32]

    def pairs(self) -> list[tuple[str, str]]:
        """Each candidate pair once."""
        numbers = {(min(a, int(b)), max(a, int(b))) for a, row in enumerate(self.ranked) for b in row if b >= 0}
        return [(self.ids[a], self.ids[b]) for a, b in sorted(numbers)]


def find_candidates(features: Sequence[RingFeatures], source: Source, most: int) -> Candidates:
    """The most promising others of each fragment."""
    ranked, scores = method_of(source).rank(features, most)
    return Candidates(tuple(each.id for each in features), ranked, scores)


def pairs_to_match(features: Sequence[RingFeatures], source: Source, settings: SolveSettings) -> list[tuple[str, str]]:
    """All pairs of a small collection, the candidates of a large one."""
    if len(features) <= settings.all_pairs_up_to:
        return list(combinations([each.id for each in features], 2))
    return find_candidates(features, source, settings.candidates).pairs()


def match_missing(
    pairs: Sequence[tuple[str, str]], source: Source, path: Path, jobs: int = 0
) -> tuple[list[PairMatch], int]:
    """Lay pairs on each other unless that was done before; all joins, the likeliest first, and how many are new."""
    known = {frozenset((join.source, join.target)): join for join in read_joins(path)}
    missing = [pair for pair in pairs if frozenset(pair) not in known]
    match_many(source, missing, jobs, lambda part: append_joins(path, part))
    known = {frozenset((join.source, join.target)): join for join in read_joins(path)}
    joins = [known[frozenset(pair)] for pair in pairs if frozenset(pair) in known]
    return sorted(joins, key=lambda match: (-match.score, match.source, match.target)), len(missing)


def rank_by_probability(candidates: Candidates, matches: Iterable[PairMatch]) -> Candidates:
    """The candidates again, those with the likelier joins first."""
    score = {frozenset((match.source, match.target)): match.score for match in matches if match.target_from_source}
    scores = np.full(candidates.scores.shape, -np.inf, dtype=np.float32)
    for a, row in enumerate(candidates.ranked):
        for place, b in enumerate(row):
            if b >= 0:
                scores[a, place] = score.get(frozenset((candidates.ids[a], candidates.ids[b])), -1e6 - place)
    order = np.argsort(-scores, axis=1, kind="stable")
    return Candidates(
        candidates.ids,
        np.take_along_axis(candidates.ranked, order, axis=1),
        np.take_along_axis(scores, order, axis=1),
    )


def store_results(
    run: Path, collection: Collection, matches: Sequence[PairMatch], assembly: Assembly, left_out: Sequence[str]
) -> None:
    """Write what was found: for programs, and to look at."""
    fragment: partial[Fragment] = partial(_fragment, str(collection.folder))
    write_matches(run / "matches.json", matches)
    write_assembly(run / "assembly.json", assembly)
    for old in (run / "groups").glob("group-*.png"):
        old.unlink()
    for number, group in enumerate(assembly.groups, start=1):
        picture = group_picture({name: fragment(name) for name in group.poses}, group, longest_px=10**6)
        path = run / "groups" / f"group-{number:02d}.png"
        write_whole(path, partial(write_png, pixels=picture.pixels))
    title = f"{len(collection)} fragments of {run.name}"
    write_report(run / "report.html", Report(title, assembly, matches, left_out), fragment)


@lru_cache(maxsize=256)
def _fragment(folder: str, name: str) -> Fragment:
    return load_fragment(_collection(folder), name)


@lru_cache(maxsize=2)
def _collection(folder: str) -> Collection:
    return read_collection(folder)


def _store_features(folder: Path, source: Source, ids: list[str]) -> None:
    collection = read_collection(folder)
    for features in method_of(source).features(load_fragment(collection, name) for name in ids):
        write_features(source.features, features)
