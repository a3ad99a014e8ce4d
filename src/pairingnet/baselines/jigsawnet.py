"""JigsawNet (Le & Li 2019), its pairwise part: networks look at stitched candidates and say which are right.

Known, from the published code: the picture it sees and the region of interest (`stitch.py`); every layer below, with
its 722,626 parameters; five learners trained one after the other, each on samples weighted by what the last ones got
wrong, and their vote weighted by alpha (`boosted`, `Ensemble`); Adam at 1e-4, 64 samples a step, 30,000 steps.
Inferred: that candidates came from the rule-based step (`candidates.py`), whose authors it shares.
Chosen: a pair's pose and score are those of its likeliest candidate; a pair without candidates has none.
Different: in the published loss each sample's weight meets every sample's loss (one is a column, the other a row), so
that no sample counts more than another. Here they do; `published_weighting` brings the slip back. A learner that is
wrong more often than right is not asked.
The global stage (loop consistency) is left out, as in the paper's comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional

from pairingnet.baselines.candidates import find_candidates
from pairingnet.baselines.ranking import rank_all_pairs
from pairingnet.baselines.rule_based import NO_CANDIDATE
from pairingnet.baselines.segments import Piece, describe_piece
from pairingnet.baselines.stitch import Cutout, Stitched, stitch
from pairingnet.config import CandidateSettings, JigsawSettings
from pairingnet.settings import as_dict
from pairingnet.types import Fragment, PairMatch

WRONG, RIGHT = 0, 1


# The network -----------------------------------------------------------------------------------------------


class JigsawNet(nn.Module):
    """One learner: a small residual network, a look at the region of interest, two plain layers."""

    def __init__(self, settings: JigsawSettings) -> None:
        super().__init__()
        self.settings = settings
        first = settings.widths[0]
        self.stem = nn.Sequential(*_convolution(3, first), nn.ReLU(), nn.MaxPool2d(2))
        self.blocks = nn.ModuleList(Block(a, b) for a, b in pairwise((first, *settings.widths)))
        self.hidden = nn.Linear(settings.cells**2 * settings.widths[-1], settings.hidden)
        self.out = nn.Linear(settings.hidden, 2)  # no bend between the two, as published
        for layer in self.modules():
            _start(layer)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as its input lies; a fifth faster

    def forward(self, pixels: Tensor, regions: Tensor) -> Tensor:
        """pixels (B, S, S, 3) BGR, 0 to 255; regions (B, 4) top, left, bottom, right in [0, 1] -> logits (B, 2)."""
        x = self.stem(pixels.permute(0, 3, 1, 2).float())
        for number, block in enumerate(self.blocks, start=1):
            x = block(x)
            if number in self.settings.pools:
                x = functional.max_pool2d(x, 2)
        seen = crop_and_resize(x, regions, self.settings.cells)
        # The published flattening has the channels last.
        answer: Tensor = self.out(self.hidden(seen.permute(0, 2, 3, 1).flatten(1)))
        return answer


class Block(nn.Module):
    """Two convolutions and a way around them, which is one of 3x3 too where the width changes."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_convolution(width_in, width_out), nn.ReLU(), *_convolution(width_out, width_out))
        self.around = nn.Identity() if width_in == width_out else nn.Sequential(*_convolution(width_in, width_out))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.around(x))


