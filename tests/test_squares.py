"""Squares put together: what the energy says of them by hand, what is found, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairingnet.assembly.agglomerate import agglomerate
from pairingnet.assembly.bodies import placed, single
from pairingnet.assembly.energy import TERMS, confidence_of, load_energy
from pairingnet.assembly.layout import problem_of
from pairingnet.assembly.merging import Problem, laid_out, layout_terms, look_inside, proposals
from pairingnet.assembly.optimise import energy_of, optimise, perturbed
from pairingnet.assembly.pieces import pieces_of
from pairingnet.assembly.pose_graph import settle_poses, usually_off_steps
from pairingnet.assembly.posterior import CutTree, calibrated, capacities
from pairingnet.geometry import Rigid2D, resample_closed
from pairingnet.match.contact import Outline
from pairingnet.types import Assembly, Decisions, PairMatch
from tests.helpers import ENERGY, STEP_PX, laid

EDGE_PX = 120
EDGE_STEPS = EDGE_PX / STEP_PX
BLOCKS, ROWS, COLUMNS = "ab", range(3), range(3)
SQUARE = resample_closed(np.array([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=float) * EDGE_PX, 1.0)
Place = tuple[str, int, int]


def name(place: Place) -> str:
    return "".join(map(str, place))


OUTLINES = {name(place): Outline(SQUARE) for place in product(BLOCKS, ROWS, COLUMNS)}


def beside(one: Place, other: Place, logit: float) -> PairMatch:
    """A match of squares: the second lies to the right of the first where they are in the same row, else below it."""
    right = one[1] == other[1]
    along = np.arange(10, EDGE_PX - 10, 4.0)
    edge = np.full_like(along, EDGE_PX)
    seam = np.stack([edge, along] if right else [along, edge], axis=1)
    pose = Rigid2D(0.0, -EDGE_PX, 0.0) if right else Rigid2D(0.0, 0.0, -EDGE_PX)
    points = np.stack([seam, pose.apply(seam)], axis=1)
    return PairMatch(name(one), name(other), pose, logit, points, probability=float(1 / (1 + np.exp(-logit))))


def blocks(loops: bool = True) -> list[PairMatch]:
    """Two pictures of nine squares; without loops only so many matches as hold them together."""
    across = [beside((b, i, j), (b, i, j + 1), 4.0) for b in BLOCKS for i in ROWS for j in COLUMNS[:-1]]
    down = [
        beside((b, i, j), (b, i + 1, j), 4.0) for b in BLOCKS for i in ROWS[:-1] for j in COLUMNS if loops or j == 0
    ]
    return across + down


def border(row: int, logit: float = 2.0) -> PairMatch:
    return beside(("a", row, 2), ("b", row, 0), logit)


def problem(matches: list[PairMatch]) -> Problem:
    return problem_of(OUTLINES, matches, STEP_PX, ENERGY)


def at(columns: Mapping[Place, float]) -> dict[str, Rigid2D]:
    """Squares in their rows and columns, a block's squares moved to the right by so much."""
    return {name(place): Rigid2D(0.0, place[2] * EDGE_PX + off, place[1] * EDGE_PX) for place, off in columns.items()}


def of_block(block: str, off_px: float = 0.0) -> dict[Place, float]:
    return {(block, i, j): off_px for i in ROWS for j in COLUMNS}


def terms_of_poses(matches: list[PairMatch], poses: Mapping[str, Rigid2D]) -> dict[str, float]:
    asked = problem(matches)
    terms = layout_terms(asked, placed(asked.pieces, poses, ()))
    return dict(zip(TERMS, terms.tolist(), strict=True))


def test_the_terms_of_a_block_by_hand() -> None:
    """Nine squares: twelve sides that touch, of which as many matches hold, in a tree of eight with four loops."""
    terms = terms_of_poses(blocks(), at(of_block("a")))
    assert terms["support"] == 12 * 4.0 and terms["doubt"] == terms["residual"] == 0
    assert terms["merges"] == 8 and terms["loops"] == 4 and terms["straight"] == 12 * 4.0
    assert terms["crowd"] == pytest.approx(8 * np.log(18))
    assert terms["contact"] == pytest.approx(12 * EDGE_STEPS / 100, rel=0.1)
    assert terms["overlap"] == terms["contradicted"] == terms["silent"] == 0


def test_what_contradicts_is_silent_or_lies_on_each_other_counts() -> None:
    """One match of the block is not known: silence. One says something else: a contradiction."""
    missing = [match for match in blocks() if match.pair != {"a00", "a01"}]
    assert terms_of_poses(missing, at(of_block("a")))["silent"] == pytest.approx(EDGE_STEPS / 100, rel=0.1)
    elsewhere = replace(beside(("a", 0, 0), ("a", 0, 1), 2.0), target_from_source=Rigid2D(0.0, EDGE_PX, 0.0))
    terms = terms_of_poses([*missing, elsewhere], at(of_block("a")))
    assert terms["contradicted"] == pytest.approx(np.log1p(np.exp(2.0)))
    onto = terms_of_poses([], {"a00": Rigid2D(), "a01": Rigid2D(0.0, 0.5 * EDGE_PX, 0.0)})
    assert onto["overlap"] > 2


