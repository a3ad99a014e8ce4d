"""Who touches whom, along which line; which part of the data a fragment belongs to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairingnet.geometry import Points, Rigid2D, resample_closed
from pairingnet.io.collection import Collection
from pairingnet.prepare.load import load_fragment
from pairingnet.synth.splits import split_by_fragment, split_by_picture
from pairingnet.synth.truth import difficulty_of, keep_pairs, true_pairs
from pairingnet.types import TruePair


def rectangle(left: float, top: float, width: float, height: float) -> Points:
    corners = [[left, top], [left + width, top], [left + width, top + height], [left, top + height]]
    return resample_closed(np.array(corners, dtype=float))


def test_two_squares_that_share_a_side() -> None:
    (pair,) = true_pairs({"a": rectangle(0, 0, 100, 100), "b": rectangle(100, 0, 100, 100)})
    assert (pair.source, pair.target) == ("a", "b")
    assert pair.overlap_px == pytest.approx(100, abs=5)  # the side, and 2 px around its two corners
    assert pair.overlap_ratio == pytest.approx(0.25, abs=0.02)
    assert pair.difficulty == "Medium"
    assert np.allclose(pair.seam[:, 0], 100, atol=1.1)
    assert (np.diff(pair.seam[2:-2, 1]) > 0).all()  # in the order of the source's contour


def test_the_ratio_is_of_the_shorter_contour() -> None:
    (pair,) = true_pairs({"a": rectangle(0, 0, 300, 300), "b": rectangle(300, 0, 100, 100)})
    assert pair.overlap_ratio == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(("gap", "touch"), [(0.0, True), (1.5, True), (2.5, False)])
def test_only_close_contours_touch(gap: float, touch: bool) -> None:
    pairs = true_pairs({"a": rectangle(0, 0, 100, 100), "b": rectangle(100 + gap, 0, 100, 100)})
    assert bool(pairs) == touch


def test_a_short_contact_is_no_pair() -> None:
    contours = {"a": rectangle(0, 0, 100, 100), "b": rectangle(100, 60, 100, 100)}
    assert not true_pairs(contours, min_overlap_px=50)
    assert true_pairs(contours, min_overlap_px=40)


def test_a_stretch_over_the_start_of_the_contour_is_one_piece() -> None:
    a = rectangle(0, 0, 100, 100)
    for start in range(0, 400, 37):
        (pair,) = true_pairs({"a": np.roll(a, start, axis=0), "b": rectangle(100, 0, 100, 100)})
        assert np.linalg.norm(np.diff(pair.seam, axis=0), axis=1).max() < 3


@pytest.mark.parametrize(("ratio", "name"), [(0.0, "High"), (0.1, "High"), (0.2, "Medium"), (0.3, "Low"), (1.0, "Low")])
def test_difficulty(ratio: float, name: str) -> None:
    assert difficulty_of(ratio, (0.2, 0.3)) == name


def test_true_poses_bring_the_seams_together(torn: Collection) -> None:
    """Points of the two fragments that the seam names lie on both contours, whatever their rotation."""
    assert len(torn.pairs) > 10
    for pair in torn.pairs:
        for name in (pair.source, pair.target):
            pose = torn.by_id[name].canvas_from_fragment
            assert pose is not None
            on_fragment = pose.inverse().apply(pair.seam)
            contour = load_fragment(torn, name).contour
            nearest = np.linalg.norm(on_fragment[:, None] - contour[None], axis=2).min(axis=1)
            assert nearest.mean() < 0.5
        relative = torn.target_from_source(pair)
        source, target = (torn.by_id[name].canvas_from_fragment for name in (pair.source, pair.target))
        assert source is not None and target is not None
        assert np.allclose(
            relative.apply(source.inverse().apply(pair.seam)), target.inverse().apply(pair.seam), atol=1e-3
        )


def test_pieces_are_turned(torn: Collection) -> None:
    turns = [record.canvas_from_fragment.angle_rad for record in torn.fragments if record.canvas_from_fragment]
    assert np.std(turns) > 1


def test_pairs_across_parts_are_dropped() -> None:
    pairs = [TruePair("a", "b", 60, 0.2, "Medium"), TruePair("b", "c", 60, 0.2, "Medium")]
    kept = keep_pairs(pairs, {"a": "train", "b": "train", "c": "test"})
    assert [(p.source, p.target) for p in kept] == [("a", "b")]
    assert keep_pairs(pairs, {"b": "train", "c": "train"})[0].target == "c"


@given(st.integers(1, 400), st.integers(0, 10**6))
def test_fragments_are_split_five_one_four(count: int, seed: int) -> None:
    parts = list(split_by_fragment((f"f{i}" for i in range(count)), seed).values())
    for name, share in (("train", 0.5), ("val", 0.1), ("test", 0.4)):
        assert abs(parts.count(name) - share * count) <= 1


def test_the_split_does_not_depend_on_the_order() -> None:
    names = [f"f{i}" for i in range(50)]
    assert split_by_fragment(names, 3) == split_by_fragment(names[::-1], 3)


def test_folders_named_after_parts_decide() -> None:
    parts = split_by_picture([("a", ["photos", "train"]), ("b", ["photos", "test"]), ("c", ["val"])], seed=0)
    assert parts == {"a": "train", "b": "test", "c": "val"}


def test_no_picture_is_in_two_parts() -> None:
    parts = split_by_picture([(f"p{i}", ["photos"]) for i in range(100)], seed=0)
    assert [list(parts.values()).count(name) for name in ("train", "val", "test")] == [50, 10, 40]


def test_identity_is_no_motion() -> None:
    assert np.allclose(Rigid2D().apply([[1.0, 2.0]]), [[1.0, 2.0]])
