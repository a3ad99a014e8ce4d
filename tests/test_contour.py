"""Contours do not depend on where they start, how the piece lies, or what is around it."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.geometry import perimeter, signed_area
from pairingnet.prepare.contour import trace_contour
from tests.conftest import blob


def farthest(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Hausdorff distance of two point sets."""
    return float(max(np.max(cKDTree(a).query(b)[0]), np.max(cKDTree(b).query(a)[0])))


def test_a_disc_is_measured_to_a_fraction_of_a_pixel() -> None:
    y, x = np.mgrid[:121, :121]
    disc = np.where(np.hypot(x - 60, y - 60) <= 40, 255, 0).astype(np.uint8)
    contour = trace_contour(disc)
    radius = np.linalg.norm(contour - 60, axis=1)
    assert abs(radius.mean() - 40) < 0.1
    assert radius.std() < 0.2
    assert abs(perimeter(contour) - 2 * np.pi * 40) < 1
    assert signed_area(contour) > 0


def test_soft_alpha_places_the_edge_between_pixels() -> None:
    alpha = np.zeros((40, 40), dtype=np.uint8)
    alpha[10:30, 10:30] = 255
    alpha[10:30, 30] = 64  # a quarter of the next column is covered too
    left, right = (trace_contour(alpha, smooth_px=0)[:, 0] for _ in range(2))
    assert abs(left.min() - 9.5) < 0.01
    assert 29.6 < right.max() < 29.8


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 3))
def test_quarter_turns_turn_the_contour_exactly(seed: int, quarters: int) -> None:
    mask = blob(seed)
    middle = (len(mask) - 1) / 2
    angle = -quarters * np.pi / 2  # np.rot90 turns against the clock, y points down
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turned = (trace_contour(mask) - middle) @ turn.T + middle
    assert farthest(trace_contour(np.ascontiguousarray(np.rot90(mask, quarters))), turned) < 0.6


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 40), st.integers(0, 40))
def test_empty_space_around_only_shifts(seed: int, left: int, top: int) -> None:
    mask = blob(seed)
    padded = np.pad(mask, [(top, 3), (left, 5)])
    assert np.allclose(trace_contour(padded), trace_contour(mask) + (left, top), atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_two_sides_of_a_cut_share_one_line(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cut = 60 + np.cumsum(rng.normal(0, 0.7, 120))
    left = np.where(np.arange(120)[None] < cut[:, None], 255, 0).astype(np.uint8)
    inner = slice(15, 105)
    lines = []
    for side in (left, 255 - left):
        contour = trace_contour(side)
        on_cut = (contour[:, 1] > 15) & (contour[:, 1] < 105) & (np.abs(contour[:, 0] - cut[inner].mean()) < 30)
        lines.append(contour[on_cut])
    assert np.median(cKDTree(lines[0]).query(lines[1])[0]) < 0.5


def test_nothing_gives_no_points() -> None:
    assert trace_contour(np.zeros((20, 20), dtype=np.uint8)).shape == (0, 2)


def test_the_largest_part_counts() -> None:
    mask = blob(1)
    mask[2:6, 2:6] = 255
    assert farthest(trace_contour(mask), trace_contour(blob(1))) < 0.01


def test_a_piece_that_fills_its_image_has_a_whole_contour() -> None:
    contour = trace_contour(np.full((30, 50), 255, dtype=np.uint8))
    assert np.allclose([contour.min(axis=0), contour.max(axis=0)], [[-0.5, -0.5], [49.5, 29.5]], atol=0.3)
