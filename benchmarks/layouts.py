"""The judge of layouts: does the model lose, or the search? And are the posterior's probabilities honest?

python -m benchmarks.layouts --shared FOLDER [--kinds sherds rubbed] [--mixed] [--keep FOLDER] [--pictures FOLDER]

Puzzles of benchmarks.puzzles. Truth better: of how many puzzles the true layout has less energy than the one that was
found (then the search lost), and in how many more (then the model does, or poses are not known well enough). Bound:
pieces that would lie right if of all candidates exactly the right ones were believed. ECE: calibration error of joins,
and of pieces, with how many there are of each; right is what lies within 8 steps of the contour, and within 8 px where
those are less. --pictures: reliability diagrams are drawn there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.puzzles import PuzzleOf, arguments_of, make, puzzles_of
from benchmarks.solving import RIGHT_PX, judge, wrong_by_px
from pairingnet.assembly.bodies import Body, placed, settled, single
from pairingnet.assembly.energy import load_energy
from pairingnet.assembly.layout import lay_out
from pairingnet.assembly.merging import Problem
from pairingnet.assembly.optimise import energy_of, optimise
from pairingnet.config import SolveSettings
from pairingnet.engine.jobs import run_jobs
from pairingnet.evaluate.metrics import expected_calibration_error, reliability
from pairingnet.evaluate.plots import reliability_figure
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.train.layouts import Puzzle, is_right, problem_of_puzzle
from pairingnet.types import Assembly, Group, PairMatch

Said = list[tuple[float, bool]]  # probabilities, and whether it was so


@dataclass(frozen=True)
class Judgement:
    """Of a puzzle: energies of the true layout and of the one found; pieces right, and their bound; pieces; what was
    said of joins and of pieces."""

    true_energy: float
    found_energy: float
    right: int
    bound: int
    pieces: int
    joins: Said
    placed: Said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments_of(parser)
    parser.add_argument("--pictures", type=Path)
    given = parser.parse_args()
    print("| pieces | truth better | found better | right | bound | joins, ECE | pieces placed, ECE |")
    print("|---|---|---|---|---|---|---|")
    for kind in given.kinds:
        asked = puzzles_of(given.shared, kind, given.weights, given.keep, given.mixed)
        told = run_jobs(partial(_judged, given.layouts, not given.alone), asked, given.jobs, kind)
        print(f"| {kind} | {_row(told)} |", flush=True)
        if given.pictures is not None:
            given.pictures.mkdir(parents=True, exist_ok=True)
            for what, said in (("joins", _all(t.joins for t in told)), ("pieces", _all(t.placed for t in told))):
                reliability_figure(reliability(*_split(said)), given.pictures / f"{kind}-{what}.png", f"{kind}: {what}")


def _row(told: Sequence[Judgement]) -> str:
    better = sum(each.true_energy < each.found_energy for each in told)
    worse = sum(each.true_energy > each.found_energy for each in told)
    right, bound, pieces = (sum(getattr(each, name) for each in told) for name in ("right", "bound", "pieces"))
    calibration = " | ".join(
        f"{len(said)}, {expected_calibration_error(*_split(said)):.3f}"
        for said in (_all(each.joins for each in told), _all(each.placed for each in told))
    )
    return f"{better} | {worse} | {right} of {pieces} | {bound} | {calibration}"


def _all(said: Iterable[Said]) -> Said:
    return [each for some in said for each in some]


def _split(said: Said) -> tuple[list[float], list[bool]]:
    return [chance for chance, _ in said], [right for _, right in said]


def _judged(layouts: Path, guided: bool, asked: PuzzleOf) -> Judgement:
    puzzle = make(asked)
    energy = load_energy(layouts, guided)
    problem = problem_of_puzzle(puzzle, energy, guided)
    found = optimise(problem, [single(i) for i in range(len(problem.pieces))], SolveSettings().restarts)
    judge_of_poses = puzzle.judge if guided else None
    matches, assembly = lay_out(puzzle.outlines, puzzle.matches, puzzle.step_px, judge=judge_of_poses, energy=energy)
    told = judge(puzzle.truth, matches, assembly)
    possible = judge(puzzle.truth, [], _best_possible(puzzle, problem))
    return Judgement(
        energy_of(problem, true_layout(puzzle.truth, problem)),
        energy_of(problem, found),
        told.right_fragments,
        possible.right_fragments,
        told.fragments,
        [
            (match.probability, is_right(puzzle, match, match.target_from_source))
            for match in matches
            if match.target_from_source is not None
        ],
        _all(_of_pieces(puzzle, group) for group in assembly.groups),
    )


def _of_pieces(puzzle: Puzzle, group: Group) -> Said:
    """What is said of each piece of a group beside the one that is held best, and whether it lies right."""
    core = max(group.probabilities, key=lambda name: (group.probabilities[name], name))
    said: Said = []
    for name, chance in group.probabilities.items():
        if name != core:
            middle = puzzle.outlines[name].points.mean(axis=0)
            points = np.array([[middle, middle]])
            match = PairMatch(name, core, group.poses[core].inverse() @ group.poses[name], points=points)
            said.append((chance, is_right(puzzle, match, match.target_from_source)))
    return said


def true_layout(truth: Collection, problem: Problem) -> list[Body]:
    """The pieces as they lie in their pictures, as far as neighbours lead; those of strangers alone."""
    bodies = []
    for names in _connected(truth, [(pair.source, pair.target) for pair in truth.pairs]):
        poses = {name: truth.by_id[name].canvas_from_fragment or Rigid2D() for name in names}
        bodies.append(placed(problem.pieces, poses, ()))
    return bodies


def _best_possible(puzzle: Puzzle, problem: Problem) -> Assembly:
    """The groups that all right candidates make, each as near to the truth as these candidates are."""
    right = [
        match
        for match in problem.candidates.matches
        if wrong_by_px(puzzle.truth, match, match.target_from_source) < 2 * RIGHT_PX
    ]
    groups = []
    for names in _connected(puzzle.truth, [(match.source, match.target) for match in right]):
        if len(names) > 1:
            poses = {name: puzzle.truth.by_id[name].canvas_from_fragment or Rigid2D() for name in names}
            links = [match for match in right if match.source in names]
            body = settled(problem.pieces, placed(problem.pieces, poses, links), {}, exact=True)
            groups.append(Group(body.poses(problem.pieces)))
    return Assembly(tuple(groups))


def _connected(truth: Collection, pairs: Iterable[tuple[str, str]]) -> list[set[str]]:
    """Fragments that pairs lead from one to the other."""
    part_of = {record.id: {record.id} for record in truth.fragments}
    for a, b in pairs:
        if part_of[a] is not part_of[b]:
            part_of[a] |= part_of[b]
            part_of |= dict.fromkeys(part_of[b], part_of[a])
    return list({id(part): part for part in part_of.values()}.values())


if __name__ == "__main__":
    main()
