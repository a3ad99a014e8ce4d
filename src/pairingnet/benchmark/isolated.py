"""One call in a process of its own: its time and memory are its own, and nothing is left behind for the next."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def isolated(job: Callable[[], Result], threads: int = 1) -> Result:
    """`job()` in a fresh process with so many threads for linear algebra (0: one per core)."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(threads, os.getpid())) as pool:
        return pool.submit(job).result()


def _begin(threads: int, parent: int) -> None:
    if threads:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)  # read when a library is loaded; none is yet
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End when the process that asked is gone (killed): else two of them would write into one folder."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
