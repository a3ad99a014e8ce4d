"""The one training loop: both steps of the paper, our own network and JigsawNet run in it.

A batch is cut into small pieces (a few pairs) that fit the cache; their gradients are added up. Every piece has
its own random numbers, from the seed, the step and its place: so a run that was stopped and continued, or one on
several processes, does what an uninterrupted one on one process does.
"""

from __future__ import annotations

import ctypes
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from pairingnet.config import JigsawTrainSettings, RingTrainSettings, TrainSettings
from pairingnet.engine.local import progress_bar
from pairingnet.errors import CollectionError, SettingsError
from pairingnet.io.files import write_whole
from pairingnet.models.device import denormals_flushed
from pairingnet.settings import as_dict, differences
from pairingnet.train.checkpoints import Checkpoint, read_checkpoint, save_checkpoint
from pairingnet.train.parallel import leave, mean_over_processes, start, sum_over_processes

AnyTraining = TrainSettings | RingTrainSettings | JigsawTrainSettings

_SAVE_SECONDS = 300
_TRIM_STEPS = 8
_VALIDATE_STEPS = 500  # within a long epoch; and after every one


class Task(Protocol):
    """One kind of training: what it trains, on which pieces, with which loss."""

    name: str
    network: Any  # a module with `settings`

    def trained(self) -> nn.Module:
        """The part of the network whose weights change."""

    def steps(self, rng: np.random.Generator) -> list[list[list[int]]]:
        """One epoch: batches of pieces of pair numbers."""

    def share(self, batch: list[list[int]], rank: int, processes: int) -> list[list[int]]:
        """The pieces of a batch that this process works on."""

    def pieces(self, groups: Sequence[Sequence[int]]) -> Iterator[Any]:
        """The data of pieces, in order."""

    def backward(self, piece: Any) -> tuple[float, float]:
        """Add the gradients of a piece's summed loss; that loss, and how many terms are in it."""

    def validate(self) -> dict[str, float]:
        """How good it is on the validation part; empty without one."""


@dataclass(frozen=True)
class TrainingResult:
    """Where it got: steps and seconds in all, the last loss, and whether all epochs are done."""

    checkpoint: Path
    step: int
    seconds: float
    loss: float
    finished: bool


def train(
    task: Task,
    settings: AnyTraining,
    out: Path,
    budget_s: float = math.inf,
    tensorboard: bool = False,
    until: int = 0,
    patience: int = 0,
) -> TrainingResult:
    """Train until the epochs are done, the budget is spent or step `until` is reached; continue where `out` stopped.

    The state with the least validation loss is kept as best.pt; patience: end when so many validations, one after the
    other, have brought nothing less (0: never).
    """
    keep_freed_memory()
    rank, processes = start()
    part = task.trained()
    optimizer = torch.optim.Adam(part.parameters(), settings.rate, weight_decay=settings.decay)
    path, made_by = out / "checkpoint.pt", {**as_dict(settings), "task": task.name}
    # A setting that is younger than a checkpoint had its default's effect there.
    defaults = {**as_dict(type(settings)()), **as_dict(type(task.network.settings)())}
    first, before = _resume(path, task, optimizer, made_by, defaults)
    per_epoch = len(task.steps(np.random.default_rng([settings.seed, 0])))
    total = settings.steps or settings.epochs * per_epoch
    began = saved = time.monotonic()
    step, loss = first, float("nan")
    log = _Log(out, rank, first, tensorboard)
    progress = _Progress(log.validation_losses(), rank)

    def seconds() -> float:
        return before + time.monotonic() - began

    def save(path: Path = path) -> None:
        mean_over_processes(buffer for buffer in task.network.buffers() if buffer.is_floating_point())
        if rank == 0:
            save_checkpoint(path, _state(task, optimizer, step, seconds(), made_by))

    with _finish_step_when_interrupted() as interrupted, progress_bar() as bar:
        shown = bar.add_task(f"training {task.name}", total=total, completed=first)
        for pieces, seeds in _work(task, settings.seed, range(first, total), (rank, processes)):
            part.train()
            for group in optimizer.param_groups:
                group["lr"] = _rate(settings, step / total)
            with denormals_flushed():
                loss = _one_step(task, optimizer, pieces, seeds)
            step += 1
            bar.update(shown, completed=step, description=f"training {task.name}, loss {loss:.3f}")
            log.write({"step": step, "seconds": round(seconds(), 1), "loss": round(loss, 5)})
            if step % _TRIM_STEPS == 0:
                give_back_memory()
            if time.monotonic() - saved > _SAVE_SECONDS:
                save()
                saved = time.monotonic()
            spent = interrupted() or time.monotonic() - began >= budget_s or step == until
            within = per_epoch > _VALIDATE_STEPS and step % _VALIDATE_STEPS == 0
            if step % per_epoch == 0 or within or step == total:
                part.eval()
                checked = task.validate()
                log.write({"step": step, "seconds": round(seconds(), 1), **checked})
                better, in_vain = progress.after(checked)
                if better:
                    save(out / "best.pt")
                spent = spent or 0 < patience <= in_vain
            if spent:
                break
        save()
    log.close()
    leave()
    return TrainingResult(path, step, seconds(), loss, step >= total)


@contextmanager
def _finish_step_when_interrupted() -> Iterator[Callable[[], bool]]:
    """Ctrl-C ends the step under way and stores it, instead of losing it; then it is passed on."""
    asked: list[tuple[int, FrameType | None]] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, lambda *arguments: asked.append(arguments))
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
    if asked and callable(before):
        before(*asked[0])


