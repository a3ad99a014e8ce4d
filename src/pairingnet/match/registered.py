"""`registered.jsonl`: the poses of every pair that was laid on each other, kept as long as both pieces stay the same.

One line a pair, as soon as it is known, with the fingerprints of both pieces' features, and a checksum. Lines that are
damaged or cut off do not count, and their pairs are registered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pairingnet.geometry import Rigid2D
from pairingnet.io.files import append_lines, as_checked_line, read_checked_lines, write_whole
from pairingnet.match.ring import Registered, Registration

Key = tuple[str, str, bool]  # fingerprints of the source's and the target's features; whether they count as worn


class RegisteredPairs:
    """The file of a run, read once; what is added is on disk when `add` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known, self._lines = _read(path)

    def add(self, pairs: Mapping[Key, Registered]) -> None:
        """Pairs count from now on."""
        append_lines(self._path, [_line(key, registered) for key, registered in pairs.items()])
        self.known |= pairs
        self._lines += len(pairs)

    def keep_only(self, keys: Iterable[Key]) -> None:
        """Forget pairs of pieces that are gone, once they are the larger part of the file."""
        kept = {key: self.known[key] for key in keys if key in self.known}
        if self._lines > 2 * len(kept):
            text = "".join(f"{_line(key, registered)}\n" for key, registered in kept.items())
            write_whole(self._path, lambda file: file.write_text(text, encoding="utf-8"))
            self.known, self._lines = kept, len(kept)


def _line(key: Key, registered: Registered) -> str:
    poses = [
        [p.target_from_source.angle_rad, p.target_from_source.x_px, p.target_from_source.y_px, p.support, p.overlap]
        for p in registered.poses
    ]
    return as_checked_line({"made_of": key[:2], "worn": key[2], "alike": registered.alike, "poses": poses})


def _read(path: Path) -> tuple[dict[Key, Registered], int]:
    """What is known, and how many lines that took."""
    stored = read_checked_lines(path)
    known: dict[Key, Registered] = {}
    for entry in stored.entries:
        source, target = entry["made_of"]
        poses = tuple(Registration(Rigid2D(*pose[:3]), *pose[3:]) for pose in entry["poses"])
        known[source, target, entry["worn"]] = Registered(poses, entry["alike"], entry["worn"])
    return known, len(stored.entries) + len(stored.damaged)
