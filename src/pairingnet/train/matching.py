"""Step 1 of the paper: the matching network learns which contour points of two neighbours correspond."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from pairingnet.config import PaperSettings, TrainSettings
from pairingnet.evaluate.metrics import match_scores
from pairingnet.evaluate.scores import errors_of
from pairingnet.match.paper import PaperMethod
from pairingnet.models.device import mixed_precision
from pairingnet.models.paper import PairingNet, log_similarity
from pairingnet.train.data import PairBatch, PairData
from pairingnet.train.losses import focal_loss, pair_loss

_PIECE = 4  # pairs whose activations stay in the cache
_VALIDATED = 60  # pairs


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

    def validate(self) -> dict[str, float]:
        """Of the same few pairs each time: the loss; the share of the true correspondences that are the best of their
        row, within 3 points; and the share of the pairs that RANSAC lays right, as the paper's RR."""
        if self.validation is None or not len(self.validation):
            return {}
        data, method = self.validation, PaperMethod(self.network)
        chosen = np.linspace(0, len(data) - 1, min(_VALIDATED, len(data))).astype(int)
        loss = terms = 0.0
        shares, errors = [], []
        with torch.no_grad():
            for number, piece in zip(chosen, data.batches([[int(number)] for number in chosen]), strict=True):
                features = self.network.local(piece.patches)
                source, target = features.rings.split(features.fused.float())
                rows, columns = piece.correspondences[0]
                similarity = log_similarity(source, target)
                loss += float(focal_loss(similarity, rows, columns, self.settings.beta1, self.settings.gamma))
                terms += len(rows)
                apart = (similarity.argmax(dim=1)[rows] - columns).abs()
                apart = torch.minimum(apart, len(target) - apart)
                shares.append(float((apart <= 3).float().mean()) if len(rows) else 0.0)
                pair = data.pairs[number]
                known = [data.known(name, local) for name, local in ((pair.source, source), (pair.target, target))]
                errors.append(errors_of(data.collection, pair, method.match(*known).target_from_source))
        return {
            "validation_loss": round(loss / max(terms, 1.0), 5),
            "validation_points": round(float(np.mean(shares)), 4),
            "validation_rr": round(match_scores(errors).rr, 4),
        }
