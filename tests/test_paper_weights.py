"""The paper's network as a weights file: read strictly, taken wherever a checkpoint is, and put to work by `solve`."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pairingnet
from pairingnet.config import WEAR_LEVELS, PaperSettings, SolveSettings, TearSettings, TrainSettings
from pairingnet.errors import CollectionError
from pairingnet.io.collection import Collection
from pairingnet.match.paper import Confidence, PaperMethod, Support
from pairingnet.match.paper_weights import SHIPPED_PAPER, is_of_paper, load_paper
from pairingnet.match.weights import SHIPPED
from pairingnet.models.paper import PairingNet
from pairingnet.pipeline import decide, solve
from pairingnet.prepare.load import load_fragment
from pairingnet.settings import as_dict
from pairingnet.synth.collect import TearJob, tear_collection
from pairingnet.train.checkpoints import Checkpoint, save_checkpoint
from pairingnet.train.confidence import calibrate_weights, fit_confidence
from pairingnet.train.portable import export_weights, load_trained, read_trained, with_story
from pairingnet.types import Fragment
from tests.conftest import PICTURES, ROOT
from tests.helpers import TINY_PAPER
from tests.test_commands import refused, say

SURE = {"constant": -3.0, "similarity": 1.0, "share": 2.0}


def export(folder: Path, task: str, confidence: dict[str, float] | None = None) -> Path:
    """A small network that was never trained, as an exported weights file."""
    torch.manual_seed(0)
    made = Checkpoint(
        as_dict(TINY_PAPER), PairingNet(TINY_PAPER).state_dict(), {}, task, 7, 1.5, as_dict(TrainSettings())
    )
    save_checkpoint(folder / task / "checkpoint.pt", made)
    path = folder / f"{task}.safetensors"
    export_weights(folder / task, path, {"about": "a test"})
    if confidence:
        with_story(path, {"confidence": confidence})
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("tiny"), "searching", SURE)


@pytest.fixture(scope="module")
def upright(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """The bundled picture torn as the paper does, its pieces not turned."""
    out = tmp_path_factory.mktemp("upright")
    job = TearJob(replace(TearSettings(), rotate=False, longest=900), WEAR_LEVELS["none"], 1)
    return tear_collection(PICTURES, out, job).collection


@pytest.fixture(scope="module")
def step_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("step one"), "matching")


def test_weights_and_checkpoint_are_the_same_network(tiny: Path, pieces: list[Fragment]) -> None:
    checkpoint = tiny.parent / "searching" / "checkpoint.pt"
    one, other = load_trained(tiny), load_trained(checkpoint)
    assert one.searches and other.searches and other.confidence is None
    assert one.story["step"] == 7 and one.story["about"] == "a test"
    told = [next(iter(model.method().features(pieces[:1]))) for model in (one, other)]
    assert np.array_equal(told[0].vector, told[1].vector) and torch.equal(told[0].local, told[1].local)
    assert read_trained(tiny).weights.keys() == read_trained(checkpoint).weights.keys()


def test_each_file_is_known_for_what_it_is(tiny: Path, tmp_path: Path) -> None:
    assert is_of_paper(tiny) and not is_of_paper(SHIPPED) and not is_of_paper(tmp_path / "nothing")
    assert isinstance(pairingnet.load_model(tiny), pairingnet.PaperModel)
    assert isinstance(pairingnet.load_model(), pairingnet.RingModel)
    with pytest.raises(CollectionError, match="no weights of the paper's network"):
        load_paper(SHIPPED)
    with pytest.raises(CollectionError, match="There is no"):
        load_paper(tmp_path / "nothing.safetensors")


def test_weights_of_other_settings_are_refused(tiny: Path, tmp_path: Path) -> None:
    shutil.copy(tiny, tmp_path / "w.safetensors")
    for changed in ({"layers": 2}, {"search_width": 16}):
        with_story(tmp_path / "w.safetensors", {"network": {**as_dict(TINY_PAPER), **changed}})
        with pytest.raises(CollectionError, match="other weights than its settings"):
            load_paper(tmp_path / "w.safetensors")


def test_a_file_says_more_without_changing(tiny: Path, tmp_path: Path) -> None:
    shutil.copy(tiny, tmp_path / "w.safetensors")
    with_story(tmp_path / "w.safetensors", {"confidence": {**SURE, "share": 5.0}})
    changed, before = load_paper(tmp_path / "w.safetensors"), load_paper(tiny)
    assert changed.confidence == Confidence(-3.0, 1.0, 5.0) and changed.mark != before.mark
    for name, weight in before.network.state_dict().items():
        assert torch.equal(weight, changed.network.state_dict()[name])


def test_evaluate_takes_weights(tiny: Path, step_one: Path, torn: Collection, tmp_path: Path) -> None:
    say("evaluate", torn.folder, "--model", tiny, "--out", tmp_path / "both")
    rows = json.loads((tmp_path / "both" / "scores.json").read_text())
    assert 0 <= rows[0]["R@5"] <= 1
    told = say("evaluate", torn.folder, "--model", step_one, "--out", tmp_path / "one")
    assert "no trained search head" in told
    assert json.loads((tmp_path / "one" / "scores.json").read_text())[0]["R@5"] is None


def test_step_two_begins_from_weights(step_one: Path, torn: Collection, tmp_path: Path) -> None:
    words = ["train", "searching", torn.folder, tmp_path / "s", "--from", step_one, "--threads", 1]
    say(*words, "--set", "steps=1", "--set", "batch=4", "--json")
    trained = read_trained(tmp_path / "s" / "checkpoint.pt")
    for name, weight in read_trained(step_one).weights.items():
        assert torch.equal(weight, trained.weights[name]), name


def test_figures_take_weights(tiny: Path, torn: Collection, tmp_path: Path) -> None:
    say("figure", "gate", torn.folder, "--model", tiny, "--out", tmp_path / "gate.png", "--count", 2)
    assert (tmp_path / "gate.png").stat().st_size > 1000
    words = ("figure", "gate", torn.folder, "--model", SHIPPED, "--out", tmp_path / "no.png")
    assert "our own network" in refused(*words)


# How likely a pose is


def test_confidence_turns_support_into_odds(upright: Collection) -> None:
    model = replace(load_paper(), confidence=Confidence(-3.0, 1.0, 2.0))
    pair = max(upright.pairs, key=lambda pair: pair.overlap_px)
    shown = [load_fragment(upright, name) for name in (pair.source, pair.target)]
    features = list(model.method().features(shown))
    found, support = model.method().supported(features[0], features[1])
    judged, plain = model.method().match(features[0], features[1]), PaperMethod(model.network)
    assert support is not None and found.target_from_source == judged.target_from_source
    assert judged.score == pytest.approx(-3 + np.log1p(support.similarity) + 2 * support.share)
    assert judged.probability == pytest.approx(1 / (1 + np.exp(-judged.score)))
    assert np.isnan(plain.match(features[0], features[1]).probability)
    assert 0 < support.share <= 1 and judged.evidence["contact_px"] <= len(features[0].points)
    # Along the source's contour.
    place = {tuple(point): i for i, point in enumerate(features[0].points)}
    order = [place[tuple(point)] for point in judged.points[:, 0]]
    assert order == sorted(order)


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.floats(-3, 1), st.floats(0.5, 2))
def test_confidence_is_learned(seed: int, constant: float, slope: float) -> None:
    """From many poses whose odds are known, the same odds come out."""
    rng = np.random.default_rng(seed)
    supports = [Support(float(x), float(y)) for x, y in rng.uniform(0, 1, (2000, 2)) * (20, 1)]
    true = Confidence(constant, slope, 1.0)
    odds = np.array([true.log_odds(support) for support in supports])
    right = rng.random(len(odds)) < 1 / (1 + np.exp(-odds))
    learned = fit_confidence(supports, right)
    found = np.array([learned.log_odds(support) for support in supports])
    assert np.abs(1 / (1 + np.exp(-found)) - 1 / (1 + np.exp(-odds))).mean() < 0.05


def test_calibration_is_stored(upright: Collection, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    shutil.copy(SHIPPED_PAPER, path)
    with_story(path, {"confidence": None})
    assert load_paper(path).confidence is None
    told = calibrate_weights(path, upright.folder)
    learned = load_paper(path).confidence
    count = len(upright) * (len(upright) - 1) // 2
    assert 5 < told["of them right"] < told["candidates"] <= count
    assert learned is not None and learned.log_odds(Support(40.0, 0.9)) > 0 > learned.log_odds(Support(0.1, 0.1))
    assert told["calibration error"] < 0.3


def test_a_network_that_is_never_right_is_not_calibrated(tiny: Path, torn: Collection) -> None:
    with pytest.raises(CollectionError, match="are wrong"):
        calibrate_weights(tiny, torn.folder)


# Solving


@pytest.fixture(scope="module")
def scans(upright: Collection, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six pieces as scans with alpha, among them those that share most."""
    folder = tmp_path_factory.mktemp("scans")
    best = sorted(upright.pairs, key=lambda pair: -pair.overlap_px)
    names = list(dict.fromkeys(name for pair in best for name in (pair.source, pair.target)))[:6]
    for name in names:
        shutil.copy(upright.folder / upright[name].image, folder / f"{name}.png")
    return folder


