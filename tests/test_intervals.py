"""Intervals by drawing pictures again: by hand, and against a slow version."""

from __future__ import annotations

import numpy as np
import pytest

from pairingnet.evaluate.intervals import estimate, tally, tally_calibration, together
from pairingnet.evaluate.metrics import expected_calibration_error


def test_two_pictures_by_hand() -> None:
    """Picture a has two pairs, both right, b four, all wrong. Draws are aa (1), ab and ba (1/3), bb (0)."""
    told = estimate(tally([1, 1, 0, 0, 0, 0], ["a", "a", "b", "b", "b", "b"]))
    assert told.value == pytest.approx(1 / 3) and (told.low, told.high, told.items) == (0.0, 1.0, 6)
    given = tally([1, 1, 0, 0, 0, 0], ["a", "a", "b", "b", "b", "b"])
    drawn = given.value(np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0]]))
    assert drawn.tolist() == pytest.approx([1, 1 / 3, 0])


def test_one_picture_has_no_interval_and_nothing_is_nothing() -> None:
    alone = estimate(tally([0.5, 1.0], ["a", "a"]))
    assert alone.value == 0.75 and np.isnan(alone.low) and np.isnan(alone.high)
    empty = estimate(tally([], []))
    assert np.isnan(empty.value) and empty.items == 0


def test_the_interval_is_that_of_a_slow_version(rng: np.random.Generator) -> None:
    pictures = [f"p{i}" for i in rng.integers(0, 12, 200)]
    own = {name: rng.uniform(0.2, 0.9) for name in set(pictures)}
    values = np.array([float(rng.random() < own[name]) for name in pictures])
    told = estimate(tally(values, pictures), draws=4000)
    assert told.value == pytest.approx(values.mean())
    names = sorted(set(pictures))
    means = []
    for _ in range(4000):
        drawn: list[float] = []
        for name in rng.choice(names, len(names)):
            drawn += [value for value, own_name in zip(values, pictures, strict=True) if own_name == name]
        means.append(np.mean(drawn))
    low, high = np.percentile(means, [2.5, 97.5])
    assert told.low == pytest.approx(low, abs=0.015) and told.high == pytest.approx(high, abs=0.015)


def test_pairs_of_one_picture_are_not_as_many_witnesses() -> None:
    """All pairs of a picture share their luck: the interval is as wide as for one pair a picture."""
    pictures = [f"p{i}" for i in range(30) for _ in range(20)]
    values = [float(i % 2) for i in range(30) for _ in range(20)]
    by_picture = estimate(tally(values, pictures))
    by_pair = estimate(tally(values, [f"{i}" for i in range(600)]))
    alone = estimate(tally([float(i % 2) for i in range(30)], [f"p{i}" for i in range(30)]))
    assert (by_picture.low, by_picture.high) == (alone.low, alone.high)
    assert by_picture.high - by_picture.low > 3 * (by_pair.high - by_pair.low)


def test_calibration_is_tallied_as_it_is_measured(rng: np.random.Generator) -> None:
    p = rng.random(300)
    p[:3] = (0.0, 1.0, 0.1)
    y = rng.random(300) < p**2
    pictures = [f"p{i % 7}" for i in range(300)]
    told = estimate(tally_calibration(p, y, pictures))
    assert told.value == pytest.approx(expected_calibration_error(p, y))
    assert told.low < told.high


def test_seeds_of_one_picture_are_drawn_together() -> None:
    first, second = tally([1, 0], ["a", "b"]), tally([1, 1, 0], ["a", "b", "c"])
    both = together([first, second])
    assert both.pictures == ("a", "b", "c") and both.counts.tolist() == [2, 2, 1]
    assert estimate(both).value == pytest.approx(3 / 5)
    assert estimate(both).items == 5
