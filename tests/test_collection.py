"""Collections on disk: written, read, continued, and refused with reasons."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from pairingnet.assembly.canvas import compose
from pairingnet.config import PrepareSettings, WearSettings
from pairingnet.errors import CollectionError, ImageError, NoFragmentError
from pairingnet.io.collection import Collection, read_collection, write_collection
from pairingnet.io.files import write_json
from pairingnet.io.images import read_image, write_png
from pairingnet.prepare.collect import PrepareJob, prepare_collection
from pairingnet.prepare.load import load_fragment, load_fragments
from pairingnet.synth.collect import tear_collection, tear_one_picture
from pairingnet.synth.sheet import lay_out
from pairingnet.types import Fragment, Pixels
from tests.conftest import blob, fragment_of, small_job


@pytest.fixture
def pictures(tmp_path: Path, picture: Pixels) -> Path:
    """Three small pictures in a folder."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i, view in enumerate((picture, picture[:, ::-1], picture[::-1])):
        write_png(folder / f"p{i}.png", np.ascontiguousarray(view))
    return folder


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_what_is_written_is_read(torn: Collection) -> None:
    again = read_collection(torn.folder)
    assert len(again) == len(torn)
    for a, b in zip(torn.fragments, again.fragments, strict=True):
        assert (a.id, a.image, a.source) == (b.id, b.image, b.source)
        assert a.canvas_from_fragment is not None and b.canvas_from_fragment is not None
        assert np.allclose(a.canvas_from_fragment.matrix, b.canvas_from_fragment.matrix, atol=1e-8)
    for p, q in zip(torn.pairs, again.pairs, strict=True):
        assert (p.source, p.target, p.difficulty) == (q.source, q.target, q.difficulty)
        assert np.allclose(p.seam, q.seam, atol=1e-3)
    assert again.sources == torn.sources
    assert again.thresholds == torn.thresholds


def test_pieces_at_their_true_poses_make_the_picture(torn: Collection, picture: Pixels) -> None:
    placed = [(load_fragment(torn, r.id), r.canvas_from_fragment) for r in torn.fragments if r.canvas_from_fragment]
    canvas = compose(placed, torn.sources["colosseum"])
    assert canvas.overlap < 0.001
    assert (canvas.cover > 0).mean() > 0.999
    assert np.abs(canvas.pixels.astype(int) - picture).mean() < 6  # turned twice, so a little softer


def test_without_rotation_pixels_are_untouched(picture: Pixels, tmp_path: Path) -> None:
    job = small_job()
    job = replace(job, settings=replace(job.settings, rotate=False))
    flat = tear_one_picture(picture, "p", job, tmp_path, "fragments")
    canvas = compose(
        [(load_fragment(flat, r.id), r.canvas_from_fragment) for r in flat.fragments if r.canvas_from_fragment],
        flat.sources["p"],
    )
    assert (canvas.pixels == picture).all()
    assert (canvas.cover == 1).all()


def test_nothing_of_a_neighbour_leaks_into_a_piece(pieces: list[Fragment]) -> None:
    for piece in pieces:
        assert not piece.pixels[piece.alpha == 0].any()


def test_same_seed_same_bytes_whatever_the_processes(pictures: Path, tmp_path: Path) -> None:
    for name, jobs in (("one", 1), ("two", 2)):
        tear_collection(pictures, tmp_path / name, small_job(), jobs=jobs)
    assert files_in(tmp_path / "one") == files_in(tmp_path / "two")


def test_a_stopped_run_continues_to_the_same_result(pictures: Path, tmp_path: Path) -> None:
    tear_collection(pictures, tmp_path / "whole", small_job())
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    # As if the process had been killed in the second picture: its images are partly there, its record is not.
    shutil.rmtree(tmp_path / "stopped" / "torn" / "p1")
    (tmp_path / "stopped" / "fragments" / "p1_03.png").unlink()
    (tmp_path / "stopped" / "collection.json").unlink()
    result = tear_collection(pictures, tmp_path / "stopped", small_job())
    assert result.torn_now == 1
    assert files_in(tmp_path / "whole") == files_in(tmp_path / "stopped")
    assert tear_collection(pictures, tmp_path / "stopped", small_job()).torn_now == 0


