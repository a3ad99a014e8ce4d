"""What commands say: in words that are right for one and for many, and about files of the wrong kind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from rich.markup import render
from typer.testing import CliRunner

from pairingnet.benchmark.ask import predict
from pairingnet.cli import app
from pairingnet.config import TrainSettings
from pairingnet.errors import PairingNetError
from pairingnet.evaluate.submitted import read_ranking
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.io.manifest import Manifest
from pairingnet.io.run import write_assembly, write_matches
from pairingnet.match.weights import SHIPPED
from pairingnet.models.paper import PairingNet
from pairingnet.review.report import proves_little
from pairingnet.review.results import title_of
from pairingnet.review.words import counted, duration
from pairingnet.settings import as_dict
from pairingnet.train.checkpoints import Checkpoint, save_checkpoint
from pairingnet.types import Assembly, Group, PairMatch
from tests.helpers import TINY_PAPER, Oracle
from tests.sample import SAMPLE


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that has done step 1 only."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("training")
    weights = PairingNet(TINY_PAPER).state_dict()
    made = Checkpoint(as_dict(TINY_PAPER), weights, {}, "matching", 0, 0.0, as_dict(TrainSettings()))
    save_checkpoint(folder / "checkpoint.pt", made)
    return folder


def say(*arguments: object) -> str:
    """What a command prints on stdout."""
    result = CliRunner().invoke(app, [str(word) for word in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: object) -> str:
    """What a command that a user can mend complains of."""
    with pytest.raises(PairingNetError) as error:
        CliRunner().invoke(app, [str(word) for word in arguments], catch_exceptions=False)
    return str(error.value)


def test_one_and_many_have_their_own_words() -> None:
    assert [counted(count, "group") for count in (0, 1, 2)] == ["0 groups", "1 group", "2 groups"]
    assert counted(2, "entry", "entries") == "2 entries"
    told = {0.4: "0 s", 10: "10 s", 59.7: "1 minute", 100: "2 minutes", 3599: "1 hour", 5400: "1.5 hours"}
    assert {seconds: duration(seconds) for seconds in told} == told


def every_command(command: Any, name: str = "pairingnet") -> Iterator[tuple[str, Any]]:
    yield name, command
    for sub in getattr(command, "commands", {}).values():
        yield from every_command(sub, f"{name} {sub.name}")


def test_help_texts_are_shown_as_they_are_written() -> None:
    """[Brackets] are markup to the library that prints them, unless they are escaped."""
    commands = dict(every_command(typer.main.get_command(app)))
    assert len(commands) > 30
    for name, command in commands.items():
        texts = [command.help or "", *(getattr(each, "help", "") or "" for each in command.params)]
        for text in texts:
            assert render(text).plain == text.replace("\\[", "["), name
    assert "pairingnet[sphere]" in say("figure", "sphere", "--help")


def test_what_holds_no_picture_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "no file or folder nope" in refused("solve", "nope")
    assert "no picture in empty" in refused("solve", "empty")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_one_scan_without_a_group_is_told_in_the_singular(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    shutil.copy(SAMPLE / "piece-01.jpg", tmp_path / "scans")
    told = say("solve", tmp_path / "scans", tmp_path / "run", "--jobs", 1)
    assert "1 fragment\n0 in 0 groups, 1 alone\n0 sure joins" in told and str(tmp_path / "run" / "groups") not in told
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "<title>1 fragment of piece-01.jpg</title>" in page


def test_the_report_names_the_scans(torn: Collection) -> None:
    assert title_of(torn).startswith(f"{len(torn)} fragments of ")
    scans = [replace(record, origin=f"sheet {number % 3}.tif") for number, record in enumerate(torn.fragments)]
    many = replace(torn, fragments=tuple(scans))
    assert title_of(many) == f"{len(torn)} fragments of 3 scans (sheet 0.tif to sheet 2.tif)"


def test_pair_refuses_a_picture_and_itself(tmp_path: Path) -> None:
    copy = tmp_path / "piece copy.jpg"
    shutil.copy(SAMPLE / "piece-01.jpg", copy)
    for other in (copy, SAMPLE / "piece-01.jpg"):
        assert "are the same picture" in refused("pair", SAMPLE / "piece-01.jpg", other)


def test_pair_says_in_words_what_proves_little() -> None:
    """A contact of a sixtieth of the edge is likely by chance alone, whatever its probability says."""
    found = PairMatch("a", "b", Rigid2D(), probability=0.88, evidence={"contact_px": 15.0})
    assert "15 px only, 2% of the shorter edge" in proves_little(found, 900.0)
    assert proves_little(found, 200.0) == ""
    assert proves_little(PairMatch("a", "b", None, reason="nothing"), 900.0) == ""
    told = say("pair", SAMPLE / "piece-16.jpg", SAMPLE / "piece-20.jpg")
    assert "proves next to nothing" in told.splitlines()[0]
    assert "proves" not in say("pair", SAMPLE / "piece-01.jpg", SAMPLE / "piece-40.jpg")


def test_a_checkpoint_of_step_one_has_no_search_scores(torn: Collection, training: Path, tmp_path: Path) -> None:
    """Its vectors were never trained; what they rank is noise. The folder of the training will do for its file."""
    told = say("evaluate", torn.folder, "--model", training, "--out", tmp_path / "out")
    header, _, row = (line.split("|")[1:-1] for line in told.splitlines()[:3])
    cells = dict(zip((name.strip() for name in header), (cell.strip() for cell in row), strict=True))
    assert {cells[f"{name}@{k}"] for name in ("R", "NDCG") for k in (5, 10, 20)} == {"-"}
    assert float(cells["RR"]) >= 0
    assert "no trained search head" in told and "no trained search head" in (tmp_path / "out/scores.md").read_text()
    rows = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert rows[0]["R@5"] is None and rows[0]["RR"] is not None
    figure = ("figure", "search", torn.folder, tmp_path / "out", "--out", tmp_path / "x.png")
    assert "ranks no candidates" in refused(*figure)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["figure", "correspondences", "{torn}", "--model", "{shipped}", "--out", "x.png"],
            "weights of our own network",
        ),
        (["benchmark", "{torn}", "{out}", "--paper-weights", "{shipped}"], "weights of our own network"),
        (["train", "searching", "{torn}", "{out}", "--from", "{torn}"], "no checkpoint.pt in"),
        (["train", "searching", "{torn}", "{out}", "--from", "{shipped}"], "weights of our own network"),
        (["pair", "{piece}", "{piece}", "--weights", "{training}/checkpoint.pt"], "train verifier --from"),
        (["solve", "{torn}", "{out}", "--weights", "{training}"], "is the folder of a training"),
        (["solve", "{torn}", "{out}", "--first-filter", "{shipped}"], "weights of our own network"),
    ],
)
def test_a_model_of_the_wrong_kind_is_named(
    arguments: list[str], says: str, torn: Collection, training: Path, tmp_path: Path
) -> None:
    named = {"torn": torn.folder, "shipped": SHIPPED, "training": training, "out": tmp_path / "out"}
    words = [word.format(**named, piece=SAMPLE / "piece-01.jpg") for word in arguments]
    assert says in refused(*words)
    assert not (tmp_path / "out").exists()


def test_score_reads_the_ranking_that_evaluate_writes(torn: Collection, tmp_path: Path) -> None:

    answers = predict(torn, Oracle(torn, off_px=5.0), tmp_path)
    ranked = read_ranking(torn, tmp_path / "search.npz")
    assert (
        np.array_equal(ranked, answers.ranked[:, : ranked.shape[1]])
        and (answers.ranked[:, ranked.shape[1] :] < 0).all()
    )
    told = say(
        "score", torn.folder, "--matches", tmp_path / "matches.json", "--search", tmp_path / "search.npz", "--json"
    )
    assert json.loads(told)["methods"][0]["R@5"] > 0.5
    np.savez(tmp_path / "bad.npz", ids=np.array(["a", "b"]), ranked=np.array([[1], [2]]))
    (tmp_path / "text.npz").write_text("{}")
    for path in (tmp_path / "bad.npz", tmp_path / "text.npz", tmp_path / "nowhere.npz"):
        words = ("score", torn.folder, "--matches", tmp_path / "matches.json", "--search", path)
        assert "holds no ids and ranked" in refused(*words)


@pytest.mark.parametrize("given", [["-f", "csv,json"], ["-f", "csv", "-f", "json"], ["--format", "json, csv ,json"]])
def test_formats_are_given_in_any_way(given: list[str], torn: Collection, tmp_path: Path) -> None:
    run = a_run(torn, tmp_path)
    say("export", run, *given)
    assert {path.name for path in (run / "export").iterdir()} == {"poses.csv", "poses.json"}


def test_a_picture_is_what_is_exported_if_nothing_is_said(torn: Collection, tmp_path: Path) -> None:
    run = a_run(torn, tmp_path)
    assert "group-01.png" in say("export", run)
    assert [path.name for path in (run / "export").iterdir()] == ["group-01.png"]


def a_run(torn: Collection, folder: Path) -> Path:
    """A run folder as `solve` leaves it, with one group of two pieces."""
    pair = torn.pairs[0]
    poses = {name: torn.by_id[name].canvas_from_fragment or Rigid2D() for name in (pair.source, pair.target)}
    shutil.copytree(torn.folder, folder / "run" / "pieces")
    write_matches(folder / "run" / "matches.json", [])
    write_assembly(folder / "run" / "assembly.json", Assembly((Group(poses),)))
    manifest = Manifest(folder / "run")
    for stage in ("pieces", "features", "joins", "results"):
        manifest.note(stage, "", [folder / "run" / "assembly.json"])
    return folder / "run"
