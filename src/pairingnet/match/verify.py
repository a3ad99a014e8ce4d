"""What a fit shows -> the probability that it is right, and the gap that wear has left: small networks on a dozen
numbers and on the seam itself, trained and calibrated on joins of torn pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairingnet.match.evidence import CHANNELS, Evidence
from pairingnet.models.device import one_thread
from pairingnet.models.seam import APART, SeamNet

NAMES = tuple(field.name for field in fields(Evidence))
_WIDEST_GAP = 8.0  # steps
_LOG = {"support", "contact", "tight", "overlap", "bend"}
_TIGHTEST = 0.01  # steps; nearer than that no two contours lie
_CROWDS = (np.log(8), np.log(4000))  # the sizes of collections that were learned from
_NETWORK = "network."
_DIGITS = 6  # of logits and gaps: coarser than any rounding error, so that they are the same on every machine

Seam = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Verifier:
    """Standardise, ask the networks (models/seam.py), take their mean; then the calibration of the logit.

    weights: `network.*`; `mean` and `deviation` (E,) of the numbers and `seam_mean` and `seam_deviation` (C,) of what
    the seam shows; `slope` and `offset` of the logit. Nothing: not learned yet.
    """

    weights: Mapping[str, NDArray[np.float32]]

    @classmethod
    def plain(cls) -> Verifier:
        """Before anything is learned: support, less what overlaps."""
        return cls({})

    @cached_property
    def network(self) -> SeamNet:
        """Raises ValueError for weights that were learned from other evidence."""
        network = new_network()
        own = {n.removeprefix(_NETWORK): v for n, v in self.weights.items() if n.startswith(_NETWORK)}
        try:
            network.load_state_dict({name: torch.from_numpy(value) for name, value in own.items()}, strict=True)
        except RuntimeError:
            raise ValueError("its verifier is another network") from None
        return network.double().eval()

    def judge(
        self, evidence: Sequence[Evidence], seams: Sequence[Seam]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(P,): above 0 is more likely right than wrong; and (P,) how far apart the pieces should lie, in steps: what
        their edges have lost. seams: what each seam shows (T, C)."""
        if not evidence:
            return np.zeros(0), np.zeros(0)
        w = self.weights
        if not w:
            return np.array([each.support - 0.1 * each.overlap for each in evidence]), np.zeros(len(evidence))
        numbers = (as_inputs(evidence) - w["mean"]) / w["deviation"]
        points, lengths = packed(seams)
        seen = (points - w["seam_mean"]) / w["seam_deviation"]
        with torch.inference_mode(), one_thread():
            told = self.network(_tensor(numbers), _tensor(seen), torch.from_numpy(lengths)).mean(dim=0).numpy()
        # In a collection twice as large as those that were learned from, twice as many fit by chance.
        larger = np.array([max(0.0, each.crowd - _CROWDS[1]) for each in evidence])
        logit, gap = w["slope"] * told[:, 0] + w["offset"] - larger, told[:, 1].clip(0, _WIDEST_GAP)
        return logit.round(_DIGITS), gap.round(_DIGITS)


def new_network() -> SeamNet:
    """Networks that know nothing yet."""
    return SeamNet(as_inputs([Evidence()]).shape[1], CHANNELS)


def packed(seams: Sequence[Seam]) -> tuple[Seam, NDArray[np.int64]]:
    """(T, C), (P,): the points of all seams as the network wants them, and how many each has; an empty one has a point
    of zeros."""
    lengths = np.array([max(1, len(seam)) for seam in seams], dtype=np.int64)
    ends = np.cumsum(lengths + APART)
    points = np.zeros((int(ends[-1]), CHANNELS), np.float32)
    for seam, first in zip(seams, ends - lengths - APART, strict=True):
        points[first : first + len(seam)] = seam
    return points, lengths


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


def _tensor(values: NDArray[np.floating]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))


def _log_loose(loose: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log(loose + _TIGHTEST))