def test_other_settings_are_refused_with_the_difference(pictures: Path, tmp_path: Path) -> None:
    tear_collection(pictures, tmp_path / "out", small_job(1))
    with pytest.raises(CollectionError, match="seed: 1 before, 2 now"):
        tear_collection(pictures, tmp_path / "out", small_job(2))


def test_a_folder_of_something_else_is_not_touched(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "fragments").mkdir(parents=True)
    with pytest.raises(CollectionError, match="nothing is lost"):
        tear_collection(pictures, tmp_path / "out", small_job())


def test_bad_pictures_are_listed_and_the_good_ones_torn(pictures: Path, tmp_path: Path) -> None:
    (pictures / "bad.png").write_bytes(b"")
    result = tear_collection(pictures, tmp_path / "out", small_job())
    assert len(result.collection.sources) == 3
    assert len(result.bad_files) == 1 and "bad.png" in result.bad_files[0]


def test_only_bad_pictures_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "bad.png").write_bytes(b"x")
    with pytest.raises(ImageError, match=r"bad\.png"):
        tear_collection(tmp_path / "pictures", tmp_path / "out", small_job())


def test_what_was_gathered_is_what_is_on_disk(pictures: Path, tmp_path: Path) -> None:
    """Also when a run stopped between the last picture and the last write, and when a picture is gone."""
    tear_collection(pictures, tmp_path / "out", small_job())
    (pictures / "p2.png").unlink()
    result = tear_collection(pictures, tmp_path / "out", small_job())
    assert result.torn_now == 0
    assert set(read_collection(tmp_path / "out").sources) == {"p0", "p1"}


def test_a_changed_picture_is_torn_again(pictures: Path, tmp_path: Path, picture: Pixels) -> None:
    tear_collection(pictures, tmp_path / "out", small_job())
    write_png(pictures / "p1.png", np.ascontiguousarray(picture[:300]))
    result = tear_collection(pictures, tmp_path / "out", small_job())
    assert result.torn_now == 1
    assert result.collection.sources["p1"] == (600, 300)


def test_other_files_do_not_change_a_pictures_pieces(pictures: Path, tmp_path: Path, picture: Pixels) -> None:
    alone = tear_collection(pictures, tmp_path / "one", small_job()).collection
    (pictures / "0").mkdir()
    write_png(pictures / "0" / "p0.png", np.ascontiguousarray(picture[::-1]))
    more = tear_collection(pictures, tmp_path / "two", small_job()).collection
    for record in alone.fragments:
        assert more.by_id[record.id].canvas_from_fragment == record.canvas_from_fragment


def test_linked_pictures_belong_to_the_folder_they_are_listed_in(pictures: Path, tmp_path: Path) -> None:
    for part, name in (("train", "p0"), ("test", "p1")):
        (tmp_path / "set" / part).mkdir(parents=True)
        (tmp_path / "set" / part / f"{name}.png").symlink_to(pictures / f"{name}.png")
    fragments = tear_collection(tmp_path / "set", tmp_path / "out", small_job()).collection.fragments
    assert {(record.source, record.part) for record in fragments} == {("train_p0", "train"), ("test_p1", "test")}


