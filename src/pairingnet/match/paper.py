"""The paper's inference (3.4): similarity matrix -> cleaned matrix -> correspondences -> RANSAC -> odds (ours)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pairingnet.config import PaperMatchSettings
from pairingnet.geometry import Points
from pairingnet.match.ransac import ransac_rigid
from pairingnet.models.paper import LocalFeatures, PairingNet, log_similarity, pack
from pairingnet.prepare.patches import patch_input
from pairingnet.search.cosine import rank_by_cosine
from pairingnet.settings import as_dict
from pairingnet.types import Fragment, PairMatch


@dataclass(frozen=True, eq=False)
class PaperFeatures:
    """One fragment as the network knows it: points (N, 2); local (N, D), gate (N, D) or None; vector (G,), length 1."""

    id: str
    points: Points
    local: torch.Tensor
    vector: NDArray[np.float32]
    gate: NDArray[np.float32] | None


@dataclass(frozen=True)
class Support:
    """What speaks for a pose: summed similarity of the correspondences that agree with it, and their share of all."""

    similarity: float
    share: float

    def as_inputs(self) -> tuple[float, float]:
        """As the regression below sees them."""
        return float(np.log1p(self.similarity)), self.share


@dataclass(frozen=True)
class Confidence:
    """How likely a pose is right, which the paper does not say: a logistic regression on what supports it.

    Learned from the candidates of a collection with truth (`pairingnet train export --calibrate`).
    """

    constant: float
    similarity: float
    share: float

    def log_odds(self, support: Support) -> float:
        """Of one pose."""
        return float(self.constant + np.dot((self.similarity, self.share), support.as_inputs()))


class PaperMethod:
    """The paper's network, asked: features once, then as many pairs as wanted."""

    name = "paper"

    def __init__(
        self,
        network: PairingNet,
        settings: PaperMatchSettings | None = None,
        weights: str = "",
        confidence: Confidence | None = None,
    ) -> None:
        """confidence: gives poses a probability, and log-odds as their score; without it, the score is the summed
        similarity."""
        self.network = network.eval()
        self.device = next(network.parameters()).device
        self.settings = settings or PaperMatchSettings()
        self.weights = weights
        self.confidence = confidence

    def describe(self) -> dict[str, Any]:
        """Network, matching, and a mark of the weights."""
        return {**as_dict(self.network.settings), **as_dict(self.settings), "weights": self.weights}

    def know(self, features: Sequence[PaperFeatures]) -> Sequence[PaperFeatures]:
        """Nothing: a fragment's features say all."""
        return features

    def rank(self, features: Sequence[PaperFeatures], most: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """The `most` best candidates of each fragment, by the cosine of their vectors."""
        if not features:
            return np.zeros((0, most), dtype=np.intp), np.zeros((0, most), dtype=np.float32)
        return rank_by_cosine(np.stack([each.vector for each in features]), most)

    def features(self, fragments: Iterable[Fragment]) -> Iterator[PaperFeatures]:
        """Features of fragments, one at a time; they do not depend on each other."""
        chosen = self.network.settings
        for fragment in fragments:
            inputs = patch_input(fragment, chosen.patch, chosen.texture)
            with torch.no_grad():
                local: LocalFeatures = self.network.local(pack([inputs], self.device))
                vector = self.network.vectors(local)[0]
            gate = None if local.gate is None else local.gate.cpu().numpy()
            yield PaperFeatures(fragment.id, inputs.points, local.fused, vector.cpu().numpy(), gate)

    def correspondences(self, source: PaperFeatures, target: PaperFeatures) -> NDArray[np.float64]:
        """(K, 2, 2): points of the source and the target that look alike, before any transform is fitted."""
        rows, columns, _ = self._alike(source, target)
        return np.stack([source.points[rows], target.points[columns]], axis=1)

    def _alike(
        self, source: PaperFeatures, target: PaperFeatures
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
        with torch.no_grad():
            similarity = log_similarity(source.local, target.local).exp().cpu().numpy()
        return correspondences(similarity, self.settings)

    def match(self, source: PaperFeatures, target: PaperFeatures) -> PairMatch:
        """How two fragments fit."""
        found, support = self.supported(source, target)
        if support is None or self.confidence is None:
            return found
        log_odds = self.confidence.log_odds(support)
        return replace(found, score=log_odds, probability=float(1 / (1 + np.exp(-log_odds))))

    def supported(self, source: PaperFeatures, target: PaperFeatures) -> tuple[PairMatch, Support | None]:
        """How two fragments fit, and what speaks for it; its score is the summed similarity."""
        rows, columns, values = self._alike(source, target)
        fit = ransac_rigid(
            source.points[rows],
            target.points[columns],
            np.random.default_rng(self.settings.seed),
            self.settings.sample,
            self.settings.threshold,
            self.settings.iterations,
        )
        if fit.target_from_source is None:
            reason = f"only {len(rows)} points look alike"
            return PairMatch(source.id, target.id, None, reason=reason), None
        kept = np.flatnonzero(fit.inliers)
        support = Support(float(values[kept].sum()), len(kept) / len(rows))
        kept = kept[np.argsort(rows[kept], kind="stable")]  # along the source's contour
        points = np.stack([source.points[rows], target.points[columns]], axis=1)[kept]
        # Contour points lie a pixel apart.
        evidence = {"contact_px": float(len(np.unique(rows[kept]))), "share": round(support.share, 4)}
        pose = fit.target_from_source
        return PairMatch(source.id, target.id, pose, support.similarity, points, evidence=evidence), support


def correspondences(
    similarity: NDArray[np.float32], settings: PaperMatchSettings
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Rows (K,), columns (K,) and values (K,) of the cleaned matrix (N, M), the largest first."""
    cleaned = clean(similarity, settings.epsilon)
    rows, columns = np.nonzero(cleaned)
    values = cleaned[rows, columns]
    order = np.argsort(-values, kind="stable")[: settings.most_points]
    return rows[order], columns[order], values[order]


def clean(similarity: NDArray[np.float32], epsilon: float) -> NDArray[np.float32]:
    """Eq. (6): drop what is small, erode with K_e and dilate with K_d, both along the anti-diagonal.

    Two neighbours run along their seam in opposite directions, so true matches lie on anti-diagonals. Contours
    are rings, so the matrix is wrapped around at its borders.
    """
    kept = np.where(similarity >= epsilon, similarity, 0)
    eroded = np.minimum(*_diagonal_neighbours(kept))
    return np.maximum(eroded, np.maximum(*_diagonal_neighbours(eroded)))


def _diagonal_neighbours(matrix: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The entries one step up-right and one step down-left of each."""
    return np.roll(matrix, (1, -1), axis=(0, 1)), np.roll(matrix, (-1, 1), axis=(0, 1))