def test_a_merge_adds_what_the_whole_has_more_than_its_halves() -> None:
    """Terms of two blocks and of the merge between them make those of the whole."""
    asked = problem([*blocks(), *map(border, ROWS)])
    first, second = (placed(asked.pieces, at(of_block(b)), ()) for b in BLOCKS)
    (proposal, *_) = proposals(asked, first, second, -10.0)
    merge = laid_out(asked, first, second, proposal, -10.0)
    assert merge is not None and len(merge.links) == 3
    assert merge.gain <= proposal.bound + 3 * 2.0  # what candidates say, and the contact of three sides
    whole = {**at(of_block("a")), **at(of_block("b", 3 * EDGE_PX))}
    together = layout_terms(asked, placed(asked.pieces, whole, ()))
    assert merge.terms + layout_terms(asked, first) + layout_terms(asked, second) == pytest.approx(together, abs=1e-6)


def test_one_seam_does_not_join_two_pictures() -> None:
    known, assembly = laid(OUTLINES, [*blocks(), border(1)])
    assert sorted(map(len, assembly.groups)) == [9, 9]
    assert known[frozenset(("a12", "b10"))].probability < 0.5  # .88 before the silence beside it was heard


def test_seams_that_all_speak_join_groups() -> None:
    assert sorted(map(len, laid(OUTLINES, [*blocks(), *map(border, ROWS)])[1].groups)) == [18]


def row_of_three(wrong: float, right: float) -> list[PairMatch]:
    """a00, a01 and a02 lie side by side; a wrong match lays the third where the second belongs."""
    return [
        beside(("a", 0, 0), ("a", 0, 2), wrong),
        beside(("a", 0, 0), ("a", 0, 1), right),
        beside(("a", 0, 1), ("a", 0, 2), right),
    ]


def test_a_wrong_merge_that_came_first_is_not_the_end() -> None:
    """Best first takes the wrong match, and both right ones would lay a piece on another one that is there already."""
    joins = row_of_three(wrong=5.0, right=4.5)
    asked = problem(joins)
    start = [single(i) for i in range(len(asked.pieces))]
    greedy = agglomerate(asked, start)
    best = optimise(asked, start, restarts=8)
    assert max(map(len, greedy)) == 2 and max(map(len, best)) == 3
    assert energy_of(asked, best) < energy_of(asked, greedy)


def test_what_a_person_has_accepted_stays() -> None:
    accepted = Decisions(accepted=frozenset([frozenset(("a00", "a02"))]))
    _, decided = laid(OUTLINES, row_of_three(wrong=-1.0, right=4.0), accepted)
    poses = decided.groups[0].poses
    assert (poses["a02"].inverse() @ poses["a00"]).x_px == pytest.approx(-EDGE_PX, abs=0.1)


def test_pieces_that_lie_exactly_on_each_other_are_seen() -> None:
    """Their contours are nowhere deep inside of each other."""
    pieces = pieces_of({"a": Outline(SQUARE), "b": Outline(SQUARE)}, STEP_PX, 0.0)
    assert pieces.meeting(0, 1, 1 + 0j, 0j).on_top
    beside = pieces.meeting(0, 1, 1 + 0j, complex(EDGE_PX, 0))
    assert beside.overlap == 0 and not beside.on_top


@given(st.floats(-3, 3), st.floats(-150, 150), st.floats(-150, 150))
@settings(max_examples=30, deadline=None)
def test_a_meeting_is_the_same_from_both_sides(angle: float, x: float, y: float) -> None:
    pieces = pieces_of({"a": Outline(SQUARE), "b": Outline(SQUARE)}, STEP_PX, 0.0)
    turn, shift = complex(np.exp(1j * angle)), complex(x, y)
    one, other = pieces.meeting(0, 1, turn, shift), pieces.meeting(1, 0, turn.conjugate(), -turn.conjugate() * shift)
    assert one.overlap == pytest.approx(other.overlap, abs=6) and one.contact == pytest.approx(other.contact, abs=8)


def guessed(seed: int) -> list[PairMatch]:
    """Right matches of one picture and wrong ones of any two pieces, about as sure as each other."""
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


def test_restarts_never_make_it_worse_and_the_order_says_nothing() -> None:
    found = 0
    for seed in range(4):
        matches = guessed(seed)
        asked, reordered = problem(matches), problem(matches[::-1])
        start = [single(i) for i in range(len(asked.pieces))]
        energies = [energy_of(asked, optimise(asked, start, restarts)) for restarts in (1, 3, 6)]
        assert energies == sorted(energies, reverse=True)
        assert energy_of(reordered, optimise(reordered, start, 6)) == energies[-1]
        found += lie_right(laid(OUTLINES, matches)[1])
    assert found > 0.5 * 4 * 36  # of the pairs of four pictures, though half of what is said is wrong


