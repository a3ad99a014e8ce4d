"""Our own matching: features of two pieces -> likely correspondences -> hypotheses -> the one that fits best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pairingnet.config import RingMatchSettings, as_dict
from pairingnet.geometry import Points, Rigid2D
from pairingnet.match.contact import Outline, contact, overlap_penalty, refine
from pairingnet.match.hypotheses import Correspondences, Hypothesis, likely_correspondences, propose
from pairingnet.models.ring import KEY, QUERY, RingNet, pack_strips
from pairingnet.prepare.strip import unroll
from pairingnet.types import Fragment, PairMatch


@dataclass(frozen=True, eq=False)
class RingFeatures:
    """One fragment as the network knows it: points and tangents (N, 2) at equal steps, queries and keys (N, D)."""

    id: str
    points: Points
    tangents: Points
    step_px: float
    queries: NDArray[np.float32]
    keys: NDArray[np.float32]
    outline: Outline


@dataclass(frozen=True, eq=False)
class Fit:
    """A hypothesis laid contour on contour: its transform, correspondences and what was measured."""

    target_from_source: Rigid2D
    hypothesis: Hypothesis
    support: float
    contact_px: float
    residual_px: float
    overlap_px: float

    @property
    def score(self) -> float:
        return self.support - 0.1 * self.overlap_px


class RingMethod:
    """Our own network, asked: features once, then as many pairs as wanted."""

    name = "ring"

    def __init__(
        self, network: RingNet, step_px: float, settings: RingMatchSettings | None = None, weights: str = ""
    ) -> None:
        self.network = network.eval()
        self.step_px = step_px
        self.settings = settings or RingMatchSettings()
        self.weights = weights
        self.device = next(network.parameters()).device
        self.scale = float(network.log_scale.detach().exp())

    def describe(self) -> dict[str, Any]:
        """Network, matching, working scale, and a mark of the weights."""
        told = {**as_dict(self.network.settings), **as_dict(self.settings)}
        return {**told, "step_px": round(self.step_px, 4), "weights": self.weights}

    def features(self, fragments: Iterable[Fragment]) -> Iterator[RingFeatures]:
        """Features of fragments, one at a time; they do not depend on each other."""
        for fragment in fragments:
            strip = unroll(fragment, self.step_px, self.network.settings.texture)
            with torch.no_grad():
                queries, keys = (self.network(pack_strips([strip], role, self.device)) for role in (QUERY, KEY))
            yield RingFeatures(
                fragment.id,
                strip.points,
                _smooth(strip.tangents),
                strip.step_px,
                queries.cpu().numpy(),
                keys.cpu().numpy(),
                Outline(fragment),
            )

    def match(self, source: RingFeatures, target: RingFeatures) -> PairMatch:
        """How two fragments fit."""
        found, fits = self.fits(source, target)
        if not fits:
            return PairMatch(source.id, target.id, None, reason=f"only {len(found)} points look alike")
        best = max(fits, key=lambda fit: fit.score)
        inliers = best.hypothesis.inliers
        points = np.stack([source.points[found.rows[inliers]], target.points[found.columns[inliers]]], axis=1)
        return PairMatch(source.id, target.id, best.target_from_source, best.score, points)

    def fits(self, source: RingFeatures, target: RingFeatures) -> tuple[Correspondences, list[Fit]]:
        """All hypotheses, each laid contour on contour."""
        chosen = self.settings
        found = likely_correspondences(self.logits(source, target), chosen.most_points, chosen.least)
        step = max(source.step_px, target.step_px)
        hypotheses = propose(
            found,
            (source.points, source.tangents),
            (target.points, target.tangents),
            chosen.threshold * step,
            chosen.hypotheses,
        )
        return found, [self._lay(source, target, found, hypothesis, step) for hypothesis in hypotheses]

    def logits(self, source: RingFeatures, target: RingFeatures) -> NDArray[np.float32]:
        """(N, M): how well each point of the source continues in each of the target, both asking."""
        return np.asarray(0.5 * self.scale * (source.queries @ target.keys.T + source.keys @ target.queries.T))

    def _lay(
        self, source: RingFeatures, target: RingFeatures, found: Correspondences, hypothesis: Hypothesis, step: float
    ) -> Fit:
        inliers = hypothesis.inliers
        anchors = (
            source.points[found.rows[inliers]],
            target.points[found.columns[inliers]],
            np.sqrt(found.probability[inliers]),
        )
        reach_px = self.settings.contact * step
        pose = refine(source.outline, target.outline, hypothesis.target_from_source, anchors, reach_px)
        touching = contact(source.outline, target.outline, pose, reach_px)
        residual = float(np.median(np.abs(touching.gap_px))) if len(touching) else reach_px
        overlap = overlap_penalty(source.outline, target.outline, pose, self.settings.allowed * step)
        return Fit(pose, hypothesis, hypothesis.support, float(len(touching)), residual, overlap / step)

    def rank(self, features: Sequence[RingFeatures], most: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """The `most` best candidates of each fragment."""
        from pairingnet.search.votes import rank_by_votes

        return rank_by_votes([each.queries for each in features], [each.keys for each in features], self.scale, most)


def _smooth(tangents: Points, steps: int = 2) -> Points:
    """Directions averaged over a few steps: single ones are too noisy to fix a transform."""
    total = sum(np.roll(tangents, k, axis=0) for k in range(-steps, steps + 1))
    return np.asarray(total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-9))
