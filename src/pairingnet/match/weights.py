"""Our own network and all it needs in one safetensors file: loaded strictly, without running any code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import from_numpy

from pairingnet.config import RingSettings
from pairingnet.errors import CollectionError
from pairingnet.io.files import write_whole
from pairingnet.io.resume import content_mark
from pairingnet.match.verify import Verifier
from pairingnet.models.device import choose_device, exact_type
from pairingnet.models.ring import RingNet, on_grid
from pairingnet.settings import as_dict, with_values

SHIPPED = Path(__file__).parent.parent / "weights" / "ring.safetensors"
Bank = Mapping[str, NDArray[np.float32]]
_NETWORK, _VERIFIER, _BANK = "network.", "verifier.", "bank."
_MADE, _SETTINGS = "made", "settings"


@dataclass(frozen=True, eq=False)
class RingModel:
    """What ships: the network, the verifier, and a bank of usual features (B, D) of many pictures, queries and keys,
    against which the features of a small collection are judged; mark tells weights apart."""

    network: RingNet
    verifier: Verifier
    bank: Bank = field(default_factory=dict)
    mark: str = ""

    @cached_property
    def exact_network(self) -> RingNet:
        """The network with as many digits as results that are rounded to a grid want."""
        dtype = exact_type(next(self.network.parameters()).device)
        return deepcopy(self.network).to(dtype).eval()


def save_model(path: Path, model: RingModel, story: Mapping[str, str]) -> None:
    """Store all of it, with how it was made."""
    arrays = {_NETWORK + name: value.detach().cpu().numpy() for name, value in model.network.state_dict().items()}
    arrays |= {_VERIFIER + name: np.asarray(value) for name, value in model.verifier.weights.items()}
    arrays |= {_BANK + name: value.astype(np.float16) for name, value in model.bank.items()}
    told = json.dumps({_SETTINGS: as_dict(model.network.settings), **story}, sort_keys=True)
    # In one entry: several are written in any order, and the same model would not always give the same bytes.
    data = save({name: np.ascontiguousarray(value) for name, value in arrays.items()}, {_MADE: told})
    write_whole(path, lambda file: file.write_bytes(data))


def load_model(weights: str | Path = SHIPPED, device: str = "cpu") -> RingModel:
    """The model of a weights file; without one, the model that ships."""
    path = Path(weights)
    network, arrays, _ = _read(path)
    verifier = Verifier(_named(arrays, _VERIFIER))
    try:
        if verifier.weights:
            _ = verifier.network
    except ValueError as error:
        raise CollectionError(
            f"{path} was made by another version ({error}).",
            "Use weights of this version; an archive that keeps others has to be made again.",
        ) from None
    network = network.to(choose_device(device)).eval()
    return RingModel(network, verifier, _bank(arrays), content_mark(path))


def load_unverified(weights: Path) -> tuple[RingModel, dict[str, str]]:
    """Network and bank alone, whatever verifier stands beside them, to be trained further; and how they were made."""
    network, arrays, told = _read(weights)
    story = {name: value for name, value in told.items() if name != _SETTINGS}
    return RingModel(network.eval(), Verifier.plain(), _bank(arrays)), story


def _bank(arrays: Mapping[str, NDArray[Any]]) -> Bank:
    """On the grid of all features, see there."""
    return {name: on_grid(from_numpy(value).float()).numpy() for name, value in _named(arrays, _BANK).items()}


def _read(path: Path) -> tuple[RingNet, dict[str, NDArray[Any]], dict[str, str]]:
    """The network of a weights file, all that it holds, and what it says of itself."""
    try:
        with safe_open(path, framework="numpy") as stored:
            told = json.loads((stored.metadata() or {})[_MADE])
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        network = RingNet(with_values(RingSettings(), told[_SETTINGS], str(path)))
        own = {name: from_numpy(value) for name, value in _named(arrays, _NETWORK).items()}
        network.load_state_dict(own, strict=True)
    except FileNotFoundError:
        raise CollectionError(f"There are no weights {path}.", "Check the path.") from None
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise CollectionError(f"{path} holds no weights of the ring network ({error}).", "Check the path.") from error
    return network, arrays, told


def _named(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
