"""Every metric against numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairingnet.evaluate.metrics import (
    MatchErrors,
    Seam,
    assembly_scores,
    both_directions,
    brier_score,
    by_difficulty,
    expected_calibration_error,
    match_errors,
    match_scores,
    ndcg_at_k,
    precision_at_recall,
    recall_at_k,
    recall_bound,
    reliability,
)
from pairingnet.evaluate.plots import reliability_figure
from pairingnet.geometry import Rigid2D

# Four fragments; 0 is a neighbour of 1 and 2, and 3 of nobody.
RANKED = [[1, 3, 2], [2, 3, 0], [0, 1, 3], [0, 1, 2]]
PAIRS = [(0, 1), (0, 2)]


@pytest.mark.parametrize(("k", "recall"), [(1, 0.5), (2, 0.5), (3, 1.0), (9, 1.0)])
def test_recall(k: int, recall: float) -> None:
    assert recall_at_k(RANKED, PAIRS, k) == recall


def test_recall_in_both_directions() -> None:
    # 0->1 at 1, 0->2 at 3, 1->0 at 3, 2->0 at 1
    assert recall_at_k(RANKED, both_directions(PAIRS), 1) == 0.5
    assert recall_at_k(RANKED, both_directions(PAIRS), 3) == 1.0


def test_recall_is_bounded_by_the_number_of_neighbours() -> None:
    assert recall_bound(PAIRS, 1) == 0.5
    assert recall_bound(PAIRS, 2) == 1.0
    assert recall_bound(both_directions(PAIRS), 1) == 0.75


def test_ndcg() -> None:
    # Query 0: hits at ranks 1 and 3, so DCG = 1 + 1/log2(4) = 1.5; the best is 1 + 1/log2(3).
    assert ndcg_at_k(RANKED, PAIRS, 3) == pytest.approx(1.5 / (1 + 1 / math.log2(3)))
    # Only one of the two can be among one: DCG = best = 1.
    assert ndcg_at_k(RANKED, PAIRS, 1) == 1.0
    # Queries without a neighbour do not count; query 1 finds its neighbour 0 at rank 3.
    assert ndcg_at_k(RANKED, [(1, 0)], 3) == pytest.approx(0.5)


def test_missing_answers_are_no_hits() -> None:
    assert recall_at_k([[-1, -1], [-1, 0]], [(0, 1), (1, 0)], 2) == 0.5


def test_no_pairs_is_not_a_number() -> None:
    for value in (recall_at_k(RANKED, [], 5), ndcg_at_k(RANKED, [], 5), recall_bound([], 5)):
        assert math.isnan(value)


def test_nonsense_is_named() -> None:
    with pytest.raises(ValueError, match="ranked"):
        recall_at_k([1, 2], PAIRS, 1)
    with pytest.raises(ValueError, match="outside"):
        recall_at_k(RANKED, [(0, 7)], 1)
    with pytest.raises(ValueError, match="k is 0"):
        recall_at_k(RANKED, PAIRS, 0)


@given(st.permutations(range(6)))
def test_order_of_pairs_does_not_matter(order: list[int]) -> None:
    pairs = np.array([(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)])
    assert recall_at_k(RANKED, pairs[order], 2) == recall_at_k(RANKED, pairs, 2)
    assert ndcg_at_k(RANKED, pairs[order], 2) == pytest.approx(ndcg_at_k(RANKED, pairs, 2))


# Matching --------------------------------------------------------------------------------------------------------

SHARED = np.array([[0.0, 0.0], [10.0, 0.0], [20.0, 0.0]])


def test_a_perfect_match_has_no_error() -> None:
    truth = Rigid2D(1.0, 50, -20)
    assert match_errors(truth, truth, SHARED, 1000, 1000) == MatchErrors(0.0, 0.0, 0.0, 0.0)


def test_a_shifted_match() -> None:
    errors = match_errors(Rigid2D(0, 3, 4), Rigid2D(), SHARED, 1000, 3000)
    assert errors.mean_px == pytest.approx(5)
    # Along the line the shifted points come closer: (3, 4) is 5 from (0, 0), (23, 4) is 5 from (20, 0).
    assert errors.hausdorff_px == pytest.approx(5)
    assert errors.rotation_rad == 0
    assert errors.translation_normed == pytest.approx(5 / 4000)


def test_a_turned_match() -> None:
    errors = match_errors(Rigid2D(np.pi / 2), Rigid2D(), SHARED, 1, 1)
    # (10, 0) lands on (0, 10), (20, 0) on (0, 20): distances 0, 10 sqrt 2, 20 sqrt 2.
    assert errors.mean_px == pytest.approx(10 * math.sqrt(2))
    # (20, 0) is 20 from the nearest landed point, (0, 0).
    assert errors.hausdorff_px == pytest.approx(20)
    assert errors.rotation_rad == pytest.approx(np.pi / 2)


def test_rotation_errors_are_wrapped() -> None:
    assert match_errors(Rigid2D(3.1), Rigid2D(-3.1), SHARED, 1, 1).rotation_rad == pytest.approx(2 * np.pi - 6.2)


def test_no_prediction_counts_as_lying_still() -> None:
    truth = Rigid2D(0.5, 10, 10)
    assert match_errors(None, truth, SHARED, 1, 1) == match_errors(Rigid2D(), truth, SHARED, 1, 1)
    with pytest.raises(ValueError, match="shared"):
        match_errors(None, truth, np.zeros((0, 2)), 1, 1)


def test_match_scores() -> None:
    errors = [MatchErrors(m, 2 * m, 0.1, 1e-4) for m in (1.0, 3.0, 7.0, 15.9, 16.0, 100.0)]
    scores = match_scores(errors)
    assert scores.rr == pytest.approx(4 / 6)  # 16 itself does not count
    assert scores.within == {2.0: pytest.approx(1 / 6), 4.0: pytest.approx(2 / 6), 8.0: pytest.approx(3 / 6)}
    assert scores.hd_px == pytest.approx(2 * (1 + 3 + 7 + 15.9 + 16 + 100) / 6)
    assert [scores.re_rad, scores.nte, scores.pairs] == pytest.approx([0.1, 1e-4, 6])
    assert math.isnan(match_scores([]).rr)


def test_by_difficulty() -> None:
    subsets = by_difficulty(["Low", "High", "Low"])
    assert {name: where.tolist() for name, where in subsets.items()} == {
        "All": [0, 1, 2],
        "High": [1],
        "Medium": [],
        "Low": [0, 2],
    }
    with pytest.raises(ValueError, match="Hard"):
        by_difficulty(["Hard"])


# Assembly --------------------------------------------------------------------------------------------------------

# Four squares of 100 px in a row on the true canvas; a, b, c are of one picture, d of another.
TRUE = {name: Rigid2D(0, 100.0 * i, 0) for i, name in enumerate("abcd")}
SOURCE = {"a": "p", "b": "p", "c": "p", "d": "q"}
OUTLINES = dict.fromkeys(TRUE, np.array([[0.0, 0.0], [100.0, 0.0], [100.0, 100.0], [0.0, 100.0]]))
SEAMS = [
    Seam(a, b, np.array([[100.0 * i, y] for y in range(0, 101, 10)])) for i, a, b in ((1, "a", "b"), (2, "b", "c"))
]


def scores(groups: list[dict[str, Rigid2D]], shown: list[tuple[str, str]]) -> list[float]:
    s = assembly_scores(groups, shown, TRUE, SOURCE, SEAMS, OUTLINES)
    return [s.precision, s.recall, s.right, s.placed]


def moved(names: str, motion: Rigid2D) -> dict[str, Rigid2D]:
    return {name: motion @ TRUE[name] for name in names}


def test_a_perfect_assembly_wherever_it_lies() -> None:
    assert scores([moved("abc", Rigid2D(2.0, 70, -9))], [("a", "b"), ("c", "b")]) == [1.0, 1.0, 1.0, 0.75]


def test_a_wrong_guest_costs_precision() -> None:
    group = moved("abc", Rigid2D()) | {"d": Rigid2D(0, 300, 0)}
    assert scores([group], [("a", "b"), ("b", "c"), ("c", "d")]) == pytest.approx([2 / 3, 1.0, 0.75, 1.0])


def test_a_shifted_piece_is_wrong() -> None:
    group = moved("ab", Rigid2D()) | {"c": Rigid2D(0, 200, 12)}
    assert scores([group], [("a", "b"), ("b", "c")]) == pytest.approx([0.5, 0.5, 2 / 3, 0.75])
    group = moved("ab", Rigid2D()) | {"c": Rigid2D(0, 200, 6)}
    assert scores([group], [("a", "b"), ("b", "c")])[:2] == [1.0, 1.0]


def test_pieces_apart_are_not_found() -> None:
    precision, recall, right, placed = scores([moved("ab", Rigid2D()), moved("c", Rigid2D())], [("a", "b")])
    assert (precision, recall, right, placed) == (1.0, 0.5, 1.0, 0.5)


def test_nothing_placed() -> None:
    precision, recall, right, placed = scores([], [])
    assert math.isnan(precision) and math.isnan(right)
    assert (recall, placed) == (0.0, 0.0)


# Calibration -----------------------------------------------------------------------------------------------------


def test_calibration_by_hand() -> None:
    p, y = [0.15, 0.15, 0.95, 1.0], [0, 1, 1, 1]
    table = reliability(p, y)
    assert table.counts.tolist() == [2, 2]
    assert table.predicted.tolist() == [pytest.approx(0.15), pytest.approx(0.975)]
    assert table.observed.tolist() == [0.5, 1.0]
    assert expected_calibration_error(p, y) == pytest.approx(0.5 * 0.35 + 0.5 * 0.025)
    assert brier_score(p, y) == pytest.approx((0.15**2 + 0.85**2 + 0.05**2 + 0) / 4)


def test_honest_probabilities_have_a_small_error() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(20_000)
    y = rng.random(20_000) < p
    assert expected_calibration_error(p, y) < 0.02
    assert expected_calibration_error(p**3, y) > 0.15


@given(st.permutations(range(5)))
def test_calibration_does_not_depend_on_the_order(order: list[int]) -> None:
    p, y = np.array([0.1, 0.4, 0.4, 0.8, 0.9]), np.array([0, 0, 1, 1, 1])
    assert expected_calibration_error(p[order], y[order]) == pytest.approx(expected_calibration_error(p, y))
    assert precision_at_recall(p[order], y[order], 3, 0.9) == precision_at_recall(p, y, 3, 0.9)


def test_precision_at_recall() -> None:
    s, y = [0.9, 0.8, 0.7, 0.6], [1, 0, 1, 1]
    assert precision_at_recall(s, y, positives=4, recall=0.25) == 1.0
    assert precision_at_recall(s, y, positives=4, recall=0.5) == pytest.approx(2 / 3)
    assert precision_at_recall(s, y, positives=4, recall=1.0) == 0.0  # one was never found
    assert precision_at_recall([0.5, 0.5], [1, 0], positives=1, recall=1.0) == 0.5  # a tie is taken whole
    assert precision_at_recall([], [], positives=1, recall=0.5) == 0.0


def test_calibration_input_is_checked() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        brier_score([1.2], [1])
    with pytest.raises(ValueError, match="equal lists"):
        brier_score([0.2, 0.3], [1])
    assert math.isnan(brier_score([], []))
    assert math.isnan(expected_calibration_error([], []))


def test_reliability_is_drawn(tmp_path: Path) -> None:
    reliability_figure(reliability([0.1, 0.6, 0.9], [0, 1, 1]), tmp_path / "r.png", "ring")
    assert (tmp_path / "r.png").stat().st_size > 5000
