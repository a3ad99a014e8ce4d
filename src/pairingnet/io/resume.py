"""Folders that are filled file by file, and continued after an interruption with the same settings only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pairingnet.config import differences
from pairingnet.errors import CollectionError
from pairingnet.io.collection import FILE_NAME
from pairingnet.io.files import write_json
from pairingnet.io.images import image_files


def named_files(folder: Path) -> dict[str, Path]:
    """A unique name for each picture file below a folder: its stem, with its folder where stems repeat."""
    names: dict[str, Path] = {}
    for path in image_files(folder):
        name = path.stem
        if name in names and folder.is_dir():
            name = "_".join(path.relative_to(folder).with_suffix("").parts)
        while name in names:
            name += "_" + path.suffix[1:].lower()
        names[name] = path
    return names


def remember_settings(out: Path, stage: str, settings: Mapping[str, Any]) -> None:
    """Note the settings of a stage in `out/stage/settings.json`; refuse a folder made with other ones."""
    path = out / stage / "settings.json"
    if path.is_file():
        changed = differences(json.loads(path.read_text(encoding="utf-8")), settings)
        if changed:
            raise CollectionError(
                f"{out} was made with other settings ({'; '.join(changed)}).",
                "Use the same settings, or another folder.",
            )
    elif (out / "fragments").exists() or (out / FILE_NAME).exists():
        raise CollectionError(
            f"{out} holds a collection that was made in another way.",
            "Choose a new folder, so that nothing is lost.",
        )
    else:
        write_json(path, settings)