def test_density_of_a_picture_is_kept_in_its_pieces(picture: Pixels, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    write_png(tmp_path / "pictures" / "a.png", picture, dpi=300)
    collection = tear_collection(tmp_path / "pictures", tmp_path / "out", small_job()).collection
    assert load_fragment(collection, collection.fragments[0].id).dpi == pytest.approx(300, abs=0.1)


def test_tiny_pictures_are_listed_and_worn_away_pieces_are_lost(pictures: Path, tmp_path: Path) -> None:
    write_png(pictures / "tiny.png", np.zeros((1, 500, 3), dtype=np.uint8))
    write_png(pictures / "small.png", np.zeros((9, 9, 3), dtype=np.uint8))
    job = replace(small_job(), wear=WearSettings(erosion=25.0))
    result = tear_collection(pictures, tmp_path / "out", job)
    assert len(result.bad_files) == 1 and "too small" in result.bad_files[0]
    clean = tear_collection(pictures, tmp_path / "clean", small_job()).collection
    assert 0 < len(result.collection) < len(clean)


def test_the_papers_split_drops_pairs_across_parts(pictures: Path, tmp_path: Path) -> None:
    by_picture = tear_collection(pictures, tmp_path / "out", small_job()).collection
    by_fragment = tear_collection(pictures, tmp_path / "out", small_job(), split="paper").collection
    assert len(by_picture) == len(by_fragment)
    assert 0 < len(by_fragment.pairs) < len(by_picture.pairs)
    parts = {record.id: record.part for record in by_fragment.fragments}
    assert all(parts[pair.source] == parts[pair.target] for pair in by_fragment.pairs)
    assert read_collection(tmp_path / "out").made_by["split"] == "paper"
    test = by_fragment.part("test")
    assert 0.3 < len(test) / len(by_fragment) < 0.5
    with pytest.raises(CollectionError, match="no part 'nonsense'"):
        test.part("nonsense")


def test_equal_names_in_different_folders_stay_apart(tmp_path: Path, picture: Pixels) -> None:
    for folder in ("a", "b"):
        (tmp_path / "pictures" / folder).mkdir(parents=True)
        write_png(tmp_path / "pictures" / folder / "same.png", picture)
    result = tear_collection(tmp_path / "pictures", tmp_path / "out", small_job())
    assert set(result.collection.sources) == {"a_same", "b_same"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 99}, "version 99"),
        ({"fragments": None}, "bad value"),
        ({"fragments": [{"id": "a"}]}, "lacks the field"),
        (
            {"pairs": [{"source": "x", "target": "y", "overlap_px": 1, "overlap_ratio": 0.1, "difficulty": "Low"}]},
            "'x'",
        ),
    ],
)
def test_broken_collections_say_what_is_wrong(
    torn: Collection, tmp_path: Path, change: dict[str, object], says: str
) -> None:
    content = json.loads((torn.folder / "collection.json").read_text()) | change
    write_json(tmp_path / "collection.json", content)
    shutil.copy(torn.folder / "seams.npy", tmp_path)
    with pytest.raises(CollectionError, match=says):
        read_collection(tmp_path)


def test_missing_parts_of_a_collection_are_named(torn: Collection, tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match=r"collection\.json"):
        read_collection(tmp_path)
    shutil.copy(torn.folder / "collection.json", tmp_path)
    with pytest.raises(CollectionError, match=r"seams\.npy"):
        read_collection(tmp_path)
    (tmp_path / "collection.json").write_text("{not json")
    with pytest.raises(CollectionError, match="JSON"):
        read_collection(tmp_path)


def test_twice_the_same_id_is_refused(torn: Collection, tmp_path: Path) -> None:
    double = replace(torn, folder=tmp_path, fragments=torn.fragments * 2, pairs=())
    with pytest.raises(CollectionError, match="twice"):
        write_collection(double)
    content = json.loads((torn.folder / "collection.json").read_text())
    write_json(tmp_path / "collection.json", content | {"fragments": 2 * content["fragments"], "pairs": []})
    with pytest.raises(CollectionError, match="twice"):
        read_collection(tmp_path)


def test_fragments_that_cannot_be_loaded_are_named(torn: Collection, tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="no fragment 'nobody'"):
        load_fragment(torn, "nobody")
    record = replace(torn.fragments[0], image="x.png")
    lost = Collection(tmp_path, (record,))
    with pytest.raises(ImageError, match=r"x\.png"):
        load_fragment(lost, record.id)
    write_png(tmp_path / "x.png", np.zeros((5, 5, 3), dtype=np.uint8))
    with pytest.raises(CollectionError, match="alpha"):
        load_fragment(lost, record.id)
    write_png(tmp_path / "x.png", np.zeros((5, 5, 4), dtype=np.uint8))
    with pytest.raises(CollectionError, match="empty"):
        load_fragment(lost, record.id)


