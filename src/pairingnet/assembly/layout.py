"""Pair matches -> groups of placed fragments, and how sure they are. The way of this folder, on one page.

matches -> candidate poses (`candidates.py`), between pieces (`pieces.py`)
        -> bodies of least energy (`optimise.py`: merges (`merging.py`), best first (`agglomerate.py`), what
           a merge is worth (`energy.py`), poses between all matches (`pose_graph.py`))
        -> posterior probabilities of joins and pieces (`posterior.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from pairingnet.assembly.bodies import Body, placed, settled, single, united
from pairingnet.assembly.candidates import all_poses, as_complex, by_pair, gather
from pairingnet.assembly.energy import LEAST_CONTACT, Energy, LearnedEnergy, confidence_of, load_energy
from pairingnet.assembly.merging import Inside, Judge, Problem, holds, laid_out, look_inside, off_px, proposals
from pairingnet.assembly.optimise import optimise
from pairingnet.assembly.pieces import Pieces, pieces_of, usual_gap_px
from pairingnet.assembly.pose_graph import straightened
from pairingnet.assembly.posterior import CutTree, calibrated, capacities, probability_of
from pairingnet.config import SolveSettings
from pairingnet.geometry import Points, Rigid2D
from pairingnet.match.contact import Outline, contact
from pairingnet.types import Assembly, Decisions, Group, PairMatch

_LEAST_CANDIDATE = 1e-3  # probability; among pieces that other matches hold together, even such a pose may be right
_OWN_POSE_STEPS = 2.0  # a match that is no farther off from its group keeps its own pose
_SAME_PX = 0.5
_DECIDED = 1e3  # log-odds of what a person has decided
_ALONE = "probability_alone"  # what a pair says by itself, in the evidence of a match
Watch = Callable[[str, tuple[float, ...], PairMatch, Rigid2D | None], None]
UNJUDGED = -6.0  # log-odds of an implied pair that nobody could judge
_NO_GAIN = -10.0  # log-odds of a merge that cannot be


def lay_out(
    outlines: Mapping[str, Outline],
    matches: Sequence[PairMatch],
    step_px: float,
    settings: SolveSettings | None = None,
    decisions: Decisions | None = None,
    judge: Judge | None = None,
    energy: LearnedEnergy | None = None,
    watch: Watch | None = None,
) -> tuple[list[PairMatch], Assembly]:
    """Put fragments together: the matches that are worth a look (`settings.least`) with what the layout
    says of them, the likeliest first, and the groups.

    judge: the verifier, asked about pairs that a layout brings together though no match speaks of them; watch: sees
    what the posterior of every match and piece is made of.
    """
    settings, decisions = settings or SolveSettings(), decisions or Decisions()
    pieces = pieces_of(outlines, step_px, usual_gap_px(matches))
    matches = _as_seen(pieces, matches, decisions.seen)
    learned = energy or load_energy(guided=judge is not None)
    problem = _problem(pieces, matches, decisions, judge, learned.at(confidence_of(pieces.names, matches)))
    bodies = optimise(problem, _decided(problem, matches, decisions), settings.restarts)
    groups = [_finished(problem, body, watch or _nobody) for body in bodies if len(body) > 1]
    groups.sort(key=lambda known: (-len(known.body), min(known.poses)))
    worth = [
        replace(match, others=tuple(other for other in match.others if other.probability >= settings.least))
        for match in matches
        if match.probability >= settings.least or match.pair in _words(decisions)
    ]
    known = _with_posterior(problem, groups, bodies, worth, decisions, watch or _nobody)
    return known, _as_assembly(pieces, groups, known)


def problem_of(
    outlines: Mapping[str, Outline],
    matches: Sequence[PairMatch],
    step_px: float,
    energy: LearnedEnergy,
    judge: Judge | None = None,
) -> Problem:
    """What `lay_out` makes of its matches before it optimises, where no person has decided anything."""
    pieces = pieces_of(outlines, step_px, usual_gap_px(matches))
    return _problem(pieces, matches, Decisions(), judge, energy.at(confidence_of(pieces.names, matches)))


@dataclass(frozen=True, eq=False)
class _Finished:
    """A group whose poses are final: as a body and by name, what it says of its pieces, its cuts, and how likely each
    piece lies right."""

    body: Body
    poses: Mapping[str, Rigid2D]
    inside: Inside
    cuts: CutTree
    probabilities: Mapping[str, float]


def _problem(
    pieces: Pieces, matches: Sequence[PairMatch], decisions: Decisions, judge: Judge | None, energy: Energy
) -> Problem:
    """What may be merged, and what a person has ruled out or tied together."""
    rejected = [pose for match in matches if match.pair in decisions.rejected for pose in (match, *match.others)]
    open_matches = [match for match in matches if match.pair not in _words(decisions)]
    sure = [replace(match, score=_DECIDED, others=()) for match in matches if match.pair in decisions.accepted]
    candidates = gather(pieces.names, [*all_poses(open_matches, _LEAST_CANDIDATE), *all_poses(sure, 0.0)])
    ruled_out = tuple(match for match in rejected if match.target_from_source is not None)
    return Problem(pieces, candidates, energy, judge, ruled_out, _locked(pieces, decisions.locked))


def _locked(pieces: Pieces, matches: Iterable[PairMatch]) -> dict[str, str]:
    """Fragments that move as one, by the first of their names."""
    body_of: dict[str, str] = {}
    for match in matches:
        if match.pair <= set(pieces.names):
            one, other = (body_of.get(name, name) for name in (match.source, match.target))
            first = min(one, other)
            body_of |= dict.fromkeys((match.source, match.target), first)
            body_of = {name: first if body in (one, other) else body for name, body in body_of.items()}
    return body_of


def _decided(problem: Problem, matches: Iterable[PairMatch], decisions: Decisions) -> list[Body]:
    """Where everything lies before anything is optimised: alone, but for what people have decided."""
    pieces = problem.pieces
    number = {name: i for i, name in enumerate(pieces.names)}
    bodies = [single(i) for i in range(len(pieces))]
    body_of = list(range(len(pieces)))
    accepted = [replace(match, score=_DECIDED) for match in matches if match.pair in decisions.accepted]
    for match in (*decisions.locked, *accepted):
        if match.target_from_source is None or not match.pair <= number.keys():
            continue
        source, target = number[match.source], number[match.target]
        one, other = body_of[source], body_of[target]
        if one == other:
            continue
        moved = _carried(pieces, match, bodies[one], bodies[other])
        bodies[other] = united(pieces, moved, bodies[other], [match], problem.locked)
        for member in moved.members:
            body_of[member] = other
    return [bodies[i] for i in sorted(set(body_of))]


def _carried(pieces: Pieces, match: PairMatch, one: Body, other: Body) -> Body:
    """The source's body, moved as a whole to where a match wants it beside the target's."""
    assert match.target_from_source is not None
    poses, beside = one.poses(pieces), other.poses(pieces)
    shift = beside[match.target] @ match.target_from_source @ poses[match.source].inverse()
    (turn,), (by,) = as_complex([shift])
    return one.moved(complex(turn), complex(by))


def _finished(problem: Problem, body: Body, watch: Watch) -> _Finished:
    """A group in its final poses: tight matches count for more now, and its box stands straight."""
    pieces, energy = problem.pieces, problem.energy
    poses = settled(pieces, body, problem.locked, exact=True).poses(pieces)
    poses = straightened(dict(zip(pieces.names, pieces.outlines, strict=True)), poses)
    final = placed(pieces, poses, body.links)
    inside = look_inside(problem, final)
    price = energy.weight("merges") + energy.weight("crowd") * float(np.log(len(pieces))) - energy.weight("loops")
    held_by = _with_decided(capacities(energy, inside.pairs), pieces, body.links)
    cuts = CutTree(final.members.tolist(), held_by, price)
    for member in final.members.tolist():
        a, b = pieces.names[member], pieces.names[cuts.core]
        if a != b:
            points = np.array([[pieces.centres[member].real, pieces.centres[member].imag]])[:, None].repeat(2, axis=1)
            match = PairMatch(a, b, poses[b].inverse() @ poses[a], points=points)
            watch("piece", (cuts.to_core(member),), match, match.target_from_source)
    chances = {
        pieces.names[member]: probability_of(calibrated(energy, "piece", cuts.to_core(member)))
        for member in final.members.tolist()
    }
    return _Finished(final, poses, inside, cuts, chances)


def _with_decided(
    held_by: dict[tuple[int, int], float], pieces: Pieces, links: Iterable[PairMatch]
) -> dict[tuple[int, int], float]:
    """What a person has decided is not to be cut."""
    number = {name: i for i, name in enumerate(pieces.names)}
    for link in links:
        if link.score >= _DECIDED:
            ends = sorted((number[link.source], number[link.target]))
            held_by[ends[0], ends[1]] = _DECIDED
    return held_by


def _with_posterior(
    problem: Problem,
    groups: Sequence[_Finished],
    bodies: Sequence[Body],
    matches: Sequence[PairMatch],
    decisions: Decisions,
    watch: Watch,
) -> list[PairMatch]:
    """One match of each pair with what the layout says of it, and those that only the layout knows."""
    group_of = {name: group for group in groups for name in group.poses}
    number = {name: i for i, name in enumerate(problem.pieces.names)}
    body_of = {int(member): place for place, body in enumerate(bodies) for member in body.members}

    @cache
    def gain_of(one: int, other: int) -> float:
        return _gain_of_merging(problem, bodies[one], bodies[other])

    known: dict[frozenset[str], PairMatch] = {}
    for match in matches:
        if match.target_from_source is None:
            known[match.pair] = match
            continue
        one, other = number[match.source], number[match.target]
        group = group_of.get(match.source)
        if match.pair in decisions.rejected or match.pair in decisions.accepted:
            known[match.pair] = match
        elif group is None or group is not group_of.get(match.target):
            gain = gain_of(*sorted((body_of[one], body_of[other])))
            watch("apart", (match.score, gain), match, match.target_from_source)
            log_odds = calibrated(problem.energy, "apart", match.score, gain)
            known[match.pair] = _with_log_odds(match, log_odds)
        else:
            known[match.pair] = _within(problem, group, match, (one, other), watch)
    for group in groups:
        for match in _implied(problem, group, watch):
            if match.pair not in decisions.rejected and match.pair not in known:
                known[match.pair] = match
    return sorted(known.values(), key=lambda match: (-match.score, match.source, match.target))


def _within(problem: Problem, group: _Finished, match: PairMatch, ends: tuple[int, int], watch: Watch) -> PairMatch:
    """A match within a group: held by it, or against it."""
    cut = group.cuts.between(*ends)
    placed_pose = group.poses[match.target].inverse() @ group.poses[match.source]
    step_px = problem.pieces.step_px
    poses = [pose for pose in (match, *match.others) if holds(pose, placed_pose, step_px)]
    if not poses:
        watch("against", (match.score, cut), match, match.target_from_source)
        return _with_log_odds(match, calibrated(problem.energy, "against", match.score, cut))
    best = replace(poses[0], others=match.others if poses[0] is match else (replace(match, others=()),))
    if off_px(best, placed_pose) >= _OWN_POSE_STEPS * step_px:
        best = replace(best, target_from_source=placed_pose)
    watch("held", (best.score, cut), best, best.target_from_source)
    return _with_log_odds(best, calibrated(problem.energy, "held", best.score, cut))


def _gain_of_merging(problem: Problem, one: Body, other: Body) -> float:
    """The most that merging two bodies of the layout could gain."""
    gains = [_NO_GAIN]
    for proposal in proposals(problem, one, other, _NO_GAIN):
        merge = laid_out(problem, one, other, proposal, _NO_GAIN)
        gains += [merge.gain] if merge is not None else []
    return max(gains)


def _implied(problem: Problem, group: _Finished, watch: Watch) -> Iterator[PairMatch]:
    """Neighbours in a group that no candidate speaks of: where they lie follows from the others."""
    names, outlines = problem.pieces.names, problem.pieces.outlines
    judged = {match.pair: match for match in group.inside.judged}
    for pair in group.inside.pairs:
        if pair.held is not None or pair.meeting.contact < LEAST_CONTACT:
            continue
        a, b = (names[end] for end in pair.ends)
        pose = group.poses[b].inverse() @ group.poses[a]
        evidence = {"implied": 1.0, "contact_px": round(pair.meeting.contact * problem.pieces.step_px, 1)}
        alone = judged.get(frozenset((a, b)))
        points = _seam(outlines[pair.ends[0]], outlines[pair.ends[1]], pose, problem.pieces.reach_px)
        said = (UNJUDGED if pair.judged is None else pair.judged, group.cuts.between(*pair.ends))
        log_odds = calibrated(problem.energy, "implied", *said)
        match = PairMatch(a, b, pose, points=points, probability=float("nan"), evidence=evidence)
        watch("implied", said, match, pose)
        yield replace(
            _with_log_odds(match, log_odds),
            evidence=evidence | ({_ALONE: round(alone.probability, 4)} if alone is not None else {}),
        )


def _seam(one: Outline, other: Outline, pose: Rigid2D, reach_px: float) -> Points:
    touching = contact(one, other, pose, reach_px)
    return np.stack([one.points[touching.rows], other.points[touching.columns]], axis=1)


def _as_seen(pieces: Pieces, matches: Sequence[PairMatch], seen: Sequence[PairMatch]) -> list[PairMatch]:
    """The matches, those that a person has accepted as they were then: groups may have shown another pose than the pair
    has by itself, or a match that there is none of alone."""
    known = {match.pair: match for match in matches}
    outlines = dict(zip(pieces.names, pieces.outlines, strict=True))
    for match in seen:
        pose = match.target_from_source
        if pose is None or not match.pair <= outlines.keys():
            continue
        own = known.get(match.pair)
        if own is None or own.source != match.source or own.target_from_source is None or off_px(own, pose) > _SAME_PX:
            seam = _seam(outlines[match.source], outlines[match.target], pose, pieces.reach_px)
            known[match.pair] = replace(match, points=seam)
    return list(known.values())


def _words(decisions: Decisions) -> set[frozenset[str]]:
    """Pairs of which a person has said something."""
    return {*decisions.accepted, *decisions.rejected}


def _with_log_odds(match: PairMatch, log_odds: float) -> PairMatch:
    """The same match with what the layout says; what the pair says by itself is kept in its evidence."""
    log_odds = round(log_odds, 6)
    alone = {} if np.isnan(match.probability) else {_ALONE: round(match.probability, 4)}
    return replace(match, score=log_odds, probability=probability_of(log_odds), evidence={**alone, **match.evidence})


def _nobody(_kind: str, _said: tuple[float, ...], _match: PairMatch, _pose: Rigid2D | None) -> None:
    """Watches nothing."""


def _as_assembly(pieces: Pieces, groups: Sequence[_Finished], matches: Iterable[PairMatch]) -> Assembly:
    """Groups with their matches: those that hold, and those that the groups contradict."""
    by_name = by_pair(matches)
    made: list[Group] = []
    confirmed: list[PairMatch] = []
    contradicted: list[PairMatch] = []
    for group in groups:
        own = [ways[0] for pair, ways in by_name.items() if pair <= group.poses.keys() and ways[0].target_from_source]
        held = [m for m in own if holds(m, group.poses[m.target].inverse() @ group.poses[m.source], pieces.step_px)]
        confirmed += [match for match in held if not match.evidence.get("implied")]
        contradicted += [match for match in own if match not in held]
        made.append(Group(group.poses, tuple(held), group.probabilities))
    singles = sorted(set(pieces.names) - {name for group in groups for name in group.poses})
    return Assembly(tuple(made), tuple(singles), tuple(confirmed), tuple(contradicted))
