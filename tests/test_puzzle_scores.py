"""RePAIR's metrics and files: what they say of layouts that are known by hand, and of odd files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow
from typer.testing import CliRunner

from pairingnet.cli import app
from pairingnet.errors import TruthError
from pairingnet.evaluate.puzzle_files import read_layouts, read_puzzles, write_layout
from pairingnet.evaluate.puzzles import PX_PER_MM, Puzzle, mean_scores, score_puzzle
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.io.images import write_png
from pairingnet.io.rpf import RpfLine, is_rpf_file, pose_of_rpf, poses_of_rpf, read_rpf, turned_size, write_rpf
from pairingnet.io.run import write_assembly
from pairingnet.prepare.contour import trace_contour
from pairingnet.types import Assembly, Group, Pixels
from tests.conftest import blob

SIDE = 100
poses = st.builds(
    Rigid2D,
    st.floats(-3.1, 3.1, allow_nan=False),
    st.floats(-500, 500, allow_nan=False),
    st.floats(-500, 500, allow_nan=False),
)


def square(side: int = SIDE, margin: int = 4) -> Pixels:
    return np.pad(np.full((side, side), 255, np.uint8), margin)


def squares(apart_px: float = 110, **more: float) -> Puzzle:
    """Two squares beside each other, the second a little smaller."""
    masks = {"large": square(SIDE), "small": square(SIDE - 2)}
    outlines = {name: trace_contour(mask) for name, mask in masks.items()}
    sizes = {name: (mask.shape[1], mask.shape[0]) for name, mask in masks.items()}
    true = {"large": Rigid2D(0, 20, 30), "small": Rigid2D(0, 20 + apart_px, 30)}
    return replace(Puzzle("two", true, outlines, sizes), **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def blobs() -> Puzzle:
    """Five irregular pieces side by side, each turned."""
    masks = {f"b{i}": blob(i, radius=40 + 4 * i) for i in range(5)}
    true = {name: Rigid2D(0.9 * i, 130.0 * i, 40.0 * (i % 2)) for i, name in enumerate(masks)}
    outlines = {name: trace_contour(mask) for name, mask in masks.items()}
    return Puzzle("blobs", true, outlines, dict.fromkeys(masks, (160, 160)), reach_px=200)


def test_a_perfect_layout_is_perfect(blobs: Puzzle) -> None:
    told = score_puzzle(blobs, [blobs.poses])
    assert told.q_pos == pytest.approx(1, abs=1e-3)
    assert told.rmse_rotation_deg == pytest.approx(0, abs=1e-9)
    assert told.rmse_translation_mm == pytest.approx(0, abs=1e-9)
    assert told.neighbour_precision == told.neighbour_recall == 1
    assert (told.pieces, told.placed) == (5, 5)


@given(moved=poses, slip=poses)
def test_how_the_whole_answer_lies_does_not_count(blobs: Puzzle, moved: Rigid2D, slip: Rigid2D) -> None:
    answer = {**blobs.poses, "b1": blobs.poses["b1"] @ Rigid2D(slip.angle_rad / 4, slip.x_px / 10, slip.y_px / 10)}
    here = score_puzzle(blobs, [answer])
    there = score_puzzle(blobs, [{name: moved @ pose for name, pose in answer.items()}])
    assert there.q_pos == pytest.approx(here.q_pos, abs=2e-3)
    assert there.rmse_rotation_deg == pytest.approx(here.rmse_rotation_deg, abs=1e-6)
    assert there.rmse_translation_mm == pytest.approx(here.rmse_translation_mm, abs=1e-6)


def test_two_squares_ninety_pixels_from_where_they_belong() -> None:
    puzzle = squares()
    answer = {**puzzle.poses, "small": puzzle.poses["small"] @ Rigid2D(0, 90, 0)}
    told = score_puzzle(puzzle, [answer])
    assert told.q_pos == pytest.approx(8 / 98, abs=3e-3)
    assert told.rmse_rotation_deg == 0
    assert told.rmse_translation_mm == pytest.approx(90 / PX_PER_MM / np.sqrt(2))
    # They gape by 11 px where they belong, by 101 in the answer: neighbours no more.
    assert told.neighbour_recall == 0 and np.isnan(told.neighbour_precision)
    assert score_puzzle(replace(puzzle, reach_px=120.0), [answer]).neighbour_recall == 1


def test_a_turn_by_a_right_angle_shifts_nothing_and_covers_all() -> None:
    puzzle = squares()
    middle = [(SIDE - 2 + 8 - 1) / 2] * 2
    answer = {**puzzle.poses, "small": puzzle.poses["small"] @ Rigid2D.about(middle, np.pi / 2)}
    told = score_puzzle(puzzle, [answer])
    assert told.rmse_rotation_deg == pytest.approx(90 / np.sqrt(2))
    assert told.rmse_translation_mm == pytest.approx(0, abs=1e-9)
    assert told.q_pos == pytest.approx(1, abs=2e-3)


def test_turns_are_wrapped() -> None:
    puzzle = squares()
    answer = {**puzzle.poses, "small": puzzle.poses["small"] @ Rigid2D(np.radians(359))}
    assert score_puzzle(puzzle, [answer]).rmse_rotation_deg == pytest.approx(1 / np.sqrt(2))


def test_parts_count_by_the_one_with_most_area(blobs: Puzzle) -> None:
    names = sorted(blobs.poses)
    groups = [{name: blobs.poses[name] for name in names[:2]}, {name: blobs.poses[name] for name in names[2:]}]
    told = score_puzzle(blobs, groups)
    assert told.placed == 3 and 0.3 < told.q_pos < 0.7
    assert told.rmse_rotation_deg == pytest.approx(0, abs=1e-9)
    assert told.neighbour_precision == 1 and 0 < told.neighbour_recall < 1
    nothing = score_puzzle(blobs, [])
    assert nothing.q_pos == 0 and nothing.placed == 0 and np.isnan(nothing.rmse_rotation_deg)
    singles = score_puzzle(blobs, [{name: Rigid2D()} for name in names])
    assert singles.q_pos == 0 and singles.placed == 0 and singles.neighbour_recall == 0


def test_strangers_in_an_answer_are_left_out(blobs: Puzzle) -> None:
    assert score_puzzle(blobs, [{**blobs.poses, "stranger": Rigid2D(0, 5, 5)}]).pieces == 5


def test_over_all_is_the_mean_of_what_can_be_told(blobs: Puzzle) -> None:
    told = mean_scores([score_puzzle(blobs, [blobs.poses]), score_puzzle(blobs, [])])
    assert told.q_pos == pytest.approx(0.5, abs=1e-3) and told.rmse_rotation_deg == pytest.approx(0, abs=1e-9)
    assert (told.pieces, told.placed) == (10, 5)


@given(
    rot=st.floats(0, 360, allow_nan=False) | st.sampled_from([0.0, 90.0, 180.0, 270.0, 359.9999999]),
    x=st.floats(-2000, 2000),
    y=st.floats(-2000, 2000),
    width=st.integers(1, 900),
    height=st.integers(1, 900),
)
def test_a_pose_survives_the_file(
    tmp_path_factory: pytest.TempPathFactory, rot: float, x: float, y: float, width: int, height: int
) -> None:
    path = tmp_path_factory.mktemp("rpf") / "answer.csv"
    pose = pose_of_rpf(RpfLine(x, y, rot), (width, height))
    write_rpf(path, {"RPf_1": pose}, {"RPf_1": (width, height)})
    again = poses_of_rpf(path, {"RPf_1": (width, height)})["RPf_1"]
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]])
    assert np.abs(again.apply(corners) - pose.apply(corners)).max() < 1e-3


@pytest.mark.parametrize("rot", [0.0, 17.3, 90.0, 123.4, 180.0, 270.0, 301.0])
def test_images_turn_as_pillow_turns_them(rot: float) -> None:
    """The published evaluation turns images by Pillow; a mark must come to lie where it does there."""
    picture = np.zeros((60, 101), np.uint8)
    cv2.circle(picture, (80, 20), 3, 255, -1)
    turned = np.asarray(Pillow.fromarray(picture).rotate(rot, expand=True, resample=Pillow.Resampling.BILINEAR))
    assert turned_size((101, 60), rot) == turned.shape[::-1]
    rows, columns = np.nonzero(turned > 127)
    landed = pose_of_rpf(RpfLine(1000, 2000, rot), (101, 60)).apply([[80, 20]])[0]
    assert landed == pytest.approx([1000 + columns.mean(), 2000 + rows.mean()], abs=0.35)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: there is no column rpf"),
        ("rpf,x,y\na.png,1,2\n", "line 1: there is no column rot"),
        ("rpf,x,y,rot\n", "names no piece"),
        ("rpf,x,y,rot\na.png,1,2\n", "line 2 has fewer"),
        ("rpf,x,y,rot\na.png,1,two,3\n", "line 2: y of 'a' is 'two'"),
        ("rpf,x,y,rot\na.png,1,nan,3\n", "line 2: y of 'a' is 'nan'"),
        ("rpf,x,y,rot\na.png,1,2,3\n\na,1,2,4\n", "line 4: 'a' has another pose in line 2"),
        ("rpf,x,y,rot\n,1,2,3\n", "line 2 names no piece"),
        ("rpf,x,y,rot\nb.png,1,2,3\n", "a pose of 'b', of which there is no image. Give"),
        ("rpf,x,y,rot\naa.png,1,2,3\n", "Did you mean 'a'?"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "answer.txt"
    path.write_text(text)
    with pytest.raises(TruthError) as raised:
        poses_of_rpf(path, {"a": (10, 10)})
    assert said in str(raised.value) and str(path) in str(raised.value)


def test_odd_but_clear_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ground_truth.txt"
    path.write_bytes(b"\xef\xbb\xbfid, rot, rpf, x, y\r\n7, 30, sub/RPf_1.png, 1.5, 2\r\n7, 30, RPf_1, 1.5, 2.0\r\n")
    assert is_rpf_file(path) and read_rpf(path) == {"RPf_1": RpfLine(1.5, 2.0, 30.0)}
    with pytest.raises(TruthError, match="There is no file"):
        read_rpf(tmp_path / "none.txt")
    (tmp_path / "bytes.txt").write_bytes(b"rpf,x,y,rot\n\xff\xfe,1,2,3\n")
    with pytest.raises(TruthError, match="as text"):
        read_rpf(tmp_path / "bytes.txt")


def stored(puzzle: Puzzle, folder: Path) -> Path:
    """A puzzle as RePAIR's folders are: images, and ground_truth.txt beside them."""
    for name, (width, height) in puzzle.sizes.items():
        mask = np.zeros((height, width), np.uint8)
        cv2.fillPoly(mask, [np.rint(puzzle.outlines[name]).astype(np.int32)], 255)
        write_png(folder / f"{name}.png", np.dstack([mask] * 4))
    write_rpf(folder / "ground_truth.txt", puzzle.poses, puzzle.sizes)
    return folder


