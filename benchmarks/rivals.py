"""What joins that claim the same stretch of contour say about each other, learned: RivalSettings in config.py.

python -m benchmarks.rivals --shared FOLDER [--weights FILE] [--kinds sherds small-rubbed]

Joins of puzzles of photos/val, clean and worn (benchmarks/puzzles.py). Half of the puzzles are learned from, on the
others is told how likely what happened was: log-loss a right join, by the log-odds that joins have alone (stretched and
shifted to fit best), by the settings that ship, and by what was learned.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.puzzles import KINDS, Puzzle, puzzles_of
from benchmarks.solving import wrong_by_px
from pairingnet.assemble.layout import Table, usual_gap_px
from pairingnet.assemble.rivals import Rivals, log_odds_among, rivals_of
from pairingnet.config import AssembleSettings, RivalSettings
from pairingnet.match.weights import SHIPPED

_RIGHT_STEPS = 8.0
_LEAST = 0.005  # probability


@dataclass(frozen=True, eq=False)
class Known:
    """Joins of a puzzle: log-odds (J,) that they have alone, their rivals, and whether they are right (J,)."""

    alone: NDArray[np.float64]
    rivals: Rivals
    right: NDArray[np.bool_]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--kinds", nargs="*", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    known = {
        kind: [_known(puzzle) for puzzle in puzzles_of(given.shared, kind, given.weights, given.jobs)]
        for kind in given.kinds
    }
    learned = [puzzle for puzzles in known.values() for i, puzzle in enumerate(puzzles) if i % 4 < 2]
    shipped = RivalSettings()
    best = _learn(learned, shipped)
    alone = _learn(learned, replace(shipped, rival=0.0), by_rivals=False)
    print("learned:", ", ".join(f"{name} {getattr(best, name):.2f}" for name in ("alone", "free", "rival", "most")))
    print("\n| pieces | joins | right | alone | settings that ship | learned |\n|---|---|---|---|---|---|")
    for kind, puzzles in known.items():
        others = [puzzle for i, puzzle in enumerate(puzzles) if i % 4 >= 2]
        joins, right = sum(len(each.right) for each in others), sum(int(each.right.sum()) for each in others)
        losses = " | ".join(f"{_loss(others, settings):.3f}" for settings in (alone, shipped, best))
        print(f"| {kind} | {joins} | {right} | {losses} |")


def _known(puzzle: Puzzle) -> Known:
    joins = [
        way
        for join in puzzle.joins
        for way in (join, *join.others)
        if way.target_from_source is not None and way.probability >= _LEAST
    ]
    table = Table(puzzle.outlines, AssembleSettings(), puzzle.step_px, usual_gap_px(puzzle.joins))
    within_px = _RIGHT_STEPS * puzzle.step_px
    right = [wrong_by_px(puzzle.truth, join, join.target_from_source) < within_px for join in joins]
    return Known(np.array([join.score for join in joins]), rivals_of(table, joins), np.array(right, dtype=bool))


def _loss(puzzles: Sequence[Known], settings: RivalSettings) -> float:
    """Log-loss a right join."""
    total = right = 0.0
    for puzzle in puzzles:
        told = log_odds_among(puzzle.alone, puzzle.rivals, settings)
        total += float((np.logaddexp(0, told) - puzzle.right * told).sum())
        right += float(puzzle.right.sum())
    return total / max(1.0, right)


def _learn(puzzles: Sequence[Known], start: RivalSettings, by_rivals: bool = True) -> RivalSettings:
    """The numbers that make what happened likeliest."""
    names = ("alone", "free", "rival") if by_rivals else ("alone", "free")

    def settings_of(values: NDArray[np.float64]) -> RivalSettings:
        return replace(start, **dict(zip(names, values.tolist(), strict=True)))

    loss: Callable[[NDArray[np.float64]], float] = lambda values: _loss(puzzles, settings_of(values))  # noqa: E731
    found = minimize(
        loss, np.array([getattr(start, name) for name in names]), method="Nelder-Mead", options={"xatol": 0.01}
    )
    return settings_of(found.x)


if __name__ == "__main__":
    main()
