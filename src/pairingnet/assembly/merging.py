"""Two bodies: in which poses they could be merged, and what each such merge would add to the energy.

Candidates between two bodies propose relative poses; those that agree propose one together. A proposal gets a bound
first, from its candidates alone; only what may be worth it is laid out piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pairingnet.assembly.bodies import Body
from pairingnet.assembly.candidates import SEAM_POINTS, Candidates, Complex, Numbers
from pairingnet.assembly.energy import LEAST_CONTACT, NEUTRAL, Energy, Pair, Terms, terms_of
from pairingnet.assembly.pieces import Meeting, Pieces
from pairingnet.geometry import Rigid2D, angle_difference
from pairingnet.types import PairMatch

# Right candidates lie within this of the truth (docs/ring.md: 99 of 100 triangles of right ones close within it), wrong
# ones hardly ever of each other.
AGREE_STEPS = 12.0
AGREE_RAD = float(np.radians(12.0))
_ABOUT = 2.5  # times that; candidates no farther off draw two bodies to each other
_KERNEL_STEPS = np.geomspace(15.0, 1.0, 6)  # of graduated non-convexity: from everything about there to what fits
_PROPOSALS = 2  # poses of two bodies that are worth a closer look
_MOST_OF_A_PAIR = 6.0  # log-odds that a pair which no candidate speaks of can add, at most
_USUAL_CONTACT = 0.6  # hundreds of steps of contact of one pair
_TURNS = 64.0  # cells in a radian of the grid on which poses are judged; ICP takes them from there

Judge = Callable[[str, str, Rigid2D], PairMatch | None]  # the verifier's opinion of two fragments in a pose


@dataclass(frozen=True, eq=False)
class Problem:
    """All that a layout is made of: the pieces, the candidates between them, the energy, and whom to ask about pairs
    that no candidate speaks of. rejected: matches that a person has ruled out; locked: names of fragments that move as
    one, by the name of one of them."""

    pieces: Pieces
    candidates: Candidates
    energy: Energy
    judge: Judge | None = None
    rejected: Sequence[PairMatch] = ()
    locked: Mapping[str, str] = field(default_factory=dict)


class Placed(NamedTuple):
    """Two pieces by number, and where one lies to the other: other_from_one."""

    one: int
    other: int
    turn: complex
    shift: complex


class Between(NamedTuple):
    """Candidates between two bodies, as if all went from the first to the second: their numbers (K,); turn, shift (K,):
    second_from_first, of the bodies; seam (K, S) in the first one's frame, and wanted (K, S): where each candidate
    wants its own seam in the second one's."""

    numbers: Numbers
    turn: Complex
    shift: Complex
    seam: Complex
    wanted: Complex


@dataclass(frozen=True, eq=False)
class Proposal:
    """A pose in which two bodies may be merged: the candidate that proposes it, and the most that it can gain."""

    bound: float
    between: Between
    leader: int


@dataclass(frozen=True, eq=False)
class Merge:
    """A merge, laid out: second_from_first of the bodies, the matches that hold in it, its terms and its gain."""

    gain: float
    terms: Terms
    turn: complex
    shift: complex
    links: tuple[PairMatch, ...]


def between(problem: Problem, first: Body, second: Body) -> Between:
    """The candidates between two bodies."""
    candidates = problem.candidates
    place = [np.full(len(problem.pieces), -1, np.intp) for _ in range(2)]
    for at, body in zip(place, (first, second), strict=True):
        at[body.members] = np.arange(len(body))
    smaller, (own, others) = (first, place) if len(first) <= len(second) else (second, place[::-1])
    numbers = np.unique(np.concatenate([candidates.of_fragment[member] for member in smaller.members]))
    ends = candidates.source[numbers], candidates.target[numbers]
    crosses = ((own[ends[0]] >= 0) & (others[ends[1]] >= 0)) | ((own[ends[1]] >= 0) & (others[ends[0]] >= 0))
    numbers = numbers[crosses]
    source, target = candidates.source[numbers], candidates.target[numbers]
    turn, shift, seam = candidates.turn[numbers], candidates.shift[numbers], candidates.seam[numbers]
    forth = place[0][source] >= 0
    a, b = (np.where(forth, *ends) for ends in ((source, target), (target, source)))
    seam = np.where(forth[:, None], seam, turn[:, None] * seam + shift[:, None])
    turn, shift = np.where(forth, turn, turn.conj()), np.where(forth, shift, -turn.conj() * shift)
    i, j = place[0][a], place[1][b]
    seam = first.turn[i][:, None] * seam + first.shift[i][:, None]
    wanted_turn = second.turn[j] * turn * first.turn[i].conj()
    wanted_shift = second.turn[j] * shift + second.shift[j] - wanted_turn * first.shift[i]
    return Between(numbers, wanted_turn, wanted_shift, seam, wanted_turn[:, None] * seam + wanted_shift[:, None])


