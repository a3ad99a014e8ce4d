"""Ring features on disk: one small file per fragment, whole or not there, so that interrupted work continues."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pairingnet.errors import CollectionError
from pairingnet.io.files import write_whole
from pairingnet.match.contact import Outline
from pairingnet.match.evidence import Side
from pairingnet.match.ring import RingFeatures
from pairingnet.prepare.strip import Strip

Levels = tuple[NDArray[np.float32], NDArray[np.float32], int, float]


def feature_path(folder: Path, fragment_id: str) -> Path:
    return folder / f"{fragment_id}.npz"


def write_features(folder: Path, features: RingFeatures) -> None:
    """Store one fragment; features with half the digits, about 0.2 MB."""
    side, strip = features.side, features.side.strip
    arrays = {
        "points": strip.points.astype(np.float32),
        "tangents": strip.tangents.astype(np.float32),
        "colours": strip.colours,
        "step_px": np.array(strip.step_px),
        "queries": side.queries.astype(np.float16),
        "keys": side.keys.astype(np.float16),
        "contour": features.outline.points.astype(np.float32),
    }
    write_whole(feature_path(folder, features.id), lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def read_features(folder: Path, fragment_id: str, levels: Levels | None = None) -> RingFeatures:
    """Read one fragment; `levels` are those of its queries and keys in the collection, how large that is, and how
    loosely its surest joins lie."""
    path = feature_path(folder, fragment_id)
    try:
        # Opened here: numpy leaves a file open that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            a = {name: stored[name] for name in stored.files}
        strip = Strip(
            fragment_id,
            a["points"].astype(np.float64),
            a["tangents"].astype(np.float64),
            a["colours"],
            np.zeros((0, 0), np.uint8),
            float(a["step_px"]),
        )
        queries, keys = a["queries"].astype(np.float32), a["keys"].astype(np.float32)
        outline = Outline(a["contour"].astype(np.float64))
    except Exception as error:  # numpy and zipfile raise all kinds of things on broken data
        raise CollectionError(
            f"{path} holds no features ({error}).", "Remove it, and run the command again."
        ) from error
    known = levels or (np.zeros(0, np.float32), np.zeros(0, np.float32), 1, float("nan"))
    return RingFeatures(fragment_id, Side(strip, queries, keys, *known), outline)
