"""Where real fragments belong: by their complete picture, or by a file that says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from pairingnet.config import PrepareSettings, TearSettings, WearSettings
from pairingnet.errors import TruthError
from pairingnet.geometry import Rigid2D, angle_difference
from pairingnet.io.collection import Collection, read_collection
from pairingnet.io.images import read_image, write_png
from pairingnet.io.truth import KnownPoses, is_truth_file, read_truth
from pairingnet.prepare.collect import PrepareJob, prepare_collection
from pairingnet.prepare.load import load_fragment, load_fragments
from pairingnet.prepare.warp import warp_fragment
from pairingnet.synth.annotate import Placement, annotate_from_picture, annotate_from_poses, common_scale
from pairingnet.synth.collect import TearJob, tear_one_picture
from tests.conftest import PICTURE, blob


@pytest.fixture(scope="module")
def shabby(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Pieces of the bundled picture in other colours, with noise and JPEG."""
    job = TearJob(TearSettings(), WearSettings(colour=0.08, noise=2.0, jpeg=85), seed=3)
    folder = tmp_path_factory.mktemp("shabby")
    return tear_one_picture(read_image(PICTURE).pixels, "colosseum", job, folder, "fragments")


def scanned(torn: Collection, folder: Path, factor_of: dict[str, float] | float) -> Collection:
    """The pieces as scans of another resolution (x' = factor * x), prepared."""
    (folder / "scans").mkdir()
    for fragment in load_fragments(torn):
        factor = factor_of if isinstance(factor_of, float) else factor_of[fragment.id]
        h, w = fragment.alpha.shape
        matrix, size = np.array([[factor, 0, 0], [0, factor, 0]]), (round(factor * w) + 1, round(factor * h) + 1)
        rgba = np.asarray(cv2.warpAffine(fragment.rgba, matrix, size, flags=cv2.INTER_AREA), dtype=np.uint8)
        write_png(folder / "scans" / f"{fragment.id}.png", rgba)
    return prepare_collection(folder / "scans", folder / "out", PrepareJob(PrepareSettings())).collection


def share_right(annotated: Collection, torn: Collection, factor: float) -> float:
    """Share of the pieces within 1 px of the picture and 0.2 degrees of where they were."""
    scale = float(annotated.made_by["picture_px_per_px"])
    right = 0
    for record in annotated.fragments:
        true, found = torn.by_id[record.id].canvas_from_fragment, record.canvas_from_fragment
        assert true is not None
        if found is not None:
            contour = load_fragment(torn, record.id).contour
            apart = np.linalg.norm(scale * found.apply(factor * contour) - true.apply(contour), axis=1).mean()
            right += apart <= 1 and np.rad2deg(angle_difference(found.angle_rad, true.angle_rad)) <= 0.2
    return right / len(annotated)


@pytest.mark.parametrize("factor", [0.75, 1.0])
def test_pieces_are_found_in_their_picture(shabby: Collection, tmp_path: Path, factor: float) -> None:
    annotated = annotate_from_picture(scanned(shabby, tmp_path, factor), PICTURE).collection
    assert share_right(annotated, shabby, factor) >= 0.95
    assert float(annotated.made_by["picture_px_per_px"]) == pytest.approx(1 / factor, abs=0.002)
    # The pairs are those of the tearing, except where a contact is just about long enough.
    found = {frozenset((p.source, p.target)) for p in annotated.pairs}
    clear = {frozenset((p.source, p.target)) for p in shabby.pairs if p.overlap_px > 75 / factor}
    assert clear <= found
    assert read_collection(tmp_path / "out").pairs[0].seam.shape[1] == 2
    assert (tmp_path / "out" / "truth_sheet.jpg").is_file()


def test_a_piece_of_another_scale_is_resampled(shabby: Collection, tmp_path: Path) -> None:
    odd = shabby.fragments[0].id
    factors = {record.id: 1.3 if record.id == odd else 1.0 for record in shabby.fragments}
    annotated = annotate_from_picture(scanned(shabby, tmp_path, factors), PICTURE).collection
    assert share_right(annotated, shabby, 1.0) >= 0.9
    assert annotated.by_id[odd].area_px == pytest.approx(shabby.by_id[odd].area_px, rel=0.02)
    # Asked again, it says the same: the scan itself was left as it was.
    job = PrepareJob(PrepareSettings())
    prepared = prepare_collection(tmp_path / "scans", tmp_path / "out", job, store=False).collection
    again = annotate_from_picture(prepared, PICTURE).collection.by_id[odd]
    assert again.area_px == pytest.approx(annotated.by_id[odd].area_px, rel=0.01)  # FLANN's trees differ a little
    assert load_fragment(annotated, odd).alpha.shape < load_fragment(prepared, odd).alpha.shape


def test_resampling_does_not_darken_the_edge() -> None:
    alpha = blob(0)
    pixels = np.where(alpha[..., None] > 0, np.uint8(200), np.uint8(0)) * np.ones(3, dtype=np.uint8)
    for factor in (0.6, 1.3):
        matrix = np.array([[factor, 0, 0], [0, factor, 0]])
        colours, mask = warp_fragment(pixels, alpha, matrix, (240, 240))
        assert np.abs(colours[mask >= 16].astype(int) - 200).max() <= 2
        assert (mask >= 128).sum() == pytest.approx(factor**2 * (alpha > 0).sum(), rel=0.01)


