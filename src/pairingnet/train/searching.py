"""Step 2 of the paper: the search encoder learns to give neighbours close vectors; the matching network is frozen.

All vectors of a batch take part in one loss. They are computed in small chunks twice: once to know the loss and
its slope at every vector, once more to carry that slope into the weights. The gradient is exactly that of the
whole batch, and only one chunk's activations are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pairingnet.config import PaperSettings, TrainSettings
from pairingnet.errors import SettingsError
from pairingnet.evaluate.metrics import both_directions, recall_at_k
from pairingnet.models.device import mixed_precision
from pairingnet.models.paper import LocalFeatures, PairingNet
from pairingnet.search.cosine import rank_by_cosine
from pairingnet.settings import with_values
from pairingnet.train.checkpoints import Checkpoint
from pairingnet.train.data import PairData
from pairingnet.train.frozen import FrozenFeatures
from pairingnet.train.losses import info_nce
from pairingnet.train.parallel import sum_over_processes
from pairingnet.types import TruePair

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
        self,
        network: PairingNet,
        data: PairData,
        settings: TrainSettings,
        validation: PairData | None = None,
        store: Path | None = None,
    ) -> None:
        """store: a folder for the frozen features; without one, they are kept in memory."""
        self.network, self.data, self.settings, self.validation = network, data, settings, validation
        self.network.matching.requires_grad_(False)
        self._frozen = FrozenFeatures(network, data, store)
        self._watched = None if validation is None else FrozenFeatures(network, validation, store)
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
        # Each fragment once, and those of like length together: a chunk is as long as its longest.
        each = sorted(dict.fromkeys(names), key=lambda name: (self._frozen.length(name), name))
        number = {name: i for i, name in enumerate(each)}
        place = torch.tensor([number[name] for name in names], device=self.data.device)
        chunks = list(range(0, len(each), _CHUNK))[self._rank :: self._processes]
        features = {first: self._joined(each[first : first + _CHUNK]) for first in chunks}
        vectors = torch.zeros(len(each), self.network.settings.search_width, device=self.data.device)
        with torch.no_grad():
            for first, chunk in features.items():
                vectors[first : first + _CHUNK] = self._vectors(chunk)
        sum_over_processes([vectors])
        vectors.requires_grad_()
        queries, answers = vectors[place[0::2]], vectors[place[1::2]]
        loss = info_nce(queries, answers, self._known(names), self.settings.temperature)
        loss.backward()  # type: ignore[no-untyped-call]
        assert vectors.grad is not None
        for first, chunk in features.items():
            self._vectors(chunk).backward(vectors.grad[first : first + _CHUNK])  # type: ignore[no-untyped-call]
        return (float(loss.detach()), 1.0) if self._rank == 0 else (0.0, 0.0)

    def validate(self) -> dict[str, float]:
        """The loss of the validation part's pairs, and recall@5 and @20 among all its fragments, both ways."""
        if self._watched is None or not len(self._watched.data):
            return {}
        data = self._watched.data
        names = [record.id for record in data.collection.fragments]
        with torch.no_grad():
            vectors = torch.cat([self._vectors(self._watched.of([name])) for name in names])
        ranked, _ = rank_by_cosine(vectors.cpu().numpy(), 20)
        number = {name: i for i, name in enumerate(names)}
        pairs = torch.tensor([(number[p.source], number[p.target]) for p in data.pairs])
        asked = [name for pair in data.pairs for name in (pair.source, pair.target)]
        known = _known(asked, data.pairs).to(vectors.device)
        loss = info_nce(vectors[pairs[:, 0]], vectors[pairs[:, 1]], known, self.settings.temperature)
        queries = both_directions(pairs.numpy())
        recalls = {f"validation_recall_{k}": round(recall_at_k(ranked, queries, k), 4) for k in (5, 20)}
        return {"validation_loss": round(float(loss), 5), **recalls}

    def _vectors(self, chunk: LocalFeatures) -> Tensor:
        with mixed_precision(self.settings.precision, self.data.device):
            return self.network.vectors(chunk).float()

    def _known(self, names: Sequence[str]) -> Tensor:
        return _known(names, self.data.pairs).to(self.data.device)

    def _joined(self, names: Sequence[str]) -> LocalFeatures:
        return self._frozen.of(names)


def _known(names: Sequence[str], pairs: Sequence[TruePair]) -> Tensor:
    """(P, P) of names that stand in pairs: query i and answer j are neighbours, or the same fragment."""
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    beside = torch.eye(len(number), dtype=torch.bool)
    for pair in pairs:
        if pair.source in number and pair.target in number:
            i, j = number[pair.source], number[pair.target]
            beside[i, j] = beside[j, i] = True
    place = torch.tensor([number[name] for name in names])
    return beside[place[0::2]][:, place[1::2]]
