"""Step 1 of the paper: the matching network learns which contour points of two neighbours correspond."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from pairingnet.config import PaperSettings, TrainSettings
from pairingnet.models.device import mixed_precision
from pairingnet.models.paper import PairingNet, log_similarity
from pairingnet.train.data import PairBatch, PairData
from pairingnet.train.losses import pair_loss

_PIECE = 4  # pairs whose activations stay in the cache


def fresh_network(settings: PaperSettings, seed: int) -> PairingNet:
    """An untrained network."""
    torch.manual_seed(seed)
    return PairingNet(settings)


class MatchingTask:
    """Focal loss on the similarity matrices of true pairs."""

    name = "matching"

    def __init__(
        self, network: PairingNet, data: PairData, settings: TrainSettings, validation: PairData | None = None
    ) -> None:
        self.network, self.data, self.settings, self.validation = network, data, settings, validation

    def trained(self) -> nn.Module:
        return self.network.matching

    def steps(self, rng: np.random.Generator) -> list[list[list[int]]]:
        order = rng.permutation(len(self.data)).tolist()
        batches = [order[i : i + self.settings.batch] for i in range(0, len(order), self.settings.batch)]
        return [[batch[i : i + _PIECE] for i in range(0, len(batch), _PIECE)] for batch in batches]

    def pieces(self, groups: Sequence[Sequence[int]]) -> Iterator[PairBatch]:
        return self.data.batches(groups)

    def share(self, batch: list[list[int]], rank: int, processes: int) -> list[list[int]]:
        return batch[rank::processes]

    def backward(self, piece: PairBatch) -> tuple[float, float]:
        with mixed_precision(self.settings.precision, self.data.device):
            features = self.network.local(piece.patches)
        each = features.rings.split(features.fused.float())
        total = each[0].new_zeros(())
        for number, (rows, columns) in enumerate(piece.correspondences):
            source, target = each[2 * number], each[2 * number + 1]
            total = total + pair_loss(source, target, rows, columns, self.settings.beta1, self.settings.gamma)
        terms = float(sum(len(rows) for rows, _ in piece.correspondences))
        total.backward()  # type: ignore[no-untyped-call]
        return float(total.detach()), max(terms, 1.0)

    def validate(self, most_pairs: int = 100) -> dict[str, float]:
        """Share of the true correspondences that are the best of their row, within 3 points."""
        if self.validation is None or not len(self.validation):
            return {}
        chosen = np.linspace(0, len(self.validation) - 1, min(most_pairs, len(self.validation))).astype(int)
        shares = []
        with torch.no_grad():
            for piece in self.validation.batches([[int(number)] for number in chosen]):
                features = self.network.local(piece.patches)
                source, target = features.rings.split(features.fused)
                rows, columns = piece.correspondences[0]
                best = log_similarity(source, target).argmax(dim=1)[rows]
                apart = (best - columns).abs()
                apart = torch.minimum(apart, len(target) - apart)
                shares.append(float((apart <= 3).float().mean()) if len(rows) else 0.0)
        return {"validation_points": round(float(np.mean(shares)), 4)}
