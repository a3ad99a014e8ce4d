"""Groups from matches: true ones rebuild the picture, wrong ones are left out, people have the last word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairingnet.assembly.pieces import pieces_of, usual_gap_px
from pairingnet.assembly.pose_graph import settle_poses, straightened
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.match.contact import Outline, contact
from pairingnet.types import Decisions, Fragment, PairMatch
from tests.helpers import STEP_PX, all_joins, laid, true_join

AWAY = Rigid2D(0.0, 0.0, 60.0)


@pytest.fixture(scope="module")
def outlines(pieces: list[Fragment]) -> dict[str, Outline]:
    return {piece.id: Outline(piece.contour) for piece in pieces}


def off_px(collection: Collection, poses: Mapping[str, Rigid2D], number: int) -> float:
    join = true_join(collection, number)
    return apart_px(join, poses[join.target].inverse() @ poses[join.source])


def apart_px(join: PairMatch, placed: Rigid2D | None) -> float:
    assert join.target_from_source is not None and placed is not None
    points = join.points[:, 0]
    return float(np.linalg.norm(placed.apply(points) - join.target_from_source.apply(points), axis=1).mean())


def others_than(torn: Collection, number: int) -> list[PairMatch]:
    return [join for i, join in enumerate(all_joins(torn)) if i != number]


def triangle(torn: Collection) -> list[int]:
    """The numbers of three true pairs of three pieces."""
    number = {frozenset((pair.source, pair.target)): i for i, pair in enumerate(torn.pairs)}
    for one, other in combinations(number, 2):
        if len(one & other) == 1 and (one ^ other) in number:
            return [number[one], number[other], number[one ^ other]]
    raise AssertionError("three pieces of the torn picture meet nowhere")


def test_true_matches_rebuild_the_picture(torn: Collection, outlines: dict[str, Outline]) -> None:
    known, found = laid(outlines, all_joins(torn))
    assert len(found.groups) == 1 and found.singles == () and found.contradicted == ()
    (group,) = found.groups
    assert set(group.poses) == set(outlines) == set(group.probabilities)
    assert max(off_px(torn, group.poses, number) for number in range(len(torn.pairs))) < 0.5
    assert min(group.probabilities.values()) > 0.9
    assert all(match.probability > match.evidence["probability_alone"] - 0.02 for match in found.confirmed)
    assert {match.pair for match in found.confirmed} == {frozenset((p.source, p.target)) for p in torn.pairs}
    assert all("implied" not in known[match.pair].evidence for match in found.confirmed)


@given(order=st.permutations(range(12)), flipped=st.sets(st.integers(0, 11)))
@settings(max_examples=8, deadline=None)
def test_the_order_of_matches_says_nothing(
    torn: Collection, outlines: dict[str, Outline], order: list[int], flipped: set[int]
) -> None:
    """Nor does which of two fragments is named first: the same groups, to the last digit for the same matches."""
    joins = [true_join(torn, number, logit=2.0 + 0.1 * number) for number in range(12)]
    mixed = [joins[number] for number in order]
    shuffled = dict(sorted(outlines.items(), key=lambda item: hash(item[0])))
    (known, found), (same_known, same) = laid(outlines, joins), laid(shuffled, mixed)
    assert [dict(group.poses) for group in found.groups] == [dict(group.poses) for group in same.groups]
    assert {pair: match.score for pair, match in known.items()} == {
        pair: match.score for pair, match in same_known.items()
    }
    turned_round = laid(outlines, [turned(join) if i in flipped else join for i, join in enumerate(joins)])[1]
    assert [set(group.poses) for group in found.groups] == [set(group.poses) for group in turned_round.groups]


def turned(join: PairMatch) -> PairMatch:
    assert join.target_from_source is not None
    back = join.target_from_source.inverse()
    return replace(join, source=join.target, target=join.source, target_from_source=back, points=join.points[:, ::-1])


def test_a_wrong_match_against_many_right_ones_is_contradicted(torn: Collection, outlines: dict[str, Outline]) -> None:
    wrong = true_join(torn, 0, logit=1.0, off=AWAY)
    known, found = laid(outlines, [*others_than(torn, 0), wrong])
    assert len(found.groups) == 1
    assert [match.pair for match in found.contradicted] == [wrong.pair]
    assert max(off_px(torn, found.groups[0].poses, number) for number in range(len(torn.pairs))) < 1.0
    assert known[wrong.pair].probability < 0.1 < known[wrong.pair].evidence["probability_alone"]


def test_pieces_are_never_put_on_each_other(torn: Collection, outlines: dict[str, Outline]) -> None:
    pair = torn.pairs[0]
    onto = outlines[pair.target].points.mean(axis=0) - outlines[pair.source].points.mean(axis=0)
    lying = PairMatch(pair.source, pair.target, Rigid2D(0.0, *onto), 9.0, probability=0.999)
    known, found = laid(outlines, [lying])
    assert found.groups == () and set(found.singles) == set(outlines)
    assert known[lying.pair].probability < 0.5


def test_doubtful_matches_that_close_a_loop_hold_together(torn: Collection, outlines: dict[str, Outline]) -> None:
    """None of them is enough alone, nor are two."""
    chosen = triangle(torn)
    doubtful = [true_join(torn, number, logit=-0.5) for number in chosen]
    for few in (doubtful[:1], doubtful[:2]):
        assert laid(outlines, few)[1].groups == ()
    known, assembly = laid(outlines, doubtful)
    assert [len(group) for group in assembly.groups] == [3] and len(assembly.confirmed) == 3
    assert all(known[match.pair].probability > 0.5 > match.probability for match in doubtful)
    away = [true_join(torn, chosen[0], logit=-0.5, off=AWAY), *doubtful[1:]]
    assert laid(outlines, away)[1].groups == ()


def test_groups_choose_among_poses_of_a_pair(torn: Collection, outlines: dict[str, Outline]) -> None:
    """The likeliest pose is wrong; the loop with two other pieces knows the right one."""
    chosen = triangle(torn)
    wrong = true_join(torn, chosen[0], logit=0.4, off=AWAY)
    right = true_join(torn, chosen[0], logit=-1.0)
    sure = [true_join(torn, number, logit=3.0) for number in chosen[1:]]
    known, assembly = laid(outlines, [*sure, replace(wrong, others=(right,))])
    assert [len(group) for group in assembly.groups] == [3] and assembly.contradicted == ()
    assert off_px(torn, assembly.groups[0].poses, chosen[0]) < 1.0
    shown = known[right.pair]
    assert shown.target_from_source == right.target_from_source and shown.probability > 0.5
    assert [other.target_from_source for other in shown.others] == [wrong.target_from_source]  # the second best place
    # What a person has decided on is the pose that was seen, and no other.
    decided = Decisions(accepted={wrong.pair}, seen=[replace(wrong, probability=1.0)])
    _, held = laid(outlines, [replace(wrong, others=(right,))], decided)
    assert held.groups[0].joins[0].target_from_source == wrong.target_from_source


def test_people_decide(torn: Collection, outlines: dict[str, Outline]) -> None:
    joins = [true_join(torn, 0, logit=3.0), true_join(torn, 1, logit=-2.0)]
    pairs = [join.pair for join in joins]
    _, found = laid(outlines, joins, Decisions(accepted={pairs[1]}, rejected={pairs[0]}))
    assert len(found.groups) == 1 and set(found.groups[0].poses) == pairs[1]


def test_an_accepted_match_holds_against_all_others(torn: Collection, outlines: dict[str, Outline]) -> None:
    moved = true_join(torn, 0, logit=-3.0, off=AWAY)
    _, found = laid(outlines, [*others_than(torn, 0), moved], Decisions(accepted={moved.pair}))
    group = next(group for group in found.groups if moved.source in group.poses)
    assert apart_px(moved, group.poses[moved.target].inverse() @ group.poses[moved.source]) < 3 * STEP_PX


def test_an_accepted_match_is_the_one_that_was_seen(torn: Collection, outlines: dict[str, Outline]) -> None:
    """The pair alone says something else, or nothing: what a person saw and accepted holds."""
    seen = true_join(torn, 0)
    alone = true_join(torn, 0, logit=-3.0, off=AWAY)
    decided = Decisions(accepted={seen.pair}, seen=[replace(seen, points=np.zeros((0, 2, 2)))])
    for joins in ([alone], []):
        known, found = laid(outlines, joins, decided)
        assert off_px(torn, found.groups[0].poses, 0) < 1
        assert len(known) == 1 and len(known[seen.pair].points) > 3


def test_a_rejected_match_does_not_come_about_by_others(torn: Collection, outlines: dict[str, Outline]) -> None:
    """A true loop of three: the third relation follows from the other two, and yet was rejected."""
    loop = [true_join(torn, number) for number in triangle(torn)]
    known, found = laid(outlines, loop, Decisions(rejected={loop[2].pair}))
    assert [len(group) for group in found.groups] == [2]
    assert not loop[2].pair <= set(found.groups[0].poses)
    assert (
        known[loop[2].pair].probability == loop[2].probability
    )  # what the pair says; the page shows the person's word


def test_locked_pieces_keep_their_place_to_the_last_digit(torn: Collection, outlines: dict[str, Outline]) -> None:
    odd = true_join(torn, 0, off=Rigid2D(0.01, 2.0, -1.5))
    _, found = laid(outlines, all_joins(torn), Decisions(locked=[odd]))
    assert len(found.groups) == 1 and odd.target_from_source is not None
    poses = found.groups[0].poses
    placed = poses[odd.target].inverse() @ poses[odd.source]
    assert np.allclose(placed.matrix, odd.target_from_source.matrix, atol=1e-9)
    assert set(poses) == set(outlines)
    nobody = PairMatch("nobody", odd.target, Rigid2D())
    assert len(laid(outlines, all_joins(torn), Decisions(locked=[nobody]))[1].groups) == 1


def test_matches_of_a_group_lie_as_the_group_has_them(torn: Collection, outlines: dict[str, Outline]) -> None:
    number = min(range(len(torn.pairs)), key=lambda i: len(torn.pairs[i].seam))  # its pieces have many other joins
    slipped = true_join(torn, number, logit=0.1, off=Rigid2D(0.0, 6.0, 5.0))
    known, _ = laid(outlines, [*others_than(torn, number), slipped])
    shown = known[slipped.pair]
    assert apart_px(true_join(torn, number), shown.target_from_source) < 2 and shown.probability > 0.8


def test_a_piece_that_would_lie_on_a_placed_one_stays_alone(torn: Collection, outlines: dict[str, Outline]) -> None:
    """Another piece claims the place of one that is held already."""
    held = true_join(torn, 0, logit=6.0)
    apart = next(name for name in outlines if name not in (held.source, held.target))
    assert held.target_from_source is not None
    onto = outlines[held.source].points.mean(axis=0) - outlines[apart].points.mean(axis=0)
    claim = PairMatch(
        apart, held.target, held.target_from_source @ Rigid2D(0.0, *onto), 2.0, held.points, probability=0.88
    )
    known, assembly = laid(outlines, [held, claim])
    assert len(assembly.groups) == 1 and apart in assembly.singles
    assert known[claim.pair].probability < 0.5 < known[held.pair].probability


def test_neighbours_follow_from_the_matches_around_them(torn: Collection, outlines: dict[str, Outline]) -> None:
    """Every true pair that no match speaks of is found where it lies, and none that a person has rejected."""
    asked = [number for number, pair in enumerate(torn.pairs) if pair.overlap_px > 60][:4]
    assert len(asked) == 4
    for number in asked:
        missing, rest = true_join(torn, number), others_than(torn, number)
        known, _ = laid(outlines, rest)
        found = known[missing.pair]
        if found.source != missing.source:
            found = turned(found)
        assert apart_px(missing, found.target_from_source) < 1.0 and found.evidence["contact_px"] > 24
        assert found.evidence["implied"] and "probability_alone" not in found.evidence
        rejected, _ = laid(outlines, rest, Decisions(rejected={missing.pair}))
        assert missing.pair not in rejected


def test_worn_neighbours_touch_across_their_gap(torn: Collection, outlines: dict[str, Outline]) -> None:
    join = true_join(torn, 0)
    assert join.target_from_source is not None
    one, other = outlines[join.source], outlines[join.target]
    touching = contact(one, other, join.target_from_source, STEP_PX)
    outwards = (other.tangents[touching.columns] @ [[0, -1], [1, 0]]).mean(axis=0)
    apart = Rigid2D(0.0, *(5 * STEP_PX * outwards / np.linalg.norm(outwards))) @ join.target_from_source
    worn = replace(join, evidence={"worn_px": 5 * STEP_PX})
    assert usual_gap_px([worn, worn, replace(join, evidence={})]) == 5 * STEP_PX
    assert usual_gap_px([replace(worn, probability=0.1)]) == usual_gap_px([]) == 0.0

    def met(gap_px: float, pose: Rigid2D) -> float:
        pieces = pieces_of({join.source: one, join.target: other}, STEP_PX, gap_px)
        ends = pieces.names.index(join.source), pieces.names.index(join.target)
        return pieces.meeting(*ends, np.exp(1j * pose.angle_rad), complex(pose.x_px, pose.y_px)).contact

    whole = met(0.0, join.target_from_source)
    for gap_px, touches in ((0.0, False), (5 * STEP_PX, True)):
        assert (met(gap_px, apart) > 0.5 * whole) == touches


@given(angle=st.floats(-3, 3))
@settings(max_examples=20, deadline=None)
def test_groups_stand_straight(angle: float) -> None:
    """A tilted rectangle of two pieces stands upright, whatever its tilt."""
    square = np.array([[0.0, 0.0], [100, 0], [100, 80], [0, 80]])
    outlines = {name: Outline(square) for name in "ab"}
    tilted = {"a": Rigid2D(angle), "b": Rigid2D(angle) @ Rigid2D(0.0, 100.0, 0.0)}
    straight = straightened(outlines, tilted)
    corners = np.vstack([straight[name].apply(square) for name in "ab"])
    assert sorted(np.ptp(corners, axis=0)) == pytest.approx([80, 200], abs=0.1)
    between = straight["a"].inverse() @ straight["b"]
    assert between.x_px == pytest.approx(100) and between.angle_rad == pytest.approx(0, abs=1e-9)


def test_nothing_to_join(outlines: dict[str, Outline]) -> None:
    assert laid({}, [])[1].groups == ()
    assert set(laid(outlines, [])[1].singles) == set(outlines)
    one, other, *_ = sorted(outlines)
    assert laid(outlines, [PairMatch(one, other, None, reason="nothing fits")])[1].groups == ()


def test_poses_settle_between_matches_that_disagree_a_little(torn: Collection) -> None:
    rng = np.random.default_rng(0)
    joins = [true_join(torn, n, off=Rigid2D(0.0, *rng.normal(0, 0.7, 2))) for n in range(len(torn.pairs))]
    poses = {record.id: record.canvas_from_fragment for record in torn.fragments}
    shaken = {name: Rigid2D(0.0, *rng.normal(0, 2, 2)) @ pose for name, pose in poses.items() if pose is not None}
    before = np.mean([off_px(torn, shaken, n) for n in range(len(torn.pairs))])
    after = np.mean([off_px(torn, settle_poses(shaken, joins, 2.0), n) for n in range(len(torn.pairs))])
    assert after < 0.4 * before