def test_perturbing_is_the_same_every_time() -> None:
    asked = problem(guessed(0))
    one, again, other = (perturbed(asked, seed).candidates.log_odds for seed in (1, 1, 2))
    assert (one == again).all() and (one != other).any() and (one != asked.candidates.log_odds).all()


def test_in_the_end_tight_matches_count_for_more_than_loose_ones() -> None:
    """The direct match of the outer two is loose, and says something else than the two tight ones."""
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


def test_groups_are_drawn_near_by_all_matches_between_them() -> None:
    """The surest one is turned a little. By it alone the other end of the seam would gape, and what is said there
    would not agree."""
    sure, *others = border(0, 5.0), border(1), border(2)
    assert sure.target_from_source is not None
    middle = sure.points[:, 1].mean(axis=0)
    back, away = Rigid2D(0.0, *-middle), Rigid2D(0.0, *middle)
    off = replace(sure, target_from_source=away @ Rigid2D(np.radians(10)) @ back @ sure.target_from_source)
    asked = problem([*blocks(), off, *others])
    first, second = (placed(asked.pieces, at(of_block(b)), ()) for b in BLOCKS)
    merges = [laid_out(asked, first, second, each, -10.0) for each in proposals(asked, first, second, -10.0)]
    near = max((merge for merge in merges if merge is not None), key=lambda merge: merge.gain)
    assert len(near.links) == 3
    assert abs(near.shift - complex(-3 * EDGE_PX, 0)) < 4 and abs(np.angle(near.turn)) < np.radians(2)


def least_cut(edges: Mapping[tuple[int, int], float], count: int, a: int, b: int) -> float:
    """By trying all ways to divide the vertices."""
    cuts = []
    for side in product((False, True), repeat=count):
        if side[a] and not side[b]:
            cuts.append(sum(value for (i, j), value in edges.items() if side[i] != side[j]))
    return min(cuts)


@given(st.lists(st.one_of(st.just(0.0), st.floats(0.1, 5.0)), min_size=10, max_size=10))
@settings(max_examples=30, deadline=None)
def test_cuts_against_trying_all(values: list[float]) -> None:
    edges = {pair: round(value, 2) for pair, value in zip(combinations(range(5), 2), values, strict=True)}
    cuts = CutTree(range(5), {pair: value for pair, value in edges.items() if value}, price=-1.0)
    for a, b in edges:
        assert cuts.between(a, b) == cuts.between(b, a) == pytest.approx(least_cut(edges, 5, a, b) - 1.0, abs=0.02)
    strength = [sum(value for pair, value in edges.items() if piece in pair) for piece in range(5)]
    assert strength[cuts.core] == pytest.approx(max(strength), abs=0.02) and cuts.to_core(cuts.core) > 5


def test_a_piece_held_by_one_match_is_less_sure_than_one_in_a_loop() -> None:
    matches = [match for match in blocks() if not match.pair & {"a22"} or match.pair == {"a12", "a22"}]
    (group, *_) = [group for group in laid(OUTLINES, matches)[1].groups if "a22" in group.poses]
    assert group.probabilities["a22"] < min(chance for piece, chance in group.probabilities.items() if piece != "a22")


def test_capacities_are_what_pairs_contribute() -> None:
    asked = problem(blocks())
    poses = at(of_block("a"))
    inside = look_inside(asked, placed(asked.pieces, poses, ()))
    held = capacities(asked.energy, inside.pairs)
    assert len(held) >= 12 and min(held.values()) >= 0 and max(held.values()) > 4.0 * asked.energy.weight("support")


@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize("confidence", [-2.0, 2.0, 5.0, 9.0, 13.0])
def test_weights_that_ship_are_sane(guided: bool, confidence: float) -> None:
    """For clean and worn pieces: what holds speaks for a layout, loops do, and more of it is likelier."""
    energy = load_energy(guided=guided).at(confidence)
    assert energy.weight("support") > 0 and energy.weight("loops") > 0
    for kind in ("held", "apart", "piece"):
        low, high = (calibrated(energy, kind, *(value,) * (len(energy.calibration[kind]) - 1)) for value in (-4, 4))
        assert low < high


def test_weights_are_not_used_beyond_what_they_were_learned_for() -> None:
    learned = load_energy()
    low, high = learned.learned
    assert (learned.at(low - 5).weights == learned.at(low).weights).all()
    assert (learned.at(high + 5).weights == learned.at(high).weights).all()
    assert (learned.at(low).weights != learned.at(high).weights).any()


def test_the_confidence_of_a_collection_is_that_of_most_of_its_fragments() -> None:
    matches = [beside(("a", 0, 0), ("a", 0, 1), 4.0), beside(("a", 0, 1), ("a", 0, 2), 6.0)]
    assert confidence_of(["a00", "a01", "a02"], matches) == 6.0
    assert confidence_of(["a00", "a01"], matches[:1]) == 4.0
    assert confidence_of(["a00", "a01", "a02", "b00", "b01"], matches) == 4.0
    assert confidence_of([], []) < -10 > confidence_of(["b00"], matches)
