"""The system on one page: scans -> fragments -> features -> statistics -> candidates -> matches -> groups -> report.

Each stage looks at what the run folder holds and does only what is missing. What it holds is known by fingerprints of
what it was made of (`io/manifest.py`), so the answer does not depend on how the run came about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

from pairingnet import __version__
from pairingnet.assembly.layout import lay_out
from pairingnet.config import SolveSettings
from pairingnet.engine.jobs import Workers
from pairingnet.errors import CollectionError
from pairingnet.io.collection import FILE_NAME, Collection, read_collection
from pairingnet.io.decisions import (
    Decision,
    append_decision,
    decision_on,
    excluded,
    is_continued,
    mark_of,
    read_decisions,
    standing,
    under_new_names,
)
from pairingnet.io.fingerprint import fingerprint, fingerprint_of_file
from pairingnet.io.frames import moved_assembly, moved_match, piece_offsets, scan_offsets
from pairingnet.io.lock import one_writer
from pairingnet.io.manifest import Manifest
from pairingnet.io.resume import content_mark, remember_settings, settings_then
from pairingnet.io.run import read_assembly, read_joins, read_matches
from pairingnet.match.contact import Outline
from pairingnet.match.first_filter import FirstFilter
from pairingnet.match.guided import GuidedMatching
from pairingnet.match.many import features_in
from pairingnet.match.paper_weights import is_of_paper
from pairingnet.match.weights import SHIPPED
from pairingnet.paper_stages import join_by_paper, outlines_of
from pairingnet.prepare.collect import PrepareJob, left_out_of, prepare_collection, refuse_other_scans, remarks_of
from pairingnet.review.results import store_results
from pairingnet.settings import as_dict, solve_settings
from pairingnet.stages import (
    compute_features,
    guided_by,
    match_pairs,
    pairs_to_match,
    source_of,
    statistics_of,
    step_of,
    stored_in,
    stored_source,
)
from pairingnet.types import Assembly, Decisions, PairMatch

_NO_SETTINGS = ("weights", "first_filter", "first_filter_keep")  # but remembered with them

Told = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Solution:
    """What a run found, and where it lies; decisions: what people have said; news is False where there was nothing to
    do."""

    run: Path
    collection: Collection
    matches: tuple[PairMatch, ...]
    assembly: Assembly
    decisions: Decisions
    news: bool

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was wrong with the files that gave nothing."""
        return left_out_of(self.collection)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a person should know of how the fragments were found."""
        return remarks_of(self.collection)


def solve(
    scans: str | Path,
    run: str | Path,
    settings: SolveSettings | None = None,
    weights: Path = SHIPPED,
    jobs: Workers = 0,
    device: str = "cpu",
    first_filter: FirstFilter | None = None,
    said: Sequence[Decision] = (),
    told: Told = lambda _: None,
) -> Solution:
    """Find the fragments in a folder of scans, which of them were neighbours, and put them together.

    weights: of our own network, or of the paper's.
    said: decisions that are noted first; told: hears what a person who waits should know.
    """
    scans, run, settings = Path(scans), Path(run), settings or SolveSettings()
    refuse_other_scans(scans, run / "pieces", settings.prepare, run)
    with one_writer(run, "pairingnet solve", told=told):
        chosen = {**as_dict(settings), "weights": content_mark(weights)}
        chosen |= first_filter.describe() if first_filter else {}
        remember_settings(run, "run", chosen)
        manifest = Manifest(run)
        people = _decisions(run, manifest, said)

        manifest.drop_damaged("pieces")
        job = PrepareJob(settings.prepare, excluded(people))
        prepared = prepare_collection(scans, run / "pieces", job, jobs, leave_out=run)
        collection = prepared.collection
        manifest.note("pieces", "", prepared.files)
        made_of = _made_of(run, chosen)
        if manifest.is_current("results", made_of) and manifest.is_whole("features", "joins"):
            return _solution(run, people, news=False)
        if is_of_paper(weights):
            found = join_by_paper(collection, weights, run, settings, manifest, jobs, device)
            decisions = _in_pieces(people, collection)
            matches, assembly = lay_out(found.outlines, found.joins, found.step_px, settings, decisions)
            manifest.note("results", made_of, store_results(run, collection, matches, assembly, decisions, jobs))
            return _solution(run, people, news=True)

        source = source_of(collection, weights, run, device)
        features = compute_features(collection, source, jobs)
        statistics, source = statistics_of(features, source)
        manifest.note("features", source.fingerprint, stored_in(features, source))
        features = [statistics.applied_to(each) for each in features]
        asked = pairs_to_match(features, source, settings, run, manifest)
        if first_filter is not None:
            asked = first_filter.passing(asked, collection, run / "vectors")
        joins = match_pairs(asked, features, source, run, manifest, jobs)
        decisions = _in_pieces(people, collection)
        outlines = {each.id: each.outline for each in features}
        judge = guided_by(source, joins, features)
        matches, assembly = lay_out(outlines, joins, source.step_px, settings, decisions, judge)

        manifest.note("results", made_of, store_results(run, collection, matches, assembly, decisions, jobs))
        return _solution(run, people, news=True)


def decide(
    run: Path,
    what: str,
    source: str,
    target: str,
    who: str | None = None,
    weights: Path = SHIPPED,
    told: Told = lambda _: None,
) -> Solution:
    """Note what a person says about two fragments of a finished run, and put the fragments together anew.

    weights: those that the run was made with.
    """
    chosen = settings_then(run, "run")  # what is no run is left alone
    with one_writer(run, "pairingnet decide", told=told):
        manifest = Manifest(run)
        manifest.require("pieces", "features", "joins", "results")
        settings = solve_settings({name: value for name, value in chosen.items() if name not in _NO_SETTINGS})
        collection = read_collection(run / "pieces")
        joins_of(run, collection, target)  # a wrong id is refused
        join = joins_of(run, collection, source).get(frozenset((source, target)), PairMatch(source, target, None))
        marks = tuple(collection.by_id[name].fingerprint for name in (join.source, join.target))
        decision = decision_on(join, what, who, chosen["weights"], marks)
        people = _decisions(run, manifest)
        if what == "clear" and join.pair not in standing(people).words:
            return _solution(run, people, news=False)
        joins = read_joins(run / "joins.jsonl")
        outlines, step_px, judge = _as_matched(run, collection, weights, chosen["weights"], joins)

        people = _decisions(run, manifest, [decision])  # from here on it holds, whatever happens
        decisions = _in_pieces(people, collection)
        matches, assembly = lay_out(outlines, joins, step_px, settings, decisions, judge)

        files = store_results(run, collection, matches, assembly, decisions)
        manifest.note("results", _made_of(run, chosen), files)
        return _solution(run, people, news=True)


def read_run(run: Path) -> Solution:
    """What a finished run found, as it lies on disk; refuse one that is damaged."""
    manifest = Manifest(run)
    manifest.require("pieces", "joins", "results")
    return _solution(run, _decisions(run, manifest), news=False)


def joins_of(run: Path, collection: Collection, fragment: str) -> dict[frozenset[str], PairMatch]:
    """All joins of a fragment as a person sees them, in pixels of the scans: what the groups know of each, else what
    the two pieces say alone."""
    offsets = scan_offsets(collection)
    if fragment not in offsets:
        near = get_close_matches(fragment, offsets, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else "Its ids are in assembly.json."
        raise CollectionError(f"There is no fragment '{fragment}' in {run}.", hint)
    alone = [moved_match(join, offsets) for join in read_joins(run / "joins.jsonl") if fragment in join.pair]
    shown = [join for join in read_matches(run / "matches.json") if fragment in join.pair]
    return {join.pair: join for join in chain(alone, shown)}


def _decisions(run: Path, manifest: Manifest, said: Sequence[Decision] = ()) -> list[Decision]:
    """All that people have said of a run, with what they say now; refused where some of it has been lost."""
    path = run / "decisions.jsonl"
    before = manifest.made_of("decisions")
    if before is not None and not is_continued(path, before):
        raise CollectionError(
            f"{path} is not what was written: decisions are lost or changed.",
            f"Get it from a backup. If you have edited it yourself: remove {run / 'run' / 'manifest.json'}.",
        )
    found = read_decisions(path)
    for decision in said:
        append_decision(path, decision)
    manifest.note("decisions", mark_of(path), [])
    return [*found, *said]


def _in_pieces(people: Sequence[Decision], collection: Collection) -> Decisions:
    """What people have said about a run's joins, in pixels of its pieces."""
    ids = {record.fingerprint: record.id for record in collection.fragments}
    said = standing(under_new_names(people, ids))
    offsets = piece_offsets(collection)

    def known(joins: Sequence[PairMatch]) -> list[PairMatch]:
        return [moved_match(join, offsets) for join in joins if join.pair <= set(offsets)]

    return replace(said, locked=known(said.locked), seen=known(said.seen))


