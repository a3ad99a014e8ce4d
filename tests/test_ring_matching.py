"""From features to joins: hypotheses, contact, evidence, votes, verifier, the stages on disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from pairingnet import stages
from pairingnet.config import WEAR_LEVELS, RingMatchSettings, VoteSettings
from pairingnet.errors import CollectionError
from pairingnet.geometry import Rigid2D, angle_difference, resample_closed
from pairingnet.io.collection import Collection, write_collection
from pairingnet.io.images import write_png
from pairingnet.io.manifest import Manifest
from pairingnet.match import loops
from pairingnet.match.candidates import rank_by_joins
from pairingnet.match.contact import Outline, as_pose, contact, overlap_penalty, refine
from pairingnet.match.evidence import CHANNELS, Evidence
from pairingnet.match.hypotheses import Correspondences, likely_correspondences, propose
from pairingnet.match.ring import RingMethod
from pairingnet.match.store import feature_path, read_features, write_features
from pairingnet.match.verify import Verifier
from pairingnet.match.weights import RingModel, load_model, load_unverified, save_model
from pairingnet.models.ring import RingNet
from pairingnet.prepare.contour import trace_contour
from pairingnet.search.votes import background_levels, rank_by_votes
from pairingnet.synth.wear import wear_edge
from pairingnet.train import verify
from pairingnet.train.checkpoints import ring_from
from pairingnet.train.verify import (
    Joins,
    best_fits,
    calibrate,
    collect_joins,
    few_of,
    fit_verifier,
    joins_of,
    judge_all,
)
from pairingnet.types import Fragment, PairMatch
from tests.helpers import TINY_RING, Piece, run, unit


def shared(collection: Collection, number: int) -> tuple[str, str, Rigid2D, np.ndarray]:
    pair = collection.pairs[number]
    pose = collection.by_id[pair.source].canvas_from_fragment
    assert pose is not None
    return pair.source, pair.target, collection.target_from_source(pair), pose.inverse().apply(pair.seam)


def off_px(found: Rigid2D, true: Rigid2D, points: np.ndarray) -> float:
    return float(np.linalg.norm(found.apply(points) - true.apply(points), axis=1).mean())


def test_one_good_frame_among_wrong_ones_is_enough(rng: np.random.Generator) -> None:
    true = Rigid2D(1.1, 40, -20)
    source = rng.uniform(0, 300, (80, 2))
    tangents = rng.normal(size=(80, 2))
    tangents /= np.linalg.norm(tangents, axis=1, keepdims=True)
    target = true.apply(source)
    turned = -(true.apply(tangents) - true.shift)
    columns = np.arange(80)
    columns[30:] = rng.permutation(80)[:50]  # five of eight are wrong
    found = Correspondences(np.arange(80), columns, np.full(80, 0.5))
    best = propose(found, (source, tangents), (target, turned), 5.0, 8)[0]
    assert off_px(best.target_from_source, true, source) < 0.1
    assert set(range(30)) <= set(best.inliers.tolist())
    single = Correspondences(found.rows[:1], columns[:1], found.probability[:1])
    assert propose(single, (source, tangents), (target, turned), 5.0, 8) == []


def test_correspondences_are_the_best_of_rows_and_columns() -> None:
    logits = np.full((3, 4), -5.0, dtype=np.float32)
    logits[0, 2] = logits[1, 1] = logits[2, 0] = 5.0
    found = likely_correspondences(logits, most=10, least=0.1)
    assert {(int(r), int(c)) for r, c in zip(found.rows, found.columns, strict=True)} == {(0, 2), (1, 1), (2, 0)}


def test_refining_meets_the_contours_to_a_fraction_of_a_pixel(torn: Collection, pieces: list[Fragment]) -> None:
    by_id = {piece.id: piece for piece in pieces}
    better = 0
    for number in range(8):
        a, b, true, seam = shared(torn, number)
        source, target = Outline(by_id[a].contour), Outline(by_id[b].contour)
        start = Rigid2D(0.01, 1.5, -1.0) @ true
        anchors = (seam[::5], true.apply(seam[::5]) + (1.0, -0.7), np.ones(len(seam[::5])))
        found = refine(source, target, start, anchors, 8.0)
        better += off_px(found, true, seam) < 0.6
        assert len(contact(source, target, true, 2.0)) > 0.7 * torn.pairs[number].overlap_px
    assert better >= 7


def test_a_seam_that_gapes_at_one_end_does_not_turn_the_pieces() -> None:
    """Of the right square's left edge a wedge is gone, 5 px wide above and nothing in the middle."""
    whole = Outline(resample_closed(np.array([[0, 0], [200, 0], [200, 200], [0, 200]], dtype=float), 1.0))
    worn = Outline(
        resample_closed(np.array([[205, 0], [400, 0], [400, 200], [200, 200], [200, 100]], dtype=float), 1.0)
    )
    below = np.stack([np.full(9, 200.0), np.linspace(110, 190, 9)], axis=1)
    found = refine(whole, worn, Rigid2D(), (below, below, np.ones(9)), 8.0)
    assert np.degrees(abs(found.angle_rad)) < 0.5  # 1.4 where what gapes pulls as much as what overlaps pushes


