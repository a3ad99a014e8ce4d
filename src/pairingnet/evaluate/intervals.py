"""How sure a number is: 95 % intervals from drawing pictures again, not pairs.

The pairs of one picture are not independent: a sky makes all of its seams hard, a text all of them easy. Drawing
pairs again would take them for as many witnesses as there are pairs, and give intervals that are too narrow. So
whole pictures are drawn, with replacement, as many as there are; a picture that is drawn twice counts twice with all
its pairs. The interval says what other pictures of the kind would give, and, where pairs were sampled, what another
sample would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

DRAWS = 1000
_SHARE = 95.0


@dataclass(frozen=True, eq=False)
class Tally:
    """What a metric adds up to in each picture: sums (M, B) of B bins, counts (M,) of what was asked.

    The metric is the sum over bins of |sums over pictures| / counts over pictures. A mean has one bin.
    """

    pictures: tuple[str, ...]
    sums: NDArray[np.float64]
    counts: NDArray[np.float64]

    @property
    def items(self) -> int:
        return int(self.counts.sum())

    def value(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(W,): the metric where pictures count by weights (W, M); NaN where nothing was asked."""
        asked = weights @ self.counts
        gaps = np.abs(weights @ self.sums).sum(axis=1)
        return np.asarray(np.where(asked > 0, gaps / np.maximum(asked, 1), np.nan))


@dataclass(frozen=True)
class Estimate:
    """A metric, the interval it lies in with 95 % (NaN where one picture is all there is), and of how many items."""

    value: float
    low: float
    high: float
    items: int


def tally(values: ArrayLike, pictures: Sequence[str]) -> Tally:
    """The tally of a mean: values (P,), 0 or more, and the picture of each."""
    return _tally(np.asarray(values, dtype=np.float64).reshape(len(pictures), 1), pictures)


def tally_calibration(probabilities: ArrayLike, outcomes: ArrayLike, pictures: Sequence[str], bins: int = 10) -> Tally:
    """The tally of the expected calibration error: in bins of equal width, predictions less outcomes."""
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    place = np.minimum((p * bins).astype(np.intp), bins - 1)
    gaps = np.zeros((len(p), bins))
    gaps[np.arange(len(p)), place] = p - y
    return _tally(gaps, pictures)


def together(tallies: Sequence[Tally]) -> Tally:
    """One tally of several: what was asked of a picture more than once (other seeds) is drawn together."""
    names = [name for each in tallies for name in each.pictures]
    sums = np.concatenate([each.sums for each in tallies])
    pictures, place = np.unique(np.array(names, dtype=object), return_inverse=True)
    counts = _added(np.concatenate([each.counts for each in tallies])[:, None], place, len(pictures))[:, 0]
    return Tally(tuple(map(str, pictures)), _added(sums, place, len(pictures)), counts)


def estimate(given: Tally, seed: int = 0, draws: int = DRAWS) -> Estimate:
    """The metric and its interval; the same seed draws the same pictures."""
    count = len(given.pictures)
    value = float(given.value(np.ones((1, count)))[0])
    low = high = float("nan")
    if count > 1:
        weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws)
        drawn = given.value(weights.astype(np.float64))
        low, high = np.percentile(drawn[np.isfinite(drawn)], [50 - _SHARE / 2, 50 + _SHARE / 2])
    return Estimate(value, float(low), float(high), given.items)


def _tally(values: NDArray[np.float64], pictures: Sequence[str]) -> Tally:
    names, place = np.unique(np.array(pictures, dtype=object), return_inverse=True)
    counts = np.bincount(place, minlength=len(names)).astype(np.float64)
    return Tally(tuple(map(str, names)), _added(values, place, len(names)), counts)


def _added(values: NDArray[np.float64], place: NDArray[np.intp], count: int) -> NDArray[np.float64]:
    """(count, B): rows of values (P, B) added up by place (P,)."""
    total = np.zeros((count, values.shape[1]))
    np.add.at(total, place, values)
    return total
