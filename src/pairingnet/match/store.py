"""Ring features on disk: one small file per fragment, whole or not there, so that interrupted work continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairingnet.io.arrays import SUFFIX, read_arrays, write_arrays
from pairingnet.match.contact import Outline
from pairingnet.match.evidence import Side
from pairingnet.match.ring import RingFeatures
from pairingnet.prepare.strip import Strip


def feature_path(folder: Path, fragment_id: str) -> Path:
    return folder / f"{fragment_id}{SUFFIX}"


def write_features(folder: Path, features: RingFeatures) -> None:
    """Store one fragment, about 0.2 MB: nothing is lost, points and features are made so that they fit into these
    digits."""
    side, strip = features.side, features.side.strip
    arrays: dict[str, NDArray[Any]] = {
        "points": strip.points.astype(np.float32),
        "tangents": strip.tangents.astype(np.float32),
        "colours": strip.colours,
        "step_px": np.array([strip.step_px]),
        "queries": side.queries.astype(np.float16),
        "keys": side.keys.astype(np.float16),
        "prior": side.prior,
        "contour": features.outline.points.astype(np.float32),
    }
    write_arrays(feature_path(folder, features.id), arrays, features.fingerprint)


def read_features(folder: Path, fragment_id: str, fingerprint: str | None = None) -> RingFeatures | None:
    """Read one fragment; None where there is none that is whole and was made of just that."""
    a = read_arrays(feature_path(folder, fragment_id), fingerprint)
    if a is None:
        return None
    points, tangents = a["points"].astype(np.float64), a["tangents"].astype(np.float64)
    strip = Strip(fragment_id, points, tangents, a["colours"], np.zeros((0, 0), np.uint8), float(a["step_px"][0]))
    side = Side(strip, a["queries"].astype(np.float32), a["keys"].astype(np.float32), prior=a["prior"])
    outline = Outline(a["contour"].astype(np.float64))
    return RingFeatures(fragment_id, side, outline, fingerprint or "")
