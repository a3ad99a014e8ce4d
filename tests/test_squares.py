"""Squares put together: whole groups are not joined by one seam where their other pieces would be neighbours and say
nothing, and a wrong merge that came first is taken back."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from pairingnet.assemble.joins import by_pair
from pairingnet.assemble.layout import Table, agrees, carried_over, collisions, off_px
from pairingnet.assemble.merge import assemble, drawn_near
from pairingnet.assemble.poses import settle_poses, usually_off_steps
from pairingnet.assemble.repair import assemble_well, holds
from pairingnet.assemble.silence import Silence, brought_together, silence_in
from pairingnet.assemble.together import among_so_many, put_together
from pairingnet.config import AssembleSettings, SolveSettings
from pairingnet.geometry import Rigid2D, resample_closed
from pairingnet.match.contact import Outline
from pairingnet.types import Assembly, Decisions, PairMatch

STEP_PX, EDGE_PX = 3.0, 120
BLOCKS, ROWS, COLUMNS = "ab", range(3), range(3)
SQUARE = resample_closed(np.array([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=float) * EDGE_PX, 1.0)
Place = tuple[str, int, int]


def name(place: Place) -> str:
    return "".join(map(str, place))


OUTLINES = {name(place): Outline(SQUARE) for place in product(BLOCKS, ROWS, COLUMNS)}


def beside(one: Place, other: Place, logit: float) -> PairMatch:
    """A join of squares: the second lies to the right of the first where they are in the same row, else below it."""
    right = one[1] == other[1]
    along = np.arange(10, EDGE_PX - 10, 4.0)
    edge = np.full_like(along, EDGE_PX)
    seam = np.stack([edge, along] if right else [along, edge], axis=1)
    pose = Rigid2D(0.0, -EDGE_PX, 0.0) if right else Rigid2D(0.0, 0.0, -EDGE_PX)
    points = np.stack([seam, pose.apply(seam)], axis=1)
    return PairMatch(name(one), name(other), pose, logit, points, probability=float(1 / (1 + np.exp(-logit))))


def blocks(loops: bool = True) -> list[PairMatch]:
    """Two pictures of nine squares; without loops only so many joins as hold them together."""
    across = [beside((b, i, j), (b, i, j + 1), 4.0) for b in BLOCKS for i in ROWS for j in COLUMNS[:-1]]
    down = [
        beside((b, i, j), (b, i + 1, j), 4.0) for b in BLOCKS for i in ROWS[:-1] for j in COLUMNS if loops or j == 0
    ]
    return across + down


def border(row: int, logit: float = 2.0) -> PairMatch:
    return beside(("a", row, 2), ("b", row, 0), logit)


def solved(joins: list[PairMatch]) -> tuple[dict[frozenset[str], PairMatch], Assembly]:
    matches, assembly = put_together(OUTLINES, joins, STEP_PX, SolveSettings())
    return {frozenset((match.source, match.target)): match for match in matches}, assembly


def test_one_seam_does_not_join_two_pictures() -> None:
    matches, assembly = solved([*blocks(), border(1)])
    assert sorted(map(len, assembly.groups)) == [9, 9]
    assert matches[frozenset(("a12", "b10"))].probability < 0.5  # .88 before the silence beside it was heard


def test_where_neighbours_are_often_silent_one_seam_is_enough() -> None:
    assert sorted(map(len, solved([*blocks(loops=False), border(1)])[1].groups)) == [18]


def test_seams_that_all_speak_join_groups() -> None:
    assert sorted(map(len, solved([*blocks(), *map(border, ROWS)])[1].groups)) == [18]


def test_a_single_piece_needs_no_second_word() -> None:
    """It would touch two pieces, of which one says nothing."""
    left_out = ("a", 1, 2)
    kept = [join for join in blocks() if name(left_out) not in (join.source, join.target)]
    assert sorted(map(len, solved([*kept, beside(("a", 1, 1), left_out, 2.0)])[1].groups)) == [9, 9]


def test_silence_is_learned_from_groups() -> None:
    table = Table(OUTLINES, AssembleSettings(), STEP_PX)
    talking, quiet = (silence_in(table, solved(blocks(loops))[1]) for loops in (True, False))
    start = Silence()
    assert talking.silent == start.silent and talking.neighbours == start.neighbours + 2 * (12 - 8)
    assert quiet.silent == quiet.neighbours - start.neighbours + start.silent == start.silent + 2 * (12 - 8)


@pytest.mark.parametrize("gap_px, count", [(0.0, 3), (200.0, 0)])
def test_who_would_be_neighbours(gap_px: float, count: int) -> None:
    table = Table(OUTLINES, AssembleSettings(), STEP_PX)
    fixed, moved = (
        {name((b, i, j)): Rigid2D(0.0, j * EDGE_PX + off_px, i * EDGE_PX) for i in ROWS for j in COLUMNS}
        for b, off_px in (("a", 0.0), ("b", 3 * EDGE_PX + gap_px))
    )
    near = brought_together(table, moved, fixed)
    assert near == {frozenset((f"a{i}2", f"b{i}0")) for i in range(count)}


def row_of_three(wrong: float, right: float) -> list[PairMatch]:
    """a00, a01 and a02 lie side by side; a wrong join lays the third where the second belongs."""
    return [
        beside(("a", 0, 0), ("a", 0, 2), wrong),
        beside(("a", 0, 0), ("a", 0, 1), right),
        beside(("a", 0, 1), ("a", 0, 2), right),
    ]


def test_a_wrong_merge_that_came_first_is_taken_back() -> None:
    """Both right joins would lay a piece on another one that is there already."""
    joins = row_of_three(wrong=5.0, right=4.0)
    assert [set(group.poses) for group in assemble(OUTLINES, joins, STEP_PX).groups] == [{"a00", "a02"}]
    matches, assembly = solved(joins)
    assert [set(group.poses) for group in assembly.groups] == [{"a00", "a01", "a02"}]
    assert matches[frozenset(("a00", "a02"))].probability < 0.9 < matches[frozenset(("a00", "a01"))].probability


@pytest.mark.parametrize(("logit", "joined"), [(8.0, False), (20.0, True)])
def test_a_bit_left_on_a_piece_does_not_keep_sure_joins_apart(logit: float, joined: bool) -> None:
    bit = np.array([[0, 0], [1, 0], [1, 0.4], [1.1, 0.4], [1.1, 0.6], [1, 0.6], [1, 1], [0, 1]]) * EDGE_PX
    outlines = {"a00": Outline(resample_closed(bit, 1.0)), "a01": OUTLINES["a01"]}
    found = assemble(outlines, [beside(("a", 0, 0), ("a", 0, 1), logit)], STEP_PX)
    assert bool(found.groups) is joined


def test_pieces_that_lie_exactly_on_each_other_are_seen() -> None:
    """Their contours are nowhere deep inside of each other."""
    table = Table(OUTLINES, AssembleSettings(), STEP_PX)
    here, there = {"a00": Rigid2D(0.0, 5.0, 7.0)}, {"a01": Rigid2D(0.0, 5.0, 7.0)}
    assert list(collisions(table, here, there)) == [("a00", "a01")]
    assert not list(collisions(table, here, {"a01": Rigid2D(0.0, 5.0 + EDGE_PX, 7.0)}))


def guessed(seed: int) -> list[PairMatch]:
    """Right joins of one picture and wrong ones of any two pieces, about as sure as each other."""
    rng = np.random.default_rng(seed)
    places = [("a", i, j) for i in ROWS for j in COLUMNS]
    right = [
        beside(one, other, float(rng.normal(1.5, 1.0)))
        for one, other in combinations(places, 2)
        if (other[1] - one[1], other[2] - one[2]) in ((0, 1), (1, 0))
    ]
    any_two = [rng.permutation(len(places))[:2] for _ in range(12)]
    wrong = [beside(places[one], places[other], float(rng.normal(1.0, 1.0))) for one, other in any_two]
    return right + [join for join in wrong if join.pair not in {each.pair for each in right}]


def lie_right(assembly: Assembly) -> int:
    """How many pairs of squares of the picture lie to each other as they should."""
    right = 0
    for group in assembly.groups:
        for one, other in combinations(sorted(name for name in group.poses if name.startswith("a")), 2):
            true = Rigid2D(0.0, EDGE_PX * (int(one[2]) - int(other[2])), EDGE_PX * (int(one[1]) - int(other[1])))
            found = group.poses[other].inverse() @ group.poses[one]
            right += float(np.linalg.norm(found.apply([[0.0, 0.0]]) - true.apply([[0.0, 0.0]]))) < 0.05 * EDGE_PX
    return right


def test_other_orders_find_what_the_surest_first_do_not() -> None:
    """Judged by the truth, not by what the orders are chosen by; that never falls either."""
    table = Table(OUTLINES, AssembleSettings(), STEP_PX)
    once, often = AssembleSettings(orders=1), AssembleSettings(orders=8)
    alone, of_many = 0, 0
    for seed in range(2, 5):
        joins = guessed(seed)
        first, best = (assemble_well(OUTLINES, joins, STEP_PX, settings) for settings in (once, often))
        usual = silence_in(table, first)
        before, after = (
            holds(table, layout, joins) + usual.of_silent(silence_in(table, layout).silent) for layout in (first, best)
        )
        assert after > before
        alone, of_many = alone + lie_right(first), of_many + lie_right(best)
        again = assemble_well(OUTLINES, joins[::-1], STEP_PX, often)
        assert {frozenset(group.poses) for group in again.groups} == {frozenset(group.poses) for group in best.groups}
    assert of_many > 2 * alone > 0


def test_among_many_more_is_asked_of_a_merge() -> None:
    few, many, crowd = (among_so_many(SolveSettings(), count) for count in (32, 64, 5000))
    assert few == SolveSettings()
    assert few.assemble.log_odds < many.assemble.log_odds < crowd.assemble.log_odds
    assert crowd.assemble.log_odds == few.assemble.log_odds + few.assemble.careful
    assert few.rivals.free > many.rivals.free > crowd.rivals.free == 0


def test_in_the_end_tight_joins_count_for_more_than_loose_ones() -> None:
    """The direct join of the outer two is loose, and says something else than the two tight ones."""
    tight = {"gap_px": 0.0, "worn_px": 0.0, "contact_px": 100.0}
    one, other = (replace(beside(("a", 0, j), ("a", 0, j + 1), 4.0), evidence=tight) for j in (0, 1))
    far = Rigid2D(0.0, -2 * EDGE_PX - 12.0, 0.0)
    loose = replace(one, target=other.target, target_from_source=far, evidence={**tight, "gap_px": 6.0})
    start = {"a02": Rigid2D(), "a01": Rigid2D(0.0, -EDGE_PX, 0.0), "a00": Rigid2D(0.0, -2.0 * EDGE_PX, 0.0)}
    evenly, exactly = (
        settle_poses(start, [one, other, loose], STEP_PX, exact=exact)["a00"].x_px + 2 * EDGE_PX
        for exact in (False, True)
    )
    assert evenly < 2 * exactly < 0
    assert usually_off_steps(loose, STEP_PX) > 10 * usually_off_steps(one, STEP_PX)


def test_a_surer_merge_stays_and_so_does_what_a_person_has_accepted() -> None:
    stays = [{"a00", "a02"}]
    surer = assemble_well(OUTLINES, row_of_three(wrong=7.0, right=2.5), STEP_PX)
    assert [set(group.poses) for group in surer.groups] == stays
    accepted = Decisions(accepted=frozenset([frozenset(("a00", "a02"))]))
    decided = assemble_well(OUTLINES, row_of_three(wrong=5.0, right=4.0), STEP_PX, decisions=accepted)
    assert [set(group.poses) for group in decided.groups] == stays


def test_groups_are_drawn_near_by_all_joins_between_them() -> None:
    """The surest join is turned a little. By it alone the other end of the seam would gape, and what is said there
    would not agree."""
    sure, *others = border(0, 5.0), border(1), border(2)
    assert sure.target_from_source is not None
    middle = sure.points[:, 1].mean(axis=0)
    back, away = Rigid2D(0.0, *-middle), Rigid2D(0.0, *middle)
    turned = replace(sure, target_from_source=away @ Rigid2D(np.radians(10)) @ back @ sure.target_from_source)
    own, fixed = (
        {name((b, i, j)): Rigid2D(0.0, j * EDGE_PX, i * EDGE_PX) for i in ROWS for j in COLUMNS} for b in BLOCKS
    )
    table = Table(OUTLINES, AssembleSettings(), STEP_PX)
    laid = carried_over(turned, own, fixed)
    near = drawn_near(table, by_pair([turned, *others]), laid, fixed)
    for row, (gaping_px, closed_px) in {1: (20.0, 4.0), 2: (40.0, 4.0)}.items():
        for poses, is_near in ((laid, False), (near, True)):
            off = off_px(border(row), fixed[f"b{row}0"].inverse() @ poses[f"a{row}2"])
            assert off < closed_px if is_near else off > gaping_px
    assert not agrees(table, border(2), {**fixed, **laid}) and agrees(table, border(2), {**fixed, **near})
    alone = drawn_near(table, by_pair([turned]), laid, fixed)
    assert alone == laid
