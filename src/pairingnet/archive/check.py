"""Looks at everything in an archive, repairs what can be repaired, and says what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pairingnet.archive.catalogue import Catalogue, now
from pairingnet.archive.folder import Archive, restore_weights
from pairingnet.archive.seal import restore, seal
from pairingnet.errors import CollectionError


@dataclass(frozen=True)
class Checked:
    """How many fragments there are; what was repaired; fragments that are lost until their scans are added again."""

    fragments: int
    repaired: tuple[str, ...]
    lost: tuple[str, ...]


def check_folder(folder: Path, rebuild: bool = False, told: Callable[[str], None] = lambda _: None) -> Checked:
    """Check an archive that may be too damaged to be opened; see `check`."""
    restored = [what for what in (restore(folder), restore_weights(folder)) if what]
    with Archive(folder) as archive:
        checked = check(archive, rebuild, told)
    return replace(checked, repaired=(*restored, *checked.repaired))


def check(archive: Archive, rebuild: bool = False, told: Callable[[str], None] = lambda _: None) -> Checked:
    """Check catalogue, features, levels and index; `rebuild` makes the index anew whatever it looks like."""
    repaired = []
    with archive.writing("archive check", told):
        broken = archive.catalogue.broken()
        if broken:
            raise Catalogue.damage(archive.catalogue.path, broken[0])
        lost = _drop_broken(archive)
        cut = archive.store.trim(archive.catalogue.ends())
        if cut:
            repaired.append(f"cut off {cut} bytes that an interrupted command left behind")
        if _levels_are_broken(archive):
            archive.draw_bank(again=True)
            repaired.append("made the background levels again")
        if archive.update_index(from_nothing=rebuild or archive.index_is_broken()):
            repaired.append("brought the index up to date")
        seal(archive.folder, thorough=True)
    return Checked(archive.catalogue.count(), tuple(repaired), tuple(lost))


def _drop_broken(archive: Archive) -> list[str]:
    """Take out fragments whose bytes are not those that were written; their files are forgotten, to be added again."""
    broken = [entry for entry in archive.catalogue.entries() if not archive.store.is_whole(entry.place)]
    archive.store.lengthen(archive.catalogue.ends())  # also where only rows of removed fragments are lost
    if broken:
        numbers = [entry.number for entry in broken]
        with archive.catalogue.transaction():
            # Some of their joins were found by the others asking for them, which only new ones do.
            others = {number for pair in archive.catalogue.known_pairs(numbers) for number in pair}
            archive.catalogue.look_again(others)
            archive.catalogue.remove_fragments(numbers, now())
            archive.catalogue.expect_again({entry.path for entry in broken})
    return [f"{entry.id}: its features are broken; add {entry.path} again" for entry in broken]


def _levels_are_broken(archive: Archive) -> bool:
    """Whether the bank or levels are missing, or not what was written."""
    number = archive.bank_number
    try:
        archive.bank()
        for entry in archive.catalogue.entries() if number else ():
            mark = archive.catalogue.level_mark(entry.number, number)
            archive.store.levels(entry.place, number, mark)
            if mark is None:  # an earlier version made them
                return True
    except CollectionError:
        return True
    return bool(archive.store.missing(archive.catalogue.ends(), number))
