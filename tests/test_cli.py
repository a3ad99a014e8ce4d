"""The command line as a user meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pairingnet import __version__
from pairingnet.io.images import write_png
from pairingnet.types import Pixels
from tests.conftest import PICTURE, blob
from tests.helpers import run, wait_for

SMALL = ["--set", "h_min=60", "--set", "w_min=60", "--set", "d_min=40"]


@pytest.fixture
def pictures(tmp_path: Path, picture: Pixels) -> Path:
    (tmp_path / "pictures").mkdir()
    write_png(tmp_path / "pictures" / "colosseum.png", picture)
    return tmp_path / "pictures"


def test_version_and_help_answer() -> None:
    for arguments, says in ((["--version"], __version__), (["--help"], "tear"), (["tear", "-h"], "--seed")):
        result = run(*arguments)
        assert result.returncode == 0 and says in result.stdout


def test_help_loads_nothing_heavy() -> None:
    """That is what makes it answer at once; how soon is measured in benchmarks."""
    heavy = ("cv2", "numpy", "scipy", "matplotlib", "torch", "numba", "faiss", "PIL")
    code = f"import sys, pairingnet.cli; print([m for m in {heavy} if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "[]\n"


@pytest.mark.slow
def test_tear_then_stats(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("tear", pictures, out, "--seed", 5, "--wear", "light", "--drop", 0.1, *SMALL)
    assert result.returncode == 0, result.stderr
    assert str(out / "collection.json") in result.stdout
    assert (out / "contact_sheet.jpg").is_file() and (out / "truth_sheet.jpg").is_file()
    assert "nothing to do" in run("tear", pictures, out, "--seed", 5, "--wear", "light", "--drop", 0.1, *SMALL).stdout

    result = run("stats", out, "--json")
    assert result.returncode == 0, result.stderr
    counted = json.loads(result.stdout)
    assert counted["fragments"] == len(list((out / "fragments").iterdir()))
    assert Path(counted["figure"]).stat().st_size > 10_000
    assert "neighbours per fragment" in run("stats", out, "--out", tmp_path / "figure.pdf").stdout
    assert (tmp_path / "figure.pdf").is_file()


def test_a_settings_file(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('h_min = 60\nw_min = 60\nd_min = 40\n"wear.erosion" = 2.0\n')
    result = run("tear", pictures, tmp_path / "out", "--config", tmp_path / "s.toml", "--json")
    assert result.returncode == 0, result.stderr
    made_by = json.loads((tmp_path / "out" / "collection.json").read_text())["made_by"]
    assert (made_by["h_min"], made_by["wear.erosion"]) == (60, 2.0)


def test_options_win_over_the_settings_file(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("h_min = 60\nw_min = 60\nd_min = 40\nrotate = true\nwear.erosion = 2.0\n")
    result = run("tear", pictures, tmp_path / "out", "--config", tmp_path / "s.toml", "--no-rotate")
    assert result.returncode == 0, result.stderr
    made_by = json.loads((tmp_path / "out" / "collection.json").read_text())["made_by"]
    assert (made_by["rotate"], made_by["wear.erosion"]) == (False, 2.0)


def test_stopping_says_how_to_go_on(pictures: Path, tmp_path: Path) -> None:
    for i in range(40):
        (pictures / f"p{i}.png").symlink_to(pictures / "colosseum.png")
    command = [sys.executable, "-m", "pairingnet", "tear", str(pictures), str(tmp_path / "out"), *SMALL]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: list(tmp_path.glob("out/torn/*/collection.json")), "the first picture", of=process)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "again to continue" in complaint and "Traceback" not in complaint


def test_a_folder_that_cannot_be_written_is_named(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    result = run("tear", pictures, tmp_path / "taken", *SMALL)
    assert result.returncode == 2
    assert "taken" in result.stderr and "Traceback" not in result.stderr


def test_bad_files_are_listed_and_change_the_exit_code(pictures: Path, tmp_path: Path) -> None:
    (pictures / "broken.jpg").write_bytes(b"\xff\xd8")
    result = run("tear", pictures, tmp_path / "out", "--json", *SMALL)
    assert result.returncode == 1
    assert "broken.jpg" in result.stderr
    assert "broken.jpg" in json.loads(result.stdout)["left_out"][0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tear", "nowhere", "out"], "no file or folder"),
        (["tear", PICTURE, "out", "--wear", "awful"], "none, scanned, light, medium, heavy"),
        (["tear", PICTURE, "out", "--split", "odd"], "picture, paper"),
        (["tear", PICTURE, "out", "--set", "t_maxx=3"], "t_max"),
        (["prepare", PICTURE, "out", "--set", "holes=maybe"], "'fill' or 'keep'"),
        (["stats", "nowhere"], "collection.json"),
        (["annotate", "nowhere.json", PICTURE, "out"], "no file"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_two(arguments: list[object], says: str, tmp_path: Path) -> None:
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_stats_refuses_what_is_no_figure(torn: object, tmp_path: Path) -> None:
    from pairingnet.io.collection import Collection

    assert isinstance(torn, Collection)
    result = run("stats", torn.folder, "--out", tmp_path / "figure.docx")
    assert result.returncode == 2 and ".png" in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_training_stops_and_goes_on(torn: object, tmp_path: Path) -> None:
    from pairingnet.io.collection import Collection

    assert isinstance(torn, Collection)
    small = ["--set", "width=16", "--set", "layers=1", "--set", "search_layers=1", "--set", "epochs=1", "--threads", 1]
    for steps in (1, 2):
        result = run("train", "matching", torn.folder, tmp_path / "run", "--budget", "0.001s", "--json", *small)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["steps"] == steps
    step1 = tmp_path / "run" / "checkpoint.pt"
    second = ["--from", step1, "--set", "epochs=1", "--set", "batch=8", "--budget", "0.001s", "--threads", 1]
    result = run("train", "searching", torn.folder, tmp_path / "search", *second)
    assert result.returncode == 0, result.stderr
    assert "1 step in" in result.stdout
    trained = tmp_path / "search" / "checkpoint.pt"
    result = run("evaluate", torn.folder, "--model", trained, "--out", tmp_path / "scores", "--json", "--threads", 1)
    assert result.returncode == 0, result.stderr
    assert [row["difficulty"] for row in json.loads(result.stdout)] == ["All", "High", "Medium", "Low"]
    assert (tmp_path / "scores" / "scores.md").is_file() and (tmp_path / "scores" / "scores.csv").is_file()
    assert run("train", "matching", torn.folder, tmp_path / "run", "--budget", "soon").returncode == 2
    result = run("train", "matching", torn.folder, tmp_path / "other", "--set", "fusions=gate")
    assert result.returncode == 2 and "fusions" in result.stderr


@pytest.mark.slow
def test_training_on_a_part_watches_its_validation_part(torn: object, tmp_path: Path) -> None:
    from pairingnet.io.collection import Collection, write_collection

    assert isinstance(torn, Collection)
    parts = tuple(replace(record, part=("train", "val")[i % 2]) for i, record in enumerate(torn.fragments))
    write_collection(replace(torn, folder=tmp_path / "parts", fragments=parts))
    (tmp_path / "parts" / "fragments").symlink_to(torn.folder / "fragments")
    small = ["--set", "width=16", "--set", "layers=1", "--set", "search_layers=1", "--set", "steps=1", "--threads", 1]
    result = run("train", "matching", tmp_path / "parts", tmp_path / "run", "--part", "train", *small)
    assert result.returncode == 0, result.stderr
    assert "validation_points" in (tmp_path / "run" / "log.jsonl").read_text()
    result = run("train", "matching", tmp_path / "parts", tmp_path / "other", "--part", "tests", *small)
    assert result.returncode == 2 and "It has: train, val" in result.stderr


@pytest.mark.slow
def test_interrupted_training_keeps_every_step(torn: object, tmp_path: Path) -> None:
    from pairingnet.io.collection import Collection
    from pairingnet.train.checkpoints import read_checkpoint

    assert isinstance(torn, Collection)
    small = ["--set", "width=16", "--set", "layers=1", "--set", "search_layers=1", "--set", "batch=2", "--threads", "1"]
    command = [sys.executable, "-m", "pairingnet", "train", "matching", str(torn.folder), str(tmp_path / "run"), *small]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "run" / "log.jsonl"
    wait_for(lambda: log.is_file() and len(log.read_text().splitlines()) >= 3, "the first steps", of=process)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode != 0 and "again to continue" in complaint
    steps = sum("loss" in line for line in log.read_text().splitlines())
    assert read_checkpoint(tmp_path / "run" / "checkpoint.pt").step == steps >= 3


def test_prepare_and_annotate(tmp_path: Path) -> None:
    scans = tmp_path / "scans"
    scans.mkdir()
    for seed in range(2):
        mask = blob(seed)
        write_png(scans / f"s{seed}.png", np.where(mask[..., None] > 0, (150, 60, 40), (20, 20, 22)).astype(np.uint8))
    result = run("prepare", scans, tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "2 fragments" in result.stdout and "overlays" in result.stdout
    assert "nothing to do" in run("prepare", scans, tmp_path / "out").stdout

    poses = [{"file": f"s{i}.png", "canvas_from_fragment": [[1, 0, 300 * i], [0, 1, 0]]} for i in range(2)]
    (tmp_path / "truth.json").write_text(json.dumps({"fragments": poses}))
    result = run("annotate", tmp_path / "truth.json", scans, tmp_path / "placed", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["placed"] == 2
    truth = (tmp_path / "placed" / "collection.json").read_text()
    write_png(tmp_path / "blank.png", np.full((300, 300, 3), 90, dtype=np.uint8))
    for reference in ("blank.png", "nowhere.png"):  # what fails takes nothing away
        assert run("annotate", tmp_path / reference, scans, tmp_path / "placed").returncode == 2
    assert (tmp_path / "placed" / "collection.json").read_text() == truth
