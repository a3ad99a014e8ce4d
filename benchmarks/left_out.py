"""Whether probabilities hold for wear that nobody calibrated on: docs/results.md, section "Broken pieces".

python -m benchmarks.left_out --shared FOLDER --out FOLDER [--kinds none light ...] [--pictures 4] [--weights FILE]

Leave one kind out: from the joins of all other kinds a calibration is learned, on the joins of the one that is left out
it is tested. Of each kind: the calibration error (ECE) and the precision of joins above .9 as the verifier tells them
(as told), after log-odds were stretched and shifted to fit the other kinds (recalibrated), and after the stretch may
also depend on how loosely the joins of the puzzle lie (by wear: so that wider gaps than those learned from are doubted
more). A join is right within 10 degrees and 60 px. OUT is that of benchmarks.broken: what was laid is shared.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.broken import SURE, is_roughly_right, laid
from benchmarks.wear_kinds import KINDS, puzzles_of
from pairingnet.evaluate.metrics import expected_calibration_error
from pairingnet.match.weights import SHIPPED, load_model
from pairingnet.train.layouts import Puzzle

_MOST_LOGIT = 12.0
_RIDGE = 1e-3  # keeps what a few joins say near to what was told
_SURER_HALF = 0.5


@dataclass(frozen=True, eq=False)
class Judged:
    """Joins of one kind: log-odds (J,) as told, how loosely the surest joins of each one's puzzle lie (J,) in steps,
    and whether it is right (J,)."""

    logit: NDArray[np.float64]
    loose: NDArray[np.float64]
    right: NDArray[np.bool_]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--kinds", nargs="*", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--pictures", type=int, default=4)
    given = parser.parse_args()
    if len(given.kinds) < 2:
        parser.error("one kind is left out of several: name two or more")
    model = load_model(given.weights)
    kinds = {}
    for kind in given.kinds:
        kinds[kind] = judged(
            [laid(truth, model) for truth in puzzles_of(given.shared, kind, given.pictures, given.out)]
        )
    print(table(kinds))


def judged(puzzles: Sequence[Puzzle]) -> Judged:
    """All joins of some puzzles, as the verifier tells them."""
    logits, loose, right = [], [], []
    for puzzle in puzzles:
        joins = [join for join in puzzle.matches if join.target_from_source is not None]
        logits += [join.score for join in joins]
        loose += [usual_gap(puzzle)] * len(joins)
        right += [is_roughly_right(puzzle.truth, join) for join in joins]
    return Judged(np.clip(logits, -_MOST_LOGIT, _MOST_LOGIT), np.array(loose), np.array(right, dtype=bool))


def usual_gap(puzzle: Puzzle) -> float:
    """How far the surer half of a puzzle's likely joins gape, in steps: nothing of the truth is in it."""
    joins = [join for join in puzzle.matches if join.target_from_source is not None]
    joins.sort(key=lambda join: -join.score)
    gaps = [join.evidence.get("gap_px", 0.0) + join.evidence.get("worn_px", 0.0) for join in joins]
    surer = gaps[: max(1, round(_SURER_HALF * len(puzzle.outlines)))]
    return float(np.median(surer)) / puzzle.step_px if surer else 0.0


def table(kinds: Mapping[str, Judged]) -> str:
    """A line for each kind that is left out."""
    lines = [
        "| left out | joins, right | ECE: told | recalibrated | by wear | above .9: told | recalibrated | by wear |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, own in kinds.items():
        others = joined([each for kind, each in kinds.items() if kind != name])
        told = [probability(own, np.array([1.0, 0.0, 0.0, 0.0]))]
        told += [probability(own, calibrated(others, by_wear)) for by_wear in (False, True)]
        errors = " | ".join(f"{expected_calibration_error(p, own.right):.3f}" for p in told)
        lines.append(
            f"| {name} | {len(own.right)}, {own.right.sum()} | {errors} | {' | '.join(_sure(p, own) for p in told)} |"
        )
    return "\n".join(lines)


def joined(parts: Sequence[Judged]) -> Judged:
    return Judged(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("logit", "loose", "right")))


def calibrated(joins: Judged, by_wear: bool) -> NDArray[np.float64]:
    """(4,): by how much log-odds are stretched and shifted, and how both change with the gap, so that the likelihood of
    what is right is greatest. Each kind of answer counts as often as it occurs."""
    free = np.array([True, True, by_wear, by_wear])

    def loss(changed: NDArray[np.float64]) -> float:
        weights = np.array([1.0, 0.0, 0.0, 0.0])
        weights[free] += changed
        p = probability(joins, weights).clip(1e-9, 1 - 1e-9)
        return float(-np.where(joins.right, np.log(p), np.log(1 - p)).mean() + _RIDGE * (changed**2).sum())

    weights = np.array([1.0, 0.0, 0.0, 0.0])
    weights[free] += minimize(loss, np.zeros(free.sum()), method="BFGS").x
    return weights


def probability(joins: Judged, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """(J,) of joins, by weights (4,) of `calibrated`."""
    wide = np.log1p(joins.loose)
    logit = (weights[0] + weights[2] * wide) * joins.logit + weights[1] + weights[3] * wide
    return np.asarray(1 / (1 + np.exp(-logit.clip(-50, 50))))


def _sure(p: NDArray[np.float64], joins: Judged) -> str:
    """Precision above .9, and of how many."""
    sure = p >= SURE
    return f"{joins.right[sure].mean():.3f} of {sure.sum()}" if sure.any() else "none"


if __name__ == "__main__":
    main()
