"""The system on one page: scans -> fragments -> features -> candidates -> matches -> groups -> report.

Each stage looks at what the run folder holds and does only what is missing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path

from pairingnet.assemble.belief import reconsider, with_joins
from pairingnet.assemble.layout import Table
from pairingnet.assemble.merge import assemble
from pairingnet.config import SolveSettings, as_dict, solve_settings
from pairingnet.engine.jobs import Workers, run_jobs
from pairingnet.errors import CollectionError
from pairingnet.io.collection import FILE_NAME, Collection, read_collection
from pairingnet.io.decisions import append_decision, decision_on, is_decided, read_decisions, standing
from pairingnet.io.files import write_json, write_whole
from pairingnet.io.frames import moved_assembly, moved_match, piece_offsets, scan_offsets
from pairingnet.io.images import write_png
from pairingnet.io.resume import content_mark, remember_settings, settings_then
from pairingnet.io.run import append_joins, read_joins, write_assembly, write_matches
from pairingnet.match.candidates import Candidates
from pairingnet.match.contact import Outline
from pairingnet.match.many import Source, match_many, method_of, write_levels
from pairingnet.match.ring import RingFeatures
from pairingnet.match.store import feature_path, read_features, write_features
from pairingnet.match.weights import SHIPPED, load_model
from pairingnet.prepare.collect import PrepareJob, prepare_collection, problems_of
from pairingnet.prepare.load import load_fragment
from pairingnet.prepare.strip import working_step
from pairingnet.review.pictures import group_picture
from pairingnet.review.report import Report, write_report
from pairingnet.types import Assembly, Decisions, Fragment, PairMatch

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
    jobs: Workers = 0,
    device: str = "cpu",
) -> Solution:
    """Find the fragments in a folder of scans, which of them were neighbours, and put them together."""
    scans, run, settings = Path(scans), Path(run), settings or SolveSettings()
    remember_settings(run, "run", {**as_dict(settings), "weights": content_mark(weights)})
    prepared = prepare_collection(scans, run / "pieces", PrepareJob(settings.prepare), jobs, leave_out=run)
    collection = prepared.collection
    source = source_of(collection, weights, run, device)
    forget_changed(collection, source, run / "joins.jsonl")
    features = compute_features(collection, source, jobs)
    asked = pairs_to_match(features, source, settings, run / "candidates.json")
    joins, made_now = match_missing(asked, source, run / "joins.jsonl", jobs)
    decisions = decisions_of(run, collection)
    outlines = {each.id: each.outline for each in features}
    matches, assembly = put_together(outlines, joins, source.step_px, settings, decisions)
    made_of = (collection.folder / FILE_NAME, run / "decisions.jsonl")
    news = bool(made_now or prepared.prepared_now) or is_older(run / "report.html", made_of)
    if news:
        store_results(run, collection, matches, assembly, prepared.bad_files, decisions)
    return Solution(run, collection, tuple(matches), assembly, prepared.bad_files, news)


def put_together(
    outlines: Mapping[str, Outline],
    joins: Sequence[PairMatch],
    step_px: float,
    settings: SolveSettings,
    decisions: Decisions | None = None,
) -> tuple[list[PairMatch], Assembly]:
    """The joins that are worth a look, and groups of fragments; both know of each other."""
    decisions = decisions or Decisions()
    likely = [join for join in joins if join.probability >= settings.least or is_decided(join, decisions)]
    assembly = assemble(outlines, likely, step_px, settings.assemble, decisions)
    matches = reconsider(Table(outlines, settings.assemble, step_px), assembly, likely)
    return matches, with_joins(assembly, matches)


def decide(run: Path, what: str, source: str, target: str, who: str | None = None) -> Solution:
    """Note what a person says about two fragments of a finished run, and put the fragments together anew."""
    told = settings_then(run, "run")
    settings = solve_settings({name: value for name, value in told.items() if name != "weights"})
    collection = read_collection(run / "pieces")
    joins = read_joins(run / "joins.jsonl")
    offsets = scan_offsets(collection)
    unknown = [name for name in (source, target) if name not in offsets]
    if unknown:
        raise CollectionError(f"There is no fragment '{unknown[0]}' in {run}.", "Its ids are in assembly.json.")
    known = {frozenset((join.source, join.target)): join for join in joins}
    found = known.get(frozenset((source, target)), PairMatch(source, target, None))
    append_decision(run / "decisions.jsonl", decision_on(moved_match(found, offsets), what, who, told["weights"]))
    decisions = decisions_of(run, collection)
    outlines = {record.id: read_features(run / "features", record.id).outline for record in collection.fragments}
    matches, assembly = put_together(outlines, joins, step_of(run), settings, decisions)
    left_out = problems_of(run / "pieces")
    store_results(run, collection, matches, assembly, left_out, decisions)
    return Solution(run, collection, tuple(matches), assembly, left_out, True)


def decisions_of(run: Path, collection: Collection) -> Decisions:
    """What people have said about a run's joins, in pixels of its pieces."""
    said = standing(read_decisions(run / "decisions.jsonl"))
    offsets = piece_offsets(collection)
    known = [join for join in said.locked if {join.source, join.target} <= set(offsets)]
    return replace(said, locked=[moved_match(join, offsets) for join in known])


def is_older(made: Path, made_of: Iterable[Path]) -> bool:
    """Whether a file is missing, or older than what it is made of."""
    if not made.is_file():
        return True
    return any(path.is_file() and path.stat().st_mtime_ns > made.stat().st_mtime_ns for path in made_of)


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
    chunks = [missing[first : first + _CHUNK] for first in range(0, len(missing), _CHUNK)]
    # One process feeds a graphics card; several would only fight for it.
    run_jobs(
        partial(_store_features, collection.folder, source), chunks, jobs if source.device == "cpu" else 1, "features"
    )
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
    known = {frozenset((join.source, join.target)): join for join in read_joins(path)}
    missing = [pair for pair in pairs if frozenset(pair) not in known]
    match_many(source, missing, jobs, lambda part: append_joins(path, part))
    known = {frozenset((join.source, join.target)): join for join in read_joins(path)}
    joins = [known[frozenset(pair)] for pair in pairs if frozenset(pair) in known]
    return sorted(joins, key=lambda match: (-match.score, match.source, match.target)), len(missing)


def store_results(
    run: Path,
    collection: Collection,
    matches: Sequence[PairMatch],
    assembly: Assembly,
    left_out: Sequence[str],
    decisions: Decisions,
) -> None:
    """Write what was found: for programs, and to look at."""
    fragment: partial[Fragment] = partial(_fragment, str(collection.folder))
    offsets = scan_offsets(collection)
    write_matches(run / "matches.json", [moved_match(match, offsets) for match in matches])
    scans = {record.id: record.origin for record in collection.fragments}
    write_assembly(run / "assembly.json", moved_assembly(assembly, offsets), scans)
    for old in (run / "groups").glob("group-*.png"):
        old.unlink()
    for number, group in enumerate(assembly.groups, start=1):
        picture = group_picture({name: fragment(name) for name in group.poses}, group, longest_px=10**6)
        path = run / "groups" / f"group-{number:02d}.png"
        write_whole(path, partial(write_png, pixels=picture.pixels))
    title = f"{len(collection)} fragments of {run.name}"
    write_report(run / "report.html", Report(title, assembly, matches, left_out, decisions), fragment)


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
