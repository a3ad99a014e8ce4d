"""The memory that a job holds in all of its processes together; Linux only."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType


class Watch:
    """Looks every quarter of a second; a page that several processes share counts once (proportional set size)."""

    def __init__(self) -> None:
        self.most_gb = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.25):
            self.most_gb = max(self.most_gb, sum(_held_kb(pid) for pid in _family(os.getpid())) / 1e6)


def _family(pid: int) -> list[int]:
    """A process and all that it started, and they."""
    found = [pid]
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = listed.read_text().split()
        except OSError:  # it has just ended
            continue
        found += [one for child in children for one in _family(int(child))]
    return found


def _held_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
