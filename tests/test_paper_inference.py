"""From a similarity matrix to a transform, and from vectors to a ranking."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pairingnet.config import PaperMatchSettings, PaperSettings
from pairingnet.geometry import Rigid2D
from pairingnet.match.paper import PaperFeatures, PaperMethod, clean, correspondences
from pairingnet.match.ransac import ransac_rigid
from pairingnet.models.paper import PairingNet
from pairingnet.search.cosine import rank_by_cosine
from pairingnet.types import Fragment

SMALL = PaperSettings(width=16, layers=2, search_layers=1, search_width=8)


def test_cleaning_by_hand() -> None:
    s = np.zeros((5, 5), dtype=np.float32)
    s[1, 3], s[2, 2], s[3, 1] = 0.5, 0.4, 0.3  # a run along the anti-diagonal
    s[0, 0] = 0.9  # alone
    s[4, 4] = 0.001  # noise
    # Erosion keeps (2, 2) with min(0.5, 0.3); dilation gives it to both neighbours.
    wanted = np.zeros((5, 5), dtype=np.float32)
    wanted[1, 3] = wanted[2, 2] = wanted[3, 1] = 0.3
    assert np.array_equal(clean(s, 0.006), wanted)


def test_cleaning_wraps_around_the_rings() -> None:
    run = np.zeros((6, 7), dtype=np.float32)
    for k in range(5):
        run[k, (3 - k) % 7] = 1.0
    for shift in range(6):
        rolled = np.roll(run, (shift, 2 * shift), axis=(0, 1))
        assert np.array_equal(clean(rolled, 0.5), np.roll(clean(run, 0.5), (shift, 2 * shift), axis=(0, 1)))


def test_the_most_similar_points_come_first() -> None:
    s = np.zeros((9, 9), dtype=np.float32)
    for k in range(9):
        s[k, 8 - k] = 0.1 + 0.05 * k
    rows, columns, values = correspondences(s, PaperMatchSettings(most_points=3))
    assert len(rows) == 3 and (np.diff(values) <= 0).all()
    assert (rows + columns == 8).all()


@settings(max_examples=25, deadline=None)
@given(st.floats(-3, 3), st.floats(-300, 300), st.floats(-300, 300), st.integers(0, 10**6))
def test_ransac_finds_the_motion_among_strangers(angle: float, x: float, y: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = Rigid2D(angle, x, y)
    source = rng.uniform(0, 300, (120, 2))
    target = truth.apply(source) + rng.normal(0, 0.5, source.shape)
    target[:60] = rng.uniform(-300, 600, (60, 2))
    fit = ransac_rigid(source, target, np.random.default_rng(seed))
    assert fit.target_from_source is not None
    assert np.linalg.norm(fit.target_from_source.apply(source[60:]) - truth.apply(source[60:]), axis=1).max() < 2
    assert fit.inliers[60:].all()


def test_ransac_is_repeatable_and_knows_when_there_is_nothing() -> None:
    rng = np.random.default_rng(0)
    source, target = rng.uniform(0, 100, (40, 2)), rng.uniform(0, 100, (40, 2))
    one, two = (ransac_rigid(source, target, np.random.default_rng(7)) for _ in range(2))
    assert one.target_from_source == two.target_from_source
    assert ransac_rigid(source[:4], target[:4], rng).target_from_source is None
    assert ransac_rigid(np.zeros((0, 2)), np.zeros((0, 2)), rng).target_from_source is None


def oracle(name: str, points: np.ndarray, code: torch.Tensor) -> PaperFeatures:
    return PaperFeatures(name, points, code, np.zeros(8, dtype=np.float32), None)


def test_perfect_features_give_the_true_transform() -> None:
    """A square and its neighbour to the right share a side; points on it have equal codes, others random ones."""
    rng = np.random.default_rng(0)
    truth = Rigid2D(0.7, 40, -30)
    seam = np.stack([np.full(60, 100.0), np.arange(60.0)], axis=1)
    codes = 6 * torch.from_numpy(rng.normal(size=(60, 64)).astype(np.float32))
    rest = [torch.from_numpy(rng.normal(size=(80, 64)).astype(np.float32)) for _ in range(2)]
    source = oracle("a", np.vstack([seam, rng.uniform(0, 100, (80, 2))]), torch.cat([codes, rest[0]]))
    landed = truth.apply(seam)[::-1]
    target = oracle("b", np.vstack([landed, rng.uniform(0, 100, (80, 2))]), torch.cat([codes.flip(0), rest[1]]))
    match = PaperMethod(PairingNet(SMALL)).match(source, target)
    assert match.target_from_source is not None
    assert np.allclose(match.target_from_source.matrix, truth.matrix, atol=0.05)
    assert match.score > 0 and match.points.shape[1:] == (2, 2)


def test_no_likeness_is_an_answer() -> None:
    flat = oracle("a", np.zeros((300, 2)), torch.zeros(300, 64))
    match = PaperMethod(PairingNet(SMALL)).match(flat, flat)
    assert match.target_from_source is None and "look alike" in match.reason


def test_features_of_fragments(pieces: list[Fragment]) -> None:
    torch.manual_seed(0)
    method = PaperMethod(PairingNet(SMALL))
    features = list(method.features(pieces[:3]))
    assert [f.id for f in features] == [p.id for p in pieces[:3]]
    assert all(len(f.points) == len(f.local) for f in features)
    assert np.linalg.norm([f.vector for f in features], axis=1) == pytest.approx(np.ones(3), abs=1e-5)
    again = next(iter(method.features(pieces[1:2])))
    assert torch.equal(again.local, features[1].local)


def test_ranking_by_hand() -> None:
    x = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    ranked, scores = rank_by_cosine(x, 3)
    assert ranked.tolist() == [[1, 2, -1], [2, 0, -1], [1, 0, -1]]
    assert scores[0, :2] == pytest.approx([0.6, 0.0])
    assert rank_by_cosine(np.zeros((0, 4)), 3)[0].shape == (0, 3)
    assert rank_by_cosine(x[:1], 2)[0].tolist() == [[-1, -1]]


def test_ranking_in_blocks_is_ranking() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2500, 8))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    ranked, scores = rank_by_cosine(x, 5)
    full = x.astype(np.float32) @ x.astype(np.float32).T
    np.fill_diagonal(full, -np.inf)
    assert np.allclose(np.sort(full, axis=1)[:, ::-1][:, :5], scores, atol=1e-5)
    assert (ranked != np.arange(2500)[:, None]).all()