def _convolution(width_in: int, width_out: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(width_in, width_out, 3, padding=1), nn.BatchNorm2d(width_out, eps=1e-3, momentum=0.01)


def _start(layer: nn.Module) -> None:
    """Xavier's values; biases of convolutions as well, those of the last layers 0."""
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.xavier_uniform_(layer.weight)
        assert layer.bias is not None
        reach = np.sqrt(3 / len(layer.bias)) if isinstance(layer, nn.Conv2d) else 0.0
        nn.init.uniform_(layer.bias, -reach, reach)


def crop_and_resize(maps: Tensor, regions: Tensor, cells: int) -> Tensor:
    """maps (B, C, H, W) in regions (B, 4), sampled at cells x cells places, the region's corners among them.

    TensorFlow's meaning: 0 is the middle of the first row, 1 that of the last; one bilinear sample a cell.
    """
    along = torch.linspace(0, 1, cells, dtype=maps.dtype, device=maps.device)
    top, left, bottom, right = regions.to(maps.dtype).unbind(dim=1)
    y = top[:, None] + (bottom - top)[:, None] * along  # (B, cells)
    x = left[:, None] + (right - left)[:, None] * along
    grid = torch.stack(
        [x[:, None, :].expand(-1, cells, -1), y[:, :, None].expand(-1, -1, cells)], dim=3
    )  # (B, cells, cells, 2)
    return functional.grid_sample(maps, 2 * grid - 1, mode="bilinear", padding_mode="zeros", align_corners=True)


# Boosting --------------------------------------------------------------------------------------------------


def alpha_of(weights: ArrayLike, wrong: ArrayLike) -> float:
    """A learner's say: 0.5 ln((1 - E) / E), E the share of the samples' weight (N,) that it got `wrong` (N,)."""
    w = np.asarray(weights, dtype=np.float64)
    error = float(w[np.asarray(wrong, dtype=bool)].sum() / w.sum())
    error = min(max(error, 1e-6), 1 - 1e-6)
    return 0.5 * float(np.log((1 - error) / error))


def boosted(weights: ArrayLike, wrong: ArrayLike, published: bool = False) -> NDArray[np.float64]:
    """The samples' weights (N,) for the next learner: times e where it was wrong, by e where it was right.

    Published, all are multiplied by exp(alpha) as well, and grow without end; here their mean stays 1.
    """
    w, off = np.asarray(weights, dtype=np.float64), np.asarray(wrong, dtype=bool)
    changed = w * np.where(off, np.e, 1 / np.e)
    return np.asarray(changed * np.exp(alpha_of(w, off)) if published else changed / changed.mean())


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Learners (L) and their say (L,)."""

    learners: Sequence[JigsawNet]
    alphas: tuple[float, ...]

    def __post_init__(self) -> None:
        for learner in self.learners:
            learner.eval()

    @property
    def settings(self) -> JigsawSettings:
        return self.learners[0].settings

    @property
    def say(self) -> NDArray[np.float64]:
        """(L,) adds up to 1; nobody who is wrong more often than right has any."""
        alphas = np.maximum(self.alphas, 0)
        return np.asarray(alphas / alphas.sum() if alphas.sum() > 0 else np.full(len(alphas), 1 / len(alphas)))

    def probabilities(self, candidates: Sequence[Stitched]) -> NDArray[np.float64]:
        """(L, C) of each learner: how likely candidates are right."""
        if not candidates:
            return np.zeros((len(self.learners), 0))
        pixels = torch.from_numpy(np.stack([each.pixels for each in candidates]))
        regions = torch.from_numpy(np.stack([each.region for each in candidates]))
        with torch.no_grad():
            each = [functional.softmax(learner(pixels, regions), dim=1)[:, RIGHT] for learner in self.learners]
        return torch.stack(each).numpy().astype(np.float64)

    def probability(self, candidates: Sequence[Stitched]) -> NDArray[np.float64]:
        """(C,) the learners' mean, by their say."""
        return np.asarray(self.say @ self.probabilities(candidates))

    def accepts(self, candidates: Sequence[Stitched]) -> NDArray[np.bool_]:
        """(C,) the vote: every learner says yes or no, with its say."""
        votes = np.where(self.probabilities(candidates) > 0.5, 1.0, -1.0)
        return np.asarray(self.say @ votes > 0)


# The method ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class JigsawFeatures:
    """A piece with its polygon, for candidates, and with its picture, for stitching."""

    piece: Piece
    cutout: Cutout

    @property
    def id(self) -> str:
        return self.piece.id


def jigsaw_features(fragment: Fragment, settings: CandidateSettings) -> JigsawFeatures:
    """All that is needed of a fragment."""
    piece = describe_piece(fragment, settings)
    return JigsawFeatures(piece, Cutout.of(fragment, piece.outline))


class JigsawMethod:
    """Candidates of the rule-based step, judged by the ensemble."""

    name = "jigsawnet"

    def __init__(self, ensemble: Ensemble, settings: CandidateSettings | None = None, weights: str = "") -> None:
        self.ensemble = ensemble
        self.settings = settings or CandidateSettings()
        self.weights = weights

    def describe(self) -> dict[str, Any]:
        """Candidates, network, and a mark of the weights."""
        told = {**as_dict(self.settings), **as_dict(self.ensemble.settings)}
        return {**told, "learners": len(self.ensemble.learners), "weights": self.weights}

    def features(self, fragments: Iterable[Fragment]) -> Iterator[JigsawFeatures]:
        """Polygon, colours and picture of each fragment."""
        return (jigsaw_features(fragment, self.settings) for fragment in fragments)

    def know(self, features: Sequence[JigsawFeatures]) -> Sequence[JigsawFeatures]:
        """Nothing: pieces are judged two by two."""
        return features

    def score(self, source: JigsawFeatures, target: JigsawFeatures) -> float:
        """How likely the likeliest candidate is; 0 where there is none."""
        return self.match(source, target).score

    def rank(self, features: Sequence[JigsawFeatures], most: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """The `most` best candidates of each fragment. Every pair is laid on each other: F^2 / 2 of them."""
        return rank_all_pairs(self.score, features, most)

    def match(self, source: JigsawFeatures, target: JigsawFeatures) -> PairMatch:
        """How two fragments fit: the likeliest candidate."""
        found = find_candidates(source.piece, target.piece, self.settings)
        if not found:
            return PairMatch(source.id, target.id, None, reason=NO_CANDIDATE)
        side = self.ensemble.settings.side
        seen = [stitch(source.cutout, target.cutout, c.target_from_source, c.line[:, 0], side) for c in found]
        probability = self.ensemble.probability(seen)
        best = int(probability.argmax())
        likely = float(probability[best])
        return PairMatch(
            source.id, target.id, found[best].target_from_source, likely, found[best].line, probability=likely
        )
