"""The weights of a layout's energy, learned: a logistic regression over merges of torn training pictures.

Each round takes the puzzles apart and puts them together with the weights of the round before, with some noise, and
notes every merge that was laid out and whether it was right; the next weights are those that make what happened
likeliest. The posterior is calibrated on the layouts that come out in the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from pairingnet.assembly.agglomerate import agglomerate
from pairingnet.assembly.bodies import Body, single
from pairingnet.assembly.energy import POWERS, TERMS, LearnedEnergy, confidence_of, powers_of
from pairingnet.assembly.layout import lay_out, problem_of
from pairingnet.assembly.merging import Merge, Problem, off_px
from pairingnet.assembly.optimise import perturbed
from pairingnet.assembly.pieces import usual_gap_px
from pairingnet.config import SolveSettings
from pairingnet.engine.jobs import Workers, run_jobs
from pairingnet.engine.local import progress_bar
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection, read_collection
from pairingnet.io.files import write_json
from pairingnet.io.fingerprint import fingerprint
from pairingnet.io.resume import content_mark
from pairingnet.io.run import read_joins, write_joins
from pairingnet.match.contact import Outline
from pairingnet.match.gap import with_gaps
from pairingnet.match.guided import GuidedMatching, guided_matching
from pairingnet.match.pair import method_for
from pairingnet.match.weights import RingModel, load_model
from pairingnet.prepare.load import load_fragments
from pairingnet.train.verify import few_of, part_of
from pairingnet.types import Fragment, PairMatch

RIGHT_STEPS, RIGHT_PX = 8.0, 8.0  # a pose is right when it lays its seam so near to the truth, by the larger of both
_ROUNDS = 4
_PRIOR = 0.1  # of the weights: a normal distribution, its inverse variance; it only matters for terms that hardly occur
_TINY = 1e-9  # size of an input that never occurs
_MOST_STEPS = 3000  # of the minimiser, which needs some hundred
_RESTARTS = 2  # of the layouts that the posterior is calibrated on
_SIZES = (
    0,
    6,
    0,
    8,
    0,
    10,
)  # pieces of a puzzle, in turn; 0: all: small groups are decided by other terms than large ones
_KINDS = ("held", "against", "apart", "implied", "piece")

# Where learning begins: what pairs say by themselves, and that loops are worth a lot.
_START = {
    "support": 0.6,
    "doubt": 0.4,
    "loops": 2.0,
    "overlap": -0.3,
    "contact": 1.5,
    "guided": 0.3,
    "guided_pairs": 0.2,
}
_START_CALIBRATION: Mapping[str, tuple[float, ...]] = {
    "held": (0.0, 0.3, 0.6),
    "against": (-1.0, 0.3, -0.3),
    "apart": (-1.0, 0.5, 0.3),
    "implied": (0.0, 0.1, 0.6),
    "piece": (0.0, 0.8),
}

Floats = NDArray[np.float64]
Examples = dict[str, list[tuple[Floats, bool]]]


@dataclass(frozen=True, eq=False)
class Puzzle:
    """Fragments with their truth, all pairs matched; judge: the verifier, for poses that no match has."""

    truth: Collection
    outlines: Mapping[str, Outline]
    matches: Sequence[PairMatch]
    step_px: float
    judge: GuidedMatching


@dataclass(frozen=True)
class PuzzleJob:
    """Pictures of a collection, how many of their pieces (0: all), what share of them is lost; weights of the network,
    and the file that keeps the matches."""

    folder: Path
    sources: tuple[str, ...]
    pieces: int
    lost: float
    weights: Path
    kept: Path


def puzzle_of(
    truth: Collection, fragments: Sequence[Fragment], model: RingModel, kept: Path | None = None, gaps: bool = True
) -> Puzzle:
    """Match all pairs of some fragments, or read how they matched; gaps: are fitted where pieces no longer touch."""
    method = method_for(fragments, model)
    features = method.know(list(method.features(fragments)))
    matches = read_joins(kept) if kept is not None else []
    if not matches:
        matches = [method.match(a, b) for a, b in combinations(features, 2)]
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_joins(kept, matches)
    outlines = {each.id: each.outline for each in features}
    matches = with_gaps(matches, outlines, method.step_px) if gaps else matches
    judge = guided_matching(method, features, usual_gap_px(matches))
    return Puzzle(truth, outlines, matches, method.step_px, judge)


def jobs_of(
    folders: Sequence[Path], weights: Path, skipped: int, pictures: int, mixed: int, kept: Path
) -> list[PuzzleJob]:
    """Of each collection: as many pictures after the first `skipped`, one at a time, every second one whole, of the
    others a few pieces; and so many mixtures of four pictures of which a fifth of the pieces is lost."""
    jobs = []
    for folder in folders:
        collection = read_collection(folder)
        sources = sorted({record.source for record in collection.fragments})[skipped:]
        sizes = cycle(_SIZES)
        asked: list[tuple[tuple[str, ...], int, float]] = [((each,), next(sizes), 0.0) for each in sources[:pictures]]
        later = sources[pictures:]
        asked += [(tuple(later[4 * i : 4 * i + 4]), 0, 0.2) for i in range(mixed) if len(later) >= 4 * i + 4]
        for chosen, size, lost in asked:
            mark = fingerprint("puzzle", collection.mark, content_mark(weights), chosen, size, lost)
            jobs.append(PuzzleJob(folder, chosen, size, lost, weights, kept / f"{mark}.jsonl"))
    return jobs


def make_puzzle(job: PuzzleJob) -> Puzzle:
    """The puzzle of a job; its matches are kept, so that what was interrupted goes on."""
    truth = part_of(read_collection(job.folder), job.sources)
    if job.pieces:
        truth = few_of(truth, job.pieces)
    if job.lost:
        truth = without(truth, job.lost, np.random.default_rng(0))
    return puzzle_of(truth, list(load_fragments(truth)), load_model(job.weights), job.kept)


def without(collection: Collection, share: float, rng: np.random.Generator) -> Collection:
    """The same collection; a share of its pieces is lost."""
    kept = {record.id for record in collection.fragments if rng.random() >= share}
    return replace(
        collection,
        fragments=tuple(record for record in collection.fragments if record.id in kept),
        pairs=tuple(pair for pair in collection.pairs if {pair.source, pair.target} <= kept),
    )


def learn(jobs: Sequence[PuzzleJob], workers: Workers = 0) -> dict[str, Any]:
    """The content of a file of weights: with the verifier at hand, and without it."""
    run_jobs(_keep_matches, [job for job in jobs if not job.kept.is_file()], workers, "puzzles")
    puzzles = [make_puzzle(job) for job in jobs]
    return {name: learned_from(puzzles, guided) for name, guided in (("guided", True), ("alone", False))}


def learned_from(puzzles: Sequence[Puzzle], guided: bool, rounds: int = _ROUNDS) -> dict[str, Any]:
    """Weights and calibration, as `energy.load_energy` reads them."""
    confidences = [confidence_of(puzzle.outlines.keys(), puzzle.matches) for puzzle in puzzles]
    energy = _start(float(np.min(confidences)), float(np.max(confidences)))
    seen: list[Floats] = []
    right: list[bool] = []
    examples: Examples = {kind: [] for kind in _KINDS}
    with progress_bar() as bar:
        for number in range(rounds):
            for puzzle in bar.track(puzzles, description=f"merges, round {number + 1}"):
                terms, labels = _merges(puzzle, energy, guided, number)
                seen += terms
                right += labels
            energy = replace(energy, weights=_logistic(np.array(seen), np.array(right)))
        for puzzle in bar.track(puzzles, description="posterior"):
            _add_examples(examples, puzzle, energy, guided)
    loss = _loss(energy.weights.ravel(), np.array(seen).reshape(len(right), -1), np.array(right))
    return {
        "weights": {name: [round(float(w), 4) for w in row] for name, row in zip(TERMS, energy.weights.T, strict=True)},
        "calibration": {kind: _calibrated(found, _START_CALIBRATION[kind]) for kind, found in examples.items()},
        "learned_between": [round(value, 2) for value in energy.learned],
        "merges": len(right),
        "right": int(sum(right)),
        "log_loss_a_right_merge": round(loss / max(1, sum(right)), 4),
    }


def _start(low: float, high: float) -> LearnedEnergy:
    """Where learning begins: the same for clean and worn pieces."""
    return LearnedEnergy(
        _same_for_all([_START.get(name, 0.0) for name in TERMS]),
        {kind: _same_for_all(row) for kind, row in _START_CALIBRATION.items()},
        (low, high),
    )


def _same_for_all(values: Sequence[float]) -> Floats:
    """(P, N): values that do not depend on the confidence."""
    return np.vstack([values, np.zeros((POWERS - 1, len(values)))])


def _keep_matches(job: PuzzleJob) -> None:
    make_puzzle(job)


def problem_of_puzzle(puzzle: Puzzle, energy: LearnedEnergy, guided: bool) -> Problem:
    """All that a layout of a puzzle is made of."""
    judge = puzzle.judge if guided else None
    return problem_of(puzzle.outlines, puzzle.matches, puzzle.step_px, energy=energy, judge=judge)


def _merges(puzzle: Puzzle, energy: LearnedEnergy, guided: bool, seed: int) -> tuple[list[Floats], list[bool]]:
    """Terms (P, T) of all merges that agglomeration lays out, times the powers of the confidence; whether they are
    right."""
    problem = problem_of_puzzle(puzzle, energy, guided)
    powers = _powers(puzzle)
    terms: list[Floats] = []
    right: list[bool] = []

    def note(first: Body, second: Body, merge: Merge) -> None:
        terms.append(np.outer(powers, merge.terms))
        right.append(_is_right(puzzle, problem, first, second, merge))

    start = [single(i) for i in range(len(problem.pieces))]
    agglomerate(perturbed(problem, seed) if seed else problem, start, note)
    return terms, right


def _powers(puzzle: Puzzle) -> Floats:
    return powers_of(confidence_of(puzzle.outlines.keys(), puzzle.matches))


def _is_right(puzzle: Puzzle, problem: Problem, first: Body, second: Body, merge: Merge) -> bool:
    """Whether a merge lays the pieces that its matches join as they lie in the picture."""
    poses = {**first.moved(merge.turn, merge.shift).poses(problem.pieces), **second.poses(problem.pieces)}
    return all(is_right(puzzle, link, poses[link.target].inverse() @ poses[link.source]) for link in merge.links)


def is_right(puzzle: Puzzle, match: PairMatch, placed: Rigid2D | None) -> bool:
    """Whether a pose lays two pieces along their seam as they lie in the picture."""
    true = puzzle.truth.lies(match.source, match.target)
    if true is None or placed is None:
        return False
    limit_px = max(RIGHT_PX, RIGHT_STEPS * puzzle.step_px)
    return off_px(replace(match, target_from_source=true), placed) < limit_px


def _logistic(inputs: Floats, right: NDArray[np.bool_]) -> Floats:
    """Weights (P, N) for inputs (E, P, N) that make what happened likeliest. The prior is on weights of inputs of one
    size, as if all had a root mean square of 1."""
    flat = inputs.reshape(len(inputs), -1)
    size = np.sqrt((flat**2).mean(axis=0)) + _TINY
    scaled = flat / size

    def loss(weights: Floats) -> tuple[float, Floats]:
        log_odds = scaled @ weights
        slope = scaled.T @ (1 / (1 + np.exp(-log_odds.clip(-50, 50))) - right) + _PRIOR * weights
        return _loss(weights, scaled, right) + 0.5 * _PRIOR * float(weights @ weights), slope

    found = minimize(loss, np.zeros(flat.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": _MOST_STEPS})
    return np.asarray(found.x / size).reshape(inputs.shape[1:])


def _loss(weights: Floats, inputs: Floats, right: NDArray[np.bool_]) -> float:
    log_odds = inputs @ weights
    return float(np.logaddexp(0, log_odds).sum() - log_odds[right].sum())


def _add_examples(examples: Examples, puzzle: Puzzle, energy: LearnedEnergy, guided: bool) -> None:
    """What the posterior is calibrated on: what speaks for each match of a layout and each piece, and whether it is
    right."""
    powers = _powers(puzzle)

    def note(kind: str, said: tuple[float, ...], match: PairMatch, pose: Rigid2D | None) -> None:
        examples[kind].append((np.outer(powers, (1.0, *said)), is_right(puzzle, match, pose)))

    judge = puzzle.judge if guided else None
    settings = SolveSettings(restarts=_RESTARTS)
    lay_out(puzzle.outlines, puzzle.matches, puzzle.step_px, settings, judge=judge, energy=energy, watch=note)


def _calibrated(examples: Sequence[tuple[Floats, bool]], start: Sequence[float]) -> list[list[float]]:
    found = _same_for_all(start)
    if examples:
        found = _logistic(np.array([inputs for inputs, _ in examples]), np.array([right for _, right in examples]))
    return [[round(float(value), 4) for value in row] for row in found]


def story_of(folders: Sequence[Path], weights: Path, pictures: int, skipped: int, mixed: int) -> dict[str, Any]:
    """How weights are made, for who makes them again."""
    return {
        "collections": {folder.name: read_collection(folder).mark for folder in folders},
        "weights": content_mark(weights),
        "pictures": pictures,
        "skip": skipped,
        "mixed": mixed,
    }


def write_weights(path: Path, learned: Mapping[str, Any], story: Mapping[str, Any]) -> None:
    """Store weights with how they were made."""
    write_json(path, {"version": 1, **learned, "made_by": dict(story)})
