"""The ring network: turning, shifting the start, and the batch change nothing; the key view is the partner's view."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pairingnet.config import RingSettings, RingTrainSettings
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.models.ring import KEY, QUERY, Neighbours, RingNet, local_geometry, pack_strips, with_neighbours
from pairingnet.models.rings import Rings
from pairingnet.prepare.strip import MIRRORED, SAMPLES, Strip, unroll, working_step
from pairingnet.train.checkpoints import read_checkpoint, ring_of
from pairingnet.train.loop import train
from pairingnet.train.losses import contrast
from pairingnet.train.ring import RingTask
from pairingnet.train.scenes import Scene, load_scenes, make_scene, mirrored, recoloured
from pairingnet.types import Fragment

TINY = RingSettings(points=120, width=16, features=8, dilations=(1, 4), joint_dilations=(2,))
STEP_PX = 3.0


@pytest.fixture(scope="module")
def network() -> RingNet:
    torch.manual_seed(0)
    return RingNet(TINY).eval()


@pytest.fixture(scope="module")
def strips(pieces: list[Fragment]) -> list[Strip]:
    return [unroll(piece, STEP_PX) for piece in pieces[:6]]


@pytest.fixture(scope="module")
def scene(torn: Collection) -> Scene:
    return make_scene(torn, "colosseum", STEP_PX)


def features(network: RingNet, strips: list[Strip], role: int) -> list[torch.Tensor]:
    with torch.no_grad():
        packed = pack_strips(strips, role)
        return list(packed.rings.split(network(packed)))


# Strips


def test_a_strip_has_equal_steps_and_looks_inwards(pieces: list[Fragment], strips: list[Strip]) -> None:
    for piece, strip in zip(pieces, strips, strict=False):
        apart = np.linalg.norm(np.roll(strip.points, -1, axis=0) - strip.points, axis=1)
        assert apart.max() < 1.2 * strip.step_px and abs(strip.step_px - STEP_PX) < 0.1
        inner = np.rint(strip.points + 3 * strip.normals).astype(int)
        assert (piece.alpha[inner[:, 1], inner[:, 0]] > 128).mean() > 0.95
        assert strip.colours.shape == (len(strip), len(SAMPLES), 3)


def test_colours_of_a_strip_are_the_fragments(pieces: list[Fragment]) -> None:
    piece = pieces[0]
    flat = replace(piece, pixels=np.where(piece.alpha[..., None] > 0, [200, 30, 90], 0).astype(np.uint8))
    strip = unroll(flat, STEP_PX)
    covered = strip.inside > 60
    assert covered.mean() > 0.8
    assert np.abs(strip.colours[covered].astype(int) - [200, 30, 90]).max() <= 2


def test_the_working_step_follows_the_median_contour() -> None:
    assert working_step([900, 450, 4500], 450) == 2.0
    assert working_step([60, 70, 80], 450) == 1.0
    assert working_step([], 450) == 1.0


def test_samples_mirror_onto_each_other() -> None:
    assert [MIRRORED[i] for i in MIRRORED] == list(range(len(SAMPLES)))


# Views and invariances


@given(angle=st.floats(-3, 3), x=st.floats(-500, 500), start=st.integers(0, 200))
@settings(max_examples=15, deadline=None)
def test_features_do_not_change_when_the_piece_is_turned_or_begins_elsewhere(
    network: RingNet, strips: list[Strip], angle: float, x: float, start: int
) -> None:
    strip, pose = strips[0], Rigid2D(angle, x, 3.0)
    moved = replace(
        strip,
        points=np.roll(pose.apply(strip.points), start, axis=0),
        tangents=np.roll(pose.apply(strip.tangents) - pose.shift, start, axis=0),
        colours=np.roll(strip.colours, start, axis=0),
        inside=np.roll(strip.inside, start, axis=0),
    )
    for role in (QUERY, KEY):
        before, after = (features(network, [each], role)[0] for each in (strip, moved))
        assert torch.allclose(torch.roll(before, start, dims=0), after, atol=2e-3)


def test_features_do_not_depend_on_the_batch(network: RingNet, strips: list[Strip]) -> None:
    for role in (QUERY, KEY):
        together = features(network, strips, role)
        for alone, packed in zip(strips, together, strict=True):
            assert torch.allclose(features(network, [alone], role)[0], packed, atol=1e-5)
            assert torch.allclose(packed.norm(dim=1), torch.ones(len(packed)), atol=1e-5)


def test_both_views_at_once_are_those_one_by_one(network: RingNet, strips: list[Strip]) -> None:
    alone = torch.cat([network(pack_strips([strips[0]], role)) for role in (QUERY, KEY)])
    assert torch.allclose(network(pack_strips([strips[0], strips[0]], (QUERY, KEY))), alone, atol=1e-5)


def test_the_key_view_is_what_the_partner_sees(scene: Scene) -> None:
    """Geometry of a point, and of its partner in the key view, agree before anything is learned."""

    def geometry(strip: Strip, role: int) -> torch.Tensor:
        packed = pack_strips([strip], role)
        around = Neighbours(packed.rings)
        seen = local_geometry(packed.points, packed.tangents, around, (1, 2, 3, 5, 8))
        return seen[around.turned(packed.role[:, 0] == KEY)]

    near, far = [], []
    rng = np.random.default_rng(0)
    for a, b, rows, columns in scene.pairs:
        if len(rows) < 40:
            continue
        inner = slice(10, -10)  # the ends of a seam go on elsewhere
        mine, others = geometry(scene.strips[a], QUERY), geometry(scene.strips[b], KEY)
        near.append((mine[rows[inner]] - others[columns[inner]]).abs().mean())
        far.append((mine[rows[inner]] - others[rng.permutation(len(others))[: len(rows[inner])]]).abs().mean())
    assert len(near) > 3 and torch.stack(near).mean() < 0.45 * torch.stack(far).mean()


def test_neighbours_on_rings_are_their_own() -> None:
    rings = Rings((3, 5), torch.device("cpu"))
    around = Neighbours(rings)
    assert around.at(1).tolist() == [1, 2, 0, 4, 5, 6, 7, 3]
    assert around.at(-7).tolist() == [2, 0, 1, 6, 7, 3, 4, 5]
    which = torch.tensor([False] * 3 + [True] * 5)
    assert around.turned(which).tolist() == [0, 1, 2, 7, 6, 5, 4, 3]
    assert around.beside(1).tolist()[:9] == [2, 0, 1, 0, 1, 2, 1, 2, 0]
    x = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: with_neighbours(x, around, 2), x)


# Training


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"), [(torch.float64, 1e-4, 1e-7), (torch.float32, 1e-4, 1e-6), (torch.bfloat16, 2e-2, 1e-2)]
)
def test_the_loss_and_its_slopes_are_those_of_a_plain_cross_entropy(
    dtype: torch.dtype, rtol: float, atol: float
) -> None:
    torch.manual_seed(1)
    lengths = [7, 9, 6]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    asked = np.array([[0, 9, 0], [2, 20, 0], [8, 3, 1], [17, 14, 2]])
    inputs = [torch.randn(22, 5, dtype=torch.float64), torch.randn(22, 5, dtype=torch.float64), torch.tensor(0.5)]
    ours = [x.clone().requires_grad_() for x in inputs]
    loss = contrast(ours[0], ours[1], ours[2], asked, starts, near=1, dtype=dtype)
    loss.backward()  # type: ignore[no-untyped-call]
    plain = [x.clone().requires_grad_() for x in inputs]
    terms = []
    for row, right, piece in asked.tolist():
        logits = plain[2].exp() * (plain[1] @ plain[0][row])
        other = int(np.searchsorted(starts, right, side="right") - 1)
        first, length = int(starts[other]), lengths[other]
        beside = {first + (right - first + k) % length for k in (-1, 1)}
        own = range(int(starts[piece]), int(starts[piece + 1]))
        kept = [j for j in range(22) if j not in beside and j not in own]
        terms.append(torch.logsumexp(logits[kept], 0) - logits[right])
    expected = torch.stack(terms).mean()
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for mine, theirs in zip(ours, plain, strict=True):
        assert mine.grad is not None and theirs.grad is not None
        assert torch.allclose(mine.grad, theirs.grad, rtol=rtol, atol=atol)


def test_corresponding_points_lie_on_each_other(torn: Collection, scene: Scene) -> None:
    ids = [strip.id for strip in scene.strips]
    assert len(scene.pairs) == len(torn.pairs)
    for a, b, rows, columns in scene.pairs:
        places = []
        for number, points in ((a, rows), (b, columns)):
            pose = torn.by_id[ids[number]].canvas_from_fragment
            assert pose is not None
            places.append(pose.apply(scene.strips[number].points[points]))
        assert len(rows) > 5
        assert np.median(np.linalg.norm(places[0] - places[1], axis=1)) < STEP_PX


def test_a_mirrored_scene_is_one_of_the_mirrored_pieces(scene: Scene) -> None:
    twice = mirrored(mirrored(scene))
    for before, after in zip(scene.strips, twice.strips, strict=True):
        assert np.allclose(before.points, after.points) and np.array_equal(before.colours, after.colours)
        assert np.allclose(before.tangents, after.tangents)
    once = mirrored(scene)
    for strip in once.strips:  # contours still run so that the piece lies to their right
        along = np.roll(strip.points, -1, axis=0) - np.roll(strip.points, 1, axis=0)
        assert ((along * strip.tangents).sum(axis=1) > 0).mean() > 0.99
    a, b, rows, columns = scene.pairs[0]
    _, _, turned_rows, turned_columns = once.pairs[0]
    assert np.allclose(once.strips[a].points[turned_rows], scene.strips[a].points[rows] * (-1, 1))
    assert np.allclose(once.strips[b].points[turned_columns], scene.strips[b].points[columns] * (-1, 1))


def test_recolouring_leaves_shape_alone_and_grey_is_grey(scene: Scene) -> None:
    dyed = recoloured(scene, np.random.default_rng(0), grey=1.0, spread=0.0)
    assert np.ptp(dyed.strips[0].colours, axis=2).max() <= 1
    assert dyed.strips[0].points is scene.strips[0].points and dyed.pairs is scene.pairs


def test_scenes_are_stored_and_read(torn: Collection, tmp_path: Path) -> None:
    made = load_scenes([torn.folder], TINY, 0.2, tmp_path, jobs=1)
    files = list(tmp_path.rglob("*.npz"))
    again = load_scenes([torn.folder], TINY, 0.2, tmp_path, jobs=1)
    assert len(files) == len(made) == len(again) == 1
    for one, other in zip(made[0].strips, again[0].strips, strict=True):
        assert one.id == other.id and np.array_equal(one.colours, other.colours)


def test_some_pictures_are_shown_as_edges(torn: Collection, tmp_path: Path) -> None:
    (scene,) = load_scenes([torn.folder], TINY, 0.0, tmp_path, canny=0.999, jobs=1)
    assert len(list(tmp_path.rglob("*#canny.npz"))) == 1
    assert np.ptp(scene.strips[0].colours, axis=2).max() == 0  # no colours


def test_strangers_are_wrong_answers_only(scene: Scene) -> None:
    """They make the question harder, and a step with them is the same each time."""
    torch.manual_seed(0)
    network = RingNet(TINY)
    losses = []
    for strangers in (0, 1, 1):
        settings = RingTrainSettings(batch=1, most_points=300, strangers=strangers, grey=0.0, colour=0.0)
        task = RingTask(network, [scene, mirrored(scene)], settings)
        torch.manual_seed(1)
        network.zero_grad()
        total, count = task.backward([scene])
        gradient = [p.grad.clone() for p in network.parameters() if p.grad is not None]
        losses.append((total / count, float(sum(g.abs().sum() for g in gradient))))
    assert losses[1][0] > losses[0][0] + 0.1
    assert losses[1] == losses[2]


def test_a_little_training_finds_partners(scene: Scene, tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = RingTrainSettings(batch=1, steps=25, rate=1e-2, most_points=600)
    task = RingTask(RingNet(TINY), [scene], settings, {"one": [scene]})
    before = task.validate()
    result = train(task, settings, tmp_path)
    assert result.finished
    network = ring_of(read_checkpoint(result.checkpoint))
    after = RingTask(network, [scene], settings, {"one": [scene]}).validate()
    assert after["validation_loss"] < before["validation_loss"] - 0.5
    assert after["validation_pair"] > 2 * before["validation_pair"]


def test_the_best_state_is_kept_and_training_ends_when_nothing_comes_of_it(scene: Scene, tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = RingTrainSettings(batch=1, steps=12, rate=1e-30, most_points=100)
    task = RingTask(RingNet(TINY), [scene], settings, {"one": [scene], "mirrored": [mirrored(scene)]})
    first = train(task, settings, tmp_path / "still", until=2)
    result = train(task, settings, tmp_path / "still", patience=3)
    assert first.step == 2
    assert (result.step, result.finished) == (4, False)  # one scene: each step is an epoch, three brought nothing
    assert read_checkpoint(tmp_path / "still" / "best.pt").step == 1
    told = task.validate()
    assert told["validation_loss"] == pytest.approx(
        (told["validation_loss one"] + told["validation_loss mirrored"]) / 2, abs=1e-3
    )
    settings = RingTrainSettings(batch=1, steps=8, rate=1e-2, most_points=300)
    result = train(RingTask(RingNet(TINY), [scene], settings, {"one": [scene]}), settings, tmp_path / "on", patience=8)
    log = [json.loads(line) for line in (tmp_path / "on" / "log.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["validation_loss"] for line in log if "validation_loss" in line}
    assert result.finished
    assert read_checkpoint(tmp_path / "on" / "best.pt").step == min(losses, key=lambda step: losses[step])
