"""The paper's network in one safetensors file: loaded strictly, without running any code.

Tensors are called `weights.NAME`; one entry of metadata, `made`, says in JSON what they are:
network     settings of the network
task        "matching" (step 1 alone: the search encoder is not trained, and left out) or "searching" (both)
step, seconds, made_by, about, validation      how it was trained
confidence  what turns a pose's correspondences into the odds that it is right; may be missing
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from pairingnet.config import PaperSettings
from pairingnet.errors import CollectionError
from pairingnet.io.resume import content_mark
from pairingnet.match.paper import Confidence, PaperMethod
from pairingnet.models.device import choose_device
from pairingnet.models.paper import PairingNet
from pairingnet.settings import with_values

NAME = "paper"  # in the place of a file: the weights that ship
SHIPPED_PAPER = Path(__file__).parent.parent / "weights" / "paper.safetensors"
MADE, WEIGHTS, SEARCHING = "made", "weights.", "searching."


@dataclass(frozen=True, eq=False)
class PaperModel:
    """The paper's network; searches: whether its search encoder was trained; mark tells weights apart; story: how they
    were made."""

    network: PairingNet
    searches: bool
    mark: str = ""
    confidence: Confidence | None = None
    story: Mapping[str, Any] = field(default_factory=dict)

    def check_complete(self) -> None:
        """Refuse to put a collection together without a search that was trained, or without probabilities."""
        if not self.searches or self.confidence is None:
            lacks = "no probabilities" if self.searches else "no trained search head"
            raise CollectionError(
                f"These weights of the paper's network have {lacks}.",
                "Use 'paper', or 'pairingnet train export SEARCHING --weights FILE --calibrate COLLECTION'.",
            )

    def method(self) -> PaperMethod:
        """Ready to be asked."""
        return PaperMethod(self.network, weights=self.mark, confidence=self.confidence)


def load_paper(weights: str | Path = SHIPPED_PAPER, device: str = "cpu") -> PaperModel:
    """The model of a weights file; without one, or for "paper", the model that ships."""
    path = weights_path(weights)
    own, story = read_weights(path)
    network = network_of_weights(story["network"], own, story["task"], path)
    known = story.get("confidence")
    confidence = None if known is None else Confidence(**known)
    searches = story["task"] == "searching"
    return PaperModel(network.to(choose_device(device)), searches, content_mark(path), confidence, story)


def weights_path(weights: str | Path) -> Path:
    """The file that is meant."""
    return SHIPPED_PAPER if str(weights) == NAME else Path(weights)


def network_of_weights(settings: Mapping[str, Any], own: Mapping[str, Tensor], task: str, path: Path) -> PairingNet:
    """The network; only the search encoder may be missing, and only before step 2."""
    network = PairingNet(with_values(PaperSettings(), settings, str(path)))
    try:
        missing, unknown = network.load_state_dict(dict(own), strict=False)
    except RuntimeError as error:
        raise _others(path) from error
    if unknown or not all(left_out(name, task) for name in missing):
        raise _others(path)
    return network.eval()


def left_out(name: str, task: str) -> bool:
    """Whether a weight is of no use after this step."""
    return task == "matching" and name.startswith(SEARCHING)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors of a file, and what it says of itself."""
    try:
        with safe_open(path, framework="pt") as stored:
            told = json.loads((stored.metadata() or {})[MADE])
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        if told["task"] not in ("matching", "searching") or not isinstance(told["network"], dict):
            raise ValueError("it is of another kind")
        return tensors, told
    except FileNotFoundError:
        raise CollectionError(f"There is no {path}.", "Check the path.") from None
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise CollectionError(
            f"{path} holds no weights of the paper's network ({error}).", "Give a file of 'pairingnet train export'."
        ) from error


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights alone, by their names in the network, and what the file says of itself."""
    tensors, story = read_tensors(path)
    return {name.removeprefix(WEIGHTS): x for name, x in tensors.items() if name.startswith(WEIGHTS)}, story


def is_of_paper(path: Path) -> bool:
    """Whether a file holds weights of the paper's network, as far as it says so itself."""
    try:
        with safe_open(path, framework="pt") as stored:
            return "task" in json.loads((stored.metadata() or {}).get(MADE, "{}"))
    except (OSError, SafetensorError, ValueError):
        return False


def _others(path: Path) -> CollectionError:
    return CollectionError(f"{path} holds other weights than its settings ask for.", "Export them again.")
