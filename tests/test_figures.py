"""The paper's figures: each is a command, and shows what it says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pairingnet.benchmark.ask import predict
from pairingnet.cli import app
from pairingnet.config import TrainSettings
from pairingnet.errors import SettingsError
from pairingnet.evaluate import figures
from pairingnet.evaluate.embedding import on_a_sphere
from pairingnet.io.collection import Collection
from pairingnet.io.images import read_image
from pairingnet.models.paper import PairingNet
from pairingnet.settings import as_dict
from pairingnet.train.checkpoints import Checkpoint, read_checkpoint, save_checkpoint
from tests.helpers import TINY_PAPER, Oracle


@pytest.fixture(scope="module")
def answers(torn: Collection, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    predict(torn, Oracle(torn, off_px=3.0), folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "checkpoint.pt"
    weights = PairingNet(TINY_PAPER).state_dict()
    save_checkpoint(path, Checkpoint(as_dict(TINY_PAPER), weights, {}, "matching", 0, 0.0, as_dict(TrainSettings())))
    return path


def draw(*arguments: object) -> None:
    result = CliRunner().invoke(app, ["figure", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def share_of(path: Path, rgb: tuple[int, int, int]) -> float:
    """How much of a picture has about this colour."""
    pixels = read_image(path).pixels.astype(int)
    return float((np.abs(pixels - rgb).max(axis=2) < 40).mean())


def words_of(path: Path) -> set[str]:
    """The texts of a drawing: letters are drawn as lines, and each text stands beside them as a comment."""
    return set(re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8")))


GREEN, RED = (26, 152, 80), (215, 48, 39)


def test_figures_of_answers(torn: Collection, answers: Path, tmp_path: Path) -> None:
    draw("violins", torn.folder, answers, "--out", tmp_path / "violins.svg")
    told = words_of(tmp_path / "violins.svg")
    assert {"RE (rad)", "NTE (1e-4)", "HD (px)"} <= told
    assert {f"HD (px), {level} difficulty" for level in ("low", "medium", "high")} <= told and "oracle" in told
    draw("pairs", torn.folder, answers, "--out", tmp_path / "pairs.png", "--each", 1)
    one = read_image(tmp_path / "pairs.png").size
    draw("pairs", torn.folder, answers, "--out", tmp_path / "more.png", "--each", 2)
    assert read_image(tmp_path / "more.png").size[1] > 1.5 * one[1]  # a row more for each difficulty
    draw("time", answers, answers, "--out", tmp_path / "time.svg")
    assert "Inference time" in " ".join(words_of(tmp_path / "time.svg"))


def test_true_neighbours_have_a_green_box(torn: Collection, answers: Path, tmp_path: Path) -> None:
    draw("search", torn.folder, answers, "--out", tmp_path / "right.png", "--count", 2)
    assert share_of(tmp_path / "right.png", GREEN) > 0.01


def test_an_unknown_query_is_refused(torn: Collection, answers: Path, tmp_path: Path) -> None:
    arguments = ["figure", "search", str(torn.folder), str(answers), "--out", str(tmp_path / "x.png")]
    result = CliRunner().invoke(app, [*arguments, "--fragment", "nobody"])
    assert result.exit_code != 0 and "nobody" in str(result.exception)


def test_figures_of_a_network(torn: Collection, model: Path, tmp_path: Path) -> None:
    for name in ("correspondences", "gate"):
        draw(name, torn.folder, "--model", model, "--out", tmp_path / f"{name}.png")
    draw("correspondences", torn.folder, "--model", model, "--out", tmp_path / "told.svg", "--each", 1)
    titles = [text for text in words_of(tmp_path / "told.svg") if " right" in text or "no correspondences" in text]
    assert len(titles) == len({pair.difficulty for pair in torn.pairs})
    assert share_of(tmp_path / "gate.png", GREEN) > 0 and share_of(tmp_path / "gate.png", RED) > 0
    draw("inputs", torn.folder, "--out", tmp_path / "inputs.svg", "--count", 2)
    assert len([text for text in words_of(tmp_path / "inputs.svg") if text.startswith("colosseum_")]) == 2


def test_all_figures_in_one_command(
    torn: Collection, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a trained search head there is no figure of searching; with one, what needs an extra may be left out."""
    words = ["--collection", torn.folder, "--methods", "mean_colour", "--format", "svg"]
    draw("all", tmp_path / "one", "--model", model, "--real", torn.folder, *words)
    always = {"fig-04-statistics", "fig-05-violins", "fig-07-pairs", "fig-09a-gate"}
    always |= {f"supplement-{name}" for name in ("inputs", "correspondences", "time")}
    drawn = {path.stem for path in (tmp_path / "one").glob("*.svg")}
    assert drawn == always | {"fig-08-real-pairs"}
    assert {"paper", "mean_colour"} <= words_of(tmp_path / "one" / "fig-05-violins.svg")

    def not_installed(*_: object) -> None:
        raise SettingsError("no pacmap", "Install it.")

    checkpoint = read_checkpoint(model)
    save_checkpoint(tmp_path / "both.pt", replace(checkpoint, task="searching"))
    monkeypatch.setattr("pairingnet.cli.figures.sphere", not_installed)
    result = CliRunner().invoke(
        app, ["figure", "all", str(tmp_path / "both"), "--model", str(tmp_path / "both.pt"), *map(str, words)]
    )
    assert result.exit_code == 0 and "left out" in result.output and "no pacmap" in result.output
    assert {path.stem for path in (tmp_path / "both").glob("*.svg")} == always | {"fig-06-search"}


def test_right_lines_are_green_and_wrong_ones_red(torn: Collection, tmp_path: Path) -> None:
    from pairingnet.prepare.load import load_fragment

    pair = torn.pairs[0]
    source, target = load_fragment(torn, pair.source), load_fragment(torn, pair.target)
    points = np.stack([source.contour[:30], target.contour[:30]], axis=1)
    for right, seen, unseen in ((True, GREEN, RED), (False, RED, GREEN)):
        path = tmp_path / f"{right}.png"
        figures.correspondence_sheet([(source, target, points, np.full(30, right))], path)
        assert share_of(path, seen) > 5 * share_of(path, unseen)


def test_neighbouring_vectors_are_near_on_the_sphere() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 16))
    groups = np.repeat(np.arange(4), 25)
    vectors = (centres[groups] + 0.05 * rng.normal(size=(100, 16))).astype(np.float32)
    places = on_a_sphere(vectors)
    assert np.allclose(np.linalg.norm(places, axis=1), 1)
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    same = groups[:, None] == groups[None]
    assert apart[same].mean() < 0.5 * apart[~same].mean()
    with pytest.raises(SettingsError, match="too few"):
        on_a_sphere(vectors[:5])


def test_no_fragment_is_in_two_coloured_pairs(torn: Collection) -> None:
    pairs = figures.disjoint_pairs(torn, 5, np.random.default_rng(1))
    numbers = [i for pair in pairs for i in pair]
    assert len(set(numbers)) == len(numbers) == 2 * len(pairs) > 2
