"""Fragments of a collection, from disk."""

from __future__ import annotations

from collections.abc import Iterator

from pairingnet.errors import CollectionError
from pairingnet.io.collection import Collection
from pairingnet.io.images import read_image
from pairingnet.prepare.contour import trace_contour
from pairingnet.types import Fragment


def load_fragment(collection: Collection, fragment_id: str) -> Fragment:
    """Read one fragment's image and trace its contour."""
    record = collection[fragment_id]
    path = collection.folder / record.image
    image = read_image(path)
    if image.alpha is None:
        raise CollectionError(
            f"{path} has no alpha channel.",
            "Fragments of a collection are RGBA; run 'pairingnet prepare' on plain scans first.",
        )
    contour = trace_contour(image.alpha)
    if not len(contour):
        raise CollectionError(f"{path} is empty: alpha is 0 everywhere.", "Remove it, or prepare it again.")
    dpi = record.dpi or image.dpi
    return Fragment(record.id, image.pixels, image.alpha, contour, dpi, record.origin, record.offset_px)


def load_fragments(collection: Collection) -> Iterator[Fragment]:
    """All fragments of a collection in its order, one at a time."""
    return (load_fragment(collection, record.id) for record in collection.fragments)
