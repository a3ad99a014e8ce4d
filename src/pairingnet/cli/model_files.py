"""Options that name a model: which kind of file it is shows in its first bytes, so a mix-up is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pairingnet.errors import CollectionError

if TYPE_CHECKING:
    from pairingnet.train.checkpoints import Checkpoint

CHECKPOINT = "checkpoint.pt"
_OF_PAPER = "Give a checkpoint of the paper's network, of 'pairingnet train matching' or 'train searching'."


def paper_checkpoint(path: Path | None) -> Path | None:
    """A checkpoint of the paper's network, or the folder of a training that holds one."""
    found = any_model(path)
    if found is not None and _holds_weights(found):
        raise CollectionError(f"{found} holds weights of our own network, not a checkpoint.", _OF_PAPER)
    return found


def ring_weights(path: Path | None) -> Path | None:
    """A weights file of our own network; a checkpoint has no verifier yet."""
    if path is not None and (path.is_dir() or _is_checkpoint(path)):
        raise CollectionError(
            f"{path} is the {'folder' if path.is_dir() else 'checkpoint'} of a training, not a weights file.",
            "'pairingnet train verifier --from CHECKPOINT --out FILE.safetensors' makes one of a ring network.",
        )
    return path


def any_model(path: Path | None) -> Path | None:
    """A checkpoint, the folder of a training that holds one, or a weights file."""
    if path is None or not path.is_dir():
        return path
    if not (path / CHECKPOINT).is_file():
        raise CollectionError(f"There is no {CHECKPOINT} in {path}.", "Give the folder of a training, or the file.")
    return path / CHECKPOINT


def searches(checkpoint: Checkpoint) -> bool:
    """Whether step 2 was trained: before it, the vectors of fragments are noise."""
    return checkpoint.task == "searching"


def _is_checkpoint(path: Path) -> bool:
    return _begins(path, 4) == b"PK\x03\x04"  # torch stores a zip


def _holds_weights(path: Path) -> bool:
    return _begins(path, 9)[8:] == b"{"  # safetensors: eight bytes that tell the length of what is JSON


def _begins(path: Path, count: int) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(count)
