"""Many independent jobs, wherever they run: the results are the same, and in the same order.

A job stores its own result, whole or not at all, or returns it; it may run twice. So a process that dies costs time,
and stopping costs only what was under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from pairingnet.engine.local import LocalEngine
from pairingnet.errors import SettingsError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine(Protocol):
    """Where work runs."""

    def run(
        self,
        job: Callable[[Item], Result],
        items: Sequence[Item],
        label: str,
        done: Callable[[Result], None],
    ) -> list[Result]:
        """`[job(item) for item in items]`; `done` is called here with each result as soon as it is known."""


Workers = int | Engine  # how many processes on this machine (0: one per core), or where else


def run_jobs(
    job: Callable[[Item], Result],
    items: Sequence[Item],
    jobs: Workers = 1,
    label: str = "working",
    done: Callable[[Result], None] | None = None,
) -> list[Result]:
    """`[job(item) for item in items]` by some workers; results in the order of items.

    `done` is called here with each result as soon as it is known, so that it can be stored.
    """
    engine = LocalEngine(jobs) if isinstance(jobs, int) else jobs
    return engine.run(job, items, label, done or (lambda _: None))


def choose_engine(name: str, jobs: int) -> Workers:
    """What `--engine` means: "local", "ray" (a cluster that runs, or one for this command), "ray://host:port"."""
    if name == "local":
        return jobs
    if name == "ray" or name.startswith("ray://"):
        from pairingnet.engine.ray import RayEngine

        return RayEngine("" if name == "ray" else name)
    raise SettingsError(f"There is no engine '{name}'.", "Choose local, ray or ray://host:port.")