def test_solve_by_the_papers_network(scans: Path, tmp_path: Path) -> None:
    said = say("solve", scans, tmp_path / "run", "--method", "paper", "--jobs", 1)
    assert "6 fragments" in said
    lines = (tmp_path / "run" / "registered.jsonl").read_text().splitlines()
    assert len(lines) == 15
    assembly = json.loads((tmp_path / "run" / "assembly.json").read_text())
    assert assembly["groups"]
    again = say("solve", scans, tmp_path / "run", "--weights", "paper", "--jobs", 1)
    assert "6 fragments (nothing to do)" in again
    # What is stored is not worked on again; what is damaged is.
    files = ("registered.jsonl", "joins.jsonl", "matches.json", "assembly.json")
    before = {name: (tmp_path / "run" / name).read_bytes() for name in files}
    for path in (tmp_path / "run" / "joins.jsonl", next((tmp_path / "run" / "features").iterdir())):
        path.write_bytes(b"damaged")
    (tmp_path / "run" / "registered.jsonl").write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])
    solve(scans, tmp_path / "run", weights=SHIPPED_PAPER, jobs=1)
    assert {name: (tmp_path / "run" / name).read_bytes() for name in files if name != "registered.jsonl"} == {
        name: content for name, content in before.items() if name != "registered.jsonl"
    }


