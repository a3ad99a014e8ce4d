"""What work costs: seconds on the clock, seconds of all cores, and memory; remembered line by line.

OUT/costs.jsonl   one line for every handful of work, so that an interrupted stage keeps what it has cost so far
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pairingnet.evaluate.predictions import Cost
from pairingnet.io.files import append_lines

_ONCE = ("features", "assembly")  # stages that start over after an interruption: their longest line counts


@dataclass(eq=False)
class Ledger:
    """Writes down what each stage costs, from one note to the next."""

    path: Path
    _wall_s: float = 0.0
    _cpu_s: float = 0.0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """What was done since the last note belongs to no stage."""
        self._wall_s, self._cpu_s = time.perf_counter(), cpu_seconds()

    def note(self, stage: str, pairs: int = 0) -> None:
        """What was done since the last note belongs to this stage."""
        wall_s, cpu_s = time.perf_counter() - self._wall_s, cpu_seconds() - self._cpu_s
        told = {"stage": stage, "wall_s": round(wall_s, 4), "cpu_s": round(cpu_s, 4), "pairs": pairs}
        append_lines(self.path, [json.dumps({**told, "peak_mb": round(peak_mb(), 1)})])
        self.start()


def read_costs(path: Path) -> tuple[dict[str, Cost], float]:
    """Costs of every stage, and the peak memory in MB; over all sessions of a run."""
    costs: dict[str, Cost] = {}
    peak = 0.0
    for stage, one, held_mb in _lines(path):
        peak = max(peak, held_mb)
        before = costs.get(stage, Cost())
        if stage in _ONCE:
            costs[stage] = max(before, one, key=lambda cost: cost.wall_s)
        else:
            costs[stage] = Cost(before.wall_s + one.wall_s, before.cpu_s + one.cpu_s, before.pairs + one.pairs)
    return costs, peak


def seconds_a_pair(path: Path, stage: str) -> float:
    """On the clock, of the lines in which pairs were laid; 0 where there are none."""
    laid = [one for name, one, _ in _lines(path) if name == stage and one.pairs]
    return sum(one.wall_s for one in laid) / sum(one.pairs for one in laid) if laid else 0.0


def _lines(path: Path) -> Iterator[tuple[str, Cost, float]]:
    """Stage, cost and peak memory of every line."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            told = json.loads(line)
            yield told["stage"], Cost(told["wall_s"], told["cpu_s"], told["pairs"]), told["peak_mb"]
        except (json.JSONDecodeError, KeyError):  # cut off when the process was killed
            continue


def cpu_seconds() -> float:
    """Of this process, and of those it started that have ended."""
    told = os.times()
    return time.process_time() + told.children_user + told.children_system


def peak_mb() -> float:
    """The most memory that this process held at any time, or one that it started."""
    workers_mb = _in_mb(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    status = Path("/proc/self/status")
    if status.is_file():
        # The usual call would tell the memory of the process that started this one, where that was larger.
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return max(workers_mb, float(line.split()[1]) / 1024)
    return max(workers_mb, _in_mb(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


def _in_mb(told: int) -> float:
    return told / (1024**2 if sys.platform == "darwin" else 1024)