def test_the_grid_finds_the_nearest_point(pieces: list[Fragment], rng: np.random.Generator) -> None:
    """Against the distances to all points."""
    outline = Outline(pieces[0].contour)
    low, high = outline.points.min(axis=0) - 15, outline.points.max(axis=0) + 15
    places = rng.uniform(low, high, (300, 2))
    inside = [cv2.pointPolygonTest(outline.points.astype(np.float32), place.tolist(), True) for place in places]
    number, apart, side = loops.nearest(as_pose(Rigid2D()), places, 1, outline.ground, np.inf)
    distances = np.linalg.norm(outline.points[None] - places[:, None], axis=2)
    far = side == 0
    assert (np.array(inside)[far] < -25).all()
    clear = ~far & (np.abs(inside) >= 3)
    assert np.array_equal(side[clear], np.sign(inside)[clear])
    assert np.allclose(apart[~far], distances[np.arange(len(places)), number][~far])
    # Where two stretches are equally far, the pixel's own nearest may win.
    assert (np.abs(apart - distances.min(axis=1))[~far] > 0.5).sum() <= 3
    for beyond in (0.0, 3.0, 10.0):
        # What is farther need not be told how far; nothing else may change.
        _, about, same_side = loops.nearest(as_pose(Rigid2D()), places, 1, outline.ground, beyond)
        within = apart <= beyond
        assert np.array_equal(about[within], apart[within])
        assert (about[~within] > beyond).all()
        assert np.array_equal(side, same_side)


def test_the_bend_is_that_of_the_nearest_line(rng: np.random.Generator) -> None:
    points = rng.normal(size=(40, 2)) @ np.array([[9.0, 2.0], [0.0, 1.0]]) + 100
    rows = np.arange(5, 35)
    centred = points[rows] - points[rows].mean(axis=0)
    normal = np.linalg.eigh(centred.T @ centred)[1][:, 0]
    assert loops.bend(points, rows) == pytest.approx(np.abs(centred @ normal).max())


def test_colours_across_a_seam_are_compared_in_place_and_beside_it(rng: np.random.Generator) -> None:
    other = rng.random((60, 3), dtype=np.float32)
    rows, columns, shifts = np.arange(20), np.arange(65, 45, -1), np.arange(-4, 5, 2)
    mine = other[columns % 60] + rng.normal(0, 0.05, (20, 3)).astype(np.float32)
    difference, typical, correlation = loops.colours_across(mine, other, rows, columns, shifts)
    beside = other[(columns + shifts[:, None]) % 60]
    assert np.allclose(difference, np.abs(mine - beside).mean(axis=(1, 2)), rtol=1e-5)
    a, b = mine - mine.mean(axis=0), beside[2] - beside[2].mean(axis=0)
    assert typical == pytest.approx((np.abs(a).mean() + np.abs(b).mean()) / 2, rel=1e-5)
    assert correlation == pytest.approx((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()), rel=1e-5)
    assert difference.argmin() == 2
    plain = np.full((20, 3), 0.5, np.float32)
    assert loops.colours_across(plain, plain, rows, rows, shifts)[2] == 0.0  # nothing varies: no correlation, no NaN


