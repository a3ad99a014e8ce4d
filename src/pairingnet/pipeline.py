"""The system on one page: scans -> fragments -> features -> candidates -> matches -> groups -> report.

Each stage looks at what the run folder holds and does only what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pairingnet.assemble.together import put_together
from pairingnet.config import SolveSettings
from pairingnet.engine.jobs import Workers
from pairingnet.errors import CollectionError
from pairingnet.io.collection import FILE_NAME, Collection, read_collection
from pairingnet.io.decisions import append_decision, decision_on, read_decisions, standing
from pairingnet.io.frames import moved_match, piece_offsets, scan_offsets
from pairingnet.io.resume import content_mark, remember_settings, settings_then
from pairingnet.io.run import read_joins, read_matches
from pairingnet.match.first_filter import FirstFilter
from pairingnet.match.store import read_features
from pairingnet.match.weights import SHIPPED
from pairingnet.prepare.collect import PrepareJob, prepare_collection, problems_of
from pairingnet.review.results import is_older, store_results
from pairingnet.settings import as_dict, solve_settings
from pairingnet.stages import compute_features, forget_changed, match_missing, pairs_to_match, source_of, step_of
from pairingnet.types import Assembly, Decisions, PairMatch

_NO_SETTINGS = ("weights", "first_filter", "first_filter_keep")  # but remembered with them


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
    first_filter: FirstFilter | None = None,
) -> Solution:
    """Find the fragments in a folder of scans, which of them were neighbours, and put them together."""
    scans, run, settings = Path(scans), Path(run), settings or SolveSettings()
    told = {**as_dict(settings), "weights": content_mark(weights), **(first_filter.describe() if first_filter else {})}
    remember_settings(run, "run", told)
    prepared = prepare_collection(scans, run / "pieces", PrepareJob(settings.prepare), jobs, leave_out=run)
    collection = prepared.collection
    source = source_of(collection, weights, run, device)
    forget_changed(collection, source, run / "joins.jsonl")
    features = compute_features(collection, source, jobs)
    asked = pairs_to_match(features, source, settings, run / "candidates.json")
    if first_filter is not None:
        asked = first_filter.passing(asked, collection, run / "vectors")
    joins, made_now = match_missing(asked, source, run / "joins.jsonl", jobs)
    decisions = decisions_of(run, collection)
    outlines = {each.id: each.outline for each in features}
    matches, assembly = put_together(outlines, joins, source.step_px, settings, decisions)
    made_of = (collection.folder / FILE_NAME, run / "decisions.jsonl")
    news = bool(made_now or prepared.prepared_now) or is_older(run / "report.html", made_of)
    if news:
        store_results(run, collection, matches, assembly, prepared.bad_files, decisions, jobs)
    return Solution(run, collection, tuple(matches), assembly, prepared.bad_files, news)


def decide(run: Path, what: str, source: str, target: str, who: str | None = None) -> Solution:
    """Note what a person says about two fragments of a finished run, and put the fragments together anew."""
    told = settings_then(run, "run")
    settings = solve_settings({name: value for name, value in told.items() if name not in _NO_SETTINGS})
    collection = read_collection(run / "pieces")
    joins = read_joins(run / "joins.jsonl")
    offsets = scan_offsets(collection)
    unknown = [name for name in (source, target) if name not in offsets]
    if unknown:
        raise CollectionError(f"There is no fragment '{unknown[0]}' in {run}.", "Its ids are in assembly.json.")
    found = [moved_match(join, offsets) for join in joins if {join.source, join.target} == {source, target}]
    shown = [join for join in read_matches(run / "matches.json") if {join.source, join.target} == {source, target}]
    join = next(iter([*shown, *found]), PairMatch(source, target, None))
    append_decision(run / "decisions.jsonl", decision_on(join, what, who, told["weights"]))
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

    def known(joins: Sequence[PairMatch]) -> list[PairMatch]:
        return [moved_match(join, offsets) for join in joins if {join.source, join.target} <= set(offsets)]

    return replace(said, locked=known(said.locked), seen=known(said.seen))
