"""The energy of a layout: minus a weighted sum of a few terms, each of which can be counted on any layout.

A layout is a set of groups with poses. Its terms are sums over the pairs of pieces that a group brings together, so a
merge of two groups changes each term by what the new pairs add. The change of the sum is the log-odds that the merge
is right: the weights are those of a logistic regression over merges of torn training pictures, and nothing else is
decided by (`train/layouts.py`; docs/method.md has the formulas). The weights of a collection are polynomials of its
confidence: how sure the likeliest matches of its fragments are.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pairingnet.assembly.pieces import Meeting
from pairingnet.errors import CollectionError
from pairingnet.io.files import MALFORMED
from pairingnet.types import PairMatch

SHIPPED = Path(__file__).parent.parent / "weights" / "layouts.json"

LEAST_CONTACT = 8.0  # steps; along less, two corners meet
_STRAIGHT = 1.0  # steps a contact bends away from a line: no more than the contour's own noise
_FULL = 100.0  # steps of contact; longer ones say no more
_LITTLE = 4.0  # steps of overlap that poses which are slightly off have as well
NEUTRAL = -6.0  # log-odds of a judged pose that speak neither for nor against it; the weights learn the rest
_SURELY_NOT = -14.0  # log-odds; a judgement below says no more
POWERS = 3  # of the confidence: 1, c, c^2; with less, weights that serve clean and badly worn pieces serve neither
_UNIT = 4.0  # log-odds; brings the powers to about one size

Terms = NDArray[np.float64]


class Pair(NamedTuple):
    """Two pieces that a group brings together, by number: how they meet, the log-odds of the likeliest candidate that
    holds there and how far off it is, in steps; where none holds, the log-odds of the verifier for this very pose.
    None: nobody knows."""

    ends: tuple[int, int]
    meeting: Meeting
    held: float | None = None
    residual: float = 0.0
    judged: float | None = None


TERMS: Mapping[str, str] = {
    "support": "log-odds above 0 of candidates that hold",
    "doubt": "log-odds below 0 of candidates that hold",
    "loops": "candidates that hold beyond those of a tree: each closes an independent cycle",
    "residual": "steps by which they are off",
    "straight": "log-odds above 0 of those of them that hold along a straight contact, which fits everywhere",
    "guided": "log-odds above neutral of pairs that no candidate speaks of, judged where they lie",
    "guided_doubt": "the same below neutral",
    "guided_pairs": "how many such pairs there are",
    "silent": "length of contact, in hundreds of steps, of pairs that nobody could judge",
    "contact": "length of contour that finds a neighbour, in hundreds of steps",
    "overlap": "logarithm of the steps along which pieces lie on each other",
    "contradicted": "odds, as log(1 + odds), of candidates between the pieces that do not hold",
    "merges": "merges",
    "crowd": "merges times the logarithm of the number of fragments: among many, more fit by chance",
}
NUMBER = {name: i for i, name in enumerate(TERMS)}


def terms_of(pairs: Iterable[Pair], contradicted: Iterable[float], merges: int, fragments: int) -> Terms:
    """What some merges add: the pairs that they bring together, and the log-odds of candidates that they contradict."""
    terms = dict.fromkeys(TERMS, 0.0)
    holding = 0
    for pair in pairs:
        meeting = pair.meeting
        terms["overlap"] += float(np.log1p(meeting.overlap / _LITTLE))
        terms["contact"] += min(meeting.contact, _FULL) / _FULL
        if pair.held is not None:
            holding += 1
            terms["support"] += max(pair.held, 0.0)
            terms["doubt"] += min(pair.held, 0.0)
            terms["residual"] += pair.residual
            terms["straight"] += max(pair.held, 0.0) * (meeting.bend < _STRAIGHT)
        elif pair.judged is not None:
            above = max(pair.judged, _SURELY_NOT) - NEUTRAL
            terms["guided"] += max(above, 0.0)
            terms["guided_doubt"] += min(above, 0.0)
            terms["guided_pairs"] += 1
        elif meeting.contact >= LEAST_CONTACT:
            terms["silent"] += min(meeting.contact, _FULL) / _FULL
    terms["loops"] = float(holding - merges)
    terms["contradicted"] = float(sum(np.logaddexp(0.0, log_odds) for log_odds in contradicted))
    terms["merges"], terms["crowd"] = float(merges), merges * float(np.log(max(fragments, 1)))
    return np.array(list(terms.values()))


@dataclass(frozen=True, eq=False)
class Energy:
    """weights (T,), in the order of TERMS; calibration: of the posterior, see `posterior.py`."""

    weights: Terms
    calibration: Mapping[str, Terms]

    def gain(self, terms: Terms) -> float:
        """How much the energy falls; of a merge, the log-odds that it is right. On a grid, so that the order in which
        a machine adds up decides nothing."""
        return round(float(self.weights @ terms), 6)

    def weight(self, name: str) -> float:
        """Of one term."""
        return float(self.weights[NUMBER[name]])


@dataclass(frozen=True, eq=False)
class LearnedEnergy:
    """An energy for every collection: weights (P, T) and calibration (P, K) of the powers of its confidence; learned:
    between which confidences."""

    weights: Terms
    calibration: Mapping[str, Terms]
    learned: tuple[float, float]

    def at(self, confidence: float) -> Energy:
        """The energy of layouts of a collection."""
        powers = powers_of(float(np.clip(confidence, *self.learned)))
        return Energy(powers @ self.weights, {kind: powers @ values for kind, values in self.calibration.items()})


def powers_of(confidence: float) -> Terms:
    """(P,): what weights are linear in."""
    return np.array([(confidence / _UNIT) ** power for power in range(POWERS)])


def confidence_of(fragments: Collection[str], matches: Iterable[PairMatch]) -> float:
    """How sure the likeliest matches of a collection's fragments are: the median of their log-odds. Clean pieces are
    sure of their neighbours, worn ones are not, and what else speaks for a merge counts for more or less then."""
    best = dict.fromkeys(fragments, _SURELY_NOT)
    for match in matches:
        if match.target_from_source is not None:
            for name in match.pair & best.keys():
                best[name] = max(best[name], match.score)
    return float(np.median(list(best.values()))) if best else _SURELY_NOT


@lru_cache(maxsize=4)
def load_energy(path: Path = SHIPPED, guided: bool = True) -> LearnedEnergy:
    """Weights as they were learned; others where no verifier can be asked about poses that no candidate has."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))["guided" if guided else "alone"]
        weights = np.array([content["weights"][name] for name in TERMS], dtype=np.float64).T
        calibration = {name: np.array(rows, dtype=np.float64) for name, rows in content["calibration"].items()}
        low, high = map(float, content["learned_between"])
        if weights.shape != (POWERS, len(TERMS)) or any(len(rows) != POWERS for rows in calibration.values()):
            raise ValueError("other terms")
    except (OSError, *MALFORMED) as error:
        raise CollectionError(
            f"{path} holds no weights of layouts ({error}).", "Install pairingnet again, or learn them anew."
        ) from error
    return LearnedEnergy(weights, calibration, (low, high))
