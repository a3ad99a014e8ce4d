"""A picture of one fragment -> the fragment."""

from __future__ import annotations

from pathlib import Path

from pairingnet.config import PrepareSettings
from pairingnet.errors import NoFragmentError
from pairingnet.io.images import read_image
from pairingnet.prepare.scan import prepare_image
from pairingnet.types import Fragment


def read_fragment(path: str | Path, settings: PrepareSettings | None = None) -> Fragment:
    """Read the one fragment that a picture shows; refuse a picture of several."""
    path = Path(path)
    found = prepare_image(read_image(path), path.stem, settings or PrepareSettings()).fragments
    if len(found) != 1:
        raise NoFragmentError(
            f"{path} shows {len(found)} fragments, not one.", "Use 'pairingnet prepare' to take them apart first."
        )
    return found[0]