# Preparing a folder of scans ---------------------------------------------------------------------------------


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    folder = tmp_path / "scans"
    folder.mkdir()
    for seed in range(3):
        mask = blob(seed)
        scan = np.where(mask[..., None] > 0, (150, 60, 40), (250, 250, 250)).astype(np.uint8)
        write_png(folder / f"piece{seed}.png", scan, dpi=400)
    return folder


JOB = PrepareJob(PrepareSettings())


def test_a_folder_of_scans_becomes_a_collection(scans: Path, tmp_path: Path) -> None:
    (scans / "broken.jpg").write_bytes(b"\xff\xd8 nonsense")
    result = prepare_collection(scans, tmp_path / "out", JOB)
    assert [record.id for record in result.collection.fragments] == ["piece0", "piece1", "piece2"]
    assert len(result.bad_files) == 1 and "broken.jpg" in result.bad_files[0]
    again = read_collection(tmp_path / "out")
    assert all(record.canvas_from_fragment is None for record in again.fragments)
    assert [fragment.dpi for fragment in load_fragments(again)] == pytest.approx([400] * 3, abs=0.1)
    assert sorted(p.name for p in (tmp_path / "out" / "overlays").iterdir()) == [f"piece{i}.jpg" for i in range(3)]


def test_only_new_and_changed_scans_are_prepared(scans: Path, tmp_path: Path) -> None:
    assert prepare_collection(scans, tmp_path / "out", JOB).prepared_now == 3
    assert prepare_collection(scans, tmp_path / "out", JOB).prepared_now == 0
    write_png(scans / "piece3.png", np.ascontiguousarray(read_image(scans / "piece0.png").pixels[::-1]))
    write_png(scans / "piece1.png", np.full((50, 50, 3), 9, dtype=np.uint8))
    result = prepare_collection(scans, tmp_path / "out", JOB)
    assert result.prepared_now == 1
    assert [record.id for record in result.collection.fragments] == ["piece0", "piece2", "piece3"]
    assert not (tmp_path / "out" / "fragments" / "piece1.png").exists()
    assert len(result.bad_files) == 1


def test_pages_of_a_tiff_are_told_apart(tmp_path: Path) -> None:
    from PIL import Image as Pillow

    scan = [np.where(blob(s)[..., None] > 0, (150, 60, 40), (250, 250, 250)).astype(np.uint8) for s in (0, 1)]
    pages = [Pillow.fromarray(page) for page in (*scan, np.full((40, 40, 3), 200, dtype=np.uint8))]
    (tmp_path / "scans").mkdir()
    pages[0].save(tmp_path / "scans" / "album.tif", save_all=True, append_images=pages[1:])
    result = prepare_collection(tmp_path / "scans", tmp_path / "out", JOB)
    assert [record.id for record in result.collection.fragments] == ["album#p1", "album#p2"]
    assert any("no fragment" in remark for remark in result.remarks)


