"""Folders that are filled file by file, and continued after an interruption with the same settings only."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairingnet.errors import CollectionError, DamagedFileError
from pairingnet.io.collection import FILE_NAME
from pairingnet.io.files import read_json, write_json
from pairingnet.io.names import stored_name
from pairingnet.io.walk import walk_pictures
from pairingnet.settings import differences


@dataclass(frozen=True)
class Scans:
    """A unique name for each picture file, and a line for each file that is not read."""

    files: dict[str, Path]
    refused: tuple[str, ...] = ()


def named_files(folder: Path, out: Path) -> dict[str, Path]:
    """A unique name for each picture file below a folder, whatever other files there are; see `named_scans`."""
    return named_scans(folder, out).files


def named_scans(folder: Path, out: Path) -> Scans:
    """The picture files below a folder by their names, and what is not read.

    The name is the path below the folder without its ending (`stored_name`); files that differ in their ending only
    keep it. What lies in `out` is left out.
    """
    found = walk_pictures(folder, leave_out=out)
    plain = [_name(path, folder) for path in found.pictures]
    often = {name for name, count in Counter(plain).items() if count > 1}
    names: dict[str, Path] = {}
    for name, path in zip(plain, found.pictures, strict=True):
        unique = f"{name}_{path.suffix[1:].lower()}" if name in often else name
        while unique in names:
            unique += "_"
        names[unique] = path
    return Scans(names, found.refused)


def _name(path: Path, folder: Path) -> str:
    below = path.relative_to(folder) if folder.is_dir() else Path(path.name)
    return stored_name(below.with_suffix("").parts)


def content_mark(path: Path) -> str:
    """A short mark of a file's content, the same on every machine."""
    data = path.read_bytes()
    return f"{len(data)}-{zlib.crc32(data):08x}"


def remember_settings(out: Path, stage: str, settings: Mapping[str, Any]) -> None:
    """Note the settings of a stage in `out/stage/settings.json`; refuse a folder made with other ones.

    Where the note is damaged it is written anew: all that was made carries a fingerprint of its own settings.
    """
    path = out / stage / "settings.json"
    if path.is_file():
        before = _settings_in(path)
        changed = [] if before is None else differences(before, settings)
        if changed:
            raise CollectionError(
                f"{out} was made with other settings ({'; '.join(changed)}).",
                "Use the same settings, or another folder.",
            )
        if before is not None:
            return
    elif (out / "fragments").exists() or (out / FILE_NAME).exists():
        raise CollectionError(
            f"{out} holds a collection that was made in another way.",
            "Choose a new folder, so that nothing is lost.",
        )
    write_json(path, settings, checked=True)


def settings_then(out: Path, stage: str) -> dict[str, Any]:
    """The settings that a folder was made with."""
    path = out / stage / "settings.json"
    if not path.is_file():
        raise CollectionError(f"{out} is no finished run.", "Run 'pairingnet solve' first.")
    return read_json(path, "Run 'pairingnet solve' again, with the settings of the run.")


def _settings_in(path: Path) -> dict[str, Any] | None:
    """Settings as they were noted; None where the note is damaged."""
    try:
        return read_json(path)
    except DamagedFileError:
        return None
