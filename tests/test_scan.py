"""From a scan to fragments: mats of any colour, shadows, noise, sheets, rulers, dirt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.config import PrepareSettings
from pairingnet.errors import NoFragmentError
from pairingnet.io.images import jpeg_round_trip
from pairingnet.prepare.contour import trace_contour
from pairingnet.prepare.scan import parts_at_necks, prepare_image
from pairingnet.prepare.sheets import contact_sheet, outline_overlay
from pairingnet.synth.sheet import lay_out
from pairingnet.types import Fragment, Image, Pixels
from tests.conftest import blob, fragment_of

MATS = {"white": (250, 250, 248), "black": (8, 8, 10), "green": (40, 130, 60), "grey": (128, 128, 128)}


def on_mat(mask: Pixels, colour: object, mat: object, blur: float = 0.7) -> NDArray[Any]:
    """A piece of one colour on a mat, with the soft edge a scanner gives."""
    alpha = cv2.GaussianBlur(mask.astype(np.float32) / 255, (0, 0), blur)[..., None]
    return np.asarray(np.array(colour) * alpha + np.array(mat) * (1 - alpha))


def find(pixels: NDArray[Any], **settings: object) -> Fragment:
    found = prepare_image(
        Image(pixels.clip(0, 255).astype(np.uint8), path="scan.png"),
        "scan",
        replace(PrepareSettings(), **settings),  # type: ignore[arg-type]
    )
    assert len(found.fragments) == 1
    return found.fragments[0]


def contour_error(fragment: Fragment, mask: Pixels) -> float:
    """Mean distance of the found contour from the true one, px."""
    distance, _ = cKDTree(trace_contour(mask)).query(fragment.contour + fragment.offset_px)
    return float(np.mean(distance))


@pytest.mark.parametrize("mat", MATS)
@pytest.mark.parametrize("colour", [(170, 60, 50), (235, 225, 150), (60, 60, 110)])
def test_one_piece_on_any_mat(mat: str, colour: tuple[int, int, int]) -> None:
    mask = blob(3)
    assert contour_error(find(on_mat(mask, colour, MATS[mat])), mask) < 0.3


@pytest.mark.parametrize("mat", MATS)
def test_noise_and_jpeg(mat: str, rng: np.random.Generator) -> None:
    mask = blob(4)
    scan = on_mat(mask, (170, 60, 50), MATS[mat]) + rng.normal(0, 5, (*mask.shape, 3))
    fragment = find(jpeg_round_trip(scan.clip(0, 255).astype(np.uint8), 75))
    assert contour_error(fragment, mask) < 0.8


@pytest.mark.parametrize("mat", ["white", "green", "grey"])
def test_a_soft_shadow_is_not_part_of_the_piece(mat: str) -> None:
    mask = blob(5, size=240, radius=70)
    shade = cv2.GaussianBlur(np.roll(mask, (6, 6), axis=(0, 1)).astype(np.float32) / 255, (0, 0), 6)[..., None]
    alpha = cv2.GaussianBlur(mask.astype(np.float32) / 255, (0, 0), 0.7)[..., None]
    scan = np.array((60, 90, 150)) * alpha + np.array(MATS[mat]) * (1 - 0.3 * shade) * (1 - alpha)
    assert contour_error(find(scan), mask) < 0.6


def test_a_lamp_that_falls_off_is_followed() -> None:
    mask = blob(6, size=300, radius=80)
    lamp = np.linspace(1.0, 0.82, 300)[None, :, None]
    assert contour_error(find(on_mat(mask, (150, 70, 60), (200, 200, 200)) * lamp), mask) < 0.5


def test_the_mats_colour_inside_a_piece_stays_inside() -> None:
    mask = blob(7, size=200, radius=70)
    scan = on_mat(mask, (150, 70, 60), MATS["white"])
    scan[90:110, 80:120] = MATS["white"]
    assert contour_error(find(scan), mask) < 0.3
    assert find(scan).alpha[100, 100] == 255


@pytest.mark.parametrize("mat", MATS)
def test_a_narrow_inlet_is_mat(mat: str, rng: np.random.Generator) -> None:
    mask = blob(7, size=200, radius=70)
    cv2.line(mask, (20, 90), (62, 104), color=0, thickness=7)
    scan = on_mat(mask, (170, 60, 50), MATS[mat]) + rng.normal(0, 1.5, (*mask.shape, 3))
    fragment = find(jpeg_round_trip(scan.clip(0, 255).astype(np.uint8), 90))
    distance, _ = cKDTree(fragment.contour + fragment.offset_px).query(trace_contour(mask))
    assert np.max(distance) < 3


def test_holes_are_kept_on_demand() -> None:
    mask = blob(7, size=200, radius=70)
    scan = on_mat(mask, (150, 70, 60), MATS["white"])
    scan[90:110, 80:120] = MATS["white"]
    assert find(scan, holes="keep").alpha[100, 100] == 0


@pytest.mark.parametrize(("holes", "inside"), [("fill", 255), ("keep", 0)])
def test_holes_in_alpha(holes: str, inside: int) -> None:
    alpha = blob(7)
    alpha[75:85, 75:85] = 0
    image = Image(np.full((160, 160, 3), 90, dtype=np.uint8), alpha)
    fragment = prepare_image(image, "a", PrepareSettings(holes=holes)).fragments[0]
    assert fragment.alpha[80, 80] == inside


def test_the_mats_colour_is_taken_out_of_the_edge() -> None:
    mask = blob(8)
    fragment = find(on_mat(mask, (60, 60, 120), MATS["white"]))
    edge = (fragment.alpha > 100) & (fragment.alpha < 255)
    assert edge.sum() > 50
    assert np.abs(np.median(fragment.pixels[edge], axis=0) - (60, 60, 120)).max() < 25


def test_a_single_piece_keeps_the_coordinates_of_its_picture() -> None:
    fragment = find(on_mat(blob(3), (170, 60, 50), MATS["white"]))
    assert fragment.offset_px == (0, 0)
    assert fragment.alpha.shape == (160, 160)


def test_a_piece_at_the_border_is_whole() -> None:
    mask = np.zeros((120, 160), dtype=np.uint8)
    mask[40:, 30:100] = 255
    fragment = find(np.where(mask[..., None] > 0, (150, 60, 40), MATS["white"]).astype(float))
    assert fragment.contour[:, 1].max() == pytest.approx(119.5, abs=0.3)


def test_ink_that_runs_over_the_edge_stays(rng: np.random.Generator) -> None:
    """It is darker than both paper and mat, so it is no mixture of them."""
    paper = np.zeros((120, 160), dtype=np.uint8)
    paper[20:100, 20:140] = 255
    scan = np.where(paper[..., None] > 0, (222, 212, 196), (72, 153, 94)).astype(float)
    scan[40:70, 136:140] = (40, 36, 32)  # a stroke of writing that was torn through along the edge
    scan = cv2.GaussianBlur(scan, (0, 0), 0.6) + rng.normal(0, 1.5, scan.shape)
    fragment = find(scan)
    assert (fragment.alpha[44:66, 137:139] > 200).all()
    assert np.median(fragment.pixels[44:66, 137:139]) < 90


def sheet(pieces: list[Fragment], rng: np.random.Generator, **options: object) -> Pixels:
    return lay_out(pieces, rng, noise=4.0, **options)  # type: ignore[arg-type]


def test_a_sheet_of_twenty_with_a_ruler(pieces: list[Fragment], rng: np.random.Generator) -> None:
    twenty = (pieces * 3)[:20]
    scan = sheet(twenty, rng, ruler=True, shadow=0.2, mat=(110, 140, 110))
    found = prepare_image(Image(scan, dpi=300.0, path="sheet.png"), "sheet")
    assert [f.id for f in found.fragments] == [f"sheet#{i}" for i in range(1, 21)]
    assert [f.notes for f in found.left_out] == [("ruler",)]
    areas = np.array([f.area_px for f in found.fragments]) / [f.area_px for f in twenty]
    assert np.abs(areas - 1).max() < 0.08
    assert {f.dpi for f in found.fragments} == {300.0}


def test_a_ruler_whose_marks_have_the_mats_colour(pieces: list[Fragment], rng: np.random.Generator) -> None:
    """On black, marks at the ruler's edge cut its outline into teeth."""
    found = prepare_image(Image(sheet(pieces[:4], rng, ruler=True, mat=(12, 12, 14))), "sheet")
    assert [f.notes for f in found.left_out] == [("ruler",)]
    assert len(found.fragments) == 4


