"""The stages between pieces and joins. Each looks at what the run folder holds and does only what is missing.

What a stage makes is kept with a fingerprint of what it was made of: the pieces, the weights, the working scale, the
collection. So a run that grew, was interrupted, or lost a file ends as one that was made at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from pairingnet import __version__
from pairingnet.assembly.pieces import usual_gap_px
from pairingnet.config import SolveSettings
from pairingnet.engine.jobs import Workers, run_jobs
from pairingnet.errors import CollectionError
from pairingnet.io.collection import Collection
from pairingnet.io.files import write_json
from pairingnet.io.fingerprint import fingerprint
from pairingnet.io.manifest import Manifest
from pairingnet.io.resume import content_mark
from pairingnet.io.run import read_joins, write_joins
from pairingnet.match.candidates import Candidates
from pairingnet.match.gap import with_gaps
from pairingnet.match.guided import GuidedMatching
from pairingnet.match.many import Source, features_in, match_many, method_of
from pairingnet.match.registered import RegisteredPairs
from pairingnet.match.ring import Registered, RingFeatures
from pairingnet.match.statistics import CollectionStatistics, collection_statistics, read_statistics, write_statistics
from pairingnet.match.store import feature_path, read_features, write_features
from pairingnet.match.weights import load_model
from pairingnet.prepare.load import load_fragments
from pairingnet.prepare.strip import working_step
from pairingnet.types import PairMatch

_CHUNK = 16  # fragments in a job


def source_of(collection: Collection, weights: Path, run: Path, device: str = "cpu") -> Source:
    """Where the stages of a run find what they need; the working scale follows from the collection."""
    model = load_model(weights)
    step_px = working_step([record.perimeter_px for record in collection.fragments], model.network.settings.points)
    return Source(weights, model.mark, run / "features", run / "statistics.safetensors", step_px, device)


def compute_features(collection: Collection, source: Source, jobs: Workers = 0) -> list[RingFeatures]:
    """Features of all fragments; each depends on its own picture alone."""
    made_of = {
        record.id: fingerprint("features", __version__, source.mark, source.step_px, collection.fingerprint_of(record))
        for record in collection.fragments
    }
    found = {name: read_features(source.features, name, mark) for name, mark in made_of.items()}
    missing = [name for name, features in found.items() if features is None]
    # Each job gets the lines of its own fragments: to read the whole list in every job would take longer than the job.
    parts = [collection.only(missing[first : first + _CHUNK]) for first in range(0, len(missing), _CHUNK)]
    marked = [(part, {record.id: made_of[record.id] for record in part.fragments}) for part in parts]
    # One process feeds a graphics card; several would only fight for it.
    run_jobs(partial(_store_features, source), marked, jobs if source.device == "cpu" else 1, "features")
    found |= {name: read_features(source.features, name, made_of[name]) for name in missing}
    for name, features in found.items():
        if features is None:
            raise CollectionError(
                f"The features of '{name}' were written to {source.features}, and are damaged.",
                "Check the disk, and run the command again.",
            )
    return [features for features in found.values() if features is not None]


def statistics_of(features: Sequence[RingFeatures], source: Source) -> tuple[CollectionStatistics, Source]:
    """What is known of the collection as a whole; and the source, which leads other processes to it."""
    mark = fingerprint("statistics", __version__, sorted((each.id, each.fingerprint) for each in features))
    known = read_statistics(source.statistics, mark)
    if known is None:
        known = collection_statistics(method_of(source), features, mark)
        write_statistics(source.statistics, known)
    return known, replace(source, fingerprint=mark)


def stored_in(features: Sequence[RingFeatures], source: Source) -> list[Path]:
    """The files that hold features and statistics."""
    return [source.statistics, *(feature_path(source.features, each.id) for each in features)]


def find_candidates(features: Sequence[RingFeatures], source: Source, most: int) -> Candidates:
    """The most promising others of each fragment."""
    ranked, scores = method_of(source).rank(features, most)
    return Candidates(tuple(each.id for each in features), ranked, scores)


def pairs_to_match(
    features: Sequence[RingFeatures], source: Source, settings: SolveSettings, run: Path, manifest: Manifest
) -> list[tuple[str, str]]:
    """All pairs of a small collection, the candidates of a large one; those are kept in a file."""
    ids = [each.id for each in features]
    if len(ids) <= settings.all_pairs_up_to:
        return list(combinations(ids, 2))
    path, made_of = run / "candidates.json", fingerprint(source.fingerprint, settings.candidates)
    if manifest.is_current("candidates", made_of):
        entries = json.loads(path.read_text(encoding="utf-8"))["candidates"]
        return [(entry["source"], entry["target"]) for entry in entries]
    pairs = find_candidates(features, source, settings.candidates).pairs()
    write_json(path, {"version": 1, "candidates": [{"source": a, "target": b} for a, b in pairs]})
    manifest.note("candidates", made_of, [path])
    return pairs


def match_pairs(
    pairs: Sequence[tuple[str, str]],
    features: Sequence[RingFeatures],
    source: Source,
    run: Path,
    manifest: Manifest,
    jobs: Workers = 0,
) -> list[PairMatch]:
    """All joins, the likeliest first.

    Poses are kept as soon as they are known. Where the collection changes they are only judged anew: what a pose is
    worth depends on all fragments, and costs little.
    """
    path, scale = run / "joins.jsonl", run / "scale.json"
    made_of = fingerprint("joins", __version__, source.fingerprint, pairs)
    if not manifest.is_current("joins", made_of):
        write_joins(path, _matched(pairs, features, source, RegisteredPairs(run / "registered.jsonl"), jobs))
        write_json(scale, {"step_px": source.step_px, "statistics": source.fingerprint})
        manifest.note("joins", made_of, [path, scale])
    return read_joins(path)


def guided_by(source: Source, joins: Sequence[PairMatch], features: Sequence[RingFeatures] = ()) -> GuidedMatching:
    """The verifier, asked about poses that follow from others; features: those at hand, of others what is stored. The
    network is loaded when the first question comes."""
    at_hand = {each.id: each for each in features}

    def features_of(name: str) -> RingFeatures:
        return at_hand.get(name) or features_in(source, name)

    return GuidedMatching(partial(method_of, source), features_of, usual_gap_px(joins))


def step_of(run: Path) -> float:
    """The working scale of a finished run."""
    return float(_scale_of(run)["step_px"])


def stored_source(run: Path, weights: Path) -> Source:
    """Where the features of a finished run are, in their collection."""
    scale = _scale_of(run)
    return Source(
        weights,
        content_mark(weights),
        run / "features",
        run / "statistics.safetensors",
        float(scale["step_px"]),
        fingerprint=scale["statistics"],
    )


def _scale_of(run: Path) -> dict[str, Any]:
    scale: dict[str, Any] = json.loads((run / "scale.json").read_text(encoding="utf-8"))
    return scale


def _matched(
    pairs: Sequence[tuple[str, str]],
    features: Sequence[RingFeatures],
    source: Source,
    stored: RegisteredPairs,
    jobs: Workers,
) -> list[PairMatch]:
    by_id = {each.id: each for each in features}
    worn = {each.id: method_of(source).is_worn(each.side) for each in features}
    key_of = {(a, b): (by_id[a].fingerprint, by_id[b].fingerprint, worn[a]) for a, b in pairs}
    asked = [(a, b, stored.known.get(key)) for (a, b), key in key_of.items()]

    def keep(answers: Sequence[tuple[Registered, PairMatch]]) -> None:
        made = {key_of[match.source, match.target]: registered for registered, match in answers}
        stored.add({key: registered for key, registered in made.items() if key not in stored.known})

    joins = [match for _, match in match_many(source, asked, jobs, keep)]
    stored.keep_only(key_of.values())
    joins = with_gaps(joins, {each.id: each.outline for each in features}, source.step_px)
    return sorted(joins, key=lambda match: (-match.score, match.source, match.target))


def _store_features(source: Source, part: tuple[Collection, dict[str, str]]) -> None:
    collection, made_of = part
    for features in method_of(source).features(load_fragments(collection)):
        write_features(source.features, replace(features, fingerprint=made_of[features.id]))
