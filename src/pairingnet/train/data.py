"""Pairs of a collection as batches: patches of both fragments, and which of their points correspond."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.config import PaperSettings
from pairingnet.io.collection import Collection
from pairingnet.match.paper import PaperFeatures
from pairingnet.models.paper import PatchBatch, pack
from pairingnet.prepare.load import load_fragment
from pairingnet.prepare.patches import PatchInput, patch_input
from pairingnet.types import TruePair


@dataclass(frozen=True, eq=False)
class PairBatch:
    """P pairs: fragments 2i and 2i+1 of `patches` are pair i; correspondences (K_i,) and (K_i,) per pair."""

    patches: PatchBatch
    correspondences: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    def __len__(self) -> int:
        return len(self.correspondences)


class PairData:
    """The pairs of a collection. Inputs are made once and kept (about 0.2 MB a fragment)."""

    def __init__(
        self,
        collection: Collection,
        settings: PaperSettings,
        correspond_px: float,
        device: torch.device | None = None,
    ) -> None:
        self.collection, self.settings, self.correspond_px = collection, settings, correspond_px
        self.device = device or torch.device("cpu")
        self.pairs = collection.pairs
        self._inputs: dict[str, PatchInput] = {}
        self._correspondences: dict[tuple[str, str], tuple[NDArray[np.intp], NDArray[np.intp]]] = {}

    def __len__(self) -> int:
        return len(self.pairs)

    def input_of(self, fragment_id: str) -> PatchInput:
        if fragment_id not in self._inputs:
            fragment = load_fragment(self.collection, fragment_id)
            self._inputs[fragment_id] = patch_input(fragment, self.settings.patch, self.settings.texture)
        return self._inputs[fragment_id]

    def known(self, fragment_id: str, local: torch.Tensor) -> PaperFeatures:
        """A fragment as the matching method knows it, with local features (N, D) and no vector for search."""
        return PaperFeatures(fragment_id, self.input_of(fragment_id).points, local, np.zeros(0, np.float32), None)

    def correspondences(self, pair: TruePair) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Numbers of the source's and the target's contour points that lie on each other in the true layout."""
        names = pair.source, pair.target
        if names not in self._correspondences:
            self._correspondences[names] = self._found(pair)
        return self._correspondences[names]

    def _found(self, pair: TruePair) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        source, target = self.input_of(pair.source).points, self.input_of(pair.target).points
        landed = self.collection.target_from_source(pair).apply(source)
        distance, nearest = cKDTree(target).query(landed, distance_upper_bound=self.correspond_px)
        near = np.flatnonzero(np.isfinite(distance))
        return near, np.asarray(nearest)[near]

    def batch(self, numbers: Sequence[int]) -> PairBatch:
        pairs = [self.pairs[number] for number in numbers]
        inputs = [self.input_of(name) for pair in pairs for name in (pair.source, pair.target)]
        found = [self.correspondences(pair) for pair in pairs]
        return PairBatch(
            pack(inputs, self.device),
            tuple(
                (torch.from_numpy(rows).to(self.device), torch.from_numpy(columns).to(self.device))
                for rows, columns in found
            ),
        )

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[PairBatch]:
        """The batch of each group of pair numbers; the next one is made while the last one is used."""
        with ThreadPoolExecutor(1) as pool:
            waiting = None
            for group in groups:
                following = pool.submit(self.batch, group)
                if waiting is not None:
                    yield waiting.result()
                waiting = following
            if waiting is not None:
                yield waiting.result()