def test_decisions_hold_in_a_run_of_the_papers_network(scans: Path, tmp_path: Path) -> None:
    solve(scans, tmp_path / "run", weights=SHIPPED_PAPER, jobs=1)
    joins = (tmp_path / "run" / "joins.jsonl").read_text().splitlines()
    first = next(entry for entry in map(json.loads, joins) if entry["target_from_source"])
    told = decide(tmp_path / "run", "lock", first["source"], first["target"])
    together = [group for group in told.assembly.groups if first["source"] in group.poses]
    assert together and first["target"] in together[0].poses
    poses = together[0].poses
    placed = poses[first["target"]].inverse() @ poses[first["source"]]
    assert np.allclose(placed.matrix[:, :2], np.array(first["target_from_source"])[:, :2], atol=1e-5)


def test_many_pieces_are_looked_for_by_their_vectors(scans: Path, tmp_path: Path) -> None:
    few = SolveSettings(all_pairs_up_to=3, candidates=1)
    solve(scans, tmp_path / "run", few, SHIPPED_PAPER, jobs=1)
    assert 3 <= len((tmp_path / "run" / "joins.jsonl").read_text().splitlines()) <= 6


def test_what_is_not_complete_does_not_solve(scans: Path, step_one: Path, tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="no trained search head"):
        solve(scans, tmp_path / "a", weights=step_one, jobs=1)
    fresh = export(tmp_path, "searching")
    with pytest.raises(CollectionError, match="no probabilities"):
        solve(scans, tmp_path / "b", weights=fresh, jobs=1)
    shown = [pairingnet.read_fragment(path) for path in sorted(scans.iterdir())[:2]]
    with pytest.raises(CollectionError, match="no probabilities"):
        pairingnet.search(shown, load_paper(fresh))
    said = refused("solve", scans, tmp_path / "c", "--method", "papers")
    assert "no method 'papers'" in said
    said = refused("solve", scans, tmp_path / "c", "--method", "ring", "--weights", "paper")
    assert "no weights of the method 'ring'" in said


def test_programs_ask_the_papers_network(scans: Path) -> None:
    model = pairingnet.load_model("paper")
    shown = [pairingnet.read_fragment(path) for path in sorted(scans.iterdir())[:3]]
    found = pairingnet.match_pair(shown[0], shown[1], model)
    assert found.target_from_source is None or 0 <= found.probability <= 1
    joins = pairingnet.search(shown, model)
    assert all(join.probability >= 0.02 for join in joins)
    assert [join.probability for join in joins] == sorted((join.probability for join in joins), reverse=True)
    one, other = sorted(scans.iterdir())[:2]
    told = say("pair", one, other, "--model", "paper")
    assert told.startswith(("probability", "no join found"))


# The weights that ship


def test_the_weights_that_ship_say_how_they_were_made() -> None:
    assert SHIPPED_PAPER.stat().st_size < 5e6
    model = pairingnet.load_model("paper")
    assert model.searches and model.confidence is not None
    assert as_dict(model.network.settings) == {**as_dict(PaperSettings()), "dropout": 0.0}
    for name in ("about", "step", "seconds", "made_by", "validation"):
        assert model.story[name], name
    assert "docs/paper.md" in model.story["about"]


def test_the_documented_numbers_come_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fresh clone, with nothing trained: the commands and the first row of the table in docs/paper.md."""
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    (tear, judge) = re.findall(r"^pairingnet (tear examples/pictures small.*|evaluate small.*)$", page, re.MULTILINE)
    (row,) = re.findall(r"^\| paper \| All \|.*\|$", page, re.MULTILINE)
    documented = [float(cell) for cell in row.split("|")[3:-1]]
    monkeypatch.chdir(tmp_path)
    say(*tear.replace("examples/pictures", str(PICTURES)).split())
    printed = say(*judge.split())
    found = next(line for line in printed.splitlines() if line.startswith("| paper | All |"))
    pairs, *scores = (float(cell) for cell in found.split("|")[3:-1])
    names = [name.strip() for name in printed.splitlines()[0].split("|")[4:-1]]
    assert pairs == documented[0] == 33
    near = dict(zip(names, zip(scores, documented[1:], strict=True), strict=True))
    # The network has 32 bits, and sums come out a little differently on another machine: a pair or two may change.
    for name in ("R@5", "R@10", "NDCG@5", "RR", "<4 px"):
        assert near[name][0] == pytest.approx(near[name][1], abs=0.1), name
    assert json.loads((tmp_path / "small-paper" / "scores.json").read_text())[0]["RR"] > 0.7
