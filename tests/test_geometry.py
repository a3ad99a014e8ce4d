from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pairingnet.geometry import (
    Rigid2D,
    angle_difference,
    centroid,
    fit_rigid,
    perimeter,
    resample_closed,
    signed_area,
    wrap_angle,
)

angles = st.floats(-10, 10)
shifts = st.floats(-1000, 1000)
rigids = st.builds(Rigid2D, angles, shifts, shifts)
SQUARE = np.array([[0.0, 0.0], [10.0, 0.0], [10.0, 10.0], [0.0, 10.0]])
POINTS = np.array([[0.0, 0.0], [3.0, 1.0], [-2.0, 5.0]])


def test_a_quarter_turn_takes_x_to_y() -> None:
    assert np.allclose(Rigid2D(np.pi / 2, 5, 0).apply([[1.0, 0.0]]), [[5.0, 1.0]])


@given(rigids, rigids)
def test_transforms_compose_like_their_matrices(a: Rigid2D, b: Rigid2D) -> None:
    assert np.allclose((a @ b).apply(POINTS), a.apply(b.apply(POINTS)), atol=1e-6)


@given(rigids)
def test_inverse_undoes(a: Rigid2D) -> None:
    assert np.allclose((a.inverse() @ a).apply(POINTS), POINTS, atol=1e-6)
    assert np.allclose((a @ a.inverse()).apply(POINTS), POINTS, atol=1e-6)


@given(rigids)
def test_matrix_round_trip(a: Rigid2D) -> None:
    assert np.allclose(Rigid2D.from_matrix(a.matrix).matrix, a.matrix)


@given(rigids)
def test_fit_recovers_the_motion(a: Rigid2D) -> None:
    assert np.allclose(fit_rigid(POINTS, a.apply(POINTS)).matrix, a.matrix, atol=1e-6)


def test_fit_follows_the_weights() -> None:
    source = np.vstack([POINTS, [[100.0, 100.0]]])
    target = np.vstack([POINTS + (2, 3), [[0.0, 0.0]]])
    assert np.allclose(fit_rigid(source, target, [1, 1, 1, 0]).matrix, Rigid2D(0, 2, 3).matrix)


def test_turning_about_a_point_leaves_it() -> None:
    assert np.allclose(Rigid2D.about((7, -2), 1.3).apply([[7.0, -2.0]]), [[7.0, -2.0]])


@pytest.mark.parametrize("matrix", [np.eye(2), [[2, 0, 0], [0, 2, 0]], [[-1, 0, 0], [0, 1, 0]], [[np.nan] * 3] * 2])
def test_what_is_not_rigid_is_refused(matrix: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="rigid"):
        Rigid2D.from_matrix(matrix)


@pytest.mark.parametrize(("a", "b", "between"), [(0, 0, 0), (3.1, -3.1, 2 * np.pi - 6.2), (0, np.pi, np.pi)])
def test_angle_difference_goes_the_short_way(a: float, b: float, between: float) -> None:
    assert angle_difference(a, b) == pytest.approx(between)


@given(angles)
def test_wrapped_angles_are_in_range_and_equal(angle: float) -> None:
    assert -np.pi <= wrap_angle(angle) < np.pi
    assert np.isclose(np.cos(wrap_angle(angle)), np.cos(angle), atol=1e-9)


def test_clockwise_on_the_screen_is_positive() -> None:
    assert signed_area(SQUARE) == pytest.approx(100)
    assert signed_area(SQUARE[::-1]) == pytest.approx(-100)
    assert perimeter(SQUARE) == pytest.approx(40)
    assert np.allclose(centroid(SQUARE + 1e6), 1e6 + 5)


@given(st.integers(0, 39), st.floats(0.3, 7))
def test_resampling_does_not_depend_on_the_start(start: int, step_px: float) -> None:
    outline = _wavy(40)
    assert np.allclose(resample_closed(np.roll(outline, start, axis=0), step_px), resample_closed(outline, step_px))


@given(rigids)
def test_resampling_turns_with_the_contour(motion: Rigid2D) -> None:
    outline = _wavy(40)
    assert np.allclose(resample_closed(motion.apply(outline)), motion.apply(resample_closed(outline)), atol=1e-5)


def test_resampled_points_are_equally_far_apart() -> None:
    # On a square every chord between neighbours is the arc, except around a corner.
    points = resample_closed(SQUARE, 0.5)
    gaps = np.linalg.norm(np.roll(points, -1, axis=0) - points, axis=1)
    assert len(points) == 80
    assert np.allclose(gaps, 0.5)


def test_repeated_points_are_harmless() -> None:
    assert np.allclose(resample_closed(np.repeat(SQUARE, 3, axis=0), 1.0), resample_closed(SQUARE, 1.0))


@pytest.mark.parametrize("bad", [np.zeros((2, 2)), np.zeros((5, 3)), np.zeros(4)])
def test_what_is_no_contour_is_named(bad: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="closed contour"):
        resample_closed(bad)


def _wavy(count: int) -> NDArray[Any]:
    t = np.linspace(0, 2 * np.pi, count, endpoint=False)
    r = 30 + 4 * np.cos(3 * t + 0.4) + 2 * np.sin(5 * t)
    return np.stack([r * np.cos(t), r * np.sin(t)], axis=1)
