"""`registered.jsonl`: the poses of every pair that was laid on each other, kept as long as both pieces stay the same.

One line a pair, as soon as it is known, with the fingerprints of both pieces' features, and a checksum. Lines that are
damaged or cut off do not count, and their pairs are registered again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pairingnet.geometry import Rigid2D
from pairingnet.io.files import append_lines, write_whole
from pairingnet.io.fingerprint import fingerprint
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
    content = {"made_of": key[:2], "worn": key[2], "alike": registered.alike, "poses": poses}
    return json.dumps({**content, "checksum": fingerprint(content)[:_CHECKSUM]}, separators=(",", ":"))


_CHECKSUM = 12


def _read(path: Path) -> tuple[dict[Key, Registered], int]:
    """What is known, and how many lines that took."""
    if not path.is_file():
        return {}, 0
    known: dict[Key, Registered] = {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        try:
            content: dict[str, Any] = json.loads(line)
            if content.pop("checksum") != fingerprint(content)[:_CHECKSUM]:
                continue
            source, target = content["made_of"]
            poses = tuple(Registration(Rigid2D(*pose[:3]), *pose[3:]) for pose in content["poses"])
            known[source, target, content["worn"]] = Registered(poses, content["alike"], content["worn"])
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return known, len(lines)
