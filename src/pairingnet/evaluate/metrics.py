"""How good an answer is: pure functions of predictions and truth, which know nothing of any method.

Searching   Recall@k, NDCG@k                          over ranked lists (F, K) of fragment numbers, -1 for none
Matching    RR, HD, RE, NTE                           over one predicted and one true `target_from_source` a pair
Assembly    precision and recall of neighbours,       over groups of poses
            share of fragments in the right place
Calibration ECE, Brier score, reliability             over probabilities and outcomes

The matching metrics are the paper's as its published code computes them: RR counts a pair whose shared contour
points land within 16 px of the truth on average. RE is wrapped to [0, pi] here, which the published code forgot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import directed_hausdorff

from pairingnet.geometry import Points, Rigid2D, angle_difference

RR_THRESHOLD_PX = 16.0
STRICT_THRESHOLDS_PX = (2.0, 4.0, 8.0)
DIFFICULTIES = ("All", "High", "Medium", "Low")


# Searching -------------------------------------------------------------------------------------------------


def both_directions(pairs: ArrayLike) -> NDArray[np.intp]:
    """(P, 2) unordered pairs as (2P, 2) queries and their answers."""
    array = np.asarray(pairs, dtype=np.intp).reshape(-1, 2)
    return np.concatenate([array, array[:, ::-1]])


def recall_at_k(ranked: ArrayLike, pairs: ArrayLike, k: int) -> float:
    """Share of the pairs (query, answer) (P, 2) whose answer is among the query's k best. NaN without pairs."""
    hits = recall_hits(ranked, pairs, k)
    return float(hits.mean()) if len(hits) else float("nan")


def recall_hits(ranked: ArrayLike, pairs: ArrayLike, k: int) -> NDArray[np.bool_]:
    """(P,): whether each pair's answer is among the query's k best."""
    lists, queries = _search_input(ranked, pairs, k)
    return np.asarray((lists[queries[:, 0], :k] == queries[:, 1:]).any(axis=1))


def recall_bound(pairs: ArrayLike, k: int) -> float:
    """The highest Recall@k any ranking can reach: a query with more than k answers cannot show them all."""
    queries = np.asarray(pairs, dtype=np.intp).reshape(-1, 2)
    if not len(queries):
        return float("nan")
    _, counts = np.unique(queries[:, 0], return_counts=True)
    return float(np.minimum(counts, k).sum() / counts.sum())


def ndcg_at_k(ranked: ArrayLike, pairs: ArrayLike, k: int) -> float:
    """Mean over queries with an answer of DCG / best possible DCG, gains 0 or 1. NaN without pairs."""
    _, scores = ndcg_of_queries(ranked, pairs, k)
    return float(scores.mean()) if len(scores) else float("nan")


