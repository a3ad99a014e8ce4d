"""JigsawNet: what it sees, its layers, its vote and its training, by hand and against slow versions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

from pairingnet.baselines.jigsawnet import (
    Ensemble,
    JigsawMethod,
    JigsawNet,
    alpha_of,
    boosted,
    crop_and_resize,
)
from pairingnet.baselines.stitch import Cutout, Stitched, grow, grown_region, stitch
from pairingnet.baselines.weights import load_jigsaw, save_jigsaw
from pairingnet.cli import app
from pairingnet.config import CandidateSettings, JigsawSettings, JigsawTrainSettings
from pairingnet.errors import CollectionError
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection, write_collection
from pairingnet.match.contact import Outline
from pairingnet.train.checkpoints import network_of, read_checkpoint, ring_of
from pairingnet.train.jigsawnet import JigsawTask, batch_of, mistakes, train_ensemble, weighted_sum
from pairingnet.train.stitched import Samples, draw_samples, is_right, load_samples
from pairingnet.types import Fragment
from tests.conftest import fragment_of

TINY = JigsawSettings(side=32, widths=(4, 6), pools=(1,), cells=2, hidden=4)
QUICK = JigsawTrainSettings(batch=16, steps=4, learners=2, samples=40, strangers=0.0, rate=1e-3)
CANDIDATES = CandidateSettings()


# What it sees


def box_cutout(width: int, height: int, colour: tuple[int, int, int]) -> Cutout:
    mask = np.zeros((height + 20, width + 20), dtype=np.uint8)
    mask[10:-10, 10:-10] = 255
    fragment = fragment_of(mask, colour)
    return Cutout.of(fragment, Outline(fragment.contour))


def test_two_boxes_are_stitched_side_by_side() -> None:
    """A red box of 40 x 40 and, right of it, a black one of 40 x 40 that is not mistaken for background."""
    left, right = box_cutout(40, 40, (200, 0, 0)), box_cutout(40, 40, (0, 0, 0))
    line = np.stack([np.full(41, 9.5), np.linspace(9.5, 49.5, 41)], axis=1)  # the left edge of the source
    seen = stitch(right, left, Rigid2D(0.0, 40.0, 0.0), line, 80)
    assert seen.pixels.shape == (80, 80, 3) and seen.pixels.dtype == np.uint8
    assert seen.pixels[40, 20].tolist() == [0, 0, 200]  # BGR
    assert seen.pixels[40, 60].tolist() == [0, 0, 0]
    # The seam is in the middle; the region reaches 31 of about 80 px to both sides, and from top to bottom.
    top, left_, bottom, right_ = seen.region.tolist()
    assert 0 <= top < 0.06 and 0.94 < bottom <= 1
    assert left_ == pytest.approx(0.5 - 31 / 82, abs=0.03) and right_ == pytest.approx(0.5 + 31 / 82, abs=0.03)


def test_the_target_lies_on_top_and_the_shape_is_stretched() -> None:
    source, target = box_cutout(60, 20, (0, 200, 0)), box_cutout(20, 20, (0, 0, 200))
    seen = stitch(source, target, Rigid2D(), np.array([[20.0, 15.0], [25.0, 20.0]]), 60)
    assert seen.pixels[30, 5].tolist() == [200, 0, 0] and seen.pixels[30, 50].tolist() == [0, 200, 0]
    assert (seen.pixels[:, 50].sum(axis=1) > 0).mean() > 0.8  # 20 px of height fill the square


def test_large_canvases_are_drawn_smaller() -> None:
    wide = box_cutout(2000, 60, (0, 200, 0))
    seen = stitch(wide, wide, Rigid2D(0.0, 0.0, 61.0), np.array([[10.0, 9.5], [2009.0, 9.5]]), 32)
    assert (seen.pixels[8:24, 16, 1] > 150).all() and (seen.region[2:] <= 1).all()


def test_regions_grow_by_hand() -> None:
    full = np.zeros((60, 60), dtype=bool)
    full[10:40, 5:56] = True
    start = (20, 20, 25, 30)
    # Up to row 10, the first full one; down to row 39; left to 5; right 25 columns to 55.
    assert grow(start, full, (0, 2, 1, 3)) == (10, 5, 39, 55)
    # A chimney of 8 px above: its rows lack 3 of the 11 px, which is allowed while the box is narrow.
    full[5:10, 20:28] = True
    assert grow(start, full, (0, 2, 1, 3)) == (5, 5, 39, 55)  # beside it columns lack 5 px, just allowed
    assert grow(start, full, (1, 3, 0, 2)) == (10, 5, 39, 55)  # a wide box cannot rise into it
    seam = np.array([[20.2, 20.0], [24.5, 29.1]])  # its box is (20, 20, 25, 30)
    assert grown_region(seam, full) == (5, 5, 39, 55)
    # One row higher, and columns beside the chimney lack 6 px: rising first ends in a narrow box.
    full[4, 20:28] = True
    assert grow(start, full, (0, 2, 1, 3)) == (4, 20, 39, 30)
    assert grown_region(seam, full) == (10, 5, 39, 55)


def test_regions_grow_by_31_px_at_most_and_stay_inside() -> None:
    full = np.ones((200, 40), dtype=bool)
    assert grown_region(np.array([[100.0, 20.0], [101.0, 20.0]]), full) == (69, 0, 132, 39)
    assert grown_region(np.array([[-5.0, -5.0], [500.0, 500.0]]), full) == (0, 0, 199, 39)


# The network


def test_the_published_network_has_its_parameters() -> None:
    network = JigsawNet(JigsawSettings())
    assert sum(p.numel() for p in network.parameters()) == 722_626
    with torch.no_grad():
        out = network.eval()(torch.zeros(1, 160, 160, 3, dtype=torch.uint8), torch.tensor([[0.2, 0.2, 0.8, 0.8]]))
    assert out.shape == (1, 2)


def slow_crop_and_resize(maps: NDArray[np.float64], region: NDArray[np.float64], cells: int) -> NDArray[np.float64]:
    """One map (C, H, W): place by place, as TensorFlow's documentation says."""
    _, height, width = maps.shape
    out = np.zeros((len(maps), cells, cells))
    for i in range(cells):
        for j in range(cells):
            y = region[0] * (height - 1) + i * (region[2] - region[0]) * (height - 1) / (cells - 1)
            x = region[1] * (width - 1) + j * (region[3] - region[1]) * (width - 1) / (cells - 1)
            top, left = int(np.floor(y)), int(np.floor(x))
            bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
            dy, dx = y - top, x - left
            upper = maps[:, top, left] * (1 - dx) + maps[:, top, right] * dx
            lower = maps[:, bottom, left] * (1 - dx) + maps[:, bottom, right] * dx
            out[:, i, j] = upper * (1 - dy) + lower * dy
    return out


