"""Picture files -> the fragments that they show, in memory."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator
from pathlib import Path

from pairingnet.config import PrepareSettings
from pairingnet.errors import NoFragmentError, PairingNetError, printable
from pairingnet.io.images import MAX_PIXELS, count_pages, read_image, read_pages
from pairingnet.io.resume import named_scans
from pairingnet.prepare.scan import Prepared, prepare_image
from pairingnet.types import Fragment, Image

# What is no fault of the file that is worked on: nothing could be stored for the others either.
_FAULTS_OF_THE_FOLDER = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO)


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
    """The fragments in all pictures of a folder, single pieces or sheets; a picture that shows none is an error.

    Files of other kinds are told of in a warning.
    """
    folder = Path(folder)
    scans = named_scans(folder, folder / ".none")
    if scans.refused:
        warnings.warn("\n".join(scans.refused), stacklevel=2)
    return [
        fragment
        for name, path in scans.files.items()
        for _, _, found in prepared_pages(name, path, settings or PrepareSettings())
        for fragment in found.fragments
    ]


def prepared_pages(
    name: str, path: Path, settings: PrepareSettings, max_pixels: int = MAX_PIXELS
) -> Iterator[tuple[str, Image, Prepared]]:
    """The pages of a file that show fragments: the page's name, the page, and what was found on it."""
    count, empty = count_pages(path, max_pixels), 0
    for image in read_pages(path, max_pixels):
        page_name = name if count == 1 else f"{name}#p{image.page + 1}"
        try:
            found = prepare_image(image, page_name, settings)
        except NoFragmentError as error:
            if count == 1:
                raise
            empty += 1
            found = Prepared((), (), (str(error),))  # an empty page among others is no reason to refuse the file
        yield page_name, image, found
    if empty == count:
        raise NoFragmentError(f"{path} shows no fragment on any of its pages.", "See the other messages.")


def fault_of_file(path: Path, error: Exception) -> str:
    """What to say of a file that could not be worked on, whatever happened: one file never stops the others."""
    if isinstance(error, PairingNetError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _FAULTS_OF_THE_FOLDER:
        raise error
    if isinstance(error, MemoryError):
        return printable(f"{path} needs more memory than there is. Cut it up, or scan at a lower resolution.")
    what = f"{type(error).__name__}: {error}"
    return printable(f"{path} could not be worked on ({what}). Leave it out, and send it to the makers of the program.")
