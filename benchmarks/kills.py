"""kill -9 while an archive is added to: docs/archive.md, section "Crash safety".

python -m benchmarks.kills [--random 100] [--every 1]

--random   so many kills at moments drawn at random, of adds to one archive that fills and is emptied in between
--every    and a kill before every n-th file that the add to a fresh archive forces to disk; 0: none

Only processes that died count. After each kill the archive must open and be searched, hold every fragment it had told
of, with the right bytes, and nothing twice. In the end it must hold what an undisturbed archive holds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from pairingnet.archive.add import add, remove
from pairingnet.archive.check import check
from pairingnet.archive.folder import Archive, init_archive
from pairingnet.archive.joins import search
from pairingnet.config import WEAR_LEVELS, ArchiveSettings, IndexSettings, RingSettings, TearSettings, VoteSettings
from pairingnet.io.images import image_files, read_image
from pairingnet.match.verify import Verifier
from pairingnet.match.weights import RingModel, save_model
from pairingnet.models.ring import RingNet
from pairingnet.prepare.files import read_fragment
from pairingnet.synth.collect import TearJob, tear_one_picture

PICTURE = Path(__file__).parent.parent / "examples" / "pictures" / "roman-colosseum.jpg"
# Cells from the start, so that the index that grows is the one of large archives.
_SETTINGS = ArchiveSettings(least=0.0, votes=VoteSettings(keep_every=2), index=IndexSettings(exact_below=300))
TINY = RingSettings(points=120, width=16, features=8, dilations=(1, 4), joint_dilations=(2,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=100)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        kills, told = _torture(Path(scratch), given.random, given.every, np.random.default_rng(given.seed))
    print(f"{kills} processes killed, {told} fragments told of, none lost")


def _torture(scratch: Path, at_random: int, every: int, rng: np.random.Generator) -> tuple[int, int]:
    """Kill often; how many processes died of it, and how many fragments were told of on the way."""
    weights, scans = _weights(scratch), _scans(scratch)
    whole, archive = scratch / "whole", scratch / "archive"
    init_archive(whole, _SETTINGS, weights, step_px=3.0)
    init_archive(archive, _SETTINGS, weights, step_px=3.0)
    began = time.perf_counter()
    expected = _acknowledged(_run(partial(_add, whole, scans, None)).written)
    duration = time.perf_counter() - began
    kills = told_of = 0
    safe: set[str] = set()
    while kills < at_random:
        run = _run(partial(_add, archive, scans, None), float(rng.uniform(0, duration)))
        kills += run.killed
        told_of += len(_acknowledged(run.written))
        safe |= set(_acknowledged(run.written))
        present = _present(archive, whole, scans, kills)
        assert safe <= present, f"lost after kill {kills}: {sorted(safe - present)}"
        if present == set(expected):  # full: make room for the next kills
            gone = expected[kills % 3 :: 2]
            _run(partial(_remove, archive, gone))
            safe = set(expected) - set(gone)
        print(f"\rkill {kills} of {at_random}", end="", file=sys.stderr, flush=True)
    number = 0
    while every:
        fresh = scratch / f"fresh-{number}"
        init_archive(fresh, _SETTINGS, weights, step_px=3.0)
        run = _run(partial(_add, fresh, scans, number))
        if not run.killed:  # there were no more writes
            break
        kills, told = kills + 1, set(_acknowledged(run.written))
        told_of += len(told)
        assert told <= _present(fresh, whole, scans, number), f"lost at write {number}"
        _run(partial(_add, fresh, scans, None))
        assert _present(fresh, whole, scans, number) == set(expected)
        shutil.rmtree(fresh)
        number += every
        print(f"\rkilled at write {number}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    _run(partial(_add, archive, scans, None))
    assert _present(archive, whole, scans, 0) == set(expected)
    return kills, told_of


@dataclass(frozen=True)
class Run:
    """What a child wrote, and whether it was killed before it was done."""

    written: bytes
    killed: bool


def _run(work: Callable[[int], None], kill_after_s: float | None = None) -> Run:
    """Let a child do something that writes to a pipe, and kill it after a while."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            work(writing)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)  # it is not waited for yet, so the number is still its own
    with os.fdopen(reading, "rb") as pipe:
        written = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), "the child failed; see above"
    return Run(written, status != 0)


def _present(folder: Path, whole: Path, scans: Path, number: int) -> set[str]:
    """The fragments of an archive, after a look at all of it."""
    return set(json.loads(_run(partial(_examine, folder, whole, scans, number)).written))


def _add(folder: Path, scans: Path, die_at: int | None, told: int) -> None:
    """Add all scans; tell of each fragment when it is stored. Dies before a certain write, where one is given."""
    if die_at is not None:
        _count_down(die_at)
    with Archive(folder) as archive:
        add(archive, [scans], told=lambda name: _tell(told, f"{name}\n".encode()))


def _remove(folder: Path, names: list[str], told: int) -> None:
    with Archive(folder) as archive:
        _tell(told, json.dumps(remove(archive, names)).encode())


def _count_down(number: int) -> None:
    """Kill this process when it is about to force its n-th file to disk."""
    forced, left = os.fsync, [number]

    def count(file: int) -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        forced(file)

    os.fsync = count  # type: ignore[assignment]


def _examine(folder: Path, whole: Path, scans: Path, number: int, told: int) -> None:
    """Tell which fragments there are; complain of anything that is not as it should be."""
    with Archive(folder) as archive, Archive(whole) as good:
        entries = archive.catalogue.entries()
        names = [entry.id for entry in entries]
        assert len(set(names)) == len(names), "a fragment is there twice"
        right = {entry.id: entry.place.mark for entry in good.catalogue.entries()}
        for entry in entries:
            assert archive.store.is_whole(entry.place), f"{entry.id} is broken"
            assert entry.place.mark == right[entry.id], f"{entry.id} has other features"
            assert len(archive.read(entry).side.query_level) == entry.place.count
        if entries:
            paths = image_files(scans)
            joins = search(archive, [read_fragment(paths[number % len(paths)])])
            assert {join.target for join in joins} <= set(names), "something that is not there was found"
        if number % 4 == 3:
            assert check(archive).lost == ()
            assert check(archive).repaired == ()
    _tell(told, json.dumps(names).encode())


def _tell(pipe: int, data: bytes) -> None:
    os.write(pipe, data)


def _acknowledged(written: bytes) -> list[str]:
    """Whole lines only: a line that was cut off was not told."""
    return [line.decode() for line in written.split(b"\n")[:-1]]


def _weights(scratch: Path) -> Path:
    torch.manual_seed(0)
    path = scratch / "tiny.safetensors"
    save_model(path, RingModel(RingNet(TINY), Verifier.plain()), {"made": "for the kills"})
    return path


def _scans(scratch: Path) -> Path:
    pixels: Any = cv2.resize(read_image(PICTURE).pixels, (600, 400), interpolation=cv2.INTER_AREA)
    job = TearJob(TearSettings(h_min=60, w_min=60, d_min=40), WEAR_LEVELS["none"], 1)
    tear_one_picture(pixels, "piece", job, scratch, "scans")
    return scratch / "scans"


if __name__ == "__main__":
    main()
