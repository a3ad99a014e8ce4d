"""Trainings of the paper's network as safetensors files: small enough for a repository, and continued on any machine.

FOLDER/matching.safetensors        weights, the optimizer's moments, and how far it got: all that is needed to go on
FOLDER/matching-best.safetensors   the weights with the least validation loss
FOLDER/matching.jsonl              the log
(searching likewise)

All digits are kept: what is continued elsewhere does what an undisturbed training does. The search encoder is left out
of step 1, which does not train it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from pairingnet.errors import CollectionError
from pairingnet.io.files import write_whole
from pairingnet.io.resume import content_mark
from pairingnet.match.paper_weights import MADE, WEIGHTS, PaperModel, left_out, load_paper, read_tensors
from pairingnet.models.device import choose_device
from pairingnet.train.checkpoints import Checkpoint, is_checkpoint, network_of, read_checkpoint, save_checkpoint

_OPTIMIZER = "optimizer."
LAST, BEST, LOG = "checkpoint.pt", "best.pt", "log.jsonl"


def export_training(run: Path, folder: Path) -> list[Path]:
    """Store a training's state, its best weights and its log in `folder`; the files."""
    last = read_checkpoint(run / LAST)
    state = folder / f"{last.task}.safetensors"
    _write(state, last)
    files = [state]
    if (run / BEST).is_file():
        files.append(_best_of(state))
        _write(files[-1], replace(read_checkpoint(run / BEST), optimizer={}))
    if (run / LOG).is_file():
        files.append(state.with_suffix(".jsonl"))
        write_whole(files[-1], lambda file: file.write_bytes((run / LOG).read_bytes()))
    return files


def continue_from(state: Path, run: Path, network: nn.Module) -> None:
    """Put an exported training in place, as if it had been stopped in `run`; nothing where one is there already.
    network: as it is before any training, for the weights that are not trained."""
    if (run / LAST).is_file():
        return
    fresh = network.state_dict()
    for source, target in ((_best_of(state), BEST), (state.with_suffix(".jsonl"), LOG), (state, LAST)):
        if source.suffix == ".jsonl" and source.is_file():
            content = source.read_bytes()
            write_whole(run / target, lambda file, content=content: file.write_bytes(content))  # type: ignore[misc]
        elif source == state or source.is_file():
            checkpoint = read_state(source)
            save_checkpoint(run / target, replace(checkpoint, weights={**fresh, **checkpoint.weights}))


def export_weights(run: Path, path: Path, story: Mapping[str, Any]) -> None:
    """Store the best weights of a training (the last ones, where it was never validated), and how they were made."""
    best = run / BEST if (run / BEST).is_file() else run / LAST
    checkpoint = replace(read_checkpoint(best), optimizer={})
    _write(path, checkpoint, {**story, "validation": _validation(run / LOG, checkpoint.step)})


def with_story(path: Path, more: Mapping[str, Any]) -> None:
    """Say more of a weights file in itself; the weights stay as they are."""
    tensors, told = read_tensors(path)
    data = save(tensors, {MADE: json.dumps({**told, **more}, sort_keys=True)})
    write_whole(path, lambda file: file.write_bytes(data))


def read_state(path: Path) -> Checkpoint:
    """What `export_training` or `export_weights` has stored. Of step 1, weights of the search encoder are missing."""
    return _read(path)


def read_trained(path: Path) -> Checkpoint:
    """A training of the paper's network, whatever file it is in: a checkpoint, an exported state, or weights."""
    return read_checkpoint(path) if is_checkpoint(path) else read_state(path)


def load_trained(path: Path, device: str = "cpu") -> PaperModel:
    """The paper's network, ready to be asked, whatever file it is in."""
    if not is_checkpoint(path):
        return load_paper(path, device)
    checkpoint = read_checkpoint(path)
    network = network_of(checkpoint).to(choose_device(device))
    return PaperModel(network, checkpoint.task == "searching", content_mark(path))


def _best_of(state: Path) -> Path:
    return state.with_name(f"{state.stem}-best{state.suffix}")


def _validation(log: Path, step: int) -> dict[str, float]:
    """What the log says of validation at a step."""
    if not log.is_file():
        return {}
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    told = [line for line in lines if line["step"] == step]
    return {name: x for line in told for name, x in line.items() if name.startswith("validation_")}


def _write(path: Path, checkpoint: Checkpoint, story: Mapping[str, Any] | None = None) -> None:
    trained = {n: x for n, x in checkpoint.weights.items() if not left_out(n, checkpoint.task)}
    tensors = {WEIGHTS + name: value for name, value in trained.items()}
    plain: dict[str, dict[str, float]] = {}
    for number, moments in checkpoint.optimizer.get("state", {}).items():
        for name, value in moments.items():
            if isinstance(value, Tensor):
                tensors[f"{_OPTIMIZER}{number}.{name}"] = value
            else:
                plain.setdefault(str(number), {})[name] = value
    told = {
        "task": checkpoint.task, "step": checkpoint.step, "seconds": round(checkpoint.seconds, 1),
        "network": checkpoint.network, "made_by": checkpoint.made_by,
        "groups": checkpoint.optimizer.get("param_groups", []), "plain": plain, **(story or {}),
    }  # fmt: skip
    # In one entry: several are written in any order, and the same state would not always give the same bytes.
    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    data = save(whole, {MADE: json.dumps(told, sort_keys=True)})
    write_whole(path, lambda file: file.write_bytes(data))


def _read(path: Path) -> Checkpoint:
    tensors, told = read_tensors(path)
    try:
        state: dict[int, dict[str, Any]] = {int(number): dict(values) for number, values in told["plain"].items()}
        for name, value in tensors.items():
            if name.startswith(_OPTIMIZER):
                number, moment = name.removeprefix(_OPTIMIZER).split(".")
                state.setdefault(int(number), {})[moment] = value
        optimizer = {"state": state, "param_groups": told["groups"]} if told["groups"] else {}
        weights = {n.removeprefix(WEIGHTS): x for n, x in tensors.items() if n.startswith(WEIGHTS)}
        task, step, seconds = str(told["task"]), int(told["step"]), float(told["seconds"])
        return Checkpoint(told["network"], weights, optimizer, task, step, seconds, told["made_by"])
    except (KeyError, ValueError, TypeError) as error:
        raise CollectionError(
            f"{path} holds no training of the paper's network ({error}).", "Export it again."
        ) from error
