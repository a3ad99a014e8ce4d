"""Pieces that no longer touch, put together: docs/results.md, section "Broken pieces".

python -m benchmarks.broken --shared FOLDER --out FOLDER [--kinds broken repair_g12] [--pictures 4] [--weights FILE]
                            [--set NAME=VALUE] [--closed] [--again]

Puzzles of pictures of photos/val that are broken in several ways, of painted walls, and RePAIR's; every piece is laid
on every other. roughly: true neighbours whose two pieces, by themselves, are laid within 10 degrees and 60 px of the
truth; RR: within 16 px and within 8 px; sure: joins above .9 when all is put together, and how many of them are not
even roughly right; Q_pos and RMSE (in px) as `pairingnet score` has them, means over puzzles. What was laid is kept in
OUT and judged anew; --again lays it anew. --closed: gaps are not fitted (match.gap), for comparison.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.solving import off_px
from benchmarks.wear_kinds import KINDS, THIRD_PARTY, puzzles_of
from pairingnet.assembly.energy import LearnedEnergy
from pairingnet.assembly.layout import lay_out
from pairingnet.config import SolveSettings
from pairingnet.evaluate.puzzle_files import read_puzzles
from pairingnet.evaluate.puzzles import PuzzleScores, mean_scores, score_puzzle
from pairingnet.geometry import Rigid2D, angle_difference
from pairingnet.io.collection import Collection
from pairingnet.match.weights import SHIPPED, RingModel, load_model
from pairingnet.prepare.load import load_fragments
from pairingnet.settings import parse_assignments, solve_settings
from pairingnet.train.layouts import Puzzle, puzzle_of
from pairingnet.types import PairMatch

ROUGHLY_DEG, ROUGHLY_PX = 10.0, 60.0
SURE = 0.9
DEFAULT = ("worn-8px", "heavy", "broken", "fresco", "walls", "repair_g12", "repair_g29_v2", "repair_g51_v2")


@dataclass(frozen=True)
class Counts:
    """Of one puzzle: true neighbours, and how many are laid roughly right, within 16 and 8 px; joins that are sure,
    and those of them that are wrong; scores of the layout."""

    pairs: int
    roughly: int
    within_16: int
    within_8: int
    sure: int
    wrong: int
    scores: PuzzleScores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--kinds", nargs="*", choices=(*KINDS, *THIRD_PARTY), default=DEFAULT)
    parser.add_argument("--pictures", type=int, default=4, help="of each generated kind")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of solve")
    parser.add_argument("--closed", action="store_true", help="gaps are not fitted, as before")
    parser.add_argument("--again", action="store_true", help="lay all pieces on each other anew")
    given = parser.parse_args()
    settings = solve_settings(parse_assignments(given.set))
    model = load_model(given.weights)
    print("| pieces | neighbours | roughly | RR | within 8 px | sure | wrong | Q_pos | RMSE, deg | RMSE, px |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for kind in given.kinds:
        counts = []
        for truth in puzzles_of(given.shared, kind, given.pictures, given.out):
            counts.append(counts_of(laid(truth, model, given.again, not given.closed), settings))
        print(f"| {kind} | {told(counts)} |", flush=True)


def laid(truth: Collection, model: RingModel, again: bool = False, gaps: bool = True) -> Puzzle:
    """All pieces of a puzzle laid on each other; from the file where that was done with these weights before. gaps: are
    fitted."""
    path = truth.folder.parent / f"joins-{model.mark}.jsonl"
    if again:
        path.unlink(missing_ok=True)
    return puzzle_of(truth, list(load_fragments(truth)), model, path, gaps)


def counts_of(puzzle: Puzzle, settings: SolveSettings, energy: LearnedEnergy | None = None) -> Counts:
    """A puzzle put together, and compared with the truth; energy: of layouts, the one that ships unless another is
    given."""
    by_pair = {join.pair: join for join in puzzle.matches}
    true = [(pair, by_pair[frozenset((pair.source, pair.target))]) for pair in puzzle.truth.pairs]
    off = np.array([_off(puzzle.truth, join, pair.seam) for pair, join in true])
    roughly = sum(is_roughly_right(puzzle.truth, join) for _, join in true)
    matches, assembly = lay_out(puzzle.outlines, puzzle.matches, puzzle.step_px, settings, None, puzzle.judge, energy)
    sure = [match for match in matches if match.probability >= SURE]
    wrong = sum(not is_roughly_right(puzzle.truth, match) for match in sure)
    groups = [*(group.poses for group in assembly.groups), *({name: Rigid2D()} for name in assembly.singles)]
    scores = mean_scores([score_puzzle(own, groups, px_per_mm=1.0) for own in read_puzzles(puzzle.truth.folder)])
    return Counts(len(true), roughly, int((off < 16).sum()), int((off < 8).sum()), len(sure), wrong, scores)


def told(counts: Sequence[Counts]) -> str:
    """The cells of a line."""
    pairs, sure = sum(each.pairs for each in counts), sum(each.sure for each in counts)
    found = [sum(getattr(each, name) for each in counts) for name in ("roughly", "within_16", "within_8")]
    shares = " | ".join(f"{number / max(1, pairs):.3f}" for number in found)
    scores = mean_scores([each.scores for each in counts])
    layout = f"{scores.q_pos:.3f} | {scores.rmse_rotation_deg:.1f} | {scores.rmse_translation_mm:.1f}"
    return f"{pairs} | {shares} | {sure} | {sum(each.wrong for each in counts)} | {layout}"


def is_roughly_right(truth: Collection, join: PairMatch) -> bool:
    """Whether a join lays its pieces within 10 degrees and 60 px of the truth, along what they share."""
    true, pose = truth.lies(join.source, join.target), join.target_from_source
    if true is None or pose is None:
        return False
    turned_deg = float(np.degrees(angle_difference(pose.angle_rad, true.angle_rad)))
    return turned_deg < ROUGHLY_DEG and shifted_px(truth, join) < ROUGHLY_PX


def shifted_px(truth: Collection, join: PairMatch) -> float:
    """How far from its true place a join lays what its pieces share; infinite where they share nothing."""
    true, pose = truth.lies(join.source, join.target), join.target_from_source
    if true is None or pose is None:
        return float("inf")
    shared = join.points[:, 0] if len(join.points) else np.zeros((1, 2))
    return float(np.linalg.norm(pose.apply(shared) - true.apply(shared), axis=1).mean())


def _off(truth: Collection, join: PairMatch, seam: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> float:
    """How far the true seam of a pair lies from its place; of a pair without a known one, what the join shares."""
    pose = join.target_from_source
    if pose is None:
        return float("inf")
    if not len(seam):
        return shifted_px(truth, join)
    true = truth.lies(join.source, join.target)
    assert true is not None
    return off_px(truth, join.source, seam, pose, true)


if __name__ == "__main__":
    main()
