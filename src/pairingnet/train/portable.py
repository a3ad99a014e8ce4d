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

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from pairingnet.config import PaperSettings
from pairingnet.errors import CollectionError
from pairingnet.io.files import write_whole
from pairingnet.models.paper import PairingNet
from pairingnet.settings import with_values
from pairingnet.train.checkpoints import Checkpoint, read_checkpoint, save_checkpoint

_MADE, _WEIGHTS, _OPTIMIZER, _SEARCHING = "made", "weights.", "optimizer.", "searching."
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


def read_weights(path: Path) -> tuple[PairingNet, dict[str, Any]]:
    """The paper's network of a weights file, and how it was made. Where "task" is "matching", the search encoder is
    not trained."""
    checkpoint, story = _read(path)
    network = PairingNet(with_values(PaperSettings(), checkpoint.network, str(path)))
    missing, unknown = network.load_state_dict(checkpoint.weights, strict=False)
    if unknown or (missing and not _only_search(missing, checkpoint.task)):
        raise CollectionError(f"{path} holds other weights than its settings ask for.", "Export them again.")
    return network.eval(), story


def read_state(path: Path) -> Checkpoint:
    """What `export_training` has stored. Of step 1, weights of the search encoder are missing."""
    return _read(path)[0]


def _best_of(state: Path) -> Path:
    return state.with_name(f"{state.stem}-best{state.suffix}")


def _only_search(names: list[str], task: str) -> bool:
    return task == "matching" and all(name.startswith(_SEARCHING) for name in names)


def _validation(log: Path, step: int) -> dict[str, float]:
    """What the log says of validation at a step."""
    if not log.is_file():
        return {}
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    told = [line for line in lines if line["step"] == step]
    return {name: x for line in told for name, x in line.items() if name.startswith("validation_")}


def _write(path: Path, checkpoint: Checkpoint, story: Mapping[str, Any] | None = None) -> None:
    trained = {n: x for n, x in checkpoint.weights.items() if not _only_search([n], checkpoint.task)}
    tensors = {_WEIGHTS + name: value for name, value in trained.items()}
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
    data = save(whole, {_MADE: json.dumps(told, sort_keys=True)})
    write_whole(path, lambda file: file.write_bytes(data))


def _read(path: Path) -> tuple[Checkpoint, dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as stored:
            told = json.loads((stored.metadata() or {})[_MADE])
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        state: dict[int, dict[str, Any]] = {int(number): dict(values) for number, values in told["plain"].items()}
        for name, value in tensors.items():
            if name.startswith(_OPTIMIZER):
                number, moment = name.removeprefix(_OPTIMIZER).split(".")
                state.setdefault(int(number), {})[moment] = value
        optimizer = {"state": state, "param_groups": told["groups"]} if told["groups"] else {}
        weights = {n.removeprefix(_WEIGHTS): x for n, x in tensors.items() if n.startswith(_WEIGHTS)}
        task, step, seconds = str(told["task"]), int(told["step"]), float(told["seconds"])
        return Checkpoint(told["network"], weights, optimizer, task, step, seconds, told["made_by"]), told
    except FileNotFoundError:
        raise CollectionError(f"There is no {path}.", "Check the path.") from None
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise CollectionError(
            f"{path} holds no training of the paper's network ({error}).", "Export it again."
        ) from error