def test_contacts_are_those_of_a_slow_search(torn: Collection, pieces: list[Fragment]) -> None:
    by_id = {piece.id: piece for piece in pieces}
    a, b, true, _ = shared(torn, 0)
    source, target = Outline(by_id[a].contour), Outline(by_id[b].contour)
    landed = true.apply(source.points)
    distance, nearest = cKDTree(target.points).query(landed, distance_upper_bound=4.0)
    turned = true.apply(source.tangents) - true.shift
    near = np.flatnonzero(np.isfinite(distance))
    opposed = (turned[near] * target.tangents[np.asarray(nearest)[near]]).sum(axis=1) < loops.OPPOSED
    expected = set(near[opposed].tolist())
    found = contact(source, target, true, 4.0)
    assert len(expected ^ set(found.rows.tolist())) <= 0.03 * len(expected)
    apart = np.hypot(found.gap_px, found.along_px)
    assert np.allclose(apart, np.linalg.norm(landed[found.rows] - target.points[found.columns], axis=1))


def test_a_coarse_outline_is_enough(pieces: list[Fragment]) -> None:
    fine, coarse = Outline(pieces[0].contour), Outline.at_step(pieces[0].contour, 12.0)
    assert len(coarse.points) == pytest.approx(len(fine.points) / 3, rel=0.02)
    away = Rigid2D(0.0, 20.0, 0.0)
    lying = [overlap_penalty(outline, outline, away, 6.0) for outline in (fine, coarse)]
    assert lying[0] == pytest.approx(lying[1], rel=0.05)


def test_overlap_is_seen(torn: Collection, pieces: list[Fragment]) -> None:
    by_id = {piece.id: piece for piece in pieces}
    a, b, true, seam = shared(torn, 0)
    source, target = Outline(by_id[a].contour), Outline(by_id[b].contour)
    assert overlap_penalty(source, target, true, 3.0) == 0
    inside = target.points.mean(axis=0) - true.apply(seam).mean(axis=0)
    assert overlap_penalty(source, target, Rigid2D(0, *(0.5 * inside)) @ true, 3.0) > 20


def test_votes_find_the_piece_with_the_same_run_backwards(rng: np.random.Generator) -> None:
    contours = [unit(rng.normal(size=(60, 16))) for _ in range(6)]
    keys = [unit(rng.normal(size=(60, 16))) for _ in range(6)]
    keys[4][20:40] = contours[1][10:30][::-1]
    keys[1][10:30] = contours[4][20:40][::-1]
    pieces = [Piece(q, k) for q, k in zip(contours, keys, strict=True)]
    ranked, scores = rank_by_votes(pieces, scale=20.0, most=3, settings=VoteSettings(1, 1, 24))
    assert ranked[1, 0] == 4 and ranked[4, 0] == 1
    assert scores[1, 0] > 5 * scores[0, 0]
    alone, _ = rank_by_votes(pieces[:1], 20.0, 3)
    assert alone.tolist() == [[-1, -1, -1]]


def test_levels_are_the_best_few_and_keep_no_other_memory(rng: np.random.Generator) -> None:
    points, background = unit(rng.normal(size=(5, 8))), unit(rng.normal(size=(201, 8)))
    levels = background_levels(points.astype(np.float32), background.astype(np.float32), 10.0)
    assert np.allclose(levels, np.sort(10 * points @ background.T, axis=1)[:, 194], atol=1e-4)
    assert levels.base is None
    assert background_levels(points.astype(np.float32), np.zeros((0, 8), np.float32), 10.0).tolist() == [0.0] * 5


