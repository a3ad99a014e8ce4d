"""Training states on disk: weights, optimizer and how far it got; loaded strictly, and without running any code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pairingnet.config import PaperSettings, RingSettings
from pairingnet.errors import CollectionError
from pairingnet.io.files import write_whole
from pairingnet.match.weights import load_unverified
from pairingnet.models.paper import PairingNet
from pairingnet.models.ring import RingNet
from pairingnet.settings import with_values

VERSION = 1


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What is needed to go on: network settings and weights, optimizer, steps done, seconds spent, all settings."""

    network: dict[str, Any]
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    task: str
    step: int
    seconds: float
    made_by: dict[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    content = {"version": VERSION, **vars(checkpoint)}
    write_whole(path, lambda file: torch.save(content, file))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; only tensors and plain values are accepted."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content.pop("version") != VERSION:
            raise ValueError("it is of another version")
        checkpoint = Checkpoint(**content)
        if checkpoint.task in ("matching", "searching"):
            checkpoint.network.setdefault("search_head", "code")  # older than this setting
        return checkpoint
    except FileNotFoundError:
        raise CollectionError(f"There is no checkpoint {path}.", "Check the path, or train one first.") from None
    except Exception as error:
        raise CollectionError(f"{path} is no checkpoint ({error}).", "Train it again.") from error


def is_checkpoint(path: Path) -> bool:
    """Whether a file is one that torch has stored, by its first bytes; by its name where they do not tell."""
    start = b""
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(9)
    if start[:4] == b"PK\x03\x04":  # a zip
        return True
    return start[8:] != b"{" and path.suffix != ".safetensors"  # eight bytes that tell the length of what is JSON


def network_of(checkpoint: Checkpoint) -> PairingNet:
    """The paper's network of a checkpoint, ready to be used."""
    if checkpoint.task not in ("matching", "searching"):
        raise CollectionError(f"This is {_what(checkpoint)}.", "Give a checkpoint of the paper's network.")
    network = PairingNet(with_values(PaperSettings(), checkpoint.network, "the checkpoint"))
    network.load_state_dict(checkpoint.weights, strict=True)
    return network.eval()


def ring_of(checkpoint: Checkpoint) -> RingNet:
    """Our own network of a checkpoint, ready to be used."""
    if checkpoint.task != "ring":
        raise CollectionError(f"This is {_what(checkpoint)}.", "Give a checkpoint of the ring network.")
    network = RingNet(with_values(RingSettings(), checkpoint.network, "the checkpoint"))
    network.load_state_dict(checkpoint.weights, strict=True)
    return network.eval()


def ring_from(path: Path) -> RingNet:
    """Our own network, from a checkpoint or from a weights file, to be trained further."""
    return load_unverified(path)[0].network if path.suffix == ".safetensors" else ring_of(read_checkpoint(path))


def _what(checkpoint: Checkpoint) -> str:
    names = {"ring": "the ring network", "jigsawnet": "JigsawNet"}
    return "a checkpoint of " + names.get(checkpoint.task, "the paper's network")
