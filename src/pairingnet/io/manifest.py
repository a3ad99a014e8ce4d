"""`run/manifest.json`: what the derived files of a run were made of, and a fingerprint of what each holds.

A stage is current where it was made of the same things as now, and its files are still what was written then. Else it
is made again; so a damaged file is as good as a missing one. Readers that cannot make it ask with `require`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pairingnet.errors import CollectionError
from pairingnet.io.files import read_json, write_json
from pairingnet.io.fingerprint import fingerprint_of_file

_VERSION = 1


class Manifest:
    """The manifest of one run folder. It is read once, and written at each `note`."""

    def __init__(self, run: Path) -> None:
        self.run, self._path = run, run / "run" / "manifest.json"
        self._stages = _read(self._path)

    def is_current(self, stage: str, made_of: str) -> bool:
        """Whether a stage was made of just that, and its files are whole."""
        return self.made_of(stage) == made_of and self.is_whole(stage)

    def is_whole(self, *stages: str) -> bool:
        """Whether stages were done, and all their files are what was written."""
        return all(stage in self._stages and not self._damaged(stage) for stage in stages)

    def note(self, stage: str, made_of: str, files: Iterable[Path]) -> None:
        """A stage is done; these are its files."""
        names = {path.relative_to(self.run).as_posix(): fingerprint_of_file(path) for path in files}
        noted = {"made_of": made_of, "files": names}
        if self._stages.get(stage) == noted:
            return
        self._stages[stage] = noted
        write_json(self._path, {"version": _VERSION, "stages": dict(sorted(self._stages.items()))}, checked=True)

    def drop_damaged(self, stage: str) -> None:
        """Remove files of a stage that are not what was written, so that they are made again."""
        for name in self._damaged(stage) if stage in self._stages else ():
            (self.run / name).unlink(missing_ok=True)

    def made_of(self, stage: str) -> str | None:
        """What a stage was made of; None where it was never done."""
        noted = self._stages.get(stage)
        return None if noted is None else str(noted["made_of"])

    def require(self, *stages: str) -> None:
        """Raise where a stage was never done, or one of its files has been damaged since."""
        for stage in stages:
            if stage not in self._stages:
                raise CollectionError(f"{self.run} is no finished run.", "Run 'pairingnet solve' first.")
            damaged = self._damaged(stage)
            if damaged:
                raise CollectionError(
                    f"{self.run / damaged[0]} is missing, or not what was written.",
                    "Run 'pairingnet solve' again with the same scans and folder: it makes it anew.",
                )

    def _damaged(self, stage: str) -> list[str]:
        files: dict[str, str] = self._stages[stage]["files"]
        return [name for name, mark in files.items() if fingerprint_of_file(self.run / name) != mark]


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The stages as they were noted; none where the manifest is missing or damaged: then all is made again."""
    try:
        content = read_json(path, checked=True)
    except CollectionError:
        return {}
    stages: dict[str, dict[str, Any]] = content["stages"] if content["version"] == _VERSION else {}
    return stages