def test_crop_and_resize_is_the_slow_one(rng: np.random.Generator) -> None:
    maps = rng.normal(size=(5, 3, 11, 7))
    corners = np.sort(rng.uniform(size=(5, 2, 2)), axis=1)
    regions = corners.reshape(5, 4)
    regions[0] = 0, 0, 1, 1
    fast = crop_and_resize(torch.from_numpy(maps), torch.from_numpy(regions), 4).numpy()
    for number in range(5):
        assert fast[number] == pytest.approx(slow_crop_and_resize(maps[number], regions[number], 4), abs=1e-9)
    assert fast[0, :, 0, 0] == pytest.approx(maps[0, :, 0, 0]) and fast[0, :, 3, 3] == pytest.approx(maps[0, :, 10, 6])


# Boosting and the vote


def test_alpha_and_weights_by_hand() -> None:
    weights, wrong = np.array([1.0, 1.0, 1.0, 1.0]), np.array([True, False, False, False])
    assert alpha_of(weights, wrong) == pytest.approx(0.5 * np.log(3))
    # e, 1/e, 1/e, 1/e; their mean is made 1.
    raw = np.array([np.e, 1 / np.e, 1 / np.e, 1 / np.e])
    assert boosted(weights, wrong) == pytest.approx(raw / raw.mean())
    assert boosted(weights, wrong, published=True) == pytest.approx(raw * np.sqrt(3))  # exp(0.5 ln 3)
    # Weighted: the wrong one holds 3 of 6.
    assert alpha_of(np.array([3.0, 1.0, 1.0, 1.0]), wrong) == pytest.approx(0.0)
    assert np.isfinite(alpha_of(weights, np.zeros(4, dtype=bool)))


def test_the_published_slip_weighs_no_sample_more_than_another() -> None:
    losses, weights = torch.tensor([1.0, 3.0]), torch.tensor([3.0, 1.0])
    assert float(weighted_sum(losses, weights, published=False)) == 6.0
    assert float(weighted_sum(losses, weights, published=True)) == 8.0
    # The mean of all products of a column and a row, as in the published loss.
    assert float((weights[:, None] * losses[None]).mean()) * 2 == 8.0


