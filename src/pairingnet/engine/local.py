"""Jobs on the cores of this machine, with a progress bar, in any order, safely interrupted."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Item = TypeVar("Item")
Result = TypeVar("Result")

_DEATHS = 3  # of workers, after which something is wrong with the job


def progress_bar() -> Progress:
    """A bar on stderr: what, how much of it, how long still. Silent where stderr is not a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        disable=not sys.stderr.isatty(),
    )


class LocalEngine:
    """This process alone for one job, else as many processes (0: one per core)."""

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs

    def run(
        self, job: Callable[[Item], Result], items: Sequence[Item], label: str, done: Callable[[Result], None]
    ) -> list[Result]:
        """See `Engine`."""
        jobs = min(self.jobs or os.cpu_count() or 1, len(items))
        if multiprocessing.current_process().daemon:
            jobs = 1  # a worker of somebody's multiprocessing.Pool may not start processes of its own
        with progress_bar() as bar:
            task = bar.add_task(label, total=len(items))
            results: dict[int, Result] = {}

            def note(place: int, result: Result) -> None:
                results[place] = result
                done(result)
                bar.advance(task)

            if jobs <= 1:
                for place, item in enumerate(items):
                    note(place, job(item))
            else:
                _in_processes(job, items, jobs, results, note)
            return [results[place] for place in range(len(items))]


def _in_processes(
    job: Callable[[Item], Result],
    items: Sequence[Item],
    jobs: int,
    results: dict[int, Result],
    note: Callable[[int, Result], None],
) -> None:
    """Work on what has no result yet; where a process was killed, once more on what is left."""
    for deaths in range(_DEATHS + 1):
        missing = [place for place in range(len(items)) if place not in results]
        try:
            _in_one_pool(job, {place: items[place] for place in missing}, jobs, note)
            return
        except BrokenProcessPool:
            if deaths == _DEATHS:
                raise


def _in_one_pool(
    job: Callable[[Item], Result], items: dict[int, Item], jobs: int, note: Callable[[int, Result], None]
) -> None:
    # Fork and threaded libraries do not mix; a spawned process starts clean.
    needs_main = b"__main__" in bytes(ForkingPickler.dumps((job, next(iter(items.values())))))
    context = multiprocessing.get_context("spawn") if needs_main else _WithoutMain()
    with _one_thread_each(), ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool:
        place_of = {pool.submit(job, item): place for place, item in items.items()}
        try:
            _wait_for(place_of, note)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _ProcessWithoutMain(SpawnProcess):
    """A process that does not begin by running the script of its parent once more."""

    @staticmethod
    def _Popen(process: Any) -> Any:  # noqa: N802
        main, nothing = sys.modules["__main__"], ModuleType("__main__")
        sys.modules["__main__"] = nothing  # what a spawned process runs first is read from here
        try:
            return SpawnProcess._Popen(process)
        finally:
            sys.modules["__main__"] = main


class _WithoutMain(SpawnContext):
    """Spawned processes that know nothing of the script that runs.

    A script without `if __name__ == "__main__"` would otherwise begin anew in each of them, and a script that comes
    from a pipe cannot be read again at all.
    """

    Process = _ProcessWithoutMain


def _wait_for(place_of: dict[Future[Result], int], note: Callable[[int, Result], None]) -> None:
    pending = set(place_of)
    while pending:
        finished, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in finished:
            note(place_of[future], future.result())  # the first failure stops the rest


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that start within use one thread: several thread pools on the same cores are many times slower.

    Libraries read this when they are loaded, which may be as early as the script that a process was started from.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _one_thread() -> None:
    """OpenCV has threads of its own."""
    import cv2

    cv2.setNumThreads(1)