def _made_of(run: Path, chosen: Mapping[str, Any]) -> str:
    """Of all that the results of a run follow from."""
    pieces, said = fingerprint_of_file(run / "pieces" / FILE_NAME), mark_of(run / "decisions.jsonl")
    return fingerprint("results", __version__, chosen, pieces, said)


def _as_matched(
    run: Path, collection: Collection, weights: Path, mark: str, joins: Sequence[PairMatch]
) -> tuple[Mapping[str, Outline], float, GuidedMatching | None]:
    """The contours of all pieces and the working scale of a finished run, and the verifier; a run of the paper's
    network has none. Other weights than those of the run are refused: what they say of its pieces is not comparable."""
    if not (run / "statistics.safetensors").is_file():
        step_px = step_of(run)
        return outlines_of(collection, step_px), step_px, None
    if content_mark(weights) != mark:
        raise CollectionError(
            f"{run} was made with other weights than {weights.name}.", "Give the same file: --weights FILE."
        )
    stored = stored_source(run, weights)
    outlines = {record.id: features_in(stored, record.id).outline for record in collection.fragments}
    return outlines, stored.step_px, guided_by(stored, joins)


def _solution(run: Path, people: Sequence[Decision], news: bool) -> Solution:
    """What lies in a run folder, in pixels of the pieces."""
    collection = read_collection(run / "pieces")
    offsets = piece_offsets(collection)
    shown = read_matches(run / "matches.json")
    assembly = moved_assembly(read_assembly(run / "assembly.json", shown), offsets)
    matches = tuple(moved_match(match, offsets) for match in shown)
    return Solution(run, collection, matches, assembly, _in_pieces(people, collection), news)