def told_joins(rng: np.random.Generator, count: int, by_seam: bool) -> Joins:
    """Joins whose evidence, or only whose seams, tell right from wrong."""
    right = rng.random(count) < 0.3
    tells = np.where(right, rng.normal(2, 1, count), rng.normal(-2, 2, count))
    evidence = [Evidence(agreement=0.0 if by_seam else 10 * float(x), contact=30.0) for x in tells]
    lengths = rng.integers(1, 9, count)
    points = np.zeros((lengths.sum(), CHANNELS), np.float16)
    if by_seam:
        points[np.cumsum(lengths) - 1, 5] = tells  # one point of each seam
    return Joins(evidence, points, lengths, right, np.arange(count) // 3, np.where(right, 1.5, np.nan))


@pytest.mark.parametrize("by_seam", [False, True])
def test_the_verifier_learns_and_is_calibrated(rng: np.random.Generator, by_seam: bool) -> None:
    checked = told_joins(rng, 3000, by_seam)
    verifier = calibrate(fit_verifier(told_joins(rng, 3000, by_seam), rounds=300), checked)
    logits, gaps = judge_all(verifier, checked)
    best = best_fits(logits, checked.pair)
    assert len(best) == 1000
    told = 1 / (1 + np.exp(-logits[best]))
    sure = told > 0.9
    assert sure.sum() > 100 and checked.right[best][sure].mean() > 0.85
    assert abs(told.mean() - checked.right[best].mean()) < 0.03
    assert np.median(np.abs(gaps[checked.right] - 1.5)) < 0.3
    crowds = [Evidence(agreement=9.0, crowd=np.log(count)) for count in (4000, 8000)]
    known, twice = verifier.judge(crowds, [np.zeros((0, CHANNELS), np.float32)] * 2)[0]
    assert known - twice == pytest.approx(np.log(2), abs=1e-5)


def test_a_fit_is_judged_alike_whatever_is_judged_beside_it(rng: np.random.Generator) -> None:
    joins = told_joins(rng, 600, by_seam=True)
    verifier = fit_verifier(joins, rounds=20)
    together, _ = judge_all(verifier, joins)
    alone, _ = judge_all(verifier, joins, at_once=1)
    assert np.allclose(together, alone, atol=1e-4)


def test_joins_are_kept_for_a_verifier_that_was_interrupted(
    torn: Collection, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.safetensors"
    shutil.copy(weights, own)
    first = joins_of([torn.folder], own, 1, (0.4, 1), 3, crowds=[torn.folder])
    assert len(list((tmp_path / "joins").rglob("*.npz"))) == 2
    monkeypatch.setattr(verify, "collect_joins", lambda *_: pytest.fail("collected again"))
    again = joins_of([torn.folder], own, 1, (0.4, 1), 3, crowds=[torn.folder])
    assert again.evidence == first.evidence and again.right.tolist() == first.right.tolist()
    assert again.points.tobytes() == first.points.tobytes() and again.lengths.sum() == len(again.points)
    assert again.pair.tolist() == first.pair.tolist() and np.array_equal(again.gap, first.gap, equal_nan=True)
    other = shutil.copytree(torn.folder, tmp_path / torn.folder.name)  # the same name, other content
    write_collection(few_of(replace(torn, folder=other), 4))
    whole = joins_of([], own, 1, (1,), 3, crowds=[torn.folder])
    monkeypatch.undo()
    assert len(joins_of([], own, 1, (1,), 3, crowds=[other]).right) < len(whole.right)


def test_a_right_fit_is_right_whatever_gap_it_has_closed(
    torn: Collection, pieces: list[Fragment], tmp_path: Path
) -> None:
    """Worn pieces are laid contour on contour, nearer to each other than they were: here by 8 px, over five steps."""
    method = RingMethod(load_model(), step_px=1.5)
    (tmp_path / "fragments").mkdir()
    for record, piece in zip(torn.fragments, pieces, strict=True):
        worn = cv2.erode(piece.alpha, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (9, 9)))
        write_png(tmp_path / record.image, np.dstack([piece.pixels, worn]))
    joins = collect_joins(few_of(replace(torn, folder=tmp_path), 6), method, 5)
    found = joins.gap[joins.right]
    assert len(found) >= 5 and np.isnan(joins.gap[~joins.right]).all()
    assert 4 < np.median(found) < 7


def test_neighbours_that_share_little_contour_are_right_as_well(torn: Collection) -> None:
    """They are not among the true pairs; a verifier that learned them as wrong would doubt every short seam."""
    method = RingMethod(load_model(), step_px=1.5)
    few = few_of(torn, 5)
    listed, unlisted = (collect_joins(each, method, 5) for each in (few, replace(few, pairs=())))
    assert listed.right.sum() == unlisted.right.sum() >= 4


def test_a_few_pieces_hang_together(torn: Collection) -> None:
    few = few_of(torn, 4)
    assert len(few) == 4 and len(few.pairs) >= 3
    reached = {few.pairs[0].source}
    for _ in few.pairs:
        reached |= {
            name for pair in few.pairs for name in (pair.source, pair.target) if reached & {pair.source, pair.target}
        }
    assert reached == {record.id for record in few.fragments}
    assert len(few_of(torn, 10**6)) <= len(torn)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    bank = {name: np.eye(8, dtype=np.float32) for name in ("queries", "keys")}
    save_model(path, RingModel(RingNet(TINY_RING), Verifier.plain(), bank), {"made": "for a test"})
    return path


def test_weights_are_read_strictly(weights: Path, tmp_path: Path) -> None:
    model = load_model(weights)
    assert model.network.settings == TINY_RING and model.verifier.weights == {}
    assert model.bank["keys"].dtype == np.float32 and model.bank["keys"].tolist() == np.eye(8).tolist()
    with pytest.raises(CollectionError, match="no weights"):
        load_model(tmp_path / "nothing.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"not weights at all")
    with pytest.raises(CollectionError, match="bad"):
        load_model(tmp_path / "bad.safetensors")
    other = Verifier({"mean": np.zeros(3, np.float32)})  # as the first versions had it, without networks of a seam
    save_model(tmp_path / "other.safetensors", replace(model, verifier=other), {})
    with pytest.raises(CollectionError, match=r"another version .* another network"):
        load_model(tmp_path / "other.safetensors")
    network = ring_from(tmp_path / "other.safetensors")  # to be trained further, whatever the verifier is
    for name, value in model.network.state_dict().items():
        assert torch.equal(network.state_dict()[name], value)


def test_the_same_model_gives_the_same_bytes_and_tells_how_it_was_made(weights: Path, tmp_path: Path) -> None:
    told = {"zebra": "1", "made": "for a test", "apple": "2"}
    for name in ("one", "other"):
        save_model(tmp_path / name, load_model(weights), told)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    model, story = load_unverified(tmp_path / "one")
    assert story == told and model.verifier.weights == {} and model.bank["keys"].tolist() == np.eye(8).tolist()


def test_a_verifier_is_learned_for_a_network_that_is_there(torn: Collection, weights: Path, tmp_path: Path) -> None:
    model, story = verify.to_learn_from(weights, [torn.folder], 0)
    assert story == {"made": "for a test"} and model.bank["queries"].shape == (8, 8)
    out = tmp_path / "learned.safetensors"
    options = ["--from", weights, "--calibrate", torn.folder, "--pictures", 1, "--candidates", 2, "--out", out]
    arguments = ["train", "verifier", torn.folder, *options, "--rounds", 5]
    result = run(*arguments)
    assert result.returncode == 0, result.stderr
    learned = load_model(out)
    assert learned.verifier.weights and load_unverified(out)[1] == story
    assert "precision at 60%" in result.stdout


@pytest.fixture(scope="module")
def shipped() -> RingMethod:
    return RingMethod(load_model(), step_px=3.0)


def test_worn_collections_are_told_from_clean_ones(
    shipped: RingMethod, pieces: list[Fragment], rng: np.random.Generator
) -> None:
    clean = shipped.know(list(shipped.features(pieces)))
    other_order = shipped.know([clean[i] for i in rng.permutation(len(clean))])
    assert len({each.side.usual_loose for each in clean}) == 1
    assert clean[0].side.usual_loose < 0.05
    assert other_order[0].side.usual_loose == pytest.approx(clean[0].side.usual_loose, abs=0.02)
    alphas = [wear_edge(piece.alpha, WEAR_LEVELS["medium"], rng) for piece in pieces]
    worn = [replace(p, alpha=a, contour=trace_contour(a)) for p, a in zip(pieces, alphas, strict=True)]
    assert shipped.know(list(shipped.features(worn)))[0].side.usual_loose > 4 * clean[0].side.usual_loose


def test_more_ways_to_join_worn_pieces_are_tried(shipped: RingMethod, pieces: list[Fragment]) -> None:
    known = shipped.know(list(shipped.features(pieces[:6])))

    def laid(loose: float) -> int:
        some = [replace(each, side=replace(each.side, usual_loose=loose)) for each in known]
        return sum(len(shipped.fits(a, b)) for a, b in combinations(some, 2))

    assert laid(0.4) > 1.5 * laid(0.01) == 1.5 * laid(float("nan"))


def test_other_ways_to_join_a_pair_are_different_ones(shipped: RingMethod, pieces: list[Fragment]) -> None:
    blind = RingMethod(replace(shipped.model, verifier=Verifier.plain()), 3.0, RingMatchSettings(worn=0.0))
    known = blind.know(list(blind.features(pieces[:8])))
    several = 0
    for a, b in combinations(known, 2):
        match = blind.match(a, b)
        ways = [match, *match.others]
        several += len(ways) > 1
        assert len(ways) <= blind.settings.ways and sum(way.probability for way in ways) <= 1 + 1e-9
        assert all(other.probability == pytest.approx(1 / (1 + np.exp(-other.score))) for other in match.others)
        assert all(other.pair == match.pair for other in match.others)
        for one, other in combinations(ways, 2):
            assert one.target_from_source is not None and other.target_from_source is not None
            seam = other.points[:, 0]
            apart = np.linalg.norm(one.target_from_source.apply(seam) - other.target_from_source.apply(seam), axis=1)
            turned = angle_difference(one.target_from_source.angle_rad, other.target_from_source.angle_rad)
            assert apart.mean() > 5 * 3.0 or turned > np.radians(10)
    assert several


def test_a_fit_that_nothing_is_known_of_is_its_own_measure(shipped: RingMethod, pieces: list[Fragment]) -> None:
    bank = shipped.model.bank
    a, b = shipped.know(list(shipped.features(pieces[:2])), bank)
    assert np.isnan(a.side.usual_loose)
    for fit in shipped.fits(a, b):
        assert fit.evidence.usual == fit.evidence.loose
    told = replace(b, side=replace(b.side, usual_loose=0.25))
    assert all(fit.evidence.usual in (0.25, 0.0) for fit in shipped.fits(a, told))
    assert np.isnan(shipped.know([a])[0].side.usual_loose)  # alone, it has no joins


def test_features_survive_the_disk(weights: Path, pieces: list[Fragment], tmp_path: Path) -> None:
    method = RingMethod(load_model(weights), step_px=3.0)
    made = method.know(list(method.features(pieces[:2])))
    for before in made:
        write_features(tmp_path, replace(before, fingerprint="made of this"))
        after = read_features(tmp_path, before.id, "made of this")
        assert after is not None and after.fingerprint == "made of this"
        for name in ("queries", "keys", "prior"):
            assert np.array_equal(getattr(before.side, name), getattr(after.side, name))
        for name in ("points", "tangents", "colours", "step_px"):
            assert np.array_equal(getattr(before.side.strip, name), getattr(after.side.strip, name))
        assert np.array_equal(before.outline.points, after.outline.points)
        assert read_features(tmp_path, before.id, "made of something else") is None
    assert read_features(tmp_path, "nobody") is None


def test_damaged_features_are_as_good_as_none(weights: Path, pieces: list[Fragment], tmp_path: Path) -> None:
    """Whatever byte is another, and wherever the file is cut off."""
    method = RingMethod(load_model(weights), step_px=3.0)
    made = next(method.features(pieces[:1]))
    write_features(tmp_path, made)
    path = feature_path(tmp_path, made.id)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in [*range(24), *rng.integers(0, len(whole), 200).tolist()]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << int(rng.integers(8)))]) + whole[place + 1 :])
        damaged = read_features(tmp_path, made.id, made.fingerprint)
        # White space in the header may change without a change in what is read.
        assert damaged is None or np.array_equal(damaged.side.queries, made.side.queries)
        path.write_bytes(whole[:place])
        assert read_features(tmp_path, made.id, made.fingerprint) is None


