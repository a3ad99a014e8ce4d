"""Kinds of wear that the benchmarks of broken pieces generate, and the third-party sets they are compared with.

Pictures are the last of photos/val, which nothing is learned or calibrated on; `walls` are painted by the generator.
The third-party sets are for looking at: nothing is chosen by them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.solving import SETS, read_set, torn_pictures
from pairingnet.config import WEAR_LEVELS, TearSettings, WearSettings
from pairingnet.io.collection import FILE_NAME, Collection, read_collection, write_collection
from pairingnet.io.images import image_files
from pairingnet.synth.collect import TearJob, tear_one_picture
from pairingnet.synth.paint import PAINTERS

REPAIR = ("repair_g12", "repair_g29_v2", "repair_g51_v2")
THIRD_PARTY = (*SETS, *REPAIR)
TORN = TearSettings(longest=1000)
KINDS: dict[str, WearSettings] = {
    **{name: WEAR_LEVELS[name] for name in ("none", "light", "medium", "heavy", "sherds", "broken", "fresco")},
    "worn-8px": WearSettings(gap=16.0),  # on both sides, all along, and nothing else
    "walls": WEAR_LEVELS["fresco"],
}
_FIRST = 22  # pictures of photos/val before these calibrate the verifier


def puzzles_of(shared: Path, kind: str, count: int, folder: Path, seed: int = 1) -> list[Collection]:
    """Puzzles of a kind, each a picture: generated ones (`count` of them), or a third-party set. What is in the folder
    already is read."""
    if kind in THIRD_PARTY:
        return [_kept(folder / kind, partial(read_set, shared, kind, store=True))]
    job = TearJob(TORN, KINDS[kind], seed)
    own = folder / f"{kind}-{zlib.crc32(repr(job).encode()):08x}"
    if kind == "walls":
        return [_kept(own / f"wall-{number}", partial(_painted, number, job)) for number in range(count)]
    pictures = image_files(shared / "photos" / "val")[_FIRST:][:count]
    return [_kept(own / path.stem, partial(_torn, path, job)) for path in pictures]


def _kept(folder: Path, make: Callable[[Path], Collection]) -> Collection:
    """The collection in a folder, made where there is none; stored with all of its truth."""
    if not (folder / "truth" / FILE_NAME).is_file():
        made = make(folder / "truth")
        write_collection(made)
        return made
    return read_collection(folder / "truth")


def _torn(path: Path, job: TearJob, folder: Path) -> Collection:
    return replace(torn_pictures([path], folder, job.settings, job.seed, job.wear), made_by=job.as_dict())


def _painted(number: int, job: TearJob, folder: Path) -> Collection:
    """A wall or a pot, broken."""
    rng = np.random.default_rng([job.seed, number])
    painter = list(PAINTERS.values())[number % len(PAINTERS)]
    torn = tear_one_picture(painter((1000, 720), rng), f"wall-{number}", job, folder, "fragments")
    return replace(torn, made_by=job.as_dict())
