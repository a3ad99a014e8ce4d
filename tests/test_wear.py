"""Wear takes from the edge and changes the surface, never the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.config import WEAR_LEVELS, WearSettings
from pairingnet.io.collection import Collection
from pairingnet.prepare.contour import trace_contour
from pairingnet.prepare.load import load_fragment
from pairingnet.synth.collect import tear_one_picture
from pairingnet.synth.scanned import scanned
from pairingnet.synth.wear import wear_edge, wear_surface
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