class Fixed(JigsawNet):
    """Says the same about everything."""

    def __init__(self, probability: float) -> None:
        super().__init__(TINY)
        self.logit = float(np.log(probability / (1 - probability)))

    def forward(self, pixels: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[0.0, self.logit]]).repeat(len(pixels), 1)


def test_the_vote_by_hand() -> None:
    seen = [Stitched(np.zeros((32, 32, 3), np.uint8), np.array([0, 0, 1, 1], np.float32))]
    ensemble = Ensemble([Fixed(0.9), Fixed(0.4), Fixed(0.2)], (1.0, 2.0, -5.0))
    assert ensemble.say == pytest.approx([1 / 3, 2 / 3, 0])  # the last one is wrong more often than right
    assert ensemble.probability(seen) == pytest.approx([0.9 / 3 + 0.4 * 2 / 3])
    assert not ensemble.accepts(seen)[0]  # 1 against 2
    assert Ensemble([Fixed(0.9), Fixed(0.4)], (2.0, 1.0)).accepts(seen)[0]
    assert Ensemble([Fixed(0.9), Fixed(0.5)], (-1.0, -2.0)).say == pytest.approx([0.5, 0.5])
    assert ensemble.probability([]).shape == (0,)


def test_the_likeliest_candidate_is_the_answer(pieces: list[Fragment]) -> None:
    torch.manual_seed(0)
    method = JigsawMethod(Ensemble([JigsawNet(TINY), JigsawNet(TINY)], (1.0, 0.5)))
    features = list(method.features(pieces[:6]))
    answers = [method.match(a, b) for a in features for b in features if a is not b]
    found = [answer for answer in answers if answer.target_from_source is not None]
    assert found and all(0 < answer.score == answer.probability <= 1 for answer in found)
    assert all(answer.reason for answer in answers if answer.target_from_source is None)


def test_weights_are_stored_and_read_strictly(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ensemble = Ensemble([JigsawNet(TINY), JigsawNet(TINY)], (1.25, 0.5))
    path = tmp_path / "a.safetensors"
    save_jigsaw(path, ensemble, {"steps": "3"})
    again = load_jigsaw(path)
    assert again.alphas == ensemble.alphas and again.settings == TINY
    for one, other in zip(ensemble.learners, again.learners, strict=True):
        assert not other.training
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name])
    path.write_bytes(b"nonsense")
    with pytest.raises(CollectionError, match=r"a\.safetensors holds no weights"):
        load_jigsaw(path)
    with pytest.raises(CollectionError, match="train jigsawnet"):
        load_jigsaw(tmp_path / "b.safetensors")


# Samples and training


def test_right_is_near_the_truth_by_hand() -> None:
    true = Rigid2D(0.3, 100.0, -20.0)
    settings = JigsawTrainSettings()
    assert is_right(true, true, settings)
    assert is_right(Rigid2D(0.0, 49.0, 0.0) @ true, true, settings)
    assert not is_right(Rigid2D(0.0, 36.0, 36.0) @ true, true, settings)  # 50.9 px
    assert is_right(Rigid2D(np.radians(3.9)) @ true, true, settings)
    assert not is_right(Rigid2D(np.radians(-4.1)) @ true, true, settings)
    assert is_right(Rigid2D(np.pi - 0.01) @ true, Rigid2D(-np.pi + 0.01) @ true, settings)


