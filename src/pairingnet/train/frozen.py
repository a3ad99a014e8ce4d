"""The local features of a network that is not trained any more: made once for every fragment, with half the digits.

FOLDER/<mark of the network and the collection>/<fragment>.npy, (N, C) float16: contour and texture features side by
side, or the fused ones where the search encoder sees those. About 0.3 MB a fragment.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairingnet.io.files import write_array
from pairingnet.models.paper import LocalFeatures, PairingNet, pack
from pairingnet.models.rings import Rings
from pairingnet.settings import as_dict
from pairingnet.train.data import PairData


class FrozenFeatures:
    """Of the fragments of `data`, in a folder that later runs find again, or in memory."""

    def __init__(self, network: PairingNet, data: PairData, folder: Path | None = None) -> None:
        self.network, self.data = network, data
        self._folder = None if folder is None else folder / f"{_mark(network, data):08x}"
        self._kept: dict[str, NDArray[np.float16]] = {}
        self._lengths: dict[str, int] = {}

    def of(self, names: Sequence[str]) -> LocalFeatures:
        """Features of fragments, one after the other."""
        each = [self._one(name) for name in names]
        device, settings = self.data.device, self.network.settings
        joined = torch.from_numpy(np.concatenate(each)).to(device).float()
        rings = Rings(tuple(len(x) for x in each), device)
        if settings.search_input == "fused":
            return LocalFeatures(rings, None, None, joined, None)
        if joined.shape[1] == settings.width:  # one branch alone
            contour, texture = (joined, None) if settings.branches == "contour" else (None, joined)
            return LocalFeatures(rings, contour, texture, joined[:, :0], None)
        contour, texture = joined[:, : settings.width], joined[:, settings.width :]
        return LocalFeatures(rings, contour, texture, joined[:, :0], None)

    def length(self, name: str) -> int:
        """Contour points of a fragment."""
        if name not in self._lengths:
            self._lengths[name] = len(self._one(name))
        return self._lengths[name]

    def _one(self, name: str) -> NDArray[np.float16]:
        if self._folder is None:
            if name not in self._kept:
                self._kept[name] = self._made(name)
            return self._kept[name]
        path = self._folder / f"{name}.npy"
        if not path.is_file():
            write_array(path, self._made(name))
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))

    def _made(self, name: str) -> NDArray[np.float16]:
        self.network.matching.eval()
        with torch.no_grad():
            local = self.network.local(pack([self.data.input_of(name)], self.data.device))
        if self.network.settings.search_input == "fused":
            parts: list[Tensor] = [local.fused]
        else:
            parts = [x for x in (local.contour, local.texture) if x is not None]
        return np.asarray(torch.cat(parts, dim=1).half().cpu().numpy())


def _mark(network: PairingNet, data: PairData) -> int:
    """Tells apart what has other features: weights, settings, collections."""
    settings = as_dict(network.settings)
    own = {name: x for name, x in settings.items() if not name.startswith("search_") or name == "search_input"}
    mark = zlib.crc32(repr((own, data.collection.mark)).encode())
    for name, value in network.matching.state_dict().items():
        mark = zlib.crc32(value.detach().cpu().numpy().tobytes(), zlib.crc32(name.encode(), mark))
    return mark
