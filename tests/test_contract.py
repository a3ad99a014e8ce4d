"""One contract, every method: ours, the paper's, and those we compare with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from pairingnet.baselines.chance import ChanceMethod
from pairingnet.baselines.jigsawnet import Ensemble, JigsawMethod, JigsawNet
from pairingnet.baselines.mean_colour import MeanColourMethod
from pairingnet.baselines.rule_based import RuleBasedMethod
from pairingnet.baselines.same_picture import SamePictureMethod
from pairingnet.config import JigsawSettings, PaperSettings
from pairingnet.evaluate.predictions import Method
from pairingnet.geometry import Rigid2D
from pairingnet.io.run import match_as_json, match_from_json
from pairingnet.match.paper import PaperMethod
from pairingnet.match.ring import RingMethod
from pairingnet.match.weights import load_model
from pairingnet.models.paper import PairingNet
from pairingnet.types import Fragment, PairMatch, Pixels
from tests.conftest import blob, fragment_of

MOST = 5


def ring() -> Method:
    return RingMethod(load_model(), step_px=2.0)


def paper() -> Method:
    torch.manual_seed(0)
    return PaperMethod(PairingNet(PaperSettings(width=16, layers=2, search_layers=1, search_width=8)))


def jigsawnet() -> Method:
    torch.manual_seed(0)
    settings = JigsawSettings(side=32, widths=(4, 6), pools=(1,), cells=2, hidden=4)
    return JigsawMethod(Ensemble([JigsawNet(settings) for _ in range(2)], (1.0, 0.5)))


def same_picture() -> Method:
    made = ("a", "b", "c", "three", "four", "seven", "other", "level", "upright", "black", "white", "huge")
    return SamePictureMethod(dict.fromkeys(made, "made") | {f"colosseum_{i:02}": "torn" for i in range(99)})


METHODS: dict[str, Callable[[], Method]] = {
    "ring": ring,
    "paper": paper,
    "rule_based": RuleBasedMethod,
    "jigsawnet": jigsawnet,
    "mean_colour": MeanColourMethod,
    "same_picture": same_picture,
    "chance": ChanceMethod,
}


@pytest.fixture(params=METHODS)
def make(request: pytest.FixtureRequest) -> Callable[[], Method]:
    return METHODS[request.param]


@pytest.fixture
def method(make: Callable[[], Method]) -> Method:
    return make()


def known(method: Method, fragments: Sequence[Fragment]) -> Sequence[Any]:
    return method.know(list(method.features(fragments)))


def check_ranking(method: Method, features: Sequence[Any], most: int = MOST) -> None:
    """Lists (F, most) of others, no one twice, best first, -1 and minus infinity after the last."""
    ranked, scores = method.rank(features, most)
    count = len(features)
    assert ranked.shape == scores.shape == (count, most)
    assert ranked.dtype == np.intp and scores.dtype == np.float32
    assert not np.isnan(scores).any()
    for own, (row, told) in enumerate(zip(ranked, scores, strict=True)):
        there = row >= 0
        assert (np.diff(there.astype(int)) <= 0).all(), "after a -1 nothing follows"
        assert np.isneginf(told[~there]).all() and np.isfinite(told[there]).all()
        assert (np.diff(told[there]) <= 0).all()
        others = row[there].tolist()
        assert own not in others and len(set(others)) == len(others) and all(other < count for other in others)


def check_match(match: PairMatch, source: Fragment, target: Fragment) -> None:
    """A typed answer: a rigid transform, or None and a reason."""
    assert isinstance(match, PairMatch) and (match.source, match.target) == (source.id, target.id)
    assert isinstance(match.score, float) and np.isfinite(match.score)
    assert isinstance(match.probability, float)
    assert np.isnan(match.probability) or 0 <= match.probability <= 1
    assert match.points.dtype == np.float64 and match.points.shape[1:] == (2, 2)
    assert np.isfinite(match.points).all()
    assert all(np.isfinite(value) for value in match.evidence.values())
    if match.target_from_source is None:
        assert match.reason and match.score == 0 and not len(match.points)
    else:
        assert isinstance(match.target_from_source, Rigid2D) and np.isfinite(match.target_from_source.matrix).all()
    again = match_from_json(json.loads(json.dumps(match_as_json(match))))
    assert (again.source, again.target, again.reason) == (match.source, match.target, match.reason)


def check_all(method: Method, fragments: Sequence[Fragment]) -> None:
    features = known(method, fragments)
    assert len(features) == len(fragments)
    check_ranking(method, features)
    for a, source in enumerate(fragments):
        for b, target in enumerate(fragments):
            if a != b:
                check_match(method.match(features[a], features[b]), source, target)


def ragged(width: int, height: int, name: str) -> Fragment:
    """A large box with a wavy edge and a picture of stripes."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    edge = 30 + 12 * np.sin(x / 37.0) + 8 * np.sin(y / 23.0)
    inside = (x > edge) & (x < width - edge) & (y > edge) & (y < height - edge)
    mask = np.where(inside, 255, 0).astype(np.uint8)
    stripes = np.stack([(x // 40 % 5) * 50, (y // 60 % 5) * 50, (x + y) // 50 % 5 * 50], axis=2)
    pixels = np.where(inside[..., None], stripes, 0).astype(np.uint8)
    return replace(fragment_of(mask, name=name), pixels=pixels)


def frozen(fragment: Fragment) -> Fragment:
    """A copy whose arrays cannot be written to."""
    arrays = {name: getattr(fragment, name).copy() for name in ("pixels", "alpha", "contour")}
    for array in arrays.values():
        array.setflags(write=False)
    return replace(fragment, **arrays)


# The contract


def test_it_says_what_it_is(method: Method) -> None:
    assert METHODS[method.name]().name == method.name
    assert json.loads(json.dumps(method.describe())) is not None


def test_an_empty_collection(method: Method) -> None:
    features = known(method, [])
    assert list(features) == []
    check_ranking(method, features)


def test_one_fragment_has_no_neighbours(method: Method, pieces: list[Fragment]) -> None:
    features = known(method, pieces[:1])
    check_ranking(method, features)
    ranked, _ = method.rank(features, MOST)
    assert ranked.tolist() == [[-1] * MOST]


def test_pieces_of_a_picture(method: Method, pieces: list[Fragment]) -> None:
    check_all(method, pieces[:5])
    check_ranking(method, known(method, pieces[:5]), most=2)


def test_identical_fragments(method: Method, pieces: list[Fragment]) -> None:
    twins = [replace(pieces[0], id="a"), replace(pieces[0], id="b"), replace(pieces[0], id="c")]
    check_all(method, twins)


def test_a_fragment_and_itself(method: Method, pieces: list[Fragment]) -> None:
    features = known(method, pieces[:2])
    check_match(method.match(features[0], features[0]), pieces[0], pieces[0])


def tiny(side: int, name: str) -> Fragment:
    mask = np.zeros((side + 8, side + 8), dtype=np.uint8)
    mask[4:-4, 4:-4] = 255
    return fragment_of(mask, name=name)


def test_tiny_fragments(method: Method, pieces: list[Fragment]) -> None:
    """Three pixels a side is the least that has a contour."""
    check_all(method, [tiny(3, "three"), tiny(4, "four"), tiny(7, "seven"), pieces[0]])
    check_all(method, [tiny(3, "three"), tiny(3, "other")])


def test_thin_fragments(method: Method) -> None:
    mask = np.zeros((12, 240), dtype=np.uint8)
    mask[5:7, 5:-5] = 255
    check_all(method, [fragment_of(mask, name="level"), fragment_of(mask.T.copy(), name="upright")])


def test_fragments_of_one_colour_and_of_none(method: Method) -> None:
    black = fragment_of(blob(1), (0, 0, 0), "black")
    white = fragment_of(blob(2), (255, 255, 255), "white")
    check_all(method, [black, white, fragment_of(blob(3), (255, 255, 255), "other")])


def test_a_huge_fragment_beside_small_ones(method: Method, pieces: list[Fragment]) -> None:
    huge = ragged(1800, 1300, "huge")
    check_all(method, [huge, pieces[0]])


def test_the_same_seed_gives_the_same_answers(make: Callable[[], Method], pieces: list[Fragment]) -> None:
    answers = []
    for method in (make(), make()):
        features = known(method, pieces[:5])
        ranked, scores = method.rank(features, MOST)
        again, _ = method.rank(features, MOST)
        assert np.array_equal(ranked, again), "asking twice changes nothing"
        match = method.match(features[0], features[1])
        assert match.target_from_source == method.match(features[0], features[1]).target_from_source
        answers.append((ranked, scores, match))
    (ranked_a, scores_a, match_a), (ranked_b, scores_b, match_b) = answers
    assert np.array_equal(ranked_a, ranked_b) and np.array_equal(scores_a, scores_b)
    assert match_a.target_from_source == match_b.target_from_source and match_a.score == match_b.score
    assert np.array_equal(match_a.points, match_b.points)


def test_inputs_stay_as_they_were(method: Method, pieces: list[Fragment]) -> None:
    fragments = [frozen(piece) for piece in pieces[:3]]
    check_all(method, fragments)
    for before, after in zip(pieces, fragments, strict=False):
        assert np.array_equal(before.pixels, after.pixels) and np.array_equal(before.contour, after.contour)


def test_features_may_come_one_at_a_time(method: Method, pieces: list[Fragment]) -> None:
    """Fragments are read while features are made; nobody needs them all in memory."""
    asked = []

    def reading() -> Any:
        for piece in pieces[:3]:
            asked.append(piece.id)
            yield piece

    assert len(list(method.features(reading()))) == 3 and asked == [piece.id for piece in pieces[:3]]


def halves(picture: Pixels) -> tuple[Fragment, Fragment]:
    """A picture, cut along a wavy line."""
    shown = cv2.resize(picture, (360, 240))
    x, y = np.meshgrid(np.arange(360), np.arange(240))
    left = x < 180 + 18 * np.sin(y / 19.0) + 9 * np.sin(y / 7.0 + 1)
    made = []
    for name, inside in (("left", left), ("right", ~left)):
        mask = np.pad(np.where(inside, 255, 0).astype(np.uint8), 10)
        pixels = np.pad(shown, ((10, 10), (10, 10), (0, 0))) * (mask[..., None] > 0)
        made.append(replace(fragment_of(mask, name=name), pixels=pixels.astype(np.uint8)))
    return made[0], made[1]


@pytest.mark.parametrize("name", ["ring", "rule_based", "jigsawnet"])
def test_two_halves_fit_where_they_were_cut(name: str, picture: Pixels) -> None:
    """Both images lie as the picture did, so the true transform is the identity. The network of `jigsawnet` is not
    trained here: it may choose any candidate, so it is asked with one only."""
    method = METHODS[name]()
    if isinstance(method, JigsawMethod):
        method = JigsawMethod(method.ensemble, replace(method.settings, candidates=1))
    left, right = halves(picture)
    features = known(method, [left, right])
    match = method.match(features[0], features[1])
    assert match.target_from_source is not None
    seam = left.contour[left.contour[:, 0] > 150]
    assert np.linalg.norm(match.target_from_source.apply(seam) - seam, axis=1).mean() < 2
    assert len(match.points) > 20
