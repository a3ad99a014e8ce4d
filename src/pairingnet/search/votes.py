"""Local features -> ranked candidates: every contour point asks for its best partners and votes for their fragment.

Votes count by how much better a partner is than what both points find anywhere (log-odds against the background), so
that straight, plain edges, which fit everything, do not win. Votes of one join lie on one diagonal: where the source's
contour runs forwards, the target's runs backwards. Only the best diagonal of a fragment counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float32]

_BAND = 12  # steps of the contour: votes of one join lie so near to one diagonal
_BEST_OF_ALL = 0.97
_EXACT_BELOW = 60_000  # keys


class Searchable(Protocol):
    """Queries and keys (N, D) of a fragment's contour points, and how well each goes with anything (N,)."""

    @property
    def queries(self) -> Features: ...
    @property
    def keys(self) -> Features: ...
    @property
    def query_level(self) -> Features: ...
    @property
    def key_level(self) -> Features: ...


def rank_by_votes(
    pieces: Sequence[Searchable], scale: float, most: int, every: int = 2, partners: int = 24
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """The `most` best others of each of F fragments (F, K), -1 for none, and their scores."""
    count = len(pieces)
    if count < 2:
        return np.full((count, most), -1, dtype=np.intp), np.full((count, most), -np.inf, dtype=np.float32)
    forth = _votes(pieces, scale, every, partners)
    scores = forth + forth.T
    np.fill_diagonal(scores, -np.inf)
    kept = min(most, count - 1)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :kept]
    ranked = np.full((count, most), -1, dtype=np.intp)
    told = np.full((count, most), -np.inf, dtype=np.float32)
    ranked[:, :kept] = best
    told[:, :kept] = np.take_along_axis(scores, best, axis=1)
    return ranked, told


def _votes(pieces: Sequence[Searchable], scale: float, every: int, partners: int) -> NDArray[np.float32]:
    """(F, F): how much the points of each fragment vote for each other one."""
    keys = np.concatenate([piece.keys for piece in pieces])
    of_key = np.concatenate([piece.key_level for piece in pieces])
    owner = np.repeat(np.arange(len(pieces)), [len(piece.keys) for piece in pieces])
    place = np.concatenate([np.arange(len(piece.keys)) for piece in pieces])
    asking = np.concatenate([piece.queries[::every] for piece in pieces])
    of_query = np.concatenate([piece.query_level[::every] for piece in pieces])
    asked_at = np.concatenate([np.arange(len(piece.queries))[::every] for piece in pieces])
    asker = np.repeat(np.arange(len(pieces)), [len(piece.queries[::every]) for piece in pieces])
    similarity, partner = _nearest(keys, asking, partners)
    strength = scale * similarity - 0.5 * (of_query[:, None] + of_key[partner])
    strength = np.clip(strength, 0, None)
    strength[owner[partner] == asker[:, None]] = 0
    return _best_diagonals(asker, asked_at, owner[partner], place[partner], strength, len(pieces))


def _best_diagonals(
    asker: NDArray[np.intp],
    asked_at: NDArray[np.intp],
    owner: NDArray[np.intp],
    place: NDArray[np.intp],
    strength: NDArray[np.float32],
    count: int,
) -> NDArray[np.float32]:
    """(F, F): the sum of votes on the best diagonal; bins overlap by half, so that none is cut in two."""
    best = np.zeros((count, count), dtype=np.float32)
    rows, columns = np.nonzero(strength)
    a, b, value = asker[rows], owner[rows, columns], strength[rows, columns]
    diagonal = asked_at[rows] + place[rows, columns]
    for shift in (0, _BAND // 2):
        bins = (diagonal + shift) // _BAND
        width = int(bins.max(initial=0)) + 1
        code = (a * count + b) * width + bins
        order = np.argsort(code, kind="stable")
        unique, first = np.unique(code[order], return_index=True)
        total = np.add.reduceat(value[order], first) if len(unique) else np.zeros(0)
        np.maximum.at(best.reshape(-1), unique // width, total.astype(np.float32))
    return best


def background_levels(points: Features, background: Features, scale: float) -> Features:
    """(N,): what a point's best few of a hundred random partners reach.

    Not the mean: in a small collection the true partners are among the random ones, and must not count.
    """
    if not len(background):
        return np.zeros(len(points), dtype=np.float32)
    place = int(_BEST_OF_ALL * (len(background) - 1))
    logits = scale * (points @ background.T)
    return np.partition(logits, place, axis=1)[:, place].astype(np.float32)  # a copy: a view would keep all of it


def _nearest(keys: Features, asking: Features, partners: int) -> tuple[Features, NDArray[np.intp]]:
    """Similarities and numbers (Q, P) of the nearest keys."""
    partners = min(partners, len(keys))
    if len(keys) < _EXACT_BELOW:
        index: faiss.Index = faiss.IndexFlatIP(keys.shape[1])
    else:
        cells = int(4 * np.sqrt(len(keys)))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(keys.shape[1]), keys.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = 12
        rng = np.random.default_rng(0)
        index.train(keys[rng.choice(len(keys), min(len(keys), 40 * cells), replace=False)])
    index.add(keys)
    similarity, number = index.search(np.ascontiguousarray(asking), partners)
    return np.where(number < 0, -1, similarity), np.where(number < 0, 0, number)