def _work(task: Task, seed: int, steps: range, part_of: tuple[int, int]) -> Iterator[tuple[list[Any], list[list[int]]]]:
    """The data of each step, in pieces, and the seed of each piece; part_of: rank and number of processes."""
    rank, processes = part_of
    step, per_epoch = steps.start, len(task.steps(np.random.default_rng([seed, 0])))
    while step < steps.stop:
        epoch, place = divmod(step, per_epoch)
        batches = task.steps(np.random.default_rng([seed, epoch]))[place : place + steps.stop - step]
        mine = [task.share(batch, rank, processes) for batch in batches]
        data = task.pieces([group for batch in mine for group in batch])
        for batch in mine:
            yield [next(data) for _ in batch], [[seed, step, rank + processes * k] for k in range(len(batch))]
            step += 1


class _Progress:
    """What validation has said so far, and whether it still gets better."""

    def __init__(self, losses: list[float], rank: int) -> None:
        self._losses, self._rank = losses, rank

    def after(self, checked: dict[str, float]) -> tuple[bool, int]:
        """With one more: whether it is the best so far, and how many have come since the best."""
        if "validation_loss" not in checked:
            return False, 0
        self._losses.append(checked["validation_loss"])
        # What the first process says: each has seen other batches, and only the first one has the log.
        told = torch.zeros(1, dtype=torch.int64)
        if self._rank == 0:
            told += len(self._losses) - 1 - int(np.argmin(self._losses))
        sum_over_processes([told])
        return int(told) == 0, int(told)


def _state(
    task: Task, optimizer: torch.optim.Optimizer, step: int, seconds: float, made_by: dict[str, Any]
) -> Checkpoint:
    settings, weights = as_dict(task.network.settings), task.network.state_dict()
    return Checkpoint(settings, weights, optimizer.state_dict(), task.name, step, seconds, made_by)


def _rate(settings: AnyTraining, done: float) -> float:
    """The learning rate falls along half a cosine; JigsawNet's stays, as published."""
    falls = not isinstance(settings, JigsawTrainSettings)
    return 0.5 * settings.rate * (1 + math.cos(math.pi * done)) if falls else settings.rate


def _one_step(
    task: Task, optimizer: torch.optim.Optimizer, pieces: Sequence[Any], seeds: Sequence[Sequence[int]]
) -> float:
    """Add up the gradients of all pieces (of all processes), then change the weights; the mean loss."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p in parameters:  # a process without a piece still has gradients to add, all zero
        p.grad = torch.zeros_like(p)
    summed = torch.zeros(2, dtype=torch.float64)
    for piece, seed in zip(pieces, seeds, strict=True):
        torch.manual_seed(int(np.random.default_rng(seed).integers(2**62)))
        summed += torch.tensor(task.backward(piece), dtype=torch.float64)
    sum_over_processes([summed])
    sum_over_processes(p.grad for p in parameters)
    for p in parameters:
        p.grad.div_(float(summed[1]))
    optimizer.step()
    return float(summed[0] / summed[1])


def _resume(
    path: Path, task: Task, optimizer: torch.optim.Optimizer, made_by: dict[str, Any], defaults: dict[str, Any]
) -> tuple[int, float]:
    """Load what was trained before; (steps, seconds) done."""
    if not path.is_file():
        return 0, 0.0
    checkpoint = read_checkpoint(path)
    now = {**made_by, **as_dict(task.network.settings)}
    changed = differences({**defaults, **checkpoint.made_by, **checkpoint.network}, now)
    if changed:
        raise CollectionError(
            f"{path.parent} was trained with other settings ({'; '.join(changed)}).",
            "Use the same settings, or another folder.",
        )
    task.network.load_state_dict(checkpoint.weights, strict=True)
    optimizer.load_state_dict(checkpoint.optimizer)
    return checkpoint.step, checkpoint.seconds


class _Log:
    """One JSON object a line, and the same for TensorBoard where asked for; by the first process only.

    Steps after `first`, the checkpoint's, were lost with a process that was killed: they are done and told of again.
    """

    def __init__(self, out: Path, rank: int, first: int, tensorboard: bool) -> None:
        self._path = out / "log.jsonl" if rank == 0 else None
        self._board = _tensorboard(out / "tensorboard", first) if tensorboard and rank == 0 else None
        out.mkdir(parents=True, exist_ok=True)
        if self._path is not None and self._path.is_file():
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= first]
            write_whole(self._path, lambda file: file.write_text("".join(kept), encoding="utf-8"))

    def validation_losses(self) -> list[float]:
        """Those of earlier runs, in order."""
        if self._path is None or not self._path.is_file():
            return []
        told = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
        return [values["validation_loss"] for values in told if "validation_loss" in values]

    def write(self, values: dict[str, float]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        if self._board is not None:
            for name in values.keys() - {"step", "seconds"}:
                self._board.add_scalar(name, values[name], int(values["step"]))

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _tensorboard(folder: Path, first: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SettingsError("TensorBoard is not installed.", "pip install 'pairingnet[tensorboard]'") from error
    return SummaryWriter(str(folder), purge_step=first + 1)


def keep_freed_memory() -> None:
    """Let the C library keep large blocks that are freed, instead of asking the system for new pages each step.

    Training frees and takes the same few hundred megabytes at every step; clean pages cost more than the sums.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "mallopt"):
            mmap_threshold, trim_threshold = -3, -1
            library.mallopt(mmap_threshold, 1 << 30)
            library.mallopt(trim_threshold, 2**31 - 1)


def give_back_memory() -> None:
    """Return freed memory that lies between what is in use: batches of many sizes would scatter it without end."""
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)
