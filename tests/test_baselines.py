"""The comparison methods: their steps by hand, and together on a torn picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pairingnet.baselines.candidates import (
    Poses,
    align_chords,
    counted,
    covered,
    distinct,
    find_candidates,
    likeness,
    pair_segments,
    segment_score,
)
from pairingnet.baselines.chance import ChanceMethod
from pairingnet.baselines.mean_colour import MeanColourMethod
from pairingnet.baselines.ranking import rank_all_pairs, rank_scores
from pairingnet.baselines.rule_based import RuleBasedMethod
from pairingnet.baselines.same_picture import SamePictureMethod
from pairingnet.baselines.segments import Piece, Segments, border_colours, cut, describe_piece, farthest_points, polygon
from pairingnet.benchmark.ask import predict
from pairingnet.config import CandidateSettings
from pairingnet.errors import CollectionError
from pairingnet.evaluate.metrics import match_errors
from pairingnet.evaluate.scores import score
from pairingnet.geometry import Points, Rigid2D, resample_closed
from pairingnet.io.collection import Collection
from pairingnet.match.contact import Outline
from pairingnet.types import Fragment, Pixels
from tests.conftest import blob, fragment_of

SETTINGS = CandidateSettings()
RED, BLUE = (150, 60, 40), (40, 60, 150)


def rectangle(width: int, height: int, colour: tuple[int, int, int] = RED, name: str = "box") -> Fragment:
    mask = np.zeros((height + 40, width + 40), dtype=np.uint8)
    mask[20:-20, 20:-20] = 255
    return fragment_of(mask, colour, name)


def segments(
    start: list[complex], end: list[complex], length_px: list[float], colour: list[list[float]] | None = None
) -> Segments:
    a, b = np.array(start, dtype=complex), np.array(end, dtype=complex)
    dyed = np.zeros((len(a), 3)) if colour is None else np.array(colour, dtype=float)
    return Segments(a, b, 0.5 * (a + b), np.array(length_px, dtype=float), dyed)


# Polygons and segments


def square(side: float = 40.0) -> Points:
    return resample_closed(np.array([[0, 0], [side, 0], [side, side], [0, side]]), 1.0)


def test_the_farthest_points_of_a_square_are_across() -> None:
    contour = square()
    a, b = farthest_points(contour)
    assert np.linalg.norm(contour[a] - contour[b]) == pytest.approx(40 * np.sqrt(2))
    line = np.stack([np.arange(9.0), np.zeros(9)], axis=1)
    assert sorted(farthest_points(line)) == [0, 8]


def test_the_polygon_of_a_square_has_four_corners() -> None:
    contour = square()
    corners = contour[polygon(contour, 1.0)]
    assert sorted(map(tuple, corners.round(6))) == [(0, 0), (0, 40), (40, 0), (40, 40)]


def test_segments_of_a_square_by_hand() -> None:
    contour = square()
    colours = np.where(contour[:, 1:] == 0, 200.0, 100.0) * np.ones(3)
    found = cut(contour, colours, polygon(contour, 1.0))
    assert found.length_px == pytest.approx(np.full(4, 40.0))
    assert set(found.centroid.round(6)) == {20 + 0j, 40 + 20j, 20 + 40j, 0 + 20j}
    assert np.array_equal(found.end, np.roll(found.start, -1))
    top = int(np.flatnonzero(found.centroid.round(6) == 20)[0])
    assert found.start[top] == 0 and found.end[top] == 40  # clockwise on the screen
    assert found.colour[top] == pytest.approx([200, 200, 200])


def test_colours_are_taken_inside_and_nearer_to_the_edge_of_thin_pieces() -> None:
    for fragment in (rectangle(60, 50), rectangle(60, 3)):
        outline = Outline(fragment.contour)
        assert np.abs(border_colours(fragment, outline, 2.5) - RED).max() < 1


# Candidates


def test_a_chord_is_laid_on_the_other_one_backwards() -> None:
    """(0, 0)-(10, 0) onto a chord that runs from (5, 20) to (5, 10): a quarter turn to the left on the screen."""
    poses = align_chords(*(np.array([z]) for z in (0, 10, 5 + 20j, 5 + 10j)))
    assert poses.turn == pytest.approx([-1j])
    assert poses.apply(np.array([0, 10, 5])) == pytest.approx(np.array([[5 + 20j, 5 + 10j, 5 + 15j]]))
    longer = align_chords(*(np.array([z]) for z in (0, 12, 5 + 20j, 5 + 10j)))
    assert longer.apply(np.array([6.0 + 0j])) == pytest.approx(np.array([[5 + 15j]]))  # midpoint on midpoint
    nothing = align_chords(*(np.array([z]) for z in (3, 3, 1j, 2j)))
    assert nothing.turn == pytest.approx([1.0])


def test_motions_and_their_inverses() -> None:
    pose = Rigid2D(0.7, 12.0, -5.0)
    poses = Poses(np.array([np.exp(0.7j)]), np.array([12 - 5j]))
    z = np.array([3 + 4j, -8 + 1j])
    assert poses.inverse().apply(poses.apply(z)[0])[0] == pytest.approx(z)
    assert poses.rigid(0).matrix == pytest.approx(pose.matrix)
    landed = poses.apply(z)[0]
    assert pose.apply([[3, 4], [-8, 1]]) == pytest.approx(np.stack([landed.real, landed.imag], axis=1))


def test_segments_pair_by_length_and_colour_and_run_against_each_other() -> None:
    white, grey = [255.0] * 3, [128.0] * 3
    source = segments([0, 0], [30, 100j], [30, 100], [white, white])
    target = segments([0, 0, 0, 5], [33, 120j, 30, 9], [33, 120, 31, 4], [white, white, grey, white])
    found = pair_segments(source, target, SETTINGS)
    assert list(zip(found.rows, found.columns, strict=True)) == [(0, 0)]  # 100 and 120 differ by more than a tenth
    assert found.poses.turn == pytest.approx([-1])  # the target's segment is run through from its end


def test_likeness_and_what_counts_of_it() -> None:
    assert likeness(np.zeros(3), np.full(3, 255.0)) == pytest.approx(0)
    assert likeness(np.zeros(3), np.full(3, 25.5)) == pytest.approx(0.9)
    assert counted(np.array([0.5, 0.9, 0.95, 1.0]), SETTINGS) == pytest.approx([0, 0, 0.5, 1])


def test_the_score_by_hand() -> None:
    """Two segments match, one of them half alike; a third lies 4 px from the next centroid: too far."""
    source = segments([0, 20, 90], [10, 40, 100], [10, 20, 10])
    target = segments([1, 21, 94], [11, 41, 104], [12, 20, 10], [[0.0] * 3, [12.75] * 3, [0.0] * 3])
    still = Poses(np.array([1 + 0j]), np.array([0j]))
    score, partner = segment_score(source, target, still, SETTINGS)
    assert score == pytest.approx([11 * 1 + 20 * 0.5 + 2 * 5])
    assert partner.tolist() == [[0, 1, -1]]
    nobody = segments([], [], [])
    assert segment_score(nobody, target, still, SETTINGS)[0].tolist() == [0]


def test_how_much_one_piece_covers_of_another() -> None:
    box = describe_piece(rectangle(100, 100), SETTINGS)
    small = describe_piece(rectangle(50, 50), SETTINGS)
    poses = Poses(np.ones(3, dtype=complex), np.array([0, 50, 100], dtype=complex))
    assert covered(box, box, poses) == pytest.approx([1.0, 0.5, 0.0], abs=0.12)
    # All of the small one lies on the large one, a quarter of the large one is covered: the larger share counts.
    assert covered(small, box, poses)[0] == pytest.approx(1.0, abs=0.12)


def test_poses_that_say_the_same_count_once() -> None:
    turn = np.exp(1j * np.radians([0, 1, 5, 0, 0]))
    poses = Poses(turn, np.array([0, 1, 0, 20, 2], dtype=complex))
    assert distinct(poses, np.array([3.0, 5.0, 2.0, 1.0, 4.0]), 0j, 9).tolist() == [1, 2, 3]
    assert distinct(poses, np.array([3.0, 5.0, 2.0, 1.0, 4.0]), 0j, 2).tolist() == [1, 2]


def test_two_halves_find_each_other(picture: Pixels) -> None:
    """A picture cut along a wavy line; the right half is turned by a quarter."""
    x, y = np.meshgrid(np.arange(300), np.arange(200))
    left = x < 150 + 15 * np.sin(y / 17.0) + 8 * np.sin(y / 7.0 + 1)
    pieces = []
    for name, inside in (("left", left), ("right", ~left)):
        mask = np.pad(np.where(inside, 255, 0).astype(np.uint8), 10)
        pixels = np.pad(picture[:200, :300], ((10, 10), (10, 10), (0, 0))) * (mask[..., None] > 0)
        if name == "right":
            mask, pixels = np.rot90(mask, -1).copy(), np.rot90(pixels, -1).copy()  # clockwise
        whole = fragment_of(mask, name=name)
        pieces.append(Fragment(name, pixels.astype(np.uint8), mask, whole.contour))
    method = RuleBasedMethod()
    source, target = method.features(pieces)
    match = method.match(source, target)
    assert match.target_from_source is not None
    truth = Rigid2D(np.pi / 2, 219.0, 0.0)  # (x, y) -> (219 - y, x): the image is 220 px high
    seam = source.outline.points[source.outline.points[:, 0] > 120]
    assert np.linalg.norm(match.target_from_source.apply(seam) - truth.apply(seam), axis=1).mean() < 2
    assert match.score > 60 and match.points.shape[1:] == (2, 2)
    apart = match.target_from_source.apply(match.points[:, 0]) - match.points[:, 1]
    assert np.linalg.norm(apart, axis=1).max() <= SETTINGS.touch + 1e-6
    back = method.match(target, source)
    assert back.target_from_source is not None
    assert (back.target_from_source @ match.target_from_source).apply(seam) == pytest.approx(seam, abs=1.5)


def test_candidates_are_few_different_and_the_best_first(pieces: list[Fragment]) -> None:
    known = [describe_piece(piece, SETTINGS) for piece in pieces[:8]]
    seen = 0
    for a in known:
        for b in known:
            found = find_candidates(a, b, SETTINGS)
            scores = [candidate.score for candidate in found]
            assert len(found) <= SETTINGS.candidates and scores == sorted(scores, reverse=True)
            assert all(score >= SETTINGS.least for score in scores)
            seen += len(found)
    assert seen > 10


def test_rule_based_finds_true_poses(torn: Collection, pieces: list[Fragment]) -> None:
    method = RuleBasedMethod()
    known = {piece.id: piece for piece in method.features(pieces)}
    right = 0
    for pair in torn.pairs:
        match = method.match(known[pair.source], known[pair.target])
        pose = torn.by_id[pair.source].canvas_from_fragment
        assert pose is not None
        shared = pose.inverse().apply(pair.seam)
        errors = match_errors(match.target_from_source, torn.target_from_source(pair), shared, 1.0, 1.0)
        right += errors.mean_px < 4
    assert right >= 0.3 * len(torn.pairs)


def test_rule_based_is_judged_like_any_method(torn: Collection, tmp_path: Path) -> None:
    kept = torn.fragments[:10]
    ids = {record.id for record in kept}
    part = replace(torn, fragments=kept, pairs=tuple(p for p in torn.pairs if {p.source, p.target} <= ids))
    row = score(part, predict(part, RuleBasedMethod(), tmp_path))[0]
    assert row.pairs == len(part.pairs) > 5
    assert row.values["R@5"] > 0.5 and row.values["RR"] > 0.3


def test_pieces_of_other_colours_do_not_fit() -> None:
    method = RuleBasedMethod()
    red, blue = method.features([rectangle(60, 50), rectangle(60, 50, BLUE, "blue")])
    match = method.match(red, blue)
    assert match.target_from_source is None and match.reason and method.score(red, blue) == 0
    assert method.score(red, red) > 0


# Rankings


def test_ranking_of_scores_by_hand() -> None:
    scores = np.array([[9, 1, 2], [1, 9, -np.inf], [2, -np.inf, 9]], dtype=np.float64)
    ranked, told = rank_scores(scores, 3)
    assert ranked.tolist() == [[2, 1, -1], [0, -1, -1], [0, -1, -1]]
    assert told[0, :2].tolist() == [2, 1] and np.isinf(told[:, 2]).all()


def test_every_pair_is_asked_about_once() -> None:
    asked: list[tuple[int, int]] = []

    def score(a: int, b: int) -> float:
        asked.append((a, b))
        return float(a * b)

    ranked, _ = rank_all_pairs(score, [0, 1, 2, 3], 2)
    assert asked == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert ranked.tolist() == [[-1, -1], [3, 2], [3, 1], [2, 1]]  # a score of 0 is no candidate


def test_the_oracle_puts_the_same_picture_first() -> None:
    sources = {"a": "one", "b": "two", "c": "one", "d": "two", "e": "one"}
    method = SamePictureMethod(sources)
    ranked, scores = method.rank(list(sources), 4)
    names = list(sources)
    for row, name in enumerate(names):
        same = [sources[names[i]] == sources[name] for i in ranked[row]]
        assert same == sorted(same, reverse=True) and (scores[row] >= 1).tolist() == same
    orders = {tuple(SamePictureMethod(sources, seed).rank(names, 4)[0].ravel()) for seed in range(9)}
    assert len(orders) > 3
    with pytest.raises(CollectionError, match="'x'"):
        method.rank(["a", "x"], 4)


def test_chance_finds_neighbours_as_often_as_chance_does() -> None:
    names = [str(i) for i in range(200)]
    ranked, _ = ChanceMethod(3).rank(names, 20)
    hits = [(ranked[i] == (i + 1) % 200).any() for i in range(200)]
    assert 0.03 < np.mean(hits) < 0.2  # 20 of 199
    assert all(len(set(row)) == 20 for row in ranked.tolist())


def test_mean_colour_ranks_by_colour() -> None:
    colours = [(200, 20, 20), (20, 200, 20), (190, 30, 30), (30, 190, 30)]
    pieces = [fragment_of(blob(i), colour, str(i)) for i, colour in enumerate(colours)]
    method = MeanColourMethod()
    ranked, scores = method.rank(list(method.features(pieces)), 3)
    assert ranked[:, 0].tolist() == [2, 3, 0, 1]
    assert scores[0, 0] == pytest.approx(-np.sqrt(300), abs=0.01)


def test_thin_and_tiny_pieces_are_described() -> None:
    for fragment in (rectangle(3, 3), rectangle(200, 2), fragment_of(blob(1, 40, 4.0))):
        piece: Piece = describe_piece(fragment, SETTINGS)
        assert len(piece.colours) == len(fragment.contour) and np.isfinite(piece.segments.length_px).all()
        assert len(find_candidates(piece, piece, SETTINGS)) <= SETTINGS.candidates
