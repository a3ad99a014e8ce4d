"""Step 2 of the paper: the search encoder learns to give neighbours close vectors; the matching network is frozen.

All vectors of a batch take part in one loss. They are computed in small chunks twice: once to know the loss and
its slope at every vector, once more to carry that slope into the weights. The gradient is exactly that of the
whole batch, and only one chunk's activations are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pairingnet.config import PaperSettings, TrainSettings
from pairingnet.errors import SettingsError
from pairingnet.evaluate.metrics import both_directions, recall_at_k
from pairingnet.models.device import mixed_precision
from pairingnet.models.paper import LocalFeatures, PairingNet, pack
from pairingnet.models.rings import Rings
from pairingnet.search.cosine import rank_by_cosine
from pairingnet.settings import with_values
from pairingnet.train.checkpoints import Checkpoint
from pairingnet.train.data import PairData
from pairingnet.train.losses import info_nce
from pairingnet.train.parallel import sum_over_processes

_CHUNK = 16  # fragments

DEFAULTS: Mapping[str, Any] = {"batch": 175, "decay": 1e-3}  # where step 2 differs from step 1


def with_search_encoder(checkpoint: Checkpoint, values: Mapping[str, Any], seed: int) -> PairingNet:
    """The matching network of step 1 with a fresh search encoder, whose settings may still be chosen."""
    fixed = [name for name in values if not name.startswith("search_")]
    if fixed:
        raise SettingsError(
            f"Step 2 cannot change {', '.join(fixed)}: the network of step 1 is frozen.",
            "Set the search encoder's settings (search_layers, ...) only, or train step 1 again.",
        )
    settings = with_values(PaperSettings(), {**checkpoint.network, **values}, "the checkpoint")
    torch.manual_seed(seed)
    network = PairingNet(settings)
    own = "matching."
    matching = {name.removeprefix(own): x for name, x in checkpoint.weights.items() if name.startswith(own)}
    network.matching.load_state_dict(matching, strict=True)
    return network


class SearchingTask:
    """InfoNCE on the vectors of true pairs."""

    name = "searching"

    def __init__(
        self, network: PairingNet, data: PairData, settings: TrainSettings, validation: PairData | None = None
    ) -> None:
        self.network, self.data, self.settings, self.validation = network, data, settings, validation
        self.network.matching.requires_grad_(False)
        self._frozen: dict[str, LocalFeatures] = {}
        self._neighbours = {frozenset((pair.source, pair.target)) for pair in data.pairs}
        self._rank, self._processes = 0, 1

    def trained(self) -> nn.Module:
        return self.network.searching

    def steps(self, rng: np.random.Generator) -> list[list[list[int]]]:
        order = rng.permutation(len(self.data)).tolist()
        return [[order[i : i + self.settings.batch]] for i in range(0, len(order), self.settings.batch)]

    def share(self, batch: list[list[int]], rank: int, processes: int) -> list[list[int]]:
        """Every process needs the whole batch for the loss; it encodes its share of the fragments."""
        self._rank, self._processes = rank, processes
        return batch

    def pieces(self, groups: Sequence[Sequence[int]]) -> Iterator[Sequence[int]]:
        return iter(groups)

    def backward(self, piece: Sequence[int]) -> tuple[float, float]:
        pairs = [self.data.pairs[number] for number in piece]
        names = [name for pair in pairs for name in (pair.source, pair.target)]
        chunks = list(range(0, len(names), _CHUNK))[self._rank :: self._processes]
        features = {first: self._joined(names[first : first + _CHUNK]) for first in chunks}
        vectors = torch.zeros(len(names), self.network.settings.search_width, device=self.data.device)
        with torch.no_grad():
            for first, chunk in features.items():
                vectors[first : first + _CHUNK] = self._vectors(chunk)
        sum_over_processes([vectors])
        vectors.requires_grad_()
        loss = info_nce(vectors[0::2], vectors[1::2], self._known(names), self.settings.temperature)
        loss.backward()  # type: ignore[no-untyped-call]
        assert vectors.grad is not None
        for first, chunk in features.items():
            self._vectors(chunk).backward(vectors.grad[first : first + _CHUNK])  # type: ignore[no-untyped-call]
        return (float(loss.detach()), 1.0) if self._rank == 0 else (0.0, 0.0)

    def validate(self) -> dict[str, float]:
        """Recall@5 and @20 among the fragments of the validation part, both ways."""
        if self.validation is None or not len(self.validation):
            return {}
        names = [record.id for record in self.validation.collection.fragments]
        with torch.no_grad():
            vectors = torch.cat([self.network.vectors(self._local(self.validation, name)) for name in names])
        ranked, _ = rank_by_cosine(vectors.cpu().numpy(), 20)
        number = {name: i for i, name in enumerate(names)}
        queries = both_directions([(number[p.source], number[p.target]) for p in self.validation.pairs])
        return {f"validation_recall_{k}": round(recall_at_k(ranked, queries, k), 4) for k in (5, 20)}

    def _vectors(self, chunk: LocalFeatures) -> Tensor:
        with mixed_precision(self.settings.precision, self.data.device):
            return self.network.vectors(chunk).float()

    def _known(self, names: Sequence[str]) -> Tensor:
        """(P, P): query i and answer j are neighbours, or the same fragment."""
        sources, targets = names[0::2], names[1::2]
        known = [[a == b or frozenset((a, b)) in self._neighbours for b in targets] for a in sources]
        return torch.tensor(known, device=self.data.device)

    def _joined(self, names: Sequence[str]) -> LocalFeatures:
        each = [self._kept(name) for name in names]
        lengths = tuple(f.rings.total for f in each)

        def joined(parts: list[Tensor | None]) -> Tensor | None:
            return torch.cat([p.float() for p in parts if p is not None]) if parts[0] is not None else None

        fused = joined([f.fused for f in each])
        assert fused is not None
        return LocalFeatures(
            Rings(lengths, self.data.device),
            joined([f.contour for f in each]),
            joined([f.texture for f in each]),
            fused,
            None,
        )

    def _kept(self, name: str) -> LocalFeatures:
        """Frozen features, made once and kept with half the digits (about 0.3 MB a fragment)."""
        if name not in self._frozen:
            local = self._local(self.data, name)
            halves = [None if x is None else x.half() for x in (local.contour, local.texture)]
            fused = local.fused.half() if self.network.settings.search_input == "fused" else local.fused[:, :0]
            self._frozen[name] = LocalFeatures(local.rings, halves[0], halves[1], fused, None)
        return self._frozen[name]

    def _local(self, data: PairData, name: str) -> LocalFeatures:
        self.network.matching.eval()
        with torch.no_grad():
            return self.network.local(pack([data.input_of(name)], data.device))
