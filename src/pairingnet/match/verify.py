"""Evidence -> the probability that a join is right: a few small networks on a dozen numbers, trained and calibrated on
joins of torn pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from pairingnet.match.evidence import Evidence

NAMES = tuple(field.name for field in fields(Evidence))
_WIDEST_GAP = 8.0  # steps
_LOG = {"support", "contact", "tight", "overlap", "bend"}
_TIGHTEST = 0.01  # steps; nearer than that no two contours lie
_CROWDS = (np.log(8), np.log(4000))  # the sizes of collections that were learned from


@dataclass(frozen=True, eq=False)
class Verifier:
    """Standardise, two hidden layers, one logit; the mean of several such networks (K, ...), for one alone is now and
    then sure of what the others doubt; then the calibration of the logit."""

    weights: Mapping[str, NDArray[np.float32]]

    @classmethod
    def plain(cls) -> Verifier:
        """Before anything is learned: support, less what overlaps."""
        return cls({})

    def check(self) -> None:
        """Refuse weights that were learned from other evidence."""
        nothing = [Evidence()]
        if "first.weight" in self.weights and self.weights["first.weight"].ndim != 3:
            raise ValueError("its verifier is one network, not several")
        for name, inputs in (("mean", as_inputs(nothing)), ("gap", gap_inputs(nothing))):
            if name in self.weights and len(self.weights[name]) != inputs.shape[1]:
                raise ValueError(f"its verifier has {len(self.weights[name])} inputs, not {inputs.shape[1]}")

    def logits(self, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
        """(P,): above 0 is more likely right than wrong."""
        if not evidence:
            return np.zeros(0)
        x = as_inputs(evidence)
        w = self.weights
        if not w:
            return np.array([each.support - 0.1 * each.overlap for each in evidence])
        x = ((x - w["mean"]) / w["deviation"])[None]
        for layer in ("first", "second"):
            x = np.maximum(x @ w[f"{layer}.weight"].swapaxes(1, 2) + w[f"{layer}.bias"][:, None], 0)
        raw = (x @ w["last.weight"].swapaxes(1, 2) + w["last.bias"][:, None])[..., 0].mean(axis=0)
        # In a collection twice as large as those, twice as many fit by chance.
        larger = np.array([max(0.0, each.crowd - _CROWDS[1]) for each in evidence])
        return np.asarray(w["slope"] * raw + w["offset"] - larger)

    def gaps(self, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
        """(P,): how far apart the pieces should lie, in steps: what their edges have lost."""
        if "gap" not in self.weights:
            return np.zeros(len(evidence))
        return np.asarray((gap_inputs(evidence) @ self.weights["gap"]).clip(0, _WIDEST_GAP))

    def probabilities(self, evidence: Sequence[Evidence]) -> NDArray[np.float64]:
        return np.asarray(1 / (1 + np.exp(-self.logits(evidence))))


def gap_inputs(evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """(P, G): what tells how worn edges are: they touch, but nowhere tightly. Five numbers, and their products."""
    told = [
        [1.0, each.tight / max(each.contact, 1.0), each.loose, each.agreement_mean / 10, each.colour, each.usual]
        for each in evidence
    ]
    x = np.array(told).reshape(-1, 6)
    first, second = np.triu_indices(x.shape[1])
    return np.asarray(x[:, first] * x[:, second])


def as_inputs(evidence: Sequence[Evidence]) -> NDArray[np.float64]:
    """(P, E): the numbers of each, large ones as logarithms."""
    columns = []
    for name in NAMES:
        values = np.array([getattr(each, name) for each in evidence], dtype=np.float64)
        columns.append(np.log1p(np.maximum(values, 0)) if name in _LOG else values)
    columns[NAMES.index("usual")] = _log_loose(columns[NAMES.index("usual")])
    columns.append(_log_loose(columns[NAMES.index("loose")]) - columns[NAMES.index("usual")])
    columns.append(np.array([each.colour_shifted - each.colour for each in evidence]))
    columns[NAMES.index("crowd")] = columns[NAMES.index("crowd")].clip(*_CROWDS)
    return np.stack(columns, axis=1)


def _log_loose(loose: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log(loose + _TIGHTEST))
