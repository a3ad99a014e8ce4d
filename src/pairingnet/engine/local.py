"""Many independent jobs on the cores of this machine, with a progress bar, in any order, safely interrupted.

A job stores its own result, whole or not at all; so stopping costs only what was under way.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Item = TypeVar("Item")
Result = TypeVar("Result")


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


def run_jobs(
    job: Callable[[Item], Result],
    items: Sequence[Item],
    jobs: int = 1,
    label: str = "working",
    done: Callable[[Result], None] | None = None,
) -> list[Result]:
    """`[job(item) for item in items]` on `jobs` processes (0: one per core); results in the order of items.

    `done` is called here with each result as soon as it is known, so that it can be stored.
    """
    note = done or (lambda _: None)
    jobs = min(jobs or os.cpu_count() or 1, len(items))
    with progress_bar() as bar:
        task = bar.add_task(label, total=len(items))
        if jobs <= 1:
            results = []
            for item in items:
                results.append(job(item))
                note(results[-1])
                bar.advance(task)
            return results
        # Fork and threaded libraries do not mix; a spawned process starts clean.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool:
            futures = [pool.submit(job, item) for item in items]
            try:
                _wait_for(futures, note, lambda: bar.advance(task))
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _wait_for(futures: Sequence[Future[Result]], note: Callable[[Result], None], advance: Callable[[], None]) -> None:
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in finished:
            note(future.result())  # the first failure stops the rest
            advance()


def _one_thread() -> None:
    """Several thread pools on the same cores are many times slower than one thread each."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # read when a library is loaded, so before the next line
    import cv2

    cv2.setNumThreads(1)