def test_fragments_of_a_sheet_say_where_they_lay(pieces: list[Fragment], rng: np.random.Generator) -> None:
    scan = sheet(pieces[:6], rng)
    for fragment in prepare_image(Image(scan), "sheet").fragments:
        left, top = fragment.offset_px
        h, w = fragment.alpha.shape
        inside = fragment.alpha == 255
        assert (scan[top : top + h, left : left + w][inside] == fragment.pixels[inside]).all()


def test_a_colour_chart_is_recognised_and_a_cut_document_is_not(rng: np.random.Generator) -> None:
    scan = np.full((500, 700, 3), 128, dtype=np.uint8)
    for i in range(4):
        for j in range(6):
            scan[40 + 30 * i : 70 + 30 * i, 60 + 30 * j : 90 + 30 * j] = rng.integers(0, 256, 3)
    scan[250:400, 60:300] = (240, 235, 220)
    scan[270:390:12, 80:280] = (40, 40, 40)
    found = prepare_image(Image(scan), "sheet")
    assert [f.notes for f in found.left_out] == [("colour chart",)]
    assert [f.id for f in found.fragments] == ["sheet#1"]


def test_dirt_is_dropped_and_counted(pieces: list[Fragment], rng: np.random.Generator) -> None:
    scan = lay_out(pieces[:4], rng)
    for at in rng.integers(2, 28, (6, 2)):
        scan[at[0] : at[0] + 3, at[1] * 10 : at[1] * 10 + 3] = 0
    found = prepare_image(Image(scan), "sheet")
    assert len(found.fragments) == 4
    assert any("specks" in remark for remark in found.remarks)


