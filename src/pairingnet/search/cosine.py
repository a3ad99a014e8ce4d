"""One vector per fragment -> ranked candidates, by cosine similarity (the paper's search)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_BLOCK = 1024


def rank_by_cosine(vectors: ArrayLike, most: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """For vectors (F, G) of length 1: the `most` best others of each (F, K), best first, and their similarities.

    Where there are fewer others, the rest is -1 and minus infinity.
    """
    x = np.asarray(vectors, dtype=np.float32)
    if x.ndim != 2:
        raise ValueError(f"vectors are (F, G), one row per fragment; got shape {x.shape}")
    count = len(x)
    ranked = np.full((count, most), -1, dtype=np.intp)
    scores = np.full((count, most), -np.inf, dtype=np.float32)
    kept = min(most, count - 1)
    for first in range(0, count if kept > 0 else 0, _BLOCK):
        block = x[first : first + _BLOCK] @ x.T
        rows = np.arange(len(block))
        block[rows, first + rows] = -np.inf  # nobody is its own neighbour
        order = np.argsort(-block, axis=1, kind="stable")[:, :kept]
        ranked[first : first + len(block), :kept] = order
        scores[first : first + len(block), :kept] = np.take_along_axis(block, order, axis=1)
    return ranked, scores
