"""Contours that run parallel at a distance: pose and gap are found together, and how sure they are is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairingnet.geometry import Points, Rigid2D, resample_closed, signed_area
from pairingnet.match.contact import Outline
from pairingnet.match.gap import GapFit, GapPrior, fit_gap, pooled_prior, with_gaps
from pairingnet.types import PairMatch

STEP = 4.0
BROAD = GapPrior(10.0, 30.0)


def two_sides(
    gap_px: float, height_px: float, slope: float = 0.0, rough_px: float = 0.0, wave_px: float = 70.0
) -> tuple[Outline, Outline]:
    """Two pieces that were one along a wave, and have each lost half of a gap; the source lies above."""
    x = np.arange(0.0, 600.0)
    line = np.stack([x, height_px * np.sin(x / wave_px)], axis=1)
    along = np.gradient(line, axis=0)
    normal = np.stack([along[:, 1], -along[:, 0]], axis=1) / np.linalg.norm(along, axis=1, keepdims=True)
    width = gap_px + slope * (x - 300)
    rng = np.random.default_rng(0)
    sides = []
    for sign, far in ((1, -400.0), (-1, 400.0)):
        rough = rough_px * np.convolve(rng.normal(0, 1, 620), np.ones(21) / np.sqrt(21), mode="valid")
        edge = line + sign * normal * (width / 2 + rough)[:, None]
        contour = np.vstack([edge, [[620, far]], [[-20, far]]])
        sides.append(Outline.at_step(_ordered(resample_closed(contour)), STEP))
    return sides[0], sides[1]


def _ordered(contour: Points) -> Points:
    return contour if signed_area(contour) > 0 else contour[::-1]


def off_px(pose: Rigid2D) -> float:
    """How far the seam lies from where it belongs."""
    seam = np.array([(x, 0.0) for x in range(0, 600, 20)])
    return float(np.linalg.norm(pose.apply(seam) - seam, axis=1).mean())


@given(gap=st.floats(0, 30), turn=st.floats(-0.03, 0.03), along=st.floats(-4, 4))
@settings(max_examples=15)
def test_a_bent_seam_tells_its_gap(gap: float, turn: float, along: float) -> None:
    source, target = two_sides(gap, height_px=40)
    closed = Rigid2D.about((300, 0), turn) @ Rigid2D(0, along, gap)  # as fits leave it: touching
    fit = fit_gap(source, target, closed, STEP, BROAD, reach_px=60)
    assert fit.width_px == pytest.approx(gap, abs=1.5)
    assert off_px(fit.target_from_source) < min(3.0, 0.3 + off_px(closed))
    assert fit.sigma_px < 6 and fit.points > 80


def test_a_straight_seam_says_that_it_cannot_tell() -> None:
    source, target = two_sides(20, height_px=0)
    told = fit_gap(source, target, Rigid2D(0, 0, 20), STEP, GapPrior(12, 5), reach_px=60)
    assert told.width_px == pytest.approx(12, abs=1)
    assert told.sigma_px == pytest.approx(5, rel=0.1)
    bent = fit_gap(*two_sides(20, height_px=40), Rigid2D(0, 0, 20), STEP, GapPrior(12, 5), reach_px=60)
    assert bent.sigma_px < 0.5 * told.sigma_px
    assert told.covariance[2, 2] > 3 * bent.covariance[2, 2] > 0  # across
    assert told.covariance[1, 1] > 2 * bent.covariance[1, 1] > 0  # along


def test_a_gap_that_widens() -> None:
    source, target = two_sides(16, height_px=30, slope=0.03, wave_px=30)
    even, varying = (
        fit_gap(source, target, Rigid2D(0, 0, 16), STEP, BROAD, reach_px=60, varying=varying)
        for varying in (False, True)
    )
    assert 0.015 < abs(varying.slope) < 0.04 and even.slope == pytest.approx(0, abs=1e-4)
    assert off_px(varying.target_from_source) < off_px(even.target_from_source)


def test_roughness_makes_it_less_sure() -> None:
    smooth, rough = (
        fit_gap(*two_sides(16, 40, rough_px=r), Rigid2D(0, 0, 12), STEP, BROAD, reach_px=60) for r in (0.0, 2.0)
    )
    assert rough.sigma_px > 1.5 * smooth.sigma_px and rough.spread_px > 2 * smooth.spread_px
    assert abs(rough.width_px - 16) < 4 * rough.sigma_px


def test_where_nothing_is_opposite_nothing_is_fitted() -> None:
    source, target = two_sides(10, 40)
    away = Rigid2D(0, 0, -900)
    fit = fit_gap(source, target, away, STEP, BROAD, reach_px=60)
    assert fit.target_from_source is away and fit.points == 0 and fit.sigma_px == np.inf


def test_the_sure_ones_tell_the_others() -> None:
    fits = [GapFit(Rigid2D(), width_px=w, sigma_px=s) for w, s in ((20, 1), (22, 1), (21, 1), (0, 30), (50, 30))]
    prior = pooled_prior(fits, GapPrior(0, 30))
    assert prior.width_px == pytest.approx(21, abs=2) and prior.spread_px < 12
    assert pooled_prior([GapFit(Rigid2D())], GapPrior(8, 30)).width_px == pytest.approx(8)


def joins_of(gap_px: float, closed_px: float, loose_px: float) -> tuple[list[PairMatch], dict[str, Outline]]:
    """The same two sides as several pairs, each closed; one join more is hopeless."""
    source, target = two_sides(gap_px, 40)
    outlines: dict[str, Outline] = {}
    joins = []
    for number in range(4):
        names = f"a{number}", f"b{number}"
        outlines |= dict(zip(names, (source, target), strict=True))
        points = np.array([[[x, 0.0], [x, 0.0]] for x in range(0, 600, 20)])
        probability = 0.9 if number else 0.001
        told = {"gap_px": loose_px, "worn_px": 0.0}
        joins.append(PairMatch(*names, Rigid2D(0, 0, closed_px), 1.0, points, "", probability, told))
    return joins, outlines


def test_joins_of_broken_pieces_are_moved_apart() -> None:
    joins, outlines = joins_of(28, closed_px=28, loose_px=2.0)
    joins[1] = replace(joins[1], others=(replace(joins[1], target_from_source=Rigid2D(0, 1, 26), probability=0.2),))
    moved = with_gaps(joins, outlines, STEP)
    assert moved[0] is joins[0]  # hopeless
    for join in (*moved[1:], moved[1].others[0]):
        assert join.target_from_source is not None and off_px(join.target_from_source) < 2
        assert join.evidence["worn_px"] == pytest.approx(28, abs=1.5) and 0 < join.evidence["worn_sigma_px"] < 6
    assert [join.probability for join in moved] == [join.probability for join in joins]


@pytest.mark.parametrize(("gap", "loose"), [(20, 0.1), (2, 2.0)])
def test_joins_of_pieces_that_touch_stay_as_they_are(gap: float, loose: float) -> None:
    """Those that lie tightly are not even fitted; those whose gaps are small are left to what is told."""
    joins, outlines = joins_of(gap, closed_px=gap, loose_px=loose)
    assert all(after is before for after, before in zip(with_gaps(joins, outlines, STEP), joins, strict=True))


def test_joins_without_pose_or_probability_say_nothing() -> None:
    _, outlines = joins_of(20, 20, 2.0)
    joins = [PairMatch("a0", "b0", None), PairMatch("a1", "b1", Rigid2D())]
    assert with_gaps(joins, outlines, STEP) == joins and with_gaps([], {}, STEP) == []
