"""Joins that claim the same stretch of contour rival each other; those that nobody contests gain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairingnet.assemble.layout import Table
from pairingnet.assemble.rivals import among_rivals, judged, rivals_of, strongest
from pairingnet.assemble.together import put_together
from pairingnet.config import AssembleSettings, RivalSettings, SolveSettings
from pairingnet.geometry import Rigid2D
from pairingnet.match.contact import Outline
from pairingnet.types import Decisions, PairMatch

STEP_PX = 2.0
SIDE = 100.0
RULES = RivalSettings()


def square(name: str) -> tuple[str, Outline]:
    along = np.arange(0, SIDE, 1.0)
    zero, full = np.zeros_like(along), np.full_like(along, SIDE)
    sides = [(along, zero), (full, along), (SIDE - along, full), (zero, SIDE - along)]
    return name, Outline(np.concatenate([np.stack(side, axis=1) for side in sides]))


OUTLINES = dict(square(name) for name in "abcde")
TABLE = Table(OUTLINES, AssembleSettings(), STEP_PX)
# Where another square has to lie to touch this one on the right, on the left, or below.
RIGHT, LEFT, BELOW = Rigid2D(0, -SIDE, 0), Rigid2D(0, SIDE, 0), Rigid2D(0, 0, -SIDE)


def join(source: str, target: str, pose: Rigid2D, logit: float, gap_px: float = 1.0) -> PairMatch:
    """Of worn pieces, unless the gap is small."""
    probability = float(1 / (1 + np.exp(-logit)))
    return PairMatch(source, target, pose, logit, probability=probability, evidence={"gap_px": gap_px})


def test_what_nobody_contests_gains_and_what_somebody_does_loses() -> None:
    free = join("d", "e", RIGHT, 0.0)
    one, other = join("a", "b", RIGHT, 0.0), join("a", "c", RIGHT, 1.0)  # likely, and loose: worn pieces
    told = among_rivals(TABLE, [free, one, other], RULES)
    assert told[0].score == pytest.approx(RULES.free)
    assert told[1].score < one.score < told[0].score
    assert told[1].score < told[2].score
    assert told[1].evidence["probability_alone"] == 0.5
    assert told[1].probability == pytest.approx(1 / (1 + np.exp(-told[1].score)))


def test_neighbours_on_different_sides_are_no_rivals() -> None:
    joins = [join("a", "b", RIGHT, 1.0), join("a", "c", BELOW, 3.0), join("a", "d", LEFT, 5.0)]
    for before, after in zip(joins, among_rivals(TABLE, joins, RULES), strict=True):
        assert after.score == pytest.approx(RULES.alone * before.score + RULES.free)


def test_two_ways_to_join_a_pair_are_no_rivals() -> None:
    """They are told as such that exclude each other already."""
    ways = [join("a", "b", RIGHT, 0.5), join("a", "b", Rigid2D(0, -SIDE, 8.0), -1.0)]
    assert not any(contested.any() for _, contested in rivals_of(TABLE, ways))


def test_a_rival_that_has_a_stronger_rival_itself_counts_for_less() -> None:
    contested, rival = join("a", "b", RIGHT, 0.0), join("a", "c", RIGHT, 0.5)
    beaten = join("d", "c", RIGHT, 6.0)  # claims the same side of c
    alone, with_it = (among_rivals(TABLE, joins, RULES) for joins in ([contested, rival], [contested, rival, beaten]))
    assert with_it[0].score > alone[0].score
    assert with_it[1].score < alone[1].score


def test_people_are_the_strongest_rivals_there_are() -> None:
    accepted, rival, rejected = join("a", "b", RIGHT, -3.0), join("a", "c", RIGHT, 2.0), join("d", "e", RIGHT, 4.0)
    contested = join("d", "c", LEFT, 1.0)
    said = Decisions(accepted={accepted.pair}, rejected={rejected.pair})
    told = among_rivals(TABLE, [accepted, rival, rejected, contested], RULES, said)
    assert told[0] is accepted and told[2] is rejected
    assert told[1].score < 0
    assert told[3].score == pytest.approx(RULES.alone + RULES.free)  # what was rejected claims nothing
    nothing = PairMatch("a", "d", None, probability=0.5)
    assert among_rivals(TABLE, [nothing], RULES) == [nothing] and among_rivals(TABLE, [], RULES) == []


@given(logits=st.lists(st.floats(-4, 9), min_size=4, max_size=4), order=st.permutations(range(4)))
@settings(max_examples=30, deadline=None)
def test_the_order_of_joins_does_not_matter(logits: list[float], order: list[int]) -> None:
    joins = [
        join("a", "b", RIGHT, logits[0]),
        join("a", "c", RIGHT, logits[1]),
        join("d", "b", RIGHT, logits[2]),
        join("c", "e", BELOW, logits[3]),
    ]
    told = among_rivals(TABLE, joins, RULES)
    again = among_rivals(TABLE, [joins[i] for i in order], RULES)
    assert [each.score for each in again] == pytest.approx([told[i].score for i in order])


def test_the_strongest_rivals_by_hand() -> None:
    rivals = [(np.array([0, 1, 2]), np.array([[False, True, True], [True, False, False], [True, False, False]]))]
    found = strongest(rivals, np.array([9.0, 0.0, 0.0]), most=2.0)
    assert found.tolist() == pytest.approx([np.log(2), 2.0, 2.0])
    assert judged(np.array([1.0]), np.array([0.0]), RULES)[0] == pytest.approx(
        RULES.alone + RULES.free - RULES.rival * np.log(2)
    )


def test_doubtful_joins_that_nobody_contests_make_a_group() -> None:
    doubtful, sure = join("a", "b", RIGHT, -0.5), join("d", "e", RIGHT, 4.0)
    _, assembly = put_together(OUTLINES, [doubtful, sure], STEP_PX, SolveSettings())
    assert [set(group.poses) for group in assembly.groups] == [{"a", "b"}, {"d", "e"}]
    _, contested = put_together(OUTLINES, [doubtful, sure, join("a", "c", RIGHT, -0.4)], STEP_PX, SolveSettings())
    assert [set(group.poses) for group in contested.groups] == [{"d", "e"}]


def test_clean_pieces_gain_nothing_where_nobody_contests_them() -> None:
    """Strangers and outer borders are uncontested as well."""
    joins = [join("a", "b", RIGHT, 0.4, gap_px=0.02), join("d", "e", RIGHT, 4.0, gap_px=0.02)]
    assert [told.score for told in among_rivals(TABLE, joins, RULES)] == pytest.approx([0.28, 2.8])
