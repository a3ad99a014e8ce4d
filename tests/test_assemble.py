"""Groups from joins: true ones rebuild the picture, wrong ones are left out, people have the last word."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairingnet.assemble.belief import Chains, reconsider
from pairingnet.assemble.implied import with_implied
from pairingnet.assemble.layout import Table, seam_of, usual_gap_px
from pairingnet.assemble.loops import log_odds_together
from pairingnet.assemble.merge import assemble
from pairingnet.assemble.poses import settle_poses, straightened
from pairingnet.assemble.together import put_together
from pairingnet.config import AssembleSettings, RivalSettings, SolveSettings
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.match.contact import Outline, contact
from pairingnet.types import Decisions, Fragment, Group, PairMatch
from tests.helpers import STEP_PX, all_joins, true_join

NO_RIVALS = RivalSettings(alone=1.0, free=0.0, rival=0.0)


@pytest.fixture(scope="module")
def outlines(pieces: list[Fragment]) -> dict[str, Outline]:
    return {piece.id: Outline(piece.contour) for piece in pieces}


def off_px(collection: Collection, poses: dict[str, Rigid2D], number: int) -> float:
    join = true_join(collection, number)
    assert join.target_from_source is not None
    placed = poses[join.target].inverse() @ poses[join.source]
    points = join.points[:, 0]
    return float(np.linalg.norm(placed.apply(points) - join.target_from_source.apply(points), axis=1).mean())


def test_true_joins_rebuild_the_picture(torn: Collection, outlines: dict[str, Outline]) -> None:
    found = assemble(outlines, all_joins(torn), STEP_PX)
    assert len(found.groups) == 1 and found.singles == () and found.contradicted == ()
    poses = dict(found.groups[0].poses)
    assert set(poses) == set(outlines)
    assert max(off_px(torn, poses, number) for number in range(len(torn.pairs))) < 0.5


@given(order=st.permutations(range(12)))
@settings(max_examples=8, deadline=None)
def test_the_order_of_joins_does_not_matter(torn: Collection, outlines: dict[str, Outline], order: list[int]) -> None:
    joins = [true_join(torn, number, logit=2.0 + 0.1 * number) for number in order]
    found = assemble(outlines, joins, STEP_PX)
    same = assemble(outlines, sorted(joins, key=lambda join: join.source), STEP_PX)
    assert [set(group.poses) for group in found.groups] == [set(group.poses) for group in same.groups]


def test_a_wrong_join_against_many_right_ones_is_contradicted(torn: Collection, outlines: dict[str, Outline]) -> None:
    joins = all_joins(torn)
    wrong = true_join(torn, 0, logit=1.0, off=Rigid2D(0.0, 0.0, 60.0))
    others = [join for join in joins if {join.source, join.target} != {wrong.source, wrong.target}]
    found = assemble(outlines, [*others, wrong], STEP_PX)
    assert len(found.groups) == 1
    assert [join.source for join in found.contradicted] == [wrong.source]
    assert max(off_px(torn, dict(found.groups[0].poses), number) for number in range(len(torn.pairs))) < 1.0


def test_pieces_are_never_put_on_each_other(torn: Collection, outlines: dict[str, Outline]) -> None:
    pair = torn.pairs[0]
    onto = outlines[pair.target].points.mean(axis=0)
    centre = outlines[pair.source].points.mean(axis=0)
    lying = PairMatch(pair.source, pair.target, Rigid2D(0.0, *(onto - centre)), 9.0, probability=0.999)
    found = assemble(outlines, [lying], STEP_PX)
    assert found.groups == () and set(found.singles) == set(outlines)


def test_weak_joins_that_close_a_loop_hold_together(torn: Collection, outlines: dict[str, Outline]) -> None:
    """Each alone would not be enough; with the others of its loop it brings a piece into the group."""
    one, other, closing = triangle(torn)
    (loose,) = ends(torn, other) & ends(torn, closing)
    weak = [true_join(torn, number, logit=0.3) for number in (other, closing)]
    sure = true_join(torn, one, logit=5.0)
    for alone in weak:
        assert assemble(outlines, [alone], STEP_PX).groups == ()
        assert loose in assemble(outlines, [sure, alone], STEP_PX).singles
    assert set(assemble(outlines, [sure, *weak], STEP_PX).groups[0].poses) == ends(torn, one) | {loose}


def ends(torn: Collection, number: int) -> set[str]:
    return {torn.pairs[number].source, torn.pairs[number].target}


def triangle(torn: Collection) -> list[int]:
    """The numbers of three true pairs of three pieces."""
    number = {frozenset((pair.source, pair.target)): i for i, pair in enumerate(torn.pairs)}
    for one, other in combinations(number, 2):
        if len(one & other) == 1 and (one ^ other) in number:
            return [number[one], number[other], number[one ^ other]]
    raise AssertionError("three pieces of the torn picture meet nowhere")


def test_three_doubtful_joins_that_agree_hold_a_group(torn: Collection, outlines: dict[str, Outline]) -> None:
    chosen = triangle(torn)
    doubtful = [true_join(torn, number, logit=-0.85) for number in chosen]
    assert assemble(outlines, doubtful[:2], STEP_PX).groups == ()
    assembly = assemble(outlines, doubtful, STEP_PX)
    assert [len(group) for group in assembly.groups] == [3] and len(assembly.confirmed) == 3
    told = reconsider(Table(outlines, AssembleSettings(), STEP_PX), assembly, doubtful)
    assert all(join.probability == pytest.approx(0.73, abs=0.02) for join in told)
    off = [true_join(torn, chosen[0], logit=-0.85, off=Rigid2D(0.0, 0.0, 60.0)), *doubtful[1:]]
    assert assemble(outlines, off, STEP_PX).groups == ()


def test_groups_choose_among_ways_to_join_a_pair(torn: Collection, outlines: dict[str, Outline]) -> None:
    """The likeliest way is wrong; the loop with two other pieces knows the right one."""
    chosen = triangle(torn)
    wrong = true_join(torn, chosen[0], logit=0.4, off=Rigid2D(0.0, 0.0, 60.0))
    right = true_join(torn, chosen[0], logit=-1.0)
    sure = [true_join(torn, number, logit=3.0) for number in chosen[1:]]
    matches, assembly = put_together(
        outlines, [*sure, replace(wrong, others=(right,))], STEP_PX, SolveSettings(rivals=NO_RIVALS)
    )
    assert [len(group) for group in assembly.groups] == [3]
    assert off_px(torn, dict(assembly.groups[0].poses), chosen[0]) < 1.0
    assert assembly.contradicted == () and {join.pair for join in assembly.confirmed} == {
        join.pair for join in (*sure, right)
    }
    told = {match.pair: match for match in matches}
    assert len(told) == len(matches) and all(match.others == () for match in matches)
    assert told[right.pair].target_from_source == right.target_from_source
    assert told[right.pair].probability > 0.9
    # What a person has decided on is the way that was seen, and no other.
    seen = replace(wrong, probability=1.0)
    decided = Decisions(accepted={wrong.pair}, seen=[seen])
    _, held = put_together(outlines, [replace(wrong, others=(right,))], STEP_PX, SolveSettings(), decided)
    assert held.groups[0].joins[0].target_from_source == wrong.target_from_source


def test_joins_together_by_hand() -> None:
    """Right with .3 x .3 x .3 = .027; otherwise they would agree once in a hundred times."""
    assert log_odds_together([0.3, 0.3, 0.3], loops=1) == pytest.approx(np.log(0.027 / (0.01 * 0.973)))
    assert log_odds_together([0.8], loops=0) == pytest.approx(np.log(4))
    assert log_odds_together([1.0], loops=0) > 20


def test_people_decide(torn: Collection, outlines: dict[str, Outline]) -> None:
    joins = [true_join(torn, 0, logit=3.0), true_join(torn, 1, logit=-2.0)]
    pairs = [frozenset((join.source, join.target)) for join in joins]
    found = assemble(outlines, joins, STEP_PX, decisions=Decisions(accepted={pairs[1]}, rejected={pairs[0]}))
    assert len(found.groups) == 1 and set(found.groups[0].poses) == pairs[1]


def test_an_accepted_join_holds_against_all_others(torn: Collection, outlines: dict[str, Outline]) -> None:
    moved = true_join(torn, 0, logit=-3.0, off=Rigid2D(0.0, 0.0, 60.0))
    others = [join for join in all_joins(torn) if {join.source, join.target} != {moved.source, moved.target}]
    pair = frozenset((moved.source, moved.target))
    found = assemble(outlines, [*others, moved], STEP_PX, decisions=Decisions(accepted={pair}))
    group = next(group for group in found.groups if moved.source in group.poses)
    assert moved.target_from_source is not None
    placed = group.poses[moved.target].inverse() @ group.poses[moved.source]
    points = moved.points[:, 0]
    apart = np.linalg.norm(placed.apply(points) - moved.target_from_source.apply(points), axis=1)
    assert apart.mean() < 3 * STEP_PX


def test_an_accepted_join_is_the_one_that_was_seen(torn: Collection, outlines: dict[str, Outline]) -> None:
    """The join alone says something else, or there is none alone: what a person saw and accepted holds."""
    seen = true_join(torn, 0)
    alone = true_join(torn, 0, logit=-3.0, off=Rigid2D(0.0, 0.0, 60.0))
    decided = Decisions(accepted={frozenset((seen.source, seen.target))}, seen=[replace(seen, points=np.zeros(0))])
    for joins in ([alone], []):
        matches, found = put_together(outlines, joins, STEP_PX, SolveSettings(), decided)
        assert off_px(torn, dict(found.groups[0].poses), 0) < 1
        assert len(matches) == 1 and len(matches[0].points) > 3


def test_joins_of_a_group_lie_as_the_group_has_them(torn: Collection, outlines: dict[str, Outline]) -> None:
    number = min(range(len(torn.pairs)), key=lambda i: len(torn.pairs[i].seam))  # its pieces have many other joins
    slipped = true_join(torn, number, logit=0.1, off=Rigid2D(0.0, 6.0, 5.0))
    others = [join for i, join in enumerate(all_joins(torn)) if i != number]
    matches, _ = put_together(outlines, [*others, slipped], STEP_PX, SolveSettings())
    shown = next(m for m in matches if {m.source, m.target} == {slipped.source, slipped.target})
    true = true_join(torn, number)
    assert shown.target_from_source is not None and true.target_from_source is not None
    seam = true.points[:, 0]
    off = np.linalg.norm(shown.target_from_source.apply(seam) - true.target_from_source.apply(seam), axis=1)
    assert off.mean() < 2 and shown.probability > 0.9


def test_a_rejected_join_does_not_come_about_by_others(torn: Collection, outlines: dict[str, Outline]) -> None:
    """A true loop of three: the third relation follows from the other two, and yet was rejected."""
    joins = all_joins(torn)
    beside = {frozenset((join.source, join.target)): join for join in joins}
    names = sorted(outlines)
    loop = next(
        (a, b, c)
        for a in names
        for b in names
        for c in names
        if a < b < c and all(frozenset(pair) in beside for pair in ((a, b), (b, c), (a, c)))
    )
    pairs = [frozenset(loop[:2]), frozenset(loop[1:]), frozenset((loop[0], loop[2]))]
    found = assemble(outlines, [beside[pair] for pair in pairs], STEP_PX, decisions=Decisions(rejected={pairs[2]}))
    assert all(len(group) == 2 for group in found.groups)
    assert all(len(set(loop) & set(group.poses)) < 3 for group in found.groups)


def test_locked_pieces_keep_their_place_to_the_last_digit(torn: Collection, outlines: dict[str, Outline]) -> None:
    odd = true_join(torn, 0, off=Rigid2D(0.01, 2.0, -1.5))
    found = assemble(outlines, all_joins(torn), STEP_PX, decisions=Decisions(locked=[odd]))
    assert len(found.groups) == 1 and odd.target_from_source is not None
    poses = found.groups[0].poses
    placed = poses[odd.target].inverse() @ poses[odd.source]
    assert np.allclose(placed.matrix, odd.target_from_source.matrix, atol=1e-9)
    assert set(poses) == set(outlines)
    nobody = PairMatch("nobody", odd.target, Rigid2D())
    assert len(assemble(outlines, all_joins(torn), STEP_PX, decisions=Decisions(locked=[nobody])).groups) == 1


def test_loops_make_joins_surer_and_contradictions_less_sure(torn: Collection, outlines: dict[str, Outline]) -> None:
    joins = all_joins(torn)
    wrong = true_join(torn, 0, logit=1.0, off=Rigid2D(0.0, 0.0, 60.0))
    others = [join for join in joins if {join.source, join.target} != {wrong.source, wrong.target}]
    assembly = assemble(outlines, [*others, wrong], STEP_PX)
    table = Table(outlines, AssembleSettings(), STEP_PX)
    after = {frozenset((join.source, join.target)): join for join in reconsider(table, assembly, [*others, wrong])}
    less = after[frozenset((wrong.source, wrong.target))]
    assert less.score == pytest.approx(1.0 - 4.0) and less.evidence["probability_alone"] == pytest.approx(0.7311)
    surer = [join for pair, join in after.items() if join is not less]
    assert all(join.score in (pytest.approx(4.0), pytest.approx(8.0)) for join in surer)
    assert sum(join.score > 4.5 for join in surer) > 0.5 * len(surer)


def test_a_piece_that_would_lie_on_a_placed_one_is_contradicted(torn: Collection, outlines: dict[str, Outline]) -> None:
    """Another piece claims the place of one that is held already."""
    held = true_join(torn, 0, logit=6.0)
    apart = next(name for name in outlines if name not in (held.source, held.target))
    assert held.target_from_source is not None
    onto = outlines[held.source].points.mean(axis=0) - outlines[apart].points.mean(axis=0)
    claim = PairMatch(
        apart, held.target, held.target_from_source @ Rigid2D(0.0, *onto), 2.0, held.points, probability=0.88
    )
    assembly = assemble(outlines, [held, claim], STEP_PX)
    assert len(assembly.groups) == 1 and apart in assembly.singles
    table = Table(outlines, AssembleSettings(), STEP_PX)
    after = {join.source: join for join in reconsider(table, assembly, [held, claim])}
    assert after[apart].score == pytest.approx(2.0 - 6.0)
    assert after[held.source].score == held.score and "probability_alone" not in after[held.source].evidence


def slowest_chain(edges: dict[tuple[str, str], float], a: str, b: str) -> float:
    """Weakest link of the surest chain, by trying all of them."""
    best = 0.0
    chains = [(a, {a}, 9e9)]
    while chains:
        at, seen, weakest = chains.pop()
        if at == b:
            best = max(best, weakest)
            continue
        for (one, other), sure in edges.items():
            for here, there in ((one, other), (other, one)):
                if here == at and there not in seen:
                    chains.append((there, seen | {there}, min(weakest, sure)))
    return best


@given(st.lists(st.floats(0.1, 7.9), min_size=10, max_size=10), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_chains_against_trying_all(sure: list[float], skipped: int) -> None:
    names = "abcde"
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    edges = {pair: value for pair, value in zip(pairs, sure, strict=True) if pair != pairs[skipped]}
    joins = [PairMatch(a, b, Rigid2D(), value) for (a, b), value in edges.items()]
    chains = Chains(Group(dict.fromkeys(names, Rigid2D()), joins))
    for (a, b), _ in edges.items():
        assert chains.between(a, b) == pytest.approx(slowest_chain(edges, a, b))
        rest = {pair: value for pair, value in edges.items() if pair != (a, b)}
        assert chains.without(a, b) == pytest.approx(slowest_chain(rest, a, b))


def test_neighbours_follow_from_the_joins_around_them(torn: Collection, outlines: dict[str, Outline]) -> None:
    """Every true pair that no join speaks of is found where it lies, and none that a person has rejected."""
    table = Table(outlines, AssembleSettings(), STEP_PX)
    joins = all_joins(torn)
    whole = assemble(outlines, joins, STEP_PX)
    asked = [number for number, pair in enumerate(torn.pairs) if pair.overlap_px > 60][:4]
    for number in asked:
        missing = joins[number]
        pair = frozenset((missing.source, missing.target))
        rest = [join for join in joins if join is not missing]
        group = replace(whole.groups[0], joins=tuple(rest))
        known = with_implied(table, replace(whole, groups=(group,)), rest)
        (found,) = [match for match in known if {match.source, match.target} == pair]
        assert found.target_from_source is not None and missing.target_from_source is not None
        carries = found.target_from_source if found.source == missing.source else found.target_from_source.inverse()
        points = missing.points[:, 0]
        off = np.linalg.norm(carries.apply(points) - missing.target_from_source.apply(points), axis=1)
        assert off.mean() < 1.0 and found.evidence["contact_px"] > 24
        assert found.probability < joins[0].probability  # a chain is less sure than each of its links
        kept = with_implied(table, replace(whole, groups=(group,)), rest, rejected={pair})
        assert not [match for match in kept if {match.source, match.target} == pair]
    assert len(asked) == 4


def test_a_join_that_the_layout_confirms_is_not_said_twice(torn: Collection, outlines: dict[str, Outline]) -> None:
    joins = all_joins(torn)
    known = with_implied(Table(outlines, AssembleSettings(), STEP_PX), assemble(outlines, joins, STEP_PX), joins)
    pairs = [frozenset((match.source, match.target)) for match in known]
    assert len(set(pairs)) == len(pairs) and {frozenset((j.source, j.target)) for j in joins} <= set(pairs)
    assert all("implied" not in match.evidence for match in known if match.score == joins[0].score)


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
    tight = Table(outlines, AssembleSettings(), STEP_PX)
    long_px = seam_of(tight, join.source, join.target, join.target_from_source)[1]
    for gap_px, touches in ((0.0, False), (5 * STEP_PX, True)):
        found_px = seam_of(replace(tight, gap_px=gap_px), join.source, join.target, apart)[1]
        assert (found_px > 0.5 * long_px) == touches


def test_a_chain_is_right_when_all_its_links_are() -> None:
    names = "abc"
    joins = tuple(
        PairMatch(one, other, Rigid2D(), score, probability=0.0)
        for one, other, score in zip(names, names[1:], (0.0, np.log(3)), strict=False)
    )
    chains = Chains(Group({name: Rigid2D() for name in names}, joins))
    assert chains.probability("a", "c") == pytest.approx(0.5 * 0.75)
    assert chains.probability("a", "b") == pytest.approx(0.5)


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
    assert assemble({}, [], STEP_PX).groups == ()
    assert set(assemble(outlines, [], STEP_PX).singles) == set(outlines)


def test_poses_settle_between_joins_that_disagree_a_little(torn: Collection) -> None:
    rng = np.random.default_rng(0)
    joins = [true_join(torn, n, off=Rigid2D(0.0, *rng.normal(0, 0.7, 2))) for n in range(len(torn.pairs))]
    poses = {record.id: record.canvas_from_fragment for record in torn.fragments}
    shaken = {name: Rigid2D(0.0, *rng.normal(0, 2, 2)) @ pose for name, pose in poses.items() if pose is not None}
    before = np.mean([off_px(torn, shaken, n) for n in range(len(torn.pairs))])
    after = np.mean([off_px(torn, settle_poses(shaken, joins, 2.0), n) for n in range(len(torn.pairs))])
    assert after < 0.4 * before