def test_one_large_stranger_does_not_set_the_scale() -> None:
    points = np.array([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]])
    others = [Placement(points, points, 0.8) for _ in range(3)]
    assert common_scale([Placement(50 * points, points, 0.5), *others]) == pytest.approx(0.8)


@pytest.mark.parametrize("scales", [[1.0, 0.8], [0.8, 0.8, 1.3], [1.0005]])
def test_the_common_scale_is_one_that_fragments_have(scales: list[float]) -> None:
    points = np.array([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]])
    found = common_scale([Placement(points, points, scale) for scale in scales])
    assert found == pytest.approx({0: 1.0, 1: 0.8}[len(scales) == 3], abs=1e-9)


def test_strangers_are_reported_not_placed(shabby: Collection, tmp_path: Path, rng: np.random.Generator) -> None:
    collection = scanned(shabby, tmp_path, 1.0)
    stranger = np.dstack([rng.integers(0, 255, (160, 160, 3)), blob(1)]).astype(np.uint8)
    write_png(tmp_path / "scans" / "stranger.png", stranger)
    collection = prepare_collection(tmp_path / "scans", tmp_path / "out", PrepareJob(PrepareSettings())).collection
    result = annotate_from_picture(collection, PICTURE)
    assert [line.split(":")[0] for line in result.not_placed] == ["stranger"]
    assert result.collection.by_id["stranger"].canvas_from_fragment is None


def test_a_wrong_picture_is_an_error(shabby: Collection, tmp_path: Path) -> None:
    write_png(tmp_path / "blank.png", np.full((300, 300, 3), 90, dtype=np.uint8))
    with pytest.raises(TruthError, match=r"blank\.png"):
        annotate_from_picture(scanned(shabby, tmp_path, 1.0), tmp_path / "blank.png")


def known_of(torn: Collection) -> KnownPoses:
    return KnownPoses({r.id: r.canvas_from_fragment for r in torn.fragments if r.canvas_from_fragment})


def test_truth_json(torn: Collection, tmp_path: Path) -> None:
    fragments = [
        {"file": f"{record.id}.png", "canvas_from_fragment": pose.matrix.tolist()}
        for record in torn.fragments
        if (pose := record.canvas_from_fragment)
    ]
    pairs = [{"source": f"{p.source}.png", "target": f"{p.target}.png", "contact_px": 60} for p in torn.pairs]
    (tmp_path / "truth.json").write_text(json.dumps({"set": "x", "fragments": fragments, "pairs": pairs}))
    known = read_truth(tmp_path / "truth.json")
    assert known.pairs is not None
    result = annotate_from_poses(replace(torn, folder=scanned(torn, tmp_path, 1.0).folder), known, "x")
    assert [(p.source, p.target) for p in result.collection.pairs] == [(p.source, p.target) for p in torn.pairs]
    for given, again in zip(torn.pairs, result.collection.pairs, strict=True):
        assert again.overlap_px == pytest.approx(given.overlap_px, rel=0.25)


def test_jigsawnet_text(tmp_path: Path) -> None:
    # A quarter turn on (row, col): row' = -col + 7, col' = row + 3; so x' = y + 3, y' = -x + 7.
    (tmp_path / "gt.txt").write_text("0\n1 0 0 0 1 0 0 0 1\n1\n0 -1 7\n1 0 3\n0 0 1\n")
    known = read_truth(tmp_path / "gt.txt")
    assert known.by_position
    assert np.allclose(known.poses["0"].matrix, Rigid2D().matrix)
    assert np.allclose(known.poses["1"].apply([[10.0, 20.0]]), [[23.0, -3.0]])


def test_poses_by_position_and_from_sheets(torn: Collection, tmp_path: Path) -> None:
    prepared = scanned(torn, tmp_path, 1.0)
    shifted = tuple(replace(record, offset_px=(5, 7)) for record in prepared.fragments)
    known = KnownPoses({"2": Rigid2D(0.0, 100, 0)}, by_position=True)
    files = sorted(path.name for path in (tmp_path / "scans").iterdir())
    # The first scan gave no fragment; the poses are still counted by files.
    result = annotate_from_poses(replace(prepared, fragments=shifted[1:]), known, "x", files)
    pose = result.collection.by_id[Path(files[2]).stem].canvas_from_fragment
    assert pose is not None and np.allclose(pose.apply([[0.0, 0.0]]), [[105.0, 7.0]])
    assert len(result.not_placed) == len(torn) - 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "[1, 2]"),
        ("a.json", "{broken"),
        ("a.json", '{"fragments": [{"file": "x", "canvas_from_fragment": [[2, 0, 0], [0, 2, 0]]}]}'),
        ("a.txt", "0\n1 2 3\n"),
        ("a.txt", "0\n1 2 3 4 5 6 7 8 9 10\n"),
        ("a.txt", ""),
    ],
)
def test_files_that_make_no_sense_are_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TruthError, match=name):
        read_truth(tmp_path / name)


def test_truth_files_are_told_by_their_ending(tmp_path: Path) -> None:
    assert is_truth_file(Path("gt.TXT")) and is_truth_file(Path("truth.json"))
    assert not is_truth_file(Path("picture.jpg"))
    with pytest.raises(TruthError, match="no file"):
        read_truth(tmp_path / "nowhere.json")