def proposals(problem: Problem, first: Body, second: Body, least: float) -> Iterator[Proposal]:
    """The poses that candidates between two bodies propose, if they may gain as much, the most promising first."""
    lines = between(problem, first, second)
    if not len(lines.numbers):
        return
    step_px = problem.pieces.step_px
    laid = lines.turn[:, None, None] * lines.seam + lines.shift[:, None, None]
    turned = np.abs(np.angle(lines.turn * lines.turn.conj()[:, None]))
    agrees = (np.abs(laid - lines.wanted).mean(axis=2) < AGREE_STEPS * step_px) & (turned < AGREE_RAD)
    bounds = _bounds(problem, lines, agrees)
    taken = np.zeros(len(bounds), dtype=bool)
    given = 0
    for leader in np.argsort(-bounds, kind="stable"):
        if bounds[leader] < least or given == _PROPOSALS:
            return
        if not taken[leader]:
            taken |= agrees[leader]
            given += 1
            yield Proposal(float(bounds[leader]), lines, int(leader))


def bounds_of_pairs(problem: Problem) -> NDArray[np.float64]:
    """(pairs,): the most that merging two single fragments can gain, by the number of their pair."""
    candidates, energy = problem.candidates, problem.energy
    best = np.full(int(candidates.pair.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(best, candidates.pair, candidates.log_odds)
    support = energy.weight("support") * np.maximum(best, 0) + energy.weight("doubt") * np.minimum(best, 0)
    return np.asarray(_price(problem) + _usual_contact(energy) + support)


def _price(problem: Problem) -> float:
    """What a merge costs before anything speaks for it."""
    return problem.energy.weight("merges") + problem.energy.weight("crowd") * float(np.log(max(1, len(problem.pieces))))


def _usual_contact(energy: Energy) -> float:
    """What the contact of a pair adds, as far as it is usual."""
    return max(0.0, energy.weight("contact")) * _USUAL_CONTACT


def _bounds(problem: Problem, lines: Between, agrees: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(K,): the most that the pose of each candidate can gain, by the candidates that agree (K, K) alone."""
    candidates, energy = problem.candidates, problem.energy
    log_odds = candidates.log_odds[lines.numbers]
    _, column = np.unique(candidates.pair[lines.numbers], return_inverse=True)
    best = np.full((len(log_odds), int(column.max()) + 1), -np.inf)
    rows, columns = np.nonzero(agrees)
    np.maximum.at(best, (rows, column[columns]), log_odds[columns])
    holds = np.isfinite(best)
    best = np.where(holds, best, 0.0)
    count = holds.sum(axis=1)
    bounds = _price(problem) + energy.weight("loops") * (count - 1) + _usual_contact(energy) * count
    bounds += energy.weight("support") * np.maximum(best, 0).sum(axis=1)
    bounds += energy.weight("doubt") * np.minimum(best, 0).sum(axis=1)
    return np.asarray(bounds)


def laid_out(problem: Problem, first: Body, second: Body, proposal: Proposal, least: float) -> Merge | None:
    """The merge of a proposal, piece by piece; None where it gains less than `least`, would lay one piece
    on another, or was ruled out by a person."""
    turn, shift = _drawn_near(problem, proposal)
    lines = proposal.between
    agrees, residual_steps = _agreement(problem, lines, turn, shift)
    held = _likeliest(problem.candidates, lines.numbers[agrees])
    moved = first.moved(turn, shift)
    if not held or _is_ruled_out(problem, moved, second):
        return None
    against = _likeliest(problem.candidates, lines.numbers[~agrees])
    contradicted = [float(problem.candidates.log_odds[against[pair]]) for pair in against.keys() - held.keys()]
    residuals = dict(zip(lines.numbers.tolist(), residual_steps.tolist(), strict=True))
    met = _met(problem.pieces, _across(problem.pieces, moved, second))
    if met is None:
        return None
    pairs, unknown = known_pairs(problem, met, held, residuals)
    so_far = problem.energy.gain(terms_of(pairs, contradicted, 1, len(problem.pieces)))
    if so_far + _MOST_OF_A_PAIR * len(unknown) < least:  # to ask the verifier costs more than all else
        return None
    asked, links = asked_pairs(problem, unknown)
    terms = terms_of([*pairs, *asked], contradicted, 1, len(problem.pieces))
    links = [*(problem.candidates.matches[number] for number in held.values()), *links]
    return Merge(problem.energy.gain(terms), terms, turn, shift, tuple(links))


@dataclass(frozen=True, eq=False)
class Inside:
    """A body, looked at as a whole: the pairs that it brings together; of candidates within it, by pair, the number of
    the one that holds (`held`), and of the likeliest of those pairs in which none does (`against`); matches of pairs
    that no candidate speaks of, but the verifier."""

    pairs: tuple[Pair, ...]
    held: Mapping[int, int]
    against: Mapping[int, int]
    judged: tuple[PairMatch, ...]


def look_inside(problem: Problem, body: Body) -> Inside:
    """All that a body says about its own pieces."""
    numbers, placed_turn, placed_shift = _inside(problem, body)
    candidates, step_px = problem.candidates, problem.pieces.step_px
    seam, turn, shift = candidates.seam[numbers], candidates.turn[numbers], candidates.shift[numbers]
    laid = placed_turn[:, None] * seam + placed_shift[:, None]
    off_steps = np.abs(laid - (turn[:, None] * seam + shift[:, None])).mean(axis=1) / step_px
    agrees = (off_steps < AGREE_STEPS) & (np.abs(np.angle(turn * placed_turn.conj())) < AGREE_RAD)
    held, against = (_likeliest(candidates, numbers[which]) for which in (agrees, ~agrees))
    residuals = dict(zip(numbers.tolist(), off_steps.tolist(), strict=True))
    placed = (pose for pose in _across(problem.pieces, body, body) if pose.one < pose.other)
    met = [(pose, problem.pieces.meeting(*pose)) for pose in placed]
    pairs, unknown = known_pairs(problem, met, held, residuals)
    asked, judged_matches = asked_pairs(problem, unknown)
    against = {pair: number for pair, number in against.items() if pair not in held}
    return Inside((*pairs, *asked), held, against, tuple(judged_matches))


def layout_terms(problem: Problem, body: Body) -> Terms:
    """The terms of a whole body, as if it had been merged in one go."""
    inside = look_inside(problem, body)
    contradicted = [float(problem.candidates.log_odds[number]) for number in inside.against.values()]
    return terms_of(inside.pairs, contradicted, len(body) - 1, len(problem.pieces))


def _met(pieces: Pieces, placed: Iterable[Placed]) -> list[tuple[Placed, Meeting]] | None:
    """How pieces meet; None where one would lie on another."""
    met = []
    for pose in placed:
        meeting = pieces.meeting(*pose)
        if meeting.on_top:
            return None
        met.append((pose, meeting))
    return met


def known_pairs(
    problem: Problem, met: Iterable[tuple[Placed, Meeting]], held: Mapping[int, int], residuals: Mapping[int, float]
) -> tuple[list[Pair], list[tuple[Placed, Meeting]]]:
    """Pieces that lie beside each other, with what candidates say of them; and those of which none does, but the
    verifier may. held: the number of the candidate that holds, by pair; residuals: by how many steps each is off."""
    candidates = problem.candidates
    holding = {frozenset((int(candidates.source[k]), int(candidates.target[k]))): k for k in held.values()}
    pairs: list[Pair] = []
    unknown: list[tuple[Placed, Meeting]] = []
    for pose, meeting in met:
        number = holding.get(frozenset((pose.one, pose.other)))
        if number is not None:
            residual = min(residuals[number], AGREE_STEPS)
            pairs.append(Pair(pose[:2], meeting, float(candidates.log_odds[number]), residual))
        elif problem.judge is not None and meeting.contact >= LEAST_CONTACT:
            unknown.append((pose, meeting))
        else:
            pairs.append(Pair(pose[:2], meeting))
    return pairs, unknown


def asked_pairs(problem: Problem, unknown: Iterable[tuple[Placed, Meeting]]) -> tuple[list[Pair], list[PairMatch]]:
    """Pairs that no candidate speaks of, judged where they lie; and matches of those that fit."""
    pairs: list[Pair] = []
    links: list[PairMatch] = []
    for pose, meeting in unknown:
        match = judged(problem, pose)
        pairs.append(Pair(pose[:2], meeting, judged=None if match is None else match.score))
        if match is not None and match.score > NEUTRAL:
            links.append(match)
    return pairs, links


def judged(problem: Problem, pose: Placed) -> PairMatch | None:
    """What the verifier says of two pieces where they lie; the same whichever of them is named first, and for all poses
    that are nearly the same."""
    if problem.judge is None:
        return None
    names = problem.pieces.names
    one, other, turn, shift = pose
    if one > other:
        one, other, turn, shift = other, one, turn.conjugate(), -turn.conjugate() * shift
    cell_px = problem.pieces.step_px
    angle = round(float(np.angle(turn)) * _TURNS) / _TURNS
    near = Rigid2D(angle, round(shift.real / cell_px) * cell_px, round(shift.imag / cell_px) * cell_px)
    return problem.judge(names[one], names[other], near)


def _drawn_near(problem: Problem, proposal: Proposal) -> tuple[complex, complex]:
    """The pose between all candidates that want it about there, not that of one alone: weighted Procrustes over their
    seams, made robust by graduated non-convexity."""
    lines, step_px = proposal.between, problem.pieces.step_px
    turn, shift = complex(lines.turn[proposal.leader]), complex(lines.shift[proposal.leader])
    near, _ = _agreement(problem, lines, turn, shift, _ABOUT)
    if near.sum() < 2:
        return turn, shift
    seam, wanted = lines.seam[near], lines.wanted[near]
    likely = np.sqrt(1 / (1 + np.exp(-problem.candidates.log_odds[lines.numbers[near]])))
    for kernel_px in _KERNEL_STEPS * step_px:
        off_px = np.abs(turn * seam + shift - wanted).mean(axis=1)
        weight = np.repeat(likely / (1 + (off_px / kernel_px) ** 2) ** 2, SEAM_POINTS)
        weight /= weight.sum()
        from_here, to_there = weight @ seam.ravel(), weight @ wanted.ravel()
        direction = (weight * (wanted.ravel() - to_there)) @ (seam.ravel() - from_here).conj()
        if abs(direction) < 1e-9:  # all in one place: no turn follows from it
            break
        turn = complex(direction / abs(direction))
        shift = complex(to_there - turn * from_here)
    return turn, shift


def _agreement(
    problem: Problem, lines: Between, turn: complex, shift: complex, times: float = 1.0
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """(K,), (K,): which candidates hold in a pose of two bodies, and by how many steps each is off along its seam."""
    off_steps = np.abs(turn * lines.seam + shift - lines.wanted).mean(axis=1) / problem.pieces.step_px
    turned = np.abs(np.angle(lines.turn * np.conj(turn)))
    return (off_steps < times * AGREE_STEPS) & (turned < times * AGREE_RAD), off_steps


def _likeliest(candidates: Candidates, numbers: Numbers) -> dict[int, int]:
    """The likeliest of some candidates, for each pair."""
    best: dict[int, int] = {}
    for number in numbers.tolist():
        pair = int(candidates.pair[number])
        if pair not in best or candidates.log_odds[number] > candidates.log_odds[best[pair]]:
            best[pair] = number
    return best


def _inside(problem: Problem, body: Body) -> tuple[Numbers, Complex, Complex]:
    """Candidates (K,) within a body, and where it has placed their sources: target_from_source (K,), (K,)."""
    candidates = problem.candidates
    place = np.full(len(problem.pieces), -1, np.intp)
    place[body.members] = np.arange(len(body))
    numbers = np.unique(np.concatenate([candidates.of_fragment[member] for member in body.members]))
    numbers = numbers[(place[candidates.source[numbers]] >= 0) & (place[candidates.target[numbers]] >= 0)]
    i, j = place[candidates.source[numbers]], place[candidates.target[numbers]]
    back = body.turn[j].conj()
    return numbers, back * body.turn[i], back * (body.shift[i] - body.shift[j])


def _across(pieces: Pieces, first: Body, second: Body) -> Iterator[Placed]:
    """Pieces of two bodies in one frame that may touch, of the first and of the second."""
    for i, j in pieces.near(first.members, first.centres(pieces), second.members, second.centres(pieces)).tolist():
        back = np.conj(second.turn[j])
        turn, shift = back * first.turn[i], back * (first.shift[i] - second.shift[j])
        yield Placed(int(first.members[i]), int(second.members[j]), complex(turn), complex(shift))


def _is_ruled_out(problem: Problem, first: Body, second: Body) -> bool:
    """Whether two bodies in one frame would lie as a person has said that two of their pieces do not lie."""
    if not problem.rejected:
        return False
    poses = first.poses(problem.pieces), second.poses(problem.pieces)
    for match in problem.rejected:
        for own, others in (poses, poses[::-1]):
            if match.source not in own or match.target not in others:
                continue
            if holds(match, others[match.target].inverse() @ own[match.source], problem.pieces.step_px):
                return True
    return False


def holds(match: PairMatch, placed: Rigid2D, step_px: float) -> bool:
    """Whether two pieces that lie as `target_from_source` lie as a match says."""
    assert match.target_from_source is not None
    turned = angle_difference(placed.angle_rad, match.target_from_source.angle_rad)
    return turned < AGREE_RAD and off_px(match, placed) < AGREE_STEPS * step_px


def off_px(match: PairMatch, placed: Rigid2D) -> float:
    """How far from where a match says its source lies in another pose, along the seam, on average."""
    assert match.target_from_source is not None
    points = match.points[:, 0] if len(match.points) else np.zeros((1, 2))
    return float(np.linalg.norm(placed.apply(points) - match.target_from_source.apply(points), axis=1).mean())