@pytest.fixture(scope="module")
def samples(torn: Collection, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return load_samples(torn.folder, tmp_path_factory.mktemp("samples"), CANDIDATES, QUICK, TINY.side, jobs=1)


def test_samples_are_right_and_wrong_as_asked_for(torn: Collection, samples: Samples) -> None:
    assert samples.right.sum() == 8 and len(samples) == 40  # 1 to 4
    assert samples.pixels(range(40)).shape == (40, 32, 32, 3)
    assert (samples.regions >= 0).all() and (samples.regions <= 1).all()
    assert (samples.regions[:, 2:] > samples.regions[:, :2]).all()
    drawn, right = draw_samples(torn, "colosseum", CANDIDATES, QUICK, TINY.side)
    assert np.array_equal(np.stack([each.pixels for each in drawn]), samples.pixels(range(40)))
    assert np.array_equal(right, samples.right)


def test_samples_are_drawn_once_and_refuse_other_settings(torn: Collection, tmp_path: Path) -> None:
    first = load_samples(torn.folder, tmp_path, CANDIDATES, QUICK, TINY.side, jobs=1)
    path = tmp_path / "samples" / "colosseum.npy"
    before = path.stat().st_mtime_ns
    again = load_samples(torn.folder, tmp_path, CANDIDATES, QUICK, TINY.side, jobs=1)
    assert path.stat().st_mtime_ns == before and np.array_equal(first.right, again.right)
    with pytest.raises(CollectionError, match=r"jitter_px: 3\.0 before, 1\.0 now"):
        load_samples(torn.folder, tmp_path, CANDIDATES, replace(QUICK, jitter_px=1.0), TINY.side, jobs=1)


def test_a_little_training_tells_right_from_wrong(samples: Samples, tmp_path: Path) -> None:
    eager = replace(QUICK, steps=60, learners=1, rate=3e-3)
    result = train_ensemble(samples, TINY, eager, tmp_path)
    assert result.finished and result.weights is not None
    learner = load_jigsaw(result.weights).learners[0]
    assert isinstance(learner, JigsawNet)
    lines = [json.loads(line) for line in (tmp_path / "learner-1" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:5])
    assert 0 <= mistakes(learner, samples, range(len(samples))).mean() < 0.4
    checkpoint = read_checkpoint(tmp_path / "learner-1" / "checkpoint.pt")
    for read in (network_of, ring_of):
        with pytest.raises(CollectionError, match="checkpoint of JigsawNet"):
            read(checkpoint)


def test_a_stopped_training_continues_to_the_same_ensemble(samples: Samples, tmp_path: Path) -> None:
    whole = train_ensemble(samples, TINY, QUICK, tmp_path / "whole", validation=samples)
    for _ in range(20):  # no time at all: one step a run
        part = train_ensemble(samples, TINY, QUICK, tmp_path / "parts", budget_s=1e-9, validation=samples)
        if part.finished:
            break
    assert whole.finished and part.finished and whole.learners == part.learners == 2
    assert whole.weights is not None and part.weights is not None
    ensemble, again = load_jigsaw(whole.weights), load_jigsaw(part.weights)
    assert ensemble.alphas == again.alphas
    for one, other in zip(ensemble.learners, again.learners, strict=True):
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name
    with np.load(tmp_path / "whole" / "learner-1" / "boosting.npz") as stored:
        assert float(stored["alpha"]) == ensemble.alphas[0]
        assert stored["weights"].mean() == pytest.approx(1) and len(np.unique(stored["weights"])) == 2
    with pytest.raises(CollectionError, match=r"rate: 0\.001 before, 0\.1 now"):
        train_ensemble(samples, TINY, replace(QUICK, rate=0.1), tmp_path / "whole")


def test_weights_of_samples_change_the_gradient(samples: Samples) -> None:
    torch.manual_seed(0)
    gradients = []
    for weights in (np.ones(len(samples)), np.where(samples.right, 4.0, 0.25)):
        torch.manual_seed(0)
        task = JigsawTask(JigsawNet(TINY), samples, QUICK, weights)
        loss, terms = task.backward(batch_of(samples, range(16), weights, torch.device("cpu")))
        assert terms == 16 and loss > 0
        gradient = task.network.out.weight.grad
        assert gradient is not None
        gradients.append(gradient / gradient.norm())
    assert float((gradients[0] * gradients[1]).sum()) < 0.999


def test_no_truth_is_refused(torn: Collection, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "fragments").symlink_to(torn.folder / "fragments")
    records = tuple(replace(record, canvas_from_fragment=None) for record in torn.fragments[:4])
    write_collection(Collection(folder, records))
    with pytest.raises(CollectionError, match="0 right"):
        load_samples(folder, tmp_path / "out", CANDIDATES, QUICK, TINY.side, jobs=1)


def test_the_command_trains_and_goes_on(torn: Collection, tmp_path: Path) -> None:
    values = {"steps": 2, "learners": 2, "samples": 20, "side": 32, "widths": "4,6", "pools": "1", "strangers": 0}
    chosen = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    words = ["train", "jigsawnet", str(torn.folder), str(tmp_path), "--jobs", "1", *chosen]
    stopped = CliRunner().invoke(app, [*words, "--budget", "0.000001s"], catch_exceptions=False)
    assert "0 of 2 learners (the next one is at step 1); run it again" in stopped.stdout
    told = json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)
    assert told["learners"] == 2 and told["finished"] and told["samples"] == 20 and told["right"] == 4
    assert len(load_jigsaw(Path(told["weights"])).learners) == 2
