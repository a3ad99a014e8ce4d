"""Search vectors as a picture: many numbers per fragment -> a place on a sphere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pairingnet.errors import SettingsError


def on_a_sphere(vectors: NDArray[np.float32], seed: int = 0) -> NDArray[np.float64]:
    """(F, G) -> (F, 3) of length 1: PaCMAP to three dimensions, seen from the middle of the cloud."""
    try:
        import pacmap
    except ImportError as error:
        raise SettingsError("PaCMAP is not installed.", "pip install 'pairingnet[sphere]'") from error
    if len(vectors) < 20:
        raise SettingsError(f"{len(vectors)} fragments are too few for a map.", "Use a collection of 20 or more.")
    flat = pacmap.PaCMAP(n_components=3, n_neighbors=None, random_state=seed).fit_transform(vectors, init="pca")
    centred = np.asarray(flat, dtype=np.float64) - np.median(flat, axis=0)
    return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-9))
