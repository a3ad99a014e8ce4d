"""Kinds of wear that the benchmarks of broken pieces generate, and the third-party sets they are compared with.

Pictures are the last of photos/val, which nothing is learned or calibrated on; `walls` are painted by the generator.
The third-party sets are for looking at: nothing is chosen by them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.solving import SETS, read_set, torn_pictures
from pairingnet.config import WEAR_LEVELS, TearSettings, WearSettings
from pairingnet.io.collection import Collection
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
    """Puzzles of a kind, each a picture: generated ones (`count` of them), or a third-party set."""
    if kind in THIRD_PARTY:
        return [third_party(shared, kind, folder)]
    if kind == "walls":
        return [_painted(number, folder / f"{number}", seed) for number in range(count)]
    pictures = image_files(shared / "photos" / "val")[_FIRST:][:count]
    return [torn_pictures([path], folder / path.stem, TORN, seed, KINDS[kind]) for path in pictures]


def third_party(shared: Path, name: str, folder: Path) -> Collection:
    """A set with its images stored, as its people gave it."""
    return read_set(shared, name, folder / name, store=True)


def _painted(number: int, folder: Path, seed: int) -> Collection:
    """A wall or a pot, broken."""
    rng = np.random.default_rng([seed, number])
    painter = list(PAINTERS.values())[number % len(PAINTERS)]
    job = TearJob(TORN, KINDS["walls"], seed)
    torn = tear_one_picture(painter((1000, 720), rng), f"wall-{number}", job, folder, "fragments")
    return replace(torn, made_by=job.as_dict())
