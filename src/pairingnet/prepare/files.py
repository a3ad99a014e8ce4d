"""Picture files -> the fragments that they show, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pairingnet.config import PrepareSettings
from pairingnet.errors import NoFragmentError
from pairingnet.io.images import MAX_PIXELS, read_image, read_pages
from pairingnet.io.resume import named_files
from pairingnet.prepare.scan import Prepared, prepare_image
from pairingnet.types import Fragment, Image


def read_fragment(path: str | Path, settings: PrepareSettings | None = None) -> Fragment:
    """Read the one fragment that a picture shows; refuse a picture of several."""
    path = Path(path)
    found = prepare_image(read_image(path), path.stem, settings or PrepareSettings()).fragments
    if len(found) != 1:
        raise NoFragmentError(
            f"{path} shows {len(found)} fragments, not one.", "Use 'pairingnet prepare' to take them apart first."
        )
    return found[0]


def read_fragments(folder: str | Path, settings: PrepareSettings | None = None) -> list[Fragment]:
    """The fragments in all pictures of a folder, single pieces or sheets; a file that shows none is an error."""
    folder = Path(folder)
    return [
        fragment
        for name, path in named_files(folder, folder / ".none").items()
        for _, _, found in prepared_pages(name, path, settings or PrepareSettings())
        for fragment in found.fragments
    ]


def prepared_pages(
    name: str, path: Path, settings: PrepareSettings, max_pixels: int = MAX_PIXELS
) -> Iterator[tuple[str, Image, Prepared]]:
    """The pages of a file that show fragments: the page's name, the page, and what was found on it."""
    pages = list(read_pages(path, max_pixels))
    empty = 0
    for image in pages:
        page_name = name if len(pages) == 1 else f"{name}#p{image.page + 1}"
        try:
            found = prepare_image(image, page_name, settings)
        except NoFragmentError as error:
            if len(pages) == 1:
                raise
            empty += 1
            found = Prepared((), (), (str(error),))  # an empty page among others is no reason to refuse the file
        yield page_name, image, found
    if empty == len(pages):
        raise NoFragmentError(f"{path} shows no fragment on any of its pages.", "See the other messages.")
