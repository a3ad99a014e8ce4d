"""Our own network and its verifier in one safetensors file: loaded strictly, without running any code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import from_numpy

from pairingnet.config import RingSettings, as_dict, with_values
from pairingnet.errors import CollectionError
from pairingnet.io.files import write_whole
from pairingnet.match.verify import Verifier
from pairingnet.models.ring import RingNet

SHIPPED = Path(__file__).parent.parent / "weights" / "ring.safetensors"
_NETWORK, _VERIFIER = "network.", "verifier."


def save_ring(path: Path, network: RingNet, verifier: Verifier, story: Mapping[str, str]) -> None:
    """Store both, with how they were made."""
    arrays = {_NETWORK + name: value.detach().cpu().numpy() for name, value in network.state_dict().items()}
    arrays |= {_VERIFIER + name: np.asarray(value) for name, value in verifier.weights.items()}
    told = {"settings": json.dumps(as_dict(network.settings)), **story}
    data = save({name: np.ascontiguousarray(value) for name, value in arrays.items()}, told)
    write_whole(path, lambda file: file.write_bytes(data))


def load_ring(path: Path = SHIPPED) -> tuple[RingNet, Verifier]:
    """The network and the verifier of a weights file."""
    try:
        with safe_open(path, framework="numpy") as stored:
            told = stored.metadata() or {}
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        network = RingNet(with_values(RingSettings(), json.loads(told["settings"]), str(path)))
        of_network = {n.removeprefix(_NETWORK): v for n, v in arrays.items() if n.startswith(_NETWORK)}
        network.load_state_dict({name: from_numpy(value) for name, value in of_network.items()}, strict=True)
    except FileNotFoundError:
        raise CollectionError(f"There are no weights {path}.", "Check the path.") from None
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise CollectionError(f"{path} holds no weights of the ring network ({error}).", "Check the path.") from error
    verifier = Verifier({n.removeprefix(_VERIFIER): v for n, v in arrays.items() if n.startswith(_VERIFIER)})
    return network.eval(), verifier
