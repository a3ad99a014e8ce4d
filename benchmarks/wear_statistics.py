"""What worn edges are like across true seams, of generated kinds and of others: docs/ring.md, "Broken pieces".

python -m benchmarks.wear_statistics --shared FOLDER [--kinds broken fresco repair_g12] [--pictures 4]

Lengths are in steps of the contour (a 450th of the median piece's). At each point of a contour that has a true
neighbour opposite within 12 steps: gap, how far away that is (median, and a tenth and nine tenths); slow, how much the
gap changes along a seam (the spread of its mean over 20 steps); rough, the rest of its spread; turn, by how many
degrees the contour turns over 2, 8 and 32 steps, on average; colour, the difference at depths of 1.7 and 8 steps.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter1d
from scipy.spatial import cKDTree

from benchmarks.wear_kinds import KINDS, THIRD_PARTY, puzzles_of
from pairingnet.config import RingSettings
from pairingnet.io.collection import Collection
from pairingnet.prepare.load import load_fragment
from pairingnet.prepare.strip import SAMPLES, Strip, unroll, working_step

REACH = 12.0  # steps
_OPPOSED = -0.5
_SLOW = 20  # steps
_LEAST = 24  # points of a seam that are enough to measure
SCALES = (2, 8, 32)  # steps
_DEPTHS = (SAMPLES.index((0.0, 1.7)), SAMPLES.index((0.0, 8.0)))


@dataclass(frozen=True, eq=False)
class SeamLook:
    """One side of a true seam: gap (K,) in steps, turns (K, 3) in degrees at SCALES, colour (K, 2) at two depths."""

    gap: NDArray[np.float64]
    turns: NDArray[np.float64]
    colour: NDArray[np.float64]

    @property
    def slow(self) -> float:
        return float(self._smooth().std())

    @property
    def rough(self) -> float:
        return float((self.gap - self._smooth()).std())

    def _smooth(self) -> NDArray[np.float64]:
        return np.asarray(uniform_filter1d(self.gap, _SLOW, mode="nearest"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--kinds", nargs="*", choices=(*KINDS, *THIRD_PARTY), default=(*KINDS, *THIRD_PARTY))
    parser.add_argument("--pictures", type=int, default=4, help="of each generated kind")
    given = parser.parse_args()
    print("| pieces | seams | step, px | gap (.1, .9) | slow | rough | turn over 2, 8, 32 | colour, near and deep |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in given.kinds:
        with tempfile.TemporaryDirectory() as folder:
            puzzles = puzzles_of(given.shared, kind, given.pictures, Path(folder))
            steps_px = [step_of(puzzle) for puzzle in puzzles]
            looks = [
                look for puzzle, step_px in zip(puzzles, steps_px, strict=True) for look in looks_of(puzzle, step_px)
            ]
        print(f"| {kind} | {len(looks) // 2} | {np.median(steps_px):.1f} | {told(looks)} |", flush=True)


def step_of(puzzle: Collection) -> float:
    return working_step([record.perimeter_px for record in puzzle.fragments], RingSettings().points)


def looks_of(puzzle: Collection, step_px: float) -> Iterator[SeamLook]:
    """Both sides of every true seam."""
    strips = {record.id: unroll(load_fragment(puzzle, record.id), step_px) for record in puzzle.fragments}
    for pair in puzzle.pairs:
        for own, other in ((pair.source, pair.target), (pair.target, pair.source)):
            look = _look(puzzle, strips[own], strips[other])
            if look is not None:
                yield look


def told(looks: list[SeamLook]) -> str:
    """The cells of a line."""
    if not looks:
        return " | ".join("-" * 5)
    gap, turns, colour = (
        np.concatenate([getattr(look, name) for look in looks]) for name in ("gap", "turns", "colour")
    )
    low, high = np.quantile(gap, [0.1, 0.9])
    slow, rough = (float(np.median([getattr(look, name) for look in looks])) for name in ("slow", "rough"))
    bends, colours = (
        ", ".join(f"{x:.0f}" for x in turns.mean(axis=0)),
        ", ".join(f"{x:.0f}" for x in colour.mean(axis=0)),
    )
    return f"{np.median(gap):.2f} ({low:.2f}, {high:.2f}) | {slow:.2f} | {rough:.2f} | {bends} | {colours}"


def _look(puzzle: Collection, own: Strip, other: Strip) -> SeamLook | None:
    """What one side of a seam shows; None where too little of it is opposite."""
    poses = [puzzle.by_id[strip.id].canvas_from_fragment for strip in (own, other)]
    assert poses[0] is not None and poses[1] is not None
    other_from_own = poses[1].inverse() @ poses[0]
    distance, nearest = cKDTree(other.points).query(other_from_own.apply(own.points))
    along = other_from_own.apply(own.tangents) - other_from_own.shift
    opposed = (along * other.tangents[nearest]).sum(axis=1) < _OPPOSED
    rows = np.flatnonzero((distance < REACH * own.step_px) & opposed)
    if len(rows) < _LEAST:
        return None
    columns = np.asarray(nearest, dtype=np.intp)[rows]
    colour = np.abs(own.colours[rows][:, _DEPTHS].astype(float) - other.colours[columns][:, _DEPTHS]).mean(axis=2)
    return SeamLook(np.asarray(distance)[rows] / own.step_px, turns_of(own.points)[rows], colour)


def turns_of(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 3): by how many degrees a closed contour turns at each point, seen over SCALES steps to both sides."""
    turns = []
    for scale in SCALES:
        before, after = points - np.roll(points, scale, axis=0), np.roll(points, -scale, axis=0) - points
        cross = before[:, 0] * after[:, 1] - before[:, 1] * after[:, 0]
        turns.append(np.degrees(np.abs(np.arctan2(cross, (before * after).sum(axis=1)))))
    return np.stack(turns, axis=1)


if __name__ == "__main__":
    main()
