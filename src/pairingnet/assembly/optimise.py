"""The layout of least energy: agglomeration from several perturbed starts, each polished; the best one stays.

Which of two doubtful candidates comes first is little more than chance, but much may depend on it. So each restart
sees log-odds with a little noise (perturb and MAP); what it finds is then continued and compared without noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pairingnet.assembly.agglomerate import agglomerate
from pairingnet.assembly.bodies import Body
from pairingnet.assembly.merging import Problem, layout_terms

_FRAGMENTS = 1920  # laid out in all restarts together: large problems, whose pieces are mostly sure, get fewer
_AGAIN = 12  # times that the best groups have been found; where much is in doubt, most restarts end in others
_NOISE = (1.0, 2.0)  # standard deviations of log-odds, in turn: about what the verifier is wrong by


def optimise(problem: Problem, start: Sequence[Body], restarts: int) -> list[Body]:
    """Groups of least energy; bodies of the start are not taken apart."""
    best = polished(problem, agglomerate(problem, start))
    affordable = min(restarts, _FRAGMENTS // max(1, len(problem.pieces)))
    if affordable < 2:
        return best
    energy, found = energy_of(problem, best), 1
    for seed in range(1, affordable):
        other = polished(problem, agglomerate(perturbed(problem, seed), start))
        other_energy = energy_of(problem, other)
        if _groups(other) == _groups(best):
            found += 1
        elif other_energy < energy:
            found = 1
        if other_energy < energy:
            best, energy = other, other_energy
        if found == _AGAIN:
            break
    return best


def _groups(bodies: Sequence[Body]) -> set[frozenset[int]]:
    """Which fragments are together."""
    return {frozenset(body.members.tolist()) for body in bodies}


def polished(problem: Problem, bodies: Sequence[Body]) -> list[Body]:
    """Continued until no merge pays: a cut may have left bodies that go together now."""
    while True:
        merged = agglomerate(problem, bodies)
        if len(merged) == len(bodies):
            return merged
        bodies = merged


def perturbed(problem: Problem, seed: int) -> Problem:
    """The same problem with other luck."""
    log_odds = problem.candidates.log_odds
    noise = np.random.default_rng(seed).normal(scale=_NOISE[seed % len(_NOISE)], size=len(log_odds))
    return replace(problem, candidates=replace(problem.candidates, log_odds=log_odds + noise))


def energy_of(problem: Problem, bodies: Sequence[Body]) -> float:
    """Of a layout."""
    return -sum(problem.energy.gain(layout_terms(problem, body)) for body in bodies if len(body) > 1)