@pytest.fixture
def folders(blobs: Puzzle, tmp_path: Path) -> Path:
    """Two puzzles."""
    for folder, puzzle in (("one", blobs), ("two", squares())):
        (tmp_path / "solved" / folder).mkdir(parents=True)
        stored(puzzle, tmp_path / "solved" / folder)
    return tmp_path / "solved"


def scores_of(*arguments: object) -> dict[str, dict[str, float]]:
    result = CliRunner().invoke(app, ["score", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    return {**content["puzzles"], "all": content["all"]}


def test_the_command_scores_a_folder_of_puzzles(folders: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    for puzzle in read_puzzles(folders):
        write_rpf(
            answers / f"{puzzle.name}.csv", {n: Rigid2D(1, 9, 9) @ p for n, p in puzzle.poses.items()}, puzzle.sizes
        )
    told = scores_of(folders, answers, "--out", tmp_path / "table")
    assert set(told) == {"one", "two", "all"}
    assert told["all"]["q_pos"] == pytest.approx(1, abs=5e-3) and told["all"]["pieces"] == 7
    lines = (tmp_path / "table" / "puzzles.md").read_text().splitlines()
    assert len(lines) == 5 and lines[-1].startswith("| all | 7 | 7 | ")
    (answers / "two.csv").unlink()
    result = CliRunner().invoke(app, ["score", str(folders), str(answers)])
    assert result.exit_code == 0 and "no answer to two" in result.output


def test_an_assembly_becomes_an_answer_for_others(folders: Path, tmp_path: Path) -> None:
    """--rpf: groups and single pieces beside each other in one frame, each lying in itself as it did."""
    puzzle = read_puzzles(folders / "one")[0]
    names = sorted(puzzle.poses)
    group = {name: puzzle.poses[name] for name in names[1:]}
    (tmp_path / "run").mkdir()
    write_assembly(tmp_path / "run" / "assembly.json", Assembly((Group(group),), (names[0],)))
    inside = scores_of(folders / "one", tmp_path / "run", "--rpf", tmp_path / "sent")["one"]
    outside = score_puzzle(puzzle, read_layouts(tmp_path / "sent" / "one.csv", [puzzle])[0][0])
    assert set(read_rpf(tmp_path / "sent" / "one.csv")) == set(names)
    assert inside["placed"] == 4 and outside.placed == 5
    assert outside.q_pos == pytest.approx(inside["q_pos"], abs=5e-3)
    assert outside.neighbour_precision == inside["neighbour_precision"] == 1


def test_a_collection_is_a_truth(torn: Collection, tmp_path: Path) -> None:
    puzzle = read_puzzles(torn.folder)[0]
    assert puzzle.reach_px < 8
    write_layout(tmp_path / "answer.csv", puzzle, [puzzle.poses])
    told = scores_of(torn.folder, tmp_path / "answer.csv", "--px-per-mm", 1)["colosseum"]
    assert told["q_pos"] == pytest.approx(1, abs=2e-3) and told["rmse_translation_mm"] < 1e-2
    assert told["neighbour_precision"] == told["neighbour_recall"] == 1
    true = {frozenset((pair.source, pair.target)) for pair in torn.pairs}
    assert len(true) > 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{folders}",), "Give --matches FILE, or a second argument"),
        (("{folders}", "{folders}/one", "--matches", "x.json"), "Give --matches FILE, or a second argument"),
        (("{folders}/none", "{folders}"), "There is no"),
        (("{folders}", "{folders}/none.csv"), "There is no"),
        (("{folders}", "{folders}/one"), "answers none of one, two"),
        (("{folders}/one", "{folders}/two/ground_truth.txt"), "of which there is no image"),
    ],
)
def test_the_command_says_what_to_do(arguments: tuple[str, ...], said: str, folders: Path) -> None:
    result = CliRunner().invoke(app, ["score", *(argument.format(folders=folders) for argument in arguments)])
    assert result.exit_code != 0 and said in str(result.exception)