def test_exclusions_may_come_later_and_do_not_renumber(pieces: list[Fragment], tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    write_png(tmp_path / "scans" / "sheet.png", lay_out(pieces[:6], np.random.default_rng(0)))
    assert len(prepare_collection(tmp_path / "scans", tmp_path / "out", JOB).collection) == 6
    without = prepare_collection(tmp_path / "scans", tmp_path / "out", replace(JOB, exclude=("sheet#2", "*#5")))
    assert [r.id for r in without.collection.fragments] == ["sheet#1", "sheet#3", "sheet#4", "sheet#6"]
    assert without.prepared_now == 0
    assert len(read_collection(tmp_path / "out")) == 4
    with pytest.raises(NoFragmentError, match="excluded"):
        prepare_collection(tmp_path / "scans", tmp_path / "out", replace(JOB, exclude=("sheet*",)))


def test_numbers_of_pieces_never_meet_names_of_files(pieces: list[Fragment], tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    write_png(tmp_path / "scans" / "sheet.png", lay_out(pieces[:2], np.random.default_rng(0)))
    write_png(tmp_path / "scans" / "sheet#1.png", pieces[3].rgba)
    collection = prepare_collection(tmp_path / "scans", tmp_path / "out", JOB).collection
    assert {r.id for r in collection.fragments} == {"sheet#1", "sheet#2", "sheet_1"}
    assert len(list((tmp_path / "out" / "fragments").iterdir())) == 3


def test_results_inside_the_input_are_not_input(scans: Path) -> None:
    for _ in range(2):
        assert len(prepare_collection(scans, scans / "out", JOB).collection) == 3
    shutil.rmtree(scans / "out")
    for _ in range(2):
        around = scans / ".." / scans.name / "out"
        assert len(tear_collection(scans, around, small_job()).collection.sources) == 3
    with pytest.raises(ImageError, match="lies in the output"):
        prepare_collection(scans, scans.parent, JOB)


def test_lost_seams_are_written_again(torn: Collection, tmp_path: Path) -> None:
    moved = replace(torn, folder=tmp_path)
    assert write_collection(moved)
    assert not write_collection(moved)
    (tmp_path / "seams.npy").unlink()
    assert write_collection(moved)
    assert len(read_collection(tmp_path).pairs) == len(torn.pairs)


def test_removed_and_repaired_scans_show_in_the_collection(scans: Path, tmp_path: Path) -> None:
    (scans / "piece9.png").write_bytes(b"")
    assert prepare_collection(scans, tmp_path / "out", JOB).bad_files
    small = replace(JOB, max_pixels=100)
    assert len(prepare_collection(scans, tmp_path / "out", small).collection) == 3  # what is done stays done
    (scans / "piece2.png").replace(scans / "piece9.png")
    result = prepare_collection(scans, tmp_path / "out", JOB)
    assert [r.id for r in read_collection(tmp_path / "out").fragments] == ["piece0", "piece1", "piece9"]
    assert not result.bad_files


def test_truth_is_not_prepared_over(scans: Path, tmp_path: Path) -> None:
    collection = prepare_collection(scans, tmp_path / "out", JOB).collection
    write_collection(replace(collection, made_by={"annotated": "picture"}))
    with pytest.raises(CollectionError, match="truth"):
        prepare_collection(scans, tmp_path / "out", JOB)


def test_nothing_found_at_all_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    write_png(tmp_path / "scans" / "blank.png", np.full((50, 50, 3), 9, dtype=np.uint8))
    with pytest.raises(NoFragmentError, match=r"blank\.png"):
        prepare_collection(tmp_path / "scans", tmp_path / "out", JOB)


# Painting ------------------------------------------------------------------------------------------------------


def test_later_fragments_lie_on_top_and_overlap_is_counted() -> None:
    from pairingnet.geometry import Rigid2D

    square = np.zeros((40, 40), dtype=np.uint8)
    square[10:30, 10:30] = 255
    red, blue = (fragment_of(square, colour) for colour in ((200, 0, 0), (0, 0, 200)))
    canvas = compose([(red, Rigid2D()), (blue, Rigid2D(0, 10, 0))])
    assert canvas.origin_px == (10, 10)
    assert canvas.cover.max() == 2
    assert canvas.overlap == pytest.approx(10 * 20 / (30 * 20))
    assert canvas.pixels[10, 15].tolist() == [0, 0, 200]
    assert canvas.labels[10, 5] == 0 and canvas.labels[10, 25] == 1


def test_fragments_outside_the_canvas_are_cut_off() -> None:
    from pairingnet.geometry import Rigid2D

    piece = fragment_of(blob(0))
    canvas = compose([(piece, Rigid2D(0.3, -100, -90)), (piece, Rigid2D(0, 5000, 0))], size=(80, 60))
    assert canvas.pixels.shape == (60, 80, 3)
    assert compose([]).pixels.shape == (1, 1, 3)
    assert cv2.countNonZero(canvas.cover) > 0
