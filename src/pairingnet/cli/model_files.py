"""Options that name a model: which kind of file it is shows in its first bytes, so a mix-up is told at once."""

from __future__ import annotations

from pathlib import Path

from pairingnet.errors import CollectionError

CHECKPOINT = "checkpoint.pt"
PAPER = Path("paper")  # in the place of a file: the weights of the paper's network that ship
_OF_PAPER = "Give 'paper' for the weights that ship, or a file of 'pairingnet train matching', 'searching' or 'export'."


def paper_model(path: Path | None) -> Path | None:
    """The paper's network: the word 'paper' (what ships), a checkpoint, the folder of a training, or a weights file."""
    found = any_model(path)
    if found is not None and not is_of_paper(found):
        raise CollectionError(f"{found} holds weights of our own network, not of the paper's.", _OF_PAPER)
    return found


def ring_weights(path: Path | None) -> Path | None:
    """A weights file of our own network; a checkpoint has no verifier yet."""
    if path is not None and (path.is_dir() or _is_checkpoint(path)):
        raise CollectionError(
            f"{path} is the {'folder' if path.is_dir() else 'checkpoint'} of a training, not a weights file.",
            "'pairingnet train verifier --from CHECKPOINT --out FILE.safetensors' makes one of a ring network, "
            "'pairingnet train export' of the paper's.",
        )
    return path


def any_weights(path: Path | None) -> Path | None:
    """A weights file of either network; the word 'paper' is what ships of the paper's."""
    return ring_weights(_shipped(path))


def any_model(path: Path | None) -> Path | None:
    """A checkpoint, the folder of a training that holds one, or a weights file; the word 'paper' is what ships."""
    path = _shipped(path)
    if path is None or not path.is_dir():
        return path
    if not (path / CHECKPOINT).is_file():
        raise CollectionError(f"There is no {CHECKPOINT} in {path}.", "Give the folder of a training, or the file.")
    return path / CHECKPOINT


def is_of_paper(path: Path) -> bool:
    """Whether a model is the paper's network, and not ours; a checkpoint says itself what it is when it is read."""
    if not _holds_weights(path):
        return True
    from pairingnet.match.paper_weights import is_of_paper

    return is_of_paper(path)


def _shipped(path: Path | None) -> Path | None:
    """The file that is meant by the word 'paper'."""
    if path != PAPER:
        return path
    from pairingnet.match.paper_weights import SHIPPED_PAPER

    return SHIPPED_PAPER


def _is_checkpoint(path: Path) -> bool:
    return _begins(path, 4) == b"PK\x03\x04"  # torch stores a zip


def _holds_weights(path: Path) -> bool:
    return _begins(path, 9)[8:] == b"{"  # safetensors: eight bytes that tell the length of what is JSON


def _begins(path: Path, count: int) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(count)
