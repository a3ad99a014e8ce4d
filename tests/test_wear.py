"""Wear takes from the edge and changes the surface, never the truth."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.config import WEAR_LEVELS, WearSettings
from pairingnet.io.collection import Collection
from pairingnet.prepare.contour import trace_contour
from pairingnet.prepare.load import load_fragment
from pairingnet.prepare.strip import unroll
from pairingnet.synth.collect import tear_one_picture
from pairingnet.synth.scanned import scanned
from pairingnet.synth.truth import seam_gap
from pairingnet.synth.wear import wear_edge, wear_of_picture, wear_surface
from pairingnet.train.scenes import correspondences
from pairingnet.types import Fragment, Pixels
from tests.conftest import blob, small_job


def depth_lost(mask: Pixels, worn: Pixels) -> NDArray[Any]:
    """How deep the worn edge lies inside the old one, at each point of the worn edge."""
    depth = cv2.distanceTransform(np.pad(mask, 1), cv2.DIST_L2, 5)[1:-1, 1:-1]
    rim = (worn > 0) & (cv2.erode(worn, np.ones((3, 3), np.uint8)) == 0)
    return np.asarray(depth[rim])


def test_no_wear_changes_nothing(rng: np.random.Generator) -> None:
    mask = blob(0)
    pixels = rng.integers(0, 255, (160, 160, 3), dtype=np.uint8)
    assert wear_edge(mask, WearSettings(), rng) is mask
    assert wear_surface(pixels, mask, WearSettings(), rng) is pixels


def test_erosion_has_the_asked_depth_and_varies(rng: np.random.Generator) -> None:
    mask = blob(0, size=400, radius=150)
    lost = depth_lost(mask, wear_edge(mask, WearSettings(erosion=4.0), rng))
    assert 2.0 < lost.mean() < 7.0
    assert lost.std() > 0.7


def test_sherds_touch_here_and_gape_there(rng: np.random.Generator) -> None:
    mask = blob(0, size=400, radius=150)
    lost = depth_lost(mask, wear_edge(mask, WearSettings(erosion=6.0, spared=0.6), rng))
    assert 0.45 < (lost < 3).mean() < 0.8
    assert np.quantile(lost, 0.95) > 6


def test_rubbed_edges_touch_nowhere_to_the_pixel(rng: np.random.Generator) -> None:
    mask = blob(0, size=400, radius=150)
    lost = depth_lost(mask, wear_edge(mask, WearSettings(rubbed=1.5), rng))
    assert 1.5 < lost.mean() < 4.0  # a rim has half a pixel or more anyway
    assert lost.std() > 0.3 and (lost > 1.5).mean() > 0.5


def test_corners_wear_round(rng: np.random.Generator) -> None:
    mask = np.zeros((100, 100), np.uint8)
    mask[20:80, 20:80] = 255
    lost = (wear_edge(mask, WearSettings(rounded=6.0), rng) == 0) & (mask > 0)
    corners = np.zeros_like(lost)
    for rows in (slice(20, 28), slice(72, 80)):
        for columns in (slice(20, 28), slice(72, 80)):
            corners[rows, columns] = True
    assert lost[corners].any() and not lost[~corners].any()


@pytest.mark.parametrize("wear", [WearSettings(chips=20.0), WearSettings(gaps=5.0), WEAR_LEVELS["heavy"]])
def test_edges_only_lose(wear: WearSettings, rng: np.random.Generator) -> None:
    mask = blob(0, size=400, radius=150)
    worn = wear_edge(mask, wear, rng)
    assert not (worn[mask == 0]).any()
    assert 0.5 * (mask > 0).sum() < (worn > 0).sum() < (mask > 0).sum()
    assert cv2.connectedComponents((worn > 0).astype(np.uint8))[0] == 2  # mat, and one piece


def test_surface_wear_keeps_outside_black(rng: np.random.Generator) -> None:
    mask = blob(0)
    pixels = np.where(mask[..., None] > 0, rng.integers(60, 200, (160, 160, 3)), 0).astype(np.uint8)
    worn = wear_surface(pixels, mask, WEAR_LEVELS["heavy"], rng)
    assert not worn[mask == 0].any()
    assert np.abs(worn[mask > 0].astype(int) - pixels[mask > 0]).mean() > 3


def test_each_piece_drifts_its_own_way(rng: np.random.Generator) -> None:
    mask = np.full((20, 20), 255, dtype=np.uint8)
    pixels = np.full((20, 20, 3), 128, dtype=np.uint8)
    means = [wear_surface(pixels, mask, WearSettings(colour=0.1), rng).mean() for _ in range(20)]
    assert np.std(means) > 3


def test_wear_leaves_cuts_poses_and_pairs_as_they_are(picture: Pixels, torn: Collection, tmp_path: Path) -> None:
    wear = replace(WEAR_LEVELS["medium"], straight=0.0)  # straight seams are other cuts
    worn = tear_one_picture(picture, "colosseum", replace(small_job(), wear=wear), tmp_path, "fragments")
    assert [record.id for record in worn.fragments] == [record.id for record in torn.fragments]
    for clean, shabby in zip(torn.pairs, worn.pairs, strict=True):
        assert (clean.source, clean.target) == (shabby.source, shabby.target)
        assert np.array_equal(clean.seam, shabby.seam)
    for record in worn.fragments:
        before, after = torn.by_id[record.id].canvas_from_fragment, record.canvas_from_fragment
        assert before is not None and after is not None
        assert before.angle_rad == pytest.approx(after.angle_rad)
        # The worn contour lies inside the clean one, on the same canvas.
        lost = before.apply(load_fragment(torn, record.id).contour).mean(axis=0)
        assert np.linalg.norm(lost - after.apply(load_fragment(worn, record.id).contour).mean(axis=0)) < 12


def test_lost_pieces_are_gone_with_their_pairs(picture: Pixels, torn: Collection, tmp_path: Path) -> None:
    job = small_job()
    dropped = tear_one_picture(
        picture, "colosseum", replace(job, settings=replace(job.settings, drop=0.4)), tmp_path, "fragments"
    )
    kept = {record.id for record in dropped.fragments}
    assert kept < {record.id for record in torn.fragments}
    assert {(p.source, p.target) for p in dropped.pairs} == {
        (p.source, p.target) for p in torn.pairs if p.source in kept and p.target in kept
    }


# Made before there were broken pieces: of each kind the edge, the surface, and the random number that comes next.
AS_BEFORE = {
    "none": (0xAC88051C, 0x2A817225, 0.625095466604667),
    "scanned": (0xAC88051C, 0x001A68FF, 0.24059713722232356),
    "light": (0x04754791, 0xEDA9875D, 0.18206652814038093),
    "medium": (0x73B3920D, 0x9B6E1988, 0.4219595103527427),
    "heavy": (0xE454BEA2, 0xF3EB01A7, 0.7273725278826947),
    "sherds": (0x461573D6, 0x9383E7D2, 0.5124189385631229),
}


@pytest.mark.parametrize("kind", AS_BEFORE)
def test_old_kinds_give_the_bytes_they_gave(kind: str) -> None:
    mask = blob(3, size=400, radius=150)
    pixels = np.random.default_rng(5).integers(0, 255, (400, 400, 3), dtype=np.uint8)
    pixels[mask == 0] = 0
    rng = np.random.default_rng(7)
    edge = wear_edge(mask, WEAR_LEVELS[kind], rng)
    surface = wear_surface(pixels, edge, WEAR_LEVELS[kind], rng)
    assert (zlib.crc32(edge.tobytes()), zlib.crc32(surface.tobytes()), rng.random()) == AS_BEFORE[kind]


def test_a_collection_says_nothing_new_of_old_kinds() -> None:
    """What is stored of its making, and so whether it can be continued, is as before."""
    told = replace(small_job(), wear=WEAR_LEVELS["heavy"]).as_dict()
    assert "wear.jpeg" in told and not [
        name for name in told if "gap_" in name and name not in {"wear.gap_depth", "wear.gap_length"}
    ]
    assert "wear.flakes" in replace(small_job(), wear=WEAR_LEVELS["fresco"]).as_dict()


@pytest.mark.parametrize("kind", ["broken", "fresco"])
def test_broken_pieces_are_the_same_each_time(kind: str, picture: Pixels, tmp_path: Path) -> None:
    job = replace(small_job(), wear=WEAR_LEVELS[kind])
    once, again = (tear_one_picture(picture, "colosseum", job, tmp_path / f"{i}", "fragments") for i in range(2))
    assert once.fragments == again.fragments and len(once) > 8
    for record in once.fragments:
        assert (once.folder / record.image).read_bytes() == (again.folder / record.image).read_bytes()
    for one, other in zip(once.pairs, again.pairs, strict=True):
        assert np.array_equal(one.seam, other.seam)


def gaps_of(collection: Collection) -> NDArray[Any]:
    """How wide the gaps are, at all points of all seams but their ends, where other pieces are near."""
    found = []
    for pair in collection.pairs:
        placed = []
        for name in (pair.source, pair.target):
            pose = collection.by_id[name].canvas_from_fragment
            assert pose is not None
            placed.append(pose.apply(load_fragment(collection, name).contour))
        cut = len(pair.seam) // 4
        found.append(seam_gap(pair.seam, *placed)[cut : len(pair.seam) - cut])
    return np.concatenate(found)


@given(gap=st.floats(0, 20), varies=st.sampled_from([0.0, 0.5, 1.0]), seed=st.integers(0, 50))
@settings(max_examples=12)
def test_the_gap_is_as_wide_as_was_asked(
    gap: float, varies: float, seed: int, picture: Pixels, tmp_path_factory: pytest.TempPathFactory
) -> None:
    job = small_job(seed)
    wear = WearSettings(gap=gap, gap_varies=varies)
    torn = tear_one_picture(picture, "p", replace(job, wear=wear), tmp_path_factory.mktemp("gap"), "fragments")
    clean = tear_one_picture(picture, "p", job, tmp_path_factory.mktemp("clean"), "fragments")
    true = {(pair.source, pair.target): pair for pair in clean.pairs}
    # Across the gap they are neighbours as before, along the same line.
    for pair in torn.pairs:
        assert np.array_equal(pair.seam, true[pair.source, pair.target].seam)
    # The smallest pieces of this small picture may be worn away as a whole.
    assert len(torn.pairs) > 0.4 * len(clean.pairs)
    measured = gaps_of(torn)
    assert np.median(measured) == pytest.approx(gap, abs=1.0 + varies * gap / 2)
    assert gap * (1 - varies) - 1.5 < np.quantile(measured, 0.1)
    assert np.quantile(measured, 0.9) < gap * (1 + varies) + 2.5


def test_gaps_differ_between_pictures() -> None:
    wear = WearSettings(gap=10.0, gap_pictures=1.0)
    widths = [wear_of_picture(wear, np.random.default_rng(seed)).gap for seed in range(200)]
    assert min(widths) < 1.5 and max(widths) > 18.5 and np.mean(widths) == pytest.approx(10, abs=1)
    same = WearSettings(gap=10.0)
    assert wear_of_picture(same, np.random.default_rng(0)) is same


def test_corners_break_off_and_sides_stay(rng: np.random.Generator) -> None:
    mask = np.zeros((300, 300), np.uint8)
    mask[50:250, 50:250] = 255
    lost = (wear_edge(mask, WearSettings(corners=1.0, corner_size=20.0), rng) == 0) & (mask > 0)
    for y in (50, 249):
        for x in (50, 249):
            assert lost[y, x]
    assert not lost[110:190].any() and not lost[:, 110:190].any()
    assert 4 * 20 < lost.sum() < 4 * 600
    rng = np.random.default_rng(1)
    kept = [wear_edge(mask, WearSettings(corners=0.3), rng)[50, 50] > 0 for _ in range(60)]
    assert 0.5 < np.mean(kept) < 0.9


@pytest.mark.parametrize(
    ("wear", "least"),
    [
        (WearSettings(flakes=0.2), 5.0),
        (WearSettings(fading=1.0), 3.0),
        (WearSettings(dirt=1.0), 3.0),
        (WearSettings(marks=20.0), 1.0),
        (WearSettings(light=0.3), 3.0),
    ],
)
def test_each_way_to_suffer_changes_the_surface_alone(wear: WearSettings, least: float) -> None:
    mask = blob(1)
    pixels = np.where(mask[..., None] > 0, np.uint8(0) + np.array([150, 60, 40], np.uint8), 0).astype(np.uint8)
    worn = wear_surface(pixels, mask, wear, np.random.default_rng(3))
    assert not worn[mask == 0].any()
    assert np.abs(worn[mask > 0].astype(int) - pixels[mask > 0]).mean() > least
    assert wear_edge(mask, wear, np.random.default_rng(3)) is mask


def test_flakes_cover_their_share_and_lie_at_the_edge() -> None:
    mask = blob(1, size=400, radius=150)
    pixels = np.where(mask[..., None] > 0, np.array([20, 20, 160], np.uint8), 0).astype(np.uint8)
    worn = wear_surface(pixels, mask, WearSettings(flakes=0.15), np.random.default_rng(3))
    bare = (worn[..., 0] > 120) & (mask > 0)
    assert bare.sum() / (mask > 0).sum() == pytest.approx(0.15, abs=0.01)
    depth = cv2.distanceTransform((mask > 0).astype(np.uint8), cv2.DIST_L2, 5)
    assert bare[(depth > 0) & (depth < 10)].mean() > 1.5 * bare[depth > 30].mean()


def test_lost_pieces_of_a_kind_come_on_top_of_those_that_are_dropped(picture: Pixels, tmp_path: Path) -> None:
    counts = []
    for number, (drop, lost) in enumerate([(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (0.3, 0.3)]):
        job = small_job()
        job = replace(job, settings=replace(job.settings, drop=drop), wear=WearSettings(lost=lost))
        counts.append(len(tear_one_picture(picture, "p", job, tmp_path / str(number), "fragments")))
    assert counts[3] < counts[1] == counts[2] < counts[0]


def test_points_across_a_gap_correspond(picture: Pixels, tmp_path: Path) -> None:
    """Training looks as far from the seam as the gaps of the collection go."""
    job = replace(small_job(), wear=WearSettings(gap=26.0))
    torn = tear_one_picture(picture, "p", job, tmp_path, "fragments")
    told = replace(torn, made_by=job.as_dict())
    pair = max(torn.pairs, key=lambda pair: pair.overlap_px)
    strips = [unroll(load_fragment(torn, name), 2.0) for name in (pair.source, pair.target)]
    assert not len(correspondences(torn, pair, strips[0], strips[1])[0])
    rows, columns = correspondences(told, pair, strips[0], strips[1])
    assert len(rows) * 2.0 > 0.4 * pair.overlap_px
    poses = [torn.by_id[name].canvas_from_fragment for name in (pair.source, pair.target)]
    assert poses[0] is not None and poses[1] is not None
    apart = poses[0].apply(strips[0].points[rows]) - poses[1].apply(strips[1].points[columns])
    assert np.median(np.linalg.norm(apart, axis=1)) == pytest.approx(26, abs=3)


def test_levels_get_worse() -> None:
    erosions = [WEAR_LEVELS[level].erosion for level in ("none", "light", "medium", "heavy")]
    assert erosions == sorted(erosions) and erosions[0] == 0


def test_a_scanned_piece_has_nearly_the_same_edge_but_not_quite(pieces: list[Fragment]) -> None:
    piece = pieces[0]
    pixels, alpha = scanned(piece.pixels, piece.alpha, 90, np.random.default_rng(3))
    assert pixels.shape == piece.pixels.shape and alpha.shape == piece.alpha.shape
    contour = trace_contour(alpha)
    apart = np.asarray(cKDTree(piece.contour).query(contour)[0])
    assert 0.02 < np.median(apart) < 1.0 and np.quantile(apart, 0.95) < 2.0
    again = scanned(piece.pixels, piece.alpha, 90, np.random.default_rng(3))
    assert np.array_equal(again[1], alpha)


def test_what_a_scan_would_not_show_stays_as_it_is() -> None:
    nothing = np.zeros((40, 40), dtype=np.uint8)
    pixels, alpha = scanned(np.zeros((40, 40, 3), np.uint8), nothing, 90, np.random.default_rng(0))
    assert not alpha.any() and not pixels.any()