def test_stages_do_only_what_is_missing(torn: Collection, weights: Path, tmp_path: Path) -> None:
    source = stages.source_of(torn, weights, tmp_path)
    features = stages.compute_features(torn, source, jobs=1)
    stamps = {path: path.stat().st_mtime_ns for path in source.features.iterdir()}
    assert len(stamps) == len(features) == len(torn)
    stages.compute_features(torn, source, jobs=1)
    statistics, source = stages.statistics_of(features, source)
    features = [statistics.applied_to(each) for each in features]
    assert stamps == {path: path.stat().st_mtime_ns for path in source.features.iterdir()}
    candidates = stages.find_candidates(features, source, 3)
    manifest = Manifest(tmp_path)
    matches = stages.match_pairs(candidates.pairs(), features, source, tmp_path, manifest, jobs=1)
    stored = (tmp_path / "registered.jsonl").read_bytes()
    (tmp_path / "joins.jsonl").unlink()  # they are judged anew, and nothing is registered twice
    again = stages.match_pairs(candidates.pairs(), features, source, tmp_path, manifest, jobs=1)
    assert [(m.source, m.target, m.score) for m in again] == [(m.source, m.target, m.score) for m in matches]
    assert (tmp_path / "registered.jsonl").read_bytes() == stored
    assert {frozenset((m.source, m.target)) for m in matches} == {frozenset(p) for p in candidates.pairs()}
    assert sorted((m.score for m in matches), reverse=True) == [m.score for m in matches]
    ranked = rank_by_joins(candidates, matches)
    for row, before in zip(ranked.ranked, candidates.ranked, strict=True):
        assert _set(row) == _set(before)
    blind = replace(candidates, scores=np.full_like(candidates.scores, -np.inf))
    nothing = rank_by_joins(blind, [])  # nothing is known of anybody, and nobody was laid on: no candidates
    assert (nothing.ranked == -1).all() and np.isneginf(nothing.scores).all()
    some = candidates.only({0: None, 1: None}, 3)
    far = next(i for i in range(2, len(torn)) if i not in some.ranked[0])
    joined = PairMatch(candidates.ids[far], candidates.ids[0], Rigid2D(), score=99.0)
    first = rank_by_joins(some.with_joins([joined]), [*matches, joined])
    assert first.ranked[0, 0] == far  # the other way round as well
    assert _set(first.ranked[1]) - {-1} == _set(some.ranked[1])
    assert (first.ranked[2:] == -1).all()  # of whom nobody asked


def _set(row: Iterable[int]) -> set[int]:
    return {int(number) for number in row}
