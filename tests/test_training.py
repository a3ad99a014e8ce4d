"""Training goes on where it stopped, and is the same on one process and on two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from pairingnet.cli.training import evaluate, train_app
from pairingnet.config import PaperSettings, TrainSettings
from pairingnet.errors import CollectionError, SettingsError
from pairingnet.io.collection import Collection
from pairingnet.match.paper_weights import load_paper
from pairingnet.models.device import choose_device
from pairingnet.models.paper import PairingNet, pack
from pairingnet.train.checkpoints import network_of, read_checkpoint
from pairingnet.train.data import PairData
from pairingnet.train.frozen import FrozenFeatures
from pairingnet.train.loop import train
from pairingnet.train.losses import info_nce
from pairingnet.train.matching import MatchingTask
from pairingnet.train.portable import continue_from, export_training, export_weights
from pairingnet.train.searching import SearchingTask, with_search_encoder

TINY = PaperSettings(width=16, layers=2, search_layers=1, search_width=8)
SETTINGS = TrainSettings(batch=8, epochs=2, seed=3)


def matching(collection: Collection, settings: TrainSettings = SETTINGS, pairs: int = 12) -> MatchingTask:
    torch.manual_seed(settings.seed)
    data = PairData(replace(collection, pairs=collection.pairs[:pairs]), TINY, settings.correspond)
    return MatchingTask(PairingNet(TINY), data, settings, data)


def searching(collection: Collection, settings: TrainSettings = SETTINGS, pairs: int = 12) -> SearchingTask:
    task = matching(collection, settings, pairs)
    return SearchingTask(task.network, task.data, settings, task.data)


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_correspondences_lie_on_each_other(torn: Collection) -> None:
    data = PairData(torn, TINY, 2.0)
    for pair in torn.pairs:
        rows, columns = data.correspondences(pair)
        assert len(rows) > 0.6 * pair.overlap_px
        source, target = data.input_of(pair.source).points[rows], data.input_of(pair.target).points[columns]
        apart = torn.target_from_source(pair).apply(source) - target
        assert (apart**2).sum(axis=1).max() <= 4.0


def test_training_lowers_the_loss(torn: Collection, tmp_path: Path) -> None:
    eager = replace(SETTINGS, epochs=8, rate=5e-3)
    result = train(matching(torn, eager), eager, tmp_path)
    seen = losses(tmp_path)
    assert result.finished and result.step == len(seen) == 16
    assert sum(seen[-4:]) < 0.95 * sum(seen[:4])
    network = network_of(read_checkpoint(result.checkpoint))
    assert not network.training


def test_a_stopped_training_continues_to_the_same_weights(torn: Collection, tmp_path: Path) -> None:
    whole = train(matching(torn), SETTINGS, tmp_path / "whole")
    for _ in range(20):  # no time at all: one step a run
        part = train(matching(torn), SETTINGS, tmp_path / "parts", budget_s=1e-9)
        if part.finished:
            break
    assert part.finished and whole.step == part.step
    one, other = read_checkpoint(whole.checkpoint), read_checkpoint(part.checkpoint)
    for name, weight in one.weights.items():
        assert torch.equal(weight, other.weights[name]), name
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")


@pytest.mark.parametrize("make", [matching, searching])
def test_an_exported_training_continues_elsewhere_to_the_same_weights(
    torn: Collection, tmp_path: Path, make: Any
) -> None:
    whole = train(make(torn), SETTINGS, tmp_path / "whole")
    train(make(torn), SETTINGS, tmp_path / "here", until=whole.step - 1)
    files = export_training(tmp_path / "here", tmp_path / "stored")
    assert [file.name for file in files] == [
        f"{make.__name__}.safetensors", f"{make.__name__}-best.safetensors", f"{make.__name__}.jsonl"
    ]  # fmt: skip
    there = make(torn)
    continue_from(files[0], tmp_path / "there", there.network)
    result = train(there, SETTINGS, tmp_path / "there")
    assert result.finished and result.step == whole.step
    one, other = (read_checkpoint(tmp_path / name / "checkpoint.pt") for name in ("whole", "there"))
    for name, weight in one.weights.items():
        assert torch.equal(weight, other.weights[name]), name
    assert losses(tmp_path / "whole") == losses(tmp_path / "there")
    best = [read_checkpoint(tmp_path / name / "best.pt") for name in ("whole", "there")]
    assert best[0].step == best[1].step
    # A training that is there already goes on from where it is.
    continue_from(files[0], tmp_path / "there", make(torn).network)
    assert read_checkpoint(tmp_path / "there" / "checkpoint.pt").step == whole.step


def test_the_commands_store_a_training_and_go_on_with_it(torn: Collection, tmp_path: Path) -> None:
    def run(*arguments: object) -> Result:
        return CliRunner().invoke(train_app, [str(argument) for argument in arguments])

    tiny = [f"{name}={getattr(TINY, name)}" for name in ("width", "layers", "search_layers", "search_width")]
    options = ["--threads", 1, *(word for each in (*tiny, "batch=4", "steps=2") for word in ("--set", each))]
    assert run("matching", torn.folder, tmp_path / "here", "--budget", "0.001s", *options).exit_code == 0
    stored = run("export", tmp_path / "here", "--state", tmp_path / "stored", "--weights", tmp_path / "w.safetensors")
    assert stored.exit_code == 0 and "matching.safetensors" in stored.output and "w.safetensors" in stored.output
    state = tmp_path / "stored" / "matching.safetensors"
    told = run("matching", torn.folder, tmp_path / "there", "--resume-from", state, "--json", *options)
    assert told.exit_code == 0 and json.loads(told.output)["steps"] == 2
    assert len(losses(tmp_path / "there")) == 2
    # Step 1 has no search: what its untrained encoder would find is not scored.
    evaluate(torn.folder, tmp_path / "there" / "checkpoint.pt", tmp_path / "answers")
    rows = json.loads((tmp_path / "answers" / "scores.json").read_text())
    assert rows[0]["RR"] >= 0
    assert all(value is None for name, value in rows[0].items() if name.startswith(("R@", "NDCG@")))
    nothing = run("export", tmp_path / "here")
    assert isinstance(nothing.exception, SettingsError)


@pytest.mark.parametrize("make", [matching, searching])
def test_weights_tell_how_they_were_made(torn: Collection, tmp_path: Path, make: Any) -> None:
    train(make(torn), SETTINGS, tmp_path)
    export_weights(tmp_path, tmp_path / "paper.safetensors", {"about": "a test"})
    model = load_paper(tmp_path / "paper.safetensors")
    network, story = model.network, model.story
    best = read_checkpoint(tmp_path / "best.pt")
    assert (story["task"], story["step"], story["about"]) == (make.__name__, best.step, "a test")
    assert story["made_by"]["seed"] == SETTINGS.seed and story["network"]["width"] == TINY.width
    assert story["validation"]["validation_loss"] > 0
    trained = "matching." if make is matching else ""
    for name, weight in network.state_dict().items():
        assert not name.startswith(trained) or torch.equal(weight, best.weights[name]), name
    (tmp_path / "broken.safetensors").write_bytes(b"nonsense")
    with pytest.raises(CollectionError, match=r"broken\.safetensors"):
        load_paper(tmp_path / "broken.safetensors")


def test_frozen_features_are_made_once(torn: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = matching(torn)
    names = [record.id for record in torn.fragments[:3]]
    plain = FrozenFeatures(task.network, task.data).of(names)
    first = FrozenFeatures(task.network, task.data, tmp_path).of(names)
    monkeypatch.setattr(FrozenFeatures, "_made", None)
    again = FrozenFeatures(task.network, task.data, tmp_path).of(names)
    local = task.network.eval().local(pack([task.data.input_of(name) for name in names]))
    for found in (plain, first, again):
        assert found.contour is not None and local.contour is not None
        assert torch.allclose(found.contour, local.contour, rtol=1e-3, atol=1e-3)
        assert found.rings.lengths == local.rings.lengths
    # Other weights have other features.
    with torch.no_grad():
        next(task.network.matching.parameters()).add_(1)
    with pytest.raises(TypeError):
        FrozenFeatures(task.network, task.data, tmp_path).of(names)


def test_validation_tells_loss_points_and_pairs_laid_right(torn: Collection) -> None:
    told = matching(torn).validate()
    assert told["validation_loss"] > 0
    assert 0 <= told["validation_points"] <= 1 and 0 <= told["validation_rr"] <= 1


def test_other_settings_are_refused(torn: Collection, tmp_path: Path) -> None:
    train(matching(torn), SETTINGS, tmp_path, budget_s=1e-9)
    with pytest.raises(CollectionError, match=r"gamma: 8\.0 before, 4\.0 now"):
        changed = replace(SETTINGS, gamma=4.0)
        train(matching(torn, changed), changed, tmp_path)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"nonsense")
    with pytest.raises(CollectionError, match=r"a\.pt"):
        read_checkpoint(tmp_path / "a.pt")
    with pytest.raises(CollectionError, match="no checkpoint"):
        read_checkpoint(tmp_path / "b.pt")


def test_searching_leaves_the_matching_network_alone(torn: Collection, tmp_path: Path) -> None:
    eager = replace(SETTINGS, epochs=6, rate=3e-3)
    task = searching(torn, eager)
    before = {name: value.clone() for name, value in task.network.matching.state_dict().items()}
    train(task, eager, tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in task.network.matching.state_dict().items())
    seen = losses(tmp_path)
    assert sum(seen[-3:]) < sum(seen[:3])
    assert 0 <= task.validate()["validation_recall_5"] <= 1


def test_gradients_in_chunks_are_those_of_the_whole_batch(torn: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pairingnet.train.searching._CHUNK", 3)
    task = searching(torn)
    numbers = list(range(8))
    value, terms = task.backward(numbers)
    chunked = {name: p.grad.clone() for name, p in task.trained().named_parameters() if p.grad is not None}
    task.trained().zero_grad()
    names = [name for i in numbers for name in (task.data.pairs[i].source, task.data.pairs[i].target)]
    vectors = task.network.vectors(task._joined(names))
    loss = info_nce(vectors[0::2], vectors[1::2], task._known(names), SETTINGS.temperature)
    loss.backward()  # type: ignore[no-untyped-call]
    assert terms == 1.0
    assert value == pytest.approx(float(loss.detach()), rel=1e-4)
    for name, p in task.trained().named_parameters():
        assert p.grad is not None and torch.allclose(p.grad, chunked[name], atol=1e-5), name


def test_known_neighbours_are_no_negatives(torn: Collection) -> None:
    task = searching(torn)
    names = [name for pair in task.data.pairs for name in (pair.source, pair.target)]
    known = task._known(names)
    for i, a in enumerate(names[0::2]):
        for j, b in enumerate(names[1::2]):
            neighbours = any({p.source, p.target} == {a, b} for p in task.data.pairs)
            assert bool(known[i, j]) == (neighbours or a == b)


@pytest.mark.parametrize("step", ["matching", "searching"])
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_two_processes_are_one_with_the_whole_batch(torn: Collection, tmp_path: Path, step: str) -> None:
    train(matching(torn) if step == "matching" else searching(torn), SETTINGS, tmp_path / "one")
    script = (
        "import sys, torch; from pathlib import Path;"
        f"from tests.test_training import {step}, SETTINGS; from pairingnet.train.loop import train;"
        "from pairingnet.io.collection import read_collection; torch.set_num_threads(1);"
        f"train({step}(read_collection(sys.argv[1])), SETTINGS, Path(sys.argv[2]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(torn.folder), str(tmp_path / "two")],
            env={**environment, **address, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    assert losses(tmp_path / "two")[0] == pytest.approx(losses(tmp_path / "one")[0], rel=1e-4)


def test_a_training_can_end_within_an_epoch(torn: Collection, tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=3)
    result = train(matching(torn, settings), settings, tmp_path)
    assert result.finished and result.step == 3
    assert "validation_points" in (tmp_path / "log.jsonl").read_text().splitlines()[-1]


@pytest.mark.parametrize("make", [matching, searching])
def test_sixteen_bits_give_nearly_the_same_loss(torn: Collection, make: Any) -> None:
    found = {}
    for precision in ("float32", "bfloat16"):
        task = make(torn, replace(SETTINGS, precision=precision))
        task.trained().train()
        torch.manual_seed(0)
        piece = next(task.pieces([[0, 1, 2, 3]]))
        found[precision] = task.backward(piece)[0]
        gradients = [p.grad for p in task.trained().parameters() if p.grad is not None]
        assert gradients and all(g.dtype == torch.float32 and bool(g.isfinite().all()) for g in gradients)
    assert found["bfloat16"] == pytest.approx(found["float32"], rel=0.03)
    assert found["bfloat16"] != found["float32"]


def test_logs_for_tensorboard(torn: Collection, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(matching(torn), SETTINGS, tmp_path, tensorboard=True)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    told = [round(event.value, 3) for event in events.Scalars("loss")]
    assert told == [round(loss, 3) for loss in losses(tmp_path)]
    assert events.Scalars("validation_points")


def test_step_2_may_choose_its_encoder_but_not_the_network_of_step_1(torn: Collection, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(train(matching(torn), SETTINGS, tmp_path).checkpoint)
    network = with_search_encoder(checkpoint, {"search_layers": 2, "search_fusion": "add"}, seed=1)
    assert len(network.searching.contour.attentions) == 2
    for name, weight in network.matching.state_dict().items():
        assert torch.equal(weight, checkpoint.weights[f"matching.{name}"])
    with pytest.raises(SettingsError, match="layers"):
        with_search_encoder(checkpoint, {"layers": 3}, seed=1)


def test_devices() -> None:
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type in ("cpu", "cuda")
    for name in ("toaster", "cuda:99"):
        with pytest.raises(SettingsError, match="--device auto"):
            choose_device(name)


def test_training_leaves_small_numbers_alone(torn: Collection, tmp_path: Path) -> None:
    """Within a step what is nearly nothing is nothing; other libraries rely on it elsewhere."""
    train(matching(torn, pairs=4), replace(SETTINGS, epochs=1), tmp_path)
    assert float(torch.tensor(1e-40) * 1) > 0