def ndcg_of_queries(ranked: ArrayLike, pairs: ArrayLike, k: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The queries (Q,) that have an answer, and DCG / best possible DCG of each."""
    lists, queries = _search_input(ranked, pairs, k)
    discount = 1 / np.log2(np.arange(2, k + 2))
    scores = []
    asked = np.unique(queries[:, 0])
    for query in asked:
        answers = queries[queries[:, 0] == query, 1]
        hits = np.isin(lists[query, :k], answers)
        best = discount[: min(k, len(np.unique(answers)))].sum()
        scores.append((hits * discount[: len(hits)]).sum() / best)
    return asked, np.array(scores, dtype=np.float64)


def _search_input(ranked: ArrayLike, pairs: ArrayLike, k: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    lists = np.asarray(ranked, dtype=np.intp)
    queries = np.asarray(pairs, dtype=np.intp).reshape(-1, 2)
    if lists.ndim != 2:
        raise ValueError(f"ranked is (F, K), one list of fragment numbers per fragment; got shape {lists.shape}")
    if k < 1:
        raise ValueError(f"k is {k}; it must be 1 or more")
    if len(queries) and (queries.min() < 0 or queries.max() >= len(lists)):
        raise ValueError(f"pairs name fragments outside 0..{len(lists) - 1}")
    return lists, queries


# Matching --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatchErrors:
    """One pair's errors: mean and Hausdorff distance of the shared points, rotation, normalised translation."""

    mean_px: float
    hausdorff_px: float
    rotation_rad: float
    translation_normed: float


def match_errors(
    predicted: Rigid2D | None, true: Rigid2D, shared: Points, area_source_px: float, area_target_px: float
) -> MatchErrors:
    """Compare `target_from_source` with the truth.

    shared (K, 2): the source's points of the shared contour. No prediction counts as the identity: the
    fragments stay as they lie on disk.
    """
    if not len(shared):
        raise ValueError("a true pair has shared contour points; this one has none")
    guess = Rigid2D() if predicted is None else predicted
    landed, right = guess.apply(shared), true.apply(shared)
    hausdorff = max(directed_hausdorff(landed, right)[0], directed_hausdorff(right, landed)[0])
    return MatchErrors(
        mean_px=float(np.linalg.norm(landed - right, axis=1).mean()),
        hausdorff_px=float(hausdorff),
        rotation_rad=angle_difference(guess.angle_rad, true.angle_rad),
        translation_normed=float(np.linalg.norm(guess.shift - true.shift) / (area_source_px + area_target_px)),
    )


@dataclass(frozen=True)
class MatchScores:
    """Scores over pairs: count, RR, HD, RE, NTE, and the share of pairs within 2, 4 and 8 px."""

    pairs: int
    rr: float
    hd_px: float
    re_rad: float
    nte: float
    within: Mapping[float, float]


def match_scores(errors: Sequence[MatchErrors]) -> MatchScores:
    """The paper's four metrics, and RR at stricter thresholds. All NaN without pairs."""
    if not errors:
        nan = float("nan")
        return MatchScores(0, nan, nan, nan, nan, dict.fromkeys(STRICT_THRESHOLDS_PX, nan))
    mean_px = np.array([error.mean_px for error in errors])
    return MatchScores(
        pairs=len(errors),
        rr=float((mean_px < RR_THRESHOLD_PX).mean()),
        hd_px=float(np.mean([error.hausdorff_px for error in errors])),
        re_rad=float(np.mean([error.rotation_rad for error in errors])),
        nte=float(np.mean([error.translation_normed for error in errors])),
        within={limit: float((mean_px < limit).mean()) for limit in STRICT_THRESHOLDS_PX},
    )


def by_difficulty(difficulties: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    """Positions of the pairs of each difficulty, "All" first; metrics are taken over each subset."""
    labels = np.asarray(difficulties, dtype=object)
    unknown = set(labels) - set(DIFFICULTIES[1:])
    if unknown:
        raise ValueError(f"difficulty {sorted(map(str, unknown))} is none of {DIFFICULTIES[1:]}")
    return {name: np.flatnonzero((labels == name) | (name == "All")) for name in DIFFICULTIES}


# Assembly --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AssemblyScores:
    """precision: of the neighbour relations the assembly shows; recall: of the true ones; right: share of the
    fragments that lie in the right place of their group; placed: share of them in a group of two or more."""

    precision: float
    recall: float
    right: float
    placed: float


@dataclass(frozen=True, eq=False)
class Seam:
    """A true neighbour relation: where the shared line runs, on the true canvas."""

    source: str
    target: str
    points: Points


def assembly_scores(
    groups: Sequence[Mapping[str, Rigid2D]],
    shown: Iterable[tuple[str, str]],
    true_poses: Mapping[str, Rigid2D],
    true_source: Mapping[str, str],
    seams: Sequence[Seam],
    outlines: Mapping[str, Points],
    tolerance_px: float = 8.0,
) -> AssemblyScores:
    """Score an assembly: groups of poses, and the neighbour relations it shows (fragments that touch in it).

    outlines: points (K, 2) of each fragment, in its own pixels (its contour, or a few of its points).

    A relation is right if it is true and the two fragments lie to each other as they should: the shared line,
    carried over by both poses, coincides within `tolerance_px` on average. Fragments in no group are alone.
    """
    right_relations = relations_shown(groups, true_poses, seams, tolerance_px)
    relations = {frozenset(pair) for pair in shown}
    true_relations = {frozenset((seam.source, seam.target)) for seam in seams}
    right = sum(
        _largest_consistent(group, true_poses, true_source, outlines, tolerance_px)
        for group in groups
        if len(group) > 1
    )
    together = sum(len(group) for group in groups if len(group) > 1)
    return AssemblyScores(
        precision=_share(len(relations & right_relations), len(relations)),
        recall=_share(len(right_relations), len(true_relations)),
        right=_share(right, together),
        placed=_share(together, len(true_poses)),
    )


def relations_shown(
    groups: Sequence[Mapping[str, Rigid2D]],
    true_poses: Mapping[str, Rigid2D],
    seams: Sequence[Seam],
    tolerance_px: float = 8.0,
) -> set[frozenset[str]]:
    """The true neighbour relations that an assembly shows: both fragments in one group, and to each other as they
    should be."""
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    poses = {name: pose for group in groups for name, pose in group.items()}
    return {
        frozenset((seam.source, seam.target))
        for seam in seams
        if group_of.get(seam.source, -1) == group_of.get(seam.target, -2)
        and _seam_error(seam, poses, true_poses) < tolerance_px
    }


def _seam_error(seam: Seam, poses: Mapping[str, Rigid2D], true_poses: Mapping[str, Rigid2D]) -> float:
    """Mean distance between the shared line as the source's pose shows it and as the target's does, px."""
    carried = [(poses[name] @ true_poses[name].inverse()).apply(seam.points) for name in (seam.source, seam.target)]
    return float(np.linalg.norm(carried[0] - carried[1], axis=1).mean())


def _largest_consistent(
    group: Mapping[str, Rigid2D],
    true_poses: Mapping[str, Rigid2D],
    true_source: Mapping[str, str],
    outlines: Mapping[str, Points],
    tolerance_px: float,
) -> int:
    """How many fragments of a group one rigid motion puts where they truly lie; 1 is no agreement at all."""
    truth_from_group = {name: true_poses[name] @ pose.inverse() for name, pose in group.items() if name in true_poses}
    best = 0
    for anchor, motion in truth_from_group.items():
        agree = [
            name
            for name, pose in group.items()
            if name in truth_from_group
            and true_source[name] == true_source[anchor]
            and _apart(motion @ pose, true_poses[name], outlines[name]) < tolerance_px
        ]
        best = max(best, len(agree))
    return best if best > 1 else 0


def _apart(a: Rigid2D, b: Rigid2D, outline: Points) -> float:
    """How far two poses carry a fragment's outline apart, on average, px."""
    return float(np.linalg.norm(a.apply(outline) - b.apply(outline), axis=1).mean())


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


# Calibration -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reliability:
    """Per bin of predicted probability: mean prediction, share that was true, how many. Empty bins are left out."""

    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    counts: NDArray[np.intp]


def reliability(probabilities: ArrayLike, outcomes: ArrayLike, bins: int = 10) -> Reliability:
    """Bins of equal width; a probability of exactly 1 belongs to the last one."""
    p, y = _calibration_input(probabilities, outcomes)
    place = np.minimum((p * bins).astype(np.intp), bins - 1)
    used = np.unique(place)
    return Reliability(
        predicted=np.array([p[place == b].mean() for b in used]),
        observed=np.array([y[place == b].mean() for b in used]),
        counts=np.array([int((place == b).sum()) for b in used], dtype=np.intp),
    )


def expected_calibration_error(probabilities: ArrayLike, outcomes: ArrayLike, bins: int = 10) -> float:
    """ECE: the gap between prediction and truth per bin, weighted by how many fall into it. NaN without any."""
    table = reliability(probabilities, outcomes, bins)
    if not table.counts.sum():
        return float("nan")
    gaps = np.abs(table.predicted - table.observed)
    return float((gaps * table.counts).sum() / table.counts.sum())


def brier_score(probabilities: ArrayLike, outcomes: ArrayLike) -> float:
    """Mean squared difference between probability and outcome. NaN without any."""
    p, y = _calibration_input(probabilities, outcomes)
    return float(((p - y) ** 2).mean()) if len(p) else float("nan")


def precision_at_recall(scores: ArrayLike, outcomes: ArrayLike, positives: int, recall: float) -> float:
    """Precision of the best-scored answers that hold `recall` of all `positives`; 0 where that is never reached.

    Answers of equal score are taken together, so that their order does not matter.
    """
    s, y = np.asarray(scores, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    order = np.argsort(-s, kind="stable")
    true_so_far = np.cumsum(y[order])
    last_of_tie = np.append(np.diff(s[order]) != 0, True) if len(s) else np.zeros(0, dtype=bool)
    reached = np.flatnonzero((true_so_far >= recall * positives) & last_of_tie)
    return float(true_so_far[reached[0]] / (reached[0] + 1)) if len(reached) else 0.0


def _calibration_input(
    probabilities: ArrayLike, outcomes: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    if p.shape != y.shape or p.ndim != 1:
        raise ValueError(f"probabilities and outcomes are two equal lists, got shapes {p.shape} and {y.shape}")
    if len(p) and (p.min() < 0 or p.max() > 1):
        raise ValueError("probabilities lie between 0 and 1")
    return p, y