def test_a_speck_asked_for_is_no_crash() -> None:
    alpha = blob(1)
    alpha[3, 3] = 255
    image = Image(np.full((160, 160, 3), 90, dtype=np.uint8), alpha)
    assert len(prepare_image(image, "a", PrepareSettings(min_area=1)).fragments) == 1


def test_touching_pieces_are_reported() -> None:
    mask = np.zeros((200, 400), dtype=np.uint8)
    cv2.circle(mask, (110, 100), 80, 255, -1)
    cv2.circle(mask, (268, 100), 80, 255, -1)
    assert parts_at_necks(mask) == 2
    assert parts_at_necks(blob(2)) == 1
    found = prepare_image(Image(on_mat(mask, (150, 60, 40), MATS["white"]).astype(np.uint8)), "scan")
    assert any("touch" in remark for remark in found.remarks)


@pytest.mark.parametrize("what", ["plain", "colourful"])
def test_no_fragment_is_an_error_with_a_next_step(what: str, rng: np.random.Generator) -> None:
    pixels = np.full((100, 100, 3), 200, dtype=np.uint8)
    if what == "colourful":
        pixels = np.kron(rng.integers(0, 255, (10, 10, 3)), np.ones((10, 10, 1))).astype(np.uint8)
    with pytest.raises(NoFragmentError, match=r"empty\.png") as caught:
        prepare_image(Image(pixels, path="empty.png"), "empty")
    assert caught.value.next_step


def test_opaque_alpha_is_no_mask() -> None:
    scan = on_mat(blob(3), (170, 60, 50), MATS["white"]).astype(np.uint8)
    image = Image(scan, np.full(scan.shape[:2], 255, dtype=np.uint8))
    assert len(prepare_image(image, "a").fragments) == 1
    with pytest.raises(NoFragmentError, match="transparent"):
        prepare_image(image, "a", PrepareSettings(background="alpha"))


def test_pictures_for_the_eye(pieces: list[Fragment], rng: np.random.Generator) -> None:
    scan = sheet(pieces[:5], rng, ruler=True)
    found = prepare_image(Image(scan), "sheet")
    overlay = outline_overlay(scan, found.fragments, found.left_out)
    assert overlay.shape[2] == 3
    contour = found.fragments[0].contour + found.fragments[0].offset_px
    scale = overlay.shape[0] / scan.shape[0]
    x, y = np.rint(scale * contour[len(contour) // 3]).astype(int)
    assert overlay[y, x, 0] > 150 > overlay[y, x, 1]  # the contour is red
    assert contact_sheet(pieces).shape[2] == 3
    assert contact_sheet([]).shape[2] == 3
    assert contact_sheet([fragment_of(blob(1))]).size


# Pieces that are not laid out well ------------------------------------------------------------------------------


def remarks_on(mask: Pixels) -> str:
    scan = on_mat(mask, (170, 60, 50), MATS["white"]).clip(0, 255).astype(np.uint8)
    return " ".join(prepare_image(Image(scan, path="scan.png"), "scan").remarks)


def overlapping(seed: int, share: float) -> Pixels:
    """Two pieces, the second of which lies on the first by a share of its width."""
    left, right = blob(seed, size=300, radius=100), blob(seed + 9, size=300, radius=100)
    mask = np.zeros((300, 640), dtype=np.uint8)
    mask[:, 10:310] = left
    at = 10 + int(200 * (1 - share))
    mask[:, at : at + 300] = np.maximum(mask[:, at : at + 300], right)
    return mask


def test_pieces_that_lie_on_each_other_are_remarked_on() -> None:
    noticed = ["lie on each other" in remarks_on(overlapping(seed, 0.12)) for seed in range(6)]
    assert sum(noticed) >= 5


@pytest.mark.parametrize("seed", range(8))
def test_a_single_piece_is_not_called_several(seed: int) -> None:
    assert remarks_on(blob(seed)) == ""


@pytest.mark.parametrize("edge", ["left", "top", "right", "bottom"])
def test_a_piece_cut_off_by_the_pictures_edge_is_remarked_on(edge: str) -> None:
    mask = np.zeros((300, 300), dtype=np.uint8)
    mask[60:240, 60:240] = cv2.resize(blob(3)[20:140, 20:140], (180, 180))
    turned = np.rot90(mask[:, 110:], {"left": 0, "bottom": 1, "right": 2, "top": 3}[edge])
    assert "cut off by the picture's edge" in remarks_on(np.ascontiguousarray(turned))
    assert "cut off" not in remarks_on(mask)


def test_a_piece_that_just_touches_the_edge_is_not_cut_off() -> None:
    mask = np.zeros((200, 200), dtype=np.uint8)
    cv2.circle(mask, (80, 100), 80, 255, cv2.FILLED)
    assert "cut off" not in remarks_on(mask)


def test_a_mask_by_hand_may_go_to_the_edge() -> None:
    alpha = blob(3)[:, 60:]
    found = prepare_image(Image(np.full((*alpha.shape, 3), 90, dtype=np.uint8), np.ascontiguousarray(alpha)), "a")
    assert found.remarks == ()
