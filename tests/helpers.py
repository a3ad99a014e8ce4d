"""What several test files need: the command line, waiting, small models, and a method that knows the truth."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairingnet.assembly.energy import POWERS, TERMS, LearnedEnergy
from pairingnet.assembly.layout import lay_out
from pairingnet.config import PaperSettings, RingSettings
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.match.contact import Outline
from pairingnet.types import Assembly, Decisions, Fragment, PairMatch

TINY_RING = RingSettings(points=120, width=16, features=8, dilations=(1, 4), joint_dilations=(2,))
TINY_PAPER = PaperSettings(width=16, layers=1, search_layers=1, search_width=8)
STEP_PX = 3.0  # the working scale of joins that are made up
_WEIGHTS = {
    "support": 0.8, "doubt": 0.5, "loops": 2.0, "residual": -0.1, "straight": -0.1, "guided": 0.4, "silent": -2.5,
    "contact": 1.0, "overlap": -0.6, "contradicted": -0.2, "merges": -1.0,
}  # fmt: skip
_CALIBRATION = {
    "held": (0.0, 0.3, 0.6), "against": (-2.0, 0.3, -0.5), "apart": (-1.0, 0.4, 0.7), "implied": (0.0, 0.1, 0.6),
    "piece": (0.0, 0.8),
}  # fmt: skip
# Of tests, which hold whatever is learned anew.
ENERGY = LearnedEnergy(
    np.array([[_WEIGHTS.get(name, 0.0) for name in TERMS], *[[0.0] * len(TERMS)] * (POWERS - 1)]),
    {kind: np.array([row, *[[0.0] * len(row)] * (POWERS - 1)]) for kind, row in _CALIBRATION.items()},
    (0.0, 1.0),
)


def run(*arguments: object, cwd: Path | None = None, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """The command line, in a process of its own."""
    command = [sys.executable, "-m", "pairingnet", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=timeout)


def wait_for(
    holds: Callable[[], object], what: str, seconds: float = 120, of: subprocess.Popen[Any] | None = None
) -> None:
    """Until something holds; not for ever, and not for a process that has ended."""
    end = time.monotonic() + seconds
    while not holds():
        assert of is None or of.poll() is None, f"{what} cannot come: the process has ended"
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.02)


class Oracle:
    """Knows the truth, and is off by a given number of pixels."""

    name = "oracle"

    def __init__(self, collection: Collection, off_px: float = 0.0) -> None:
        self.collection, self.off_px = collection, off_px
        self.asked = 0

    def describe(self) -> dict[str, Any]:
        return {"off_px": self.off_px}

    def features(self, fragments: Iterable[Fragment]) -> Iterable[str]:
        return [fragment.id for fragment in fragments]

    def know(self, features: Sequence[str]) -> Sequence[str]:
        return features

    def rank(self, features: Sequence[str], most: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        number = {name: i for i, name in enumerate(features)}
        ranked = np.full((len(features), most), -1, dtype=np.intp)
        filled = [0] * len(features)
        for pair in self.collection.pairs:
            for a, b in ((pair.source, pair.target), (pair.target, pair.source)):
                ranked[number[a], filled[number[a]]] = number[b]
                filled[number[a]] += 1
        return ranked, np.zeros(ranked.shape, dtype=np.float32)

    def match(self, source: str, target: str) -> PairMatch:
        self.asked += 1
        pair = next(p for p in self.collection.pairs if (p.source, p.target) == (source, target))
        return PairMatch(source, target, Rigid2D(0, self.off_px, 0) @ self.collection.target_from_source(pair), 1.0)


def true_join(collection: Collection, number: int, logit: float = 4.0, off: Rigid2D | None = None) -> PairMatch:
    pair = collection.pairs[number]
    pose = collection.by_id[pair.source].canvas_from_fragment
    assert pose is not None
    seam = pose.inverse().apply(pair.seam)
    true = collection.target_from_source(pair)
    found = true if off is None else off @ true
    points = np.stack([seam, true.apply(seam)], axis=1)[::4]
    probability = float(1 / (1 + np.exp(-logit)))
    return PairMatch(pair.source, pair.target, found, logit, points, probability=probability)


def all_joins(collection: Collection) -> list[PairMatch]:
    return [true_join(collection, number) for number in range(len(collection.pairs))]


def laid(
    outlines: Mapping[str, Outline], matches: Sequence[PairMatch], decisions: Decisions | None = None
) -> tuple[dict[frozenset[str], PairMatch], Assembly]:
    """Matches by their pair, and groups."""
    known, assembly = lay_out(outlines, matches, STEP_PX, decisions=decisions, energy=ENERGY)
    by_pair = {match.pair: match for match in known}
    assert len(by_pair) == len(known)
    return by_pair, assembly


class Piece:
    def __init__(self, queries: np.ndarray, keys: np.ndarray) -> None:
        self.queries, self.keys = queries.astype(np.float32), keys.astype(np.float32)
        self.query_level = self.key_level = np.full(
            len(queries), 14.0, dtype=np.float32
        )  # the best of random ones at scale 20


def unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
