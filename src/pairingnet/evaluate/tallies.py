"""Predictions and truth -> what each metric of the benchmark adds up to, picture by picture.

Only what a method was asked counts: of a sample, its pairs and its queries. A true pair without a transform counts as
the identity, as in the paper's table, and in "no pose". The calibration error is over all joins that have a
probability, true pairs and candidates; a join is right where the two are a true pair and its seam lands within 16 px.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pairingnet.evaluate.intervals import Tally, tally, tally_calibration
from pairingnet.evaluate.metrics import (
    DIFFICULTIES,
    RR_THRESHOLD_PX,
    MatchErrors,
    Seam,
    both_directions,
    ndcg_of_queries,
    recall_bound,
    recall_hits,
    relations_shown,
)
from pairingnet.evaluate.predictions import Predictions
from pairingnet.evaluate.scores import KS, errors_of, true_numbers
from pairingnet.io.collection import Collection
from pairingnet.types import TruePair

METRICS = (
    *(f"R@{k}" for k in KS),
    *(f"NDCG@{k}" for k in KS),
    "RR",
    *(f"RR {name}" for name in DIFFICULTIES[1:]),
    "HD",
    "RE",
    "NTE e-4",
    "<2 px",
    "<4 px",
    "<8 px",
    "no pose",
    "ECE",
    "assembly precision",
    "assembly recall",
)


def tallies(collection: Collection, predictions: Predictions) -> dict[str, Tally]:
    """Every metric that the predictions allow, in the order of METRICS."""
    found = {
        **_of_search(collection, predictions),
        **_of_matching(collection, predictions),
        **_of_probabilities(collection, predictions),
        **_of_assembly(collection, predictions),
    }
    return {name: found[name] for name in METRICS if name in found}


def bounds(collection: Collection) -> dict[str, float]:
    """The best that any ranking can reach: a fragment with seven neighbours cannot show all of them among five."""
    queries = both_directions(true_numbers(collection, [record.id for record in collection.fragments]))
    return {f"R@{k}": recall_bound(queries, k) for k in KS}


def asked_pairs(collection: Collection, predictions: Predictions) -> list[TruePair]:
    """The true pairs that the method was asked about."""
    if predictions.sample.pairs is None:
        return list(collection.pairs)
    asked = set(predictions.sample.pairs)
    return [pair for pair in collection.pairs if (pair.source, pair.target) in asked]


def _of_search(collection: Collection, predictions: Predictions) -> dict[str, Tally]:
    if not predictions.ranked.size:
        return {}
    directed = both_directions(true_numbers(collection, predictions.ids))
    if predictions.sample.queries is not None:
        number = {name: i for i, name in enumerate(predictions.ids)}
        directed = directed[np.isin(directed[:, 0], [number[name] for name in predictions.sample.queries])]
    picture = [collection.by_id[name].source for name in predictions.ids]
    found = {}
    for k in KS:
        hits = recall_hits(predictions.ranked, directed, k)
        found[f"R@{k}"] = tally(hits, [picture[query] for query in directed[:, 0]])
        queries, gains = ndcg_of_queries(predictions.ranked, directed, k)
        found[f"NDCG@{k}"] = tally(gains, [picture[query] for query in queries])
    return found


def _of_matching(collection: Collection, predictions: Predictions) -> dict[str, Tally]:
    pairs = asked_pairs(collection, predictions)
    found = [predictions.transforms.get((pair.source, pair.target)) for pair in pairs]
    errors = [errors_of(collection, pair, pose) for pair, pose in zip(pairs, found, strict=True)]
    picture = [collection.by_id[pair.source].source for pair in pairs]
    within = np.array([error.mean_px < RR_THRESHOLD_PX for error in errors], dtype=bool)
    result = {
        "RR": tally(within, picture),
        "HD": tally([error.hausdorff_px for error in errors], picture),
        "RE": tally([error.rotation_rad for error in errors], picture),
        "NTE e-4": tally([1e4 * error.translation_normed for error in errors], picture),
        **{f"<{px} px": tally([error.mean_px < px for error in errors], picture) for px in (2, 4, 8)},
        "no pose": tally([pose is None for pose in found], picture),
    }
    for name in DIFFICULTIES[1:]:
        where = [i for i, pair in enumerate(pairs) if pair.difficulty == name]
        result[f"RR {name}"] = tally(within[where], [picture[i] for i in where])
    return result


def _of_probabilities(collection: Collection, predictions: Predictions) -> dict[str, Tally]:
    if not predictions.probabilities:
        return {}
    true = {frozenset((pair.source, pair.target)): pair for pair in collection.pairs}
    right = [_is_right(collection, predictions, pair, true) for pair in predictions.probabilities]
    picture = [collection.by_id[source].source for source, _ in predictions.probabilities]
    return {"ECE": tally_calibration(list(predictions.probabilities.values()), right, picture)}


def _is_right(
    collection: Collection, predictions: Predictions, pair: tuple[str, str], true: Mapping[frozenset[str], TruePair]
) -> bool:
    known, pose = true.get(frozenset(pair)), predictions.transforms[pair]
    if known is None or pose is None:
        return False
    errors: MatchErrors = errors_of(collection, known, pose if known.source == pair[0] else pose.inverse())
    return errors.mean_px < RR_THRESHOLD_PX


def _of_assembly(collection: Collection, predictions: Predictions) -> dict[str, Tally]:
    """Precision of the joins that groups rest on; recall of the true neighbours that groups show."""
    if predictions.assembly is None:
        return {}
    groups = [group.poses for group in predictions.assembly.groups]
    poses = {r.id: r.canvas_from_fragment for r in collection.fragments if r.canvas_from_fragment is not None}
    seams = [Seam(pair.source, pair.target, pair.seam) for pair in collection.pairs]
    right = relations_shown(groups, poses, seams)
    joins = [join for group in predictions.assembly.groups for join in group.joins]
    told = {join.pair for join in (*joins, *predictions.assembly.confirmed)}
    shown = sorted(sorted(relation) for relation in told)
    return {
        "assembly precision": tally(
            [frozenset(each) in right for each in shown], [collection.by_id[each[0]].source for each in shown]
        ),
        "assembly recall": tally(
            [frozenset((seam.source, seam.target)) in right for seam in seams],
            [collection.by_id[seam.source].source for seam in seams],
        ),
    }
