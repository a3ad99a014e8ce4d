"""Training of JigsawNet: one learner after the other, each on samples weighted by what the last ones got wrong.

OUT/samples       what is learned from (`stitched.py`)
OUT/learner-1 ..  checkpoint and log of each learner, and when it is done its say and the weights for the next one
OUT/jigsawnet.safetensors   all learners that are done
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from pairingnet.baselines.jigsawnet import RIGHT, Ensemble, JigsawNet, alpha_of, boosted
from pairingnet.baselines.weights import save_jigsaw
from pairingnet.config import JigsawSettings, JigsawTrainSettings
from pairingnet.io.files import write_whole
from pairingnet.train.loop import TrainingResult, train
from pairingnet.train.stitched import Samples

WEIGHTS_NAME = "jigsawnet.safetensors"
_VALIDATED = 512  # samples, at most


@dataclass(frozen=True, eq=False)
class SampleBatch:
    """B samples: pixels (B, S, S, 3), regions (B, 4), labels (B,), weights (B,)."""

    pixels: Tensor
    regions: Tensor
    labels: Tensor
    weights: Tensor


class JigsawTask:
    """Cross-entropy of right and wrong candidates, each with its weight."""

    name = "jigsawnet"

    def __init__(
        self,
        network: JigsawNet,
        samples: Samples,
        settings: JigsawTrainSettings,
        weights: NDArray[np.float64] | None = None,
        validation: Samples | None = None,
    ) -> None:
        self.network, self.samples, self.settings, self.validation = network, samples, settings, validation
        self.weights = np.ones(len(samples)) if weights is None else weights
        self.device = next(network.parameters()).device

    def trained(self) -> nn.Module:
        return self.network

    def steps(self, rng: np.random.Generator) -> list[list[list[int]]]:
        """Batches of one piece each: batch statistics are those of the whole batch, as published."""
        order, count = rng.permutation(len(self.samples)).tolist(), self.settings.batch
        whole = len(order) - len(order) % count if len(order) >= count else len(order)
        return [[order[first : first + count]] for first in range(0, whole, count)]

    def share(self, batch: list[list[int]], rank: int, processes: int) -> list[list[int]]:
        return [group[rank::processes] for group in batch]

    def pieces(self, groups: Sequence[Sequence[int]]) -> Iterator[SampleBatch]:
        return (batch_of(self.samples, group, self.weights, self.device) for group in groups)

    def backward(self, piece: SampleBatch) -> tuple[float, float]:
        losses = functional.cross_entropy(self.network(piece.pixels, piece.regions), piece.labels, reduction="none")
        loss = weighted_sum(losses, piece.weights, self.settings.published_weighting)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), float(len(losses))

    def validate(self) -> dict[str, float]:
        """Shares of the right and of the wrong samples of the validation part that it gets wrong."""
        if self.validation is None:
            return {}
        chosen = np.linspace(0, len(self.validation) - 1, min(_VALIDATED, len(self.validation))).astype(int)
        wrong = mistakes(self.network, self.validation, chosen.tolist())
        right = self.validation.right[chosen]
        return {
            "validation_missed": round(float(wrong[right].mean()), 4) if right.any() else float("nan"),
            "validation_false": round(float(wrong[~right].mean()), 4) if (~right).any() else float("nan"),
        }


def weighted_sum(losses: Tensor, weights: Tensor, published: bool) -> Tensor:
    """Of losses (B,) by weights (B,); as published: every weight with every loss, which is their sum by the mean."""
    return weights.mean() * losses.sum() if published else (weights * losses).sum()


def batch_of(
    samples: Samples, numbers: Sequence[int], weights: NDArray[np.float64], device: torch.device
) -> SampleBatch:
    """Some samples, as the network wants them."""
    chosen = np.asarray(numbers, dtype=np.intp)
    return SampleBatch(
        torch.from_numpy(samples.pixels(chosen.tolist())).to(device),
        torch.from_numpy(samples.regions[chosen]).to(device),
        torch.from_numpy(samples.right[chosen].astype(np.int64)).to(device),
        torch.from_numpy(weights[chosen].astype(np.float32)).to(device),
    )


def mistakes(network: JigsawNet, samples: Samples, numbers: Sequence[int], batch: int = 64) -> NDArray[np.bool_]:
    """(N,) which of some samples a learner gets wrong."""
    network.eval()
    device = next(network.parameters()).device
    equal = np.ones(len(samples))
    wrong = []
    with torch.no_grad():
        for first in range(0, len(numbers), batch):
            part = batch_of(samples, numbers[first : first + batch], equal, device)
            said = network(part.pixels, part.regions).argmax(dim=1) == RIGHT
            wrong.append((said != (part.labels == RIGHT)).cpu().numpy())
    return np.concatenate(wrong) if wrong else np.zeros(0, dtype=bool)


@dataclass(frozen=True)
class EnsembleResult:
    """The weights file, None before the first learner is done; how many are; and where the last training got."""

    weights: Path | None
    learners: int
    finished: bool
    last: TrainingResult


def train_ensemble(
    samples: Samples,
    network: JigsawSettings,
    settings: JigsawTrainSettings,
    out: Path,
    budget_s: float = math.inf,
    device: torch.device | None = None,
    validation: Samples | None = None,
    tensorboard: bool = False,
) -> EnsembleResult:
    """Train all learners, or as many as the budget allows; continue where `out` stopped."""
    began = time.monotonic()
    weights = np.ones(len(samples))
    done: list[JigsawNet] = []
    alphas: list[float] = []
    for number in range(settings.learners):
        folder = out / f"learner-{number + 1}"
        of_learner = replace(settings, seed=settings.seed + number)
        torch.manual_seed(of_learner.seed)
        learner = JigsawNet(network).to(device or torch.device("cpu"))
        task = JigsawTask(learner, samples, settings, weights, validation)
        left_s = max(1e-9, budget_s - (time.monotonic() - began))
        result = train(task, of_learner, folder, left_s, tensorboard)
        if not result.finished:
            break
        alpha, weights = _judged(learner, samples, weights, settings, folder / "boosting.npz")
        done.append(learner.cpu().eval())
        alphas.append(alpha)
        story = {"samples": str(len(samples)), "right": str(int(samples.right.sum())), "steps": str(result.step)}
        story |= {"weighting": "published" if settings.published_weighting else "by sample"}
        save_jigsaw(out / WEIGHTS_NAME, Ensemble(done, tuple(alphas)), story)
    path = out / WEIGHTS_NAME if done else None
    return EnsembleResult(path, len(done), len(done) == settings.learners, result)


def _judged(
    learner: JigsawNet, samples: Samples, weights: NDArray[np.float64], settings: JigsawTrainSettings, path: Path
) -> tuple[float, NDArray[np.float64]]:
    """A learner's say, and the samples' weights for the next one; from one pass over them, which is kept."""
    if path.is_file():
        with np.load(path, allow_pickle=False) as stored:
            return float(stored["alpha"]), np.asarray(stored["weights"])
    wrong = mistakes(learner, samples, range(len(samples)))
    alpha, following = alpha_of(weights, wrong), boosted(weights, wrong, settings.published_weighting)
    write_whole(path, lambda file: np.savez(file, alpha=alpha, weights=following))
    return alpha, following
