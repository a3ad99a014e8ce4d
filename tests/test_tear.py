"""Algorithm 1: pieces tile the picture, obey the settings, and come from the seed alone."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pairingnet.config import TearSettings
from pairingnet.errors import SettingsError
from pairingnet.settings import with_values
from pairingnet.synth.tear import Piece, _cutting_line, tear_picture
from tests.conftest import SMALL_PIECES


def cover(pieces: list[Piece], size: tuple[int, int]) -> NDArray[Any]:
    count = np.zeros((size[1], size[0]), dtype=int)
    for piece in pieces:
        h, w = piece.mask.shape
        count[piece.top : piece.top + h, piece.left : piece.left + w] += piece.mask
    return count


def tear(size: tuple[int, int], seed: int = 0, straight: float = 0.0, **changes: float) -> list[Piece]:
    return tear_picture(size, with_values(SMALL_PIECES, changes), np.random.default_rng(seed), straight)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 10**6))
def test_pieces_tile_any_picture(width: int, height: int, seed: int) -> None:
    assert (cover(tear((width, height), seed), (width, height)) == 1).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_every_piece_is_one_part_without_holes_and_large_enough(seed: int) -> None:
    for piece in tear((600, 400), seed):
        h, w = piece.mask.shape
        assert min(h, w) >= 60
        assert max(h, w) <= 4 * min(h, w)
        assert piece.area == piece.mask.sum() >= 60 * 60
        outlines, _ = cv2.findContours(piece.mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        assert len(outlines) == 1


def test_the_seed_decides() -> None:
    def state(seed: int) -> list[tuple[int, int, int]]:
        return [(piece.left, piece.top, piece.area) for piece in tear((600, 400), seed)]

    assert state(3) == state(3)
    assert state(3) != state(4)


def test_the_papers_values_give_about_twenty_pieces() -> None:
    counts = [len(tear_picture((1400, 930), TearSettings(), np.random.default_rng(seed))) for seed in range(12)]
    assert 18 <= np.mean(counts) <= 24


def test_no_attempts_no_cuts() -> None:
    assert len(tear((600, 400), t_max=0, max_share=1.0)) == 1


def test_too_small_to_cut_stays_whole() -> None:
    assert len(tear((70, 70))) == 1


def test_large_pieces_are_cut_again() -> None:
    without = max(piece.area for piece in tear((600, 400), t_max=4, max_share=1.0))
    with_limit = max(piece.area for piece in tear((600, 400), t_max=4, max_share=0.15))
    assert with_limit <= 0.15 * 600 * 400 < without


def _bend(straight: float, **changes: float) -> float:
    """How far the first cut strays from its chord, in px, typically."""
    stray = []
    for seed in range(30):
        pieces = tear((600, 400), seed, straight, t_max=1, max_share=1.0, max_aspect=100, min_fill=0, **changes)
        if len(pieces) == 2:
            stray.append(_stray(pieces[0]))
    return float(np.median(stray))


def _stray(piece: Piece) -> float:
    """Largest distance of the cut's points from the line between its ends."""
    edge = np.asarray(cv2.findContours(piece.mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)[0][0]).reshape(-1, 2)
    on_picture = edge + (piece.left, piece.top)
    inside = (on_picture > 0).all(axis=1) & (on_picture[:, 0] < 599) & (on_picture[:, 1] < 399)
    cut = on_picture[inside].astype(float)
    far = np.linalg.norm(cut[:, None] - cut[None], axis=2)
    a, b = np.unravel_index(far.argmax(), far.shape)
    along = (cut[b] - cut[a]) / np.linalg.norm(cut[b] - cut[a])
    return float(np.abs((cut - cut[a]) @ np.array([-along[1], along[0]])).max())


def test_straight_cuts_are_straight_and_waves_are_not() -> None:
    assert _bend(straight=1.0) < 1.5
    assert _bend(straight=0.0, rho=0.0, n_max=0) < 1.5
    assert _bend(straight=0.0, rho=1.0, n_max=0) > 4


def test_amplitude_follows_its_setting() -> None:
    gentle = _bend(straight=0.0, rho=1.0, n_max=0, s1=0.0, s2=0.005)
    rough = _bend(straight=0.0, rho=1.0, n_max=0, s1=0.0, s2=0.03)
    assert rough > 3 * gentle


def test_waves_on_a_segment_keep_its_ends() -> None:
    mask = np.ones((400, 600), dtype=np.uint8)
    ends = []
    for span in ("segment", "line"):
        configured = TearSettings(rho=1.0, n_max=0, wave_span=span)
        line = _cutting_line(mask, configured, np.random.default_rng(5), 0.0)
        straight = _cutting_line(mask, TearSettings(rho=0.0, n_max=0), np.random.default_rng(5), 0.0)
        ends.append(np.abs(line[[0, -1]] - straight[[0, -1]]).max())
    assert ends[0] < 1e-6 < ends[1]


@pytest.mark.parametrize(
    ("name", "value"), [("tau", 1.0), ("t_max", -1), ("h_min", 0), ("rho", 1.5), ("drop", 1.0), ("wave_span", "both")]
)
def test_impossible_settings_are_refused(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=name):
        with_values(TearSettings(), {name: value})
