"""Looks at everything in an archive, repairs what can be repaired, and says what it did."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from pairingnet.archive.catalogue import now
from pairingnet.archive.folder import Archive
from pairingnet.errors import CollectionError


@dataclass(frozen=True)
class Checked:
    """How many fragments there are; what was repaired; fragments that are lost until their scans are added again."""

    fragments: int
    repaired: tuple[str, ...]
    lost: tuple[str, ...]


def check(archive: Archive, rebuild: bool = False) -> Checked:
    """Check catalogue, features, levels and index; `rebuild` makes the index anew whatever it looks like."""
    repaired = []
    with archive.writing():
        try:
            broken = archive.catalogue.broken()
        except sqlite3.DatabaseError as error:
            broken = [str(error)]
        if broken:
            raise CollectionError(f"{archive.catalogue.path} is broken: {broken[0]}.", "Get it from a backup.")
        lost = _drop_broken(archive)
        cut = archive.store.trim(archive.catalogue.ends())
        if cut:
            repaired.append(f"cut off {cut} bytes that an interrupted command left behind")
        if _levels_are_broken(archive):
            archive.draw_bank()
            repaired.append("made the background levels again")
        if archive.update_index(from_nothing=rebuild or archive.index_is_broken()):
            repaired.append("brought the index up to date")
    return Checked(archive.catalogue.count(), tuple(repaired), tuple(lost))


def _drop_broken(archive: Archive) -> list[str]:
    """Take out fragments whose bytes are not those that were written; their files are forgotten, to be added again."""
    broken = [entry for entry in archive.catalogue.entries() if not archive.store.is_whole(entry.place)]
    archive.store.lengthen(archive.catalogue.ends())  # also where only rows of removed fragments are lost
    if broken:
        with archive.catalogue.transaction():
            archive.catalogue.remove_fragments([entry.number for entry in broken], now())
            archive.catalogue.expect_again({entry.path for entry in broken})
    return [f"{entry.id}: its features are broken; add {entry.path} again" for entry in broken]


def _levels_are_broken(archive: Archive) -> bool:
    """Whether the bank or its levels are missing."""
    try:
        archive.bank()
    except CollectionError:
        return True
    return bool(archive.store.missing(archive.catalogue.ends(), archive.bank_number))
