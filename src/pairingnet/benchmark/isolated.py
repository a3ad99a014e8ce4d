"""One call in a process of its own: its time and memory are its own, and nothing is left behind for the next."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from pairingnet.errors import PairingNetError

Result = TypeVar("Result")


def isolated(job: Callable[[], Result], threads: int = 1) -> Result:
    """`job()` in a fresh process with so many threads for linear algebra (0: one per core)."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, threads, os.getpid()))
    process.start()
    theirs.close()
    try:
        ours.send(job)
        result, error = ours.recv()
    except (EOFError, ConnectionError):
        process.join()
        raise PairingNetError(
            f"The process of a method ended with code {process.exitcode}; the machine may lack memory.",
            "Run the same command again to continue.",
        ) from None
    except BaseException:
        process.terminate()
        raise
    finally:
        process.join()
        ours.close()
    if error is not None:
        raise error
    answer: Result = result
    return answer


def _work(connection: Connection, threads: int, parent: int) -> None:
    """Do what comes through the connection, and send back what it gives or what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asked is told as well, and ends this one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if threads:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)  # read when a library is loaded; the next line loads them
    told: tuple[Any, Exception | None]
    try:
        told = connection.recv()(), None
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))
        told = None, error
    connection.send(told)


def _end_with(parent: int) -> None:
    """End when the process that asked is gone (killed): else two of them would write into one folder."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
