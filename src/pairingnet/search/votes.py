"""Local features -> ranked candidates: every contour point asks for its best partners and votes for their fragment.

Votes count by how much better a partner is than what both points find anywhere (log-odds against the background), so
that straight, plain edges, which fit everything, do not win; and by how likely it is the best of those found. Votes
of one join lie on one diagonal: where the source's contour runs forwards, the target's runs backwards. Only the best
diagonal of a fragment counts.

Partners come from an index of keys (`Keys`): those of a collection in memory, or those of an archive on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import softmax

from pairingnet.config import IndexSettings, VoteSettings
from pairingnet.models.device import one_thread
from pairingnet.search.index import FaissIndex, Features, Ids

_BAND = 12  # steps of the contour: votes of one join lie so near to one diagonal
_BEST_OF_ALL = 0.97
_IMPOSSIBLE = -1e4  # a logit
_NOTHING = 1e-3  # votes below are not worth counting
_ROWS = 128  # points whose similarities to the background stay in the cache
_BLOCK = 64  # fragments that ask at a time
_KEPT = 512  # others that a fragment's votes are kept for: memory grows with the fragments, not with their pairs


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


@dataclass(frozen=True, eq=False)
class Partners:
    """What points found, (Q, P) each: similarity, the fragment that owns the partner (-1: none), the partner's place
    on its contour, and how well it goes with anything."""

    similarity: Features
    owner: Ids
    place: Ids
    level: Features


class Keys(Protocol):
    """Keys of many fragments, ready to be asked."""

    def nearest(self, asking: Features, most: int) -> Partners:
        """The best partners of queries (Q, D)."""


class KeysInMemory:
    """Every n-th key of a collection's fragments; a fragment's number is its place in the collection."""

    def __init__(self, pieces: Sequence[Searchable], every: int = 1) -> None:
        places = [np.arange(0, len(piece.keys), every) for piece in pieces]
        keys = np.concatenate([piece.keys[::every] for piece in pieces])
        self._level = np.concatenate([piece.key_level[::every] for piece in pieces])
        self._owner = np.repeat(np.arange(len(pieces)), [len(place) for place in places])
        self._place = np.concatenate(places)
        # All pairs of points of a few hundred fragments take longer than to make cells.
        self._index = FaissIndex(keys.shape[1], lambda ids: keys[ids], IndexSettings(exact_below=20_000))
        self._index.add(np.arange(len(keys)), keys)

    def nearest(self, asking: Features, most: int) -> Partners:
        """The best partners of queries (Q, D)."""
        similarity, found = self._index.search(asking, min(most, len(self._owner)))
        owner = np.where(found < 0, -1, self._owner[found])
        return Partners(similarity, owner, self._place[found], self._level[found])


def rank_by_votes(
    pieces: Sequence[Searchable], scale: float, most: int, settings: VoteSettings | None = None
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """The `most` best others of each of F fragments (F, K), -1 for none, and their scores."""
    count, settings = len(pieces), settings or VoteSettings()
    ranked = np.full((count, most), -1, dtype=np.intp)
    told = np.full((count, most), -np.inf, dtype=np.float32)
    if count < 2:
        return ranked, told
    forth = _all_votes(pieces, KeysInMemory(pieces, settings.keep_every), scale, settings)
    both = csr_array(forth + forth.T)
    for number in range(count):
        row = slice(both.indptr[number], both.indptr[number + 1])
        others, scores = _filled(
            both.indices[row].astype(np.int64), both.data[row], number, min(most, count - 1), count
        )
        ranked[number, : len(others)], told[number, : len(others)] = others, scores
    return ranked, told


def votes_of(
    piece: Searchable, keys: Keys, scale: float, own: int = -1, settings: VoteSettings | None = None
) -> tuple[Ids, Features]:
    """The fragments that one fragment's points vote for (C,), the best first, and their scores (C,).

    own: the number of the fragment itself, where it is among the keys.
    """
    _, owners, scores = _votes([piece], [own], keys, scale, settings or VoteSettings())
    order = np.lexsort((owners, -scores))
    return owners[order], scores[order]


def _filled(others: Ids, scores: Features, number: int, most: int, count: int) -> tuple[Ids, Features]:
    """The best others of a fragment; where too few have votes, the first of those without any."""
    order = np.lexsort((others, -scores))[:most]
    others, scores = others[order], scores[order]
    if len(others) < most:
        rest = np.setdiff1d(np.arange(min(count, 2 * most + 1)), [*others, number])[: most - len(others)]
        others, scores = np.concatenate([others, rest]), np.concatenate([scores, np.zeros(len(rest), np.float32)])
    return others, scores


def _all_votes(pieces: Sequence[Searchable], keys: Keys, scale: float, settings: VoteSettings) -> csr_array[np.float32]:
    """(F, F), sparse: how much the points of each fragment vote for the others that they vote for most."""
    count = len(pieces)
    parts = []
    for first in range(0, count, _BLOCK):
        asking = range(first, min(first + _BLOCK, count))
        voters, owners, scores = _votes([pieces[i] for i in asking], asking, keys, scale, settings)
        parts += [_most(owners[own], scores[own], number) for number, own in _runs(voters, asking)]
    numbers, owners, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
    return csr_array((scores, (numbers, owners)), shape=(count, count))


def _most(owners: Ids, scores: Features, number: int) -> tuple[Ids, Ids, Features]:
    """Only the votes that count most, with the number of the fragment that gave them."""
    if len(owners) > _KEPT:
        kept = np.lexsort((owners, -scores))[:_KEPT]
        owners, scores = owners[kept], scores[kept]
    return np.full(len(owners), number), owners, scores


def _runs(voters: Ids, numbers: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Where each number's entries lie among voters, which are sorted."""
    edges = np.searchsorted(voters, [*numbers, numbers[-1] + 1])
    for number, first, last in zip(numbers, edges[:-1], edges[1:], strict=True):
        yield number, slice(int(first), int(last))


def _votes(
    pieces: Sequence[Searchable], numbers: Sequence[int], keys: Keys, scale: float, settings: VoteSettings
) -> tuple[Ids, Ids, Features]:
    """(V,) each: a fragment that votes, one that it votes for, and how much."""
    every = settings.ask_every
    asking = np.concatenate([piece.queries[::every] for piece in pieces])
    of_query = np.concatenate([piece.query_level[::every] for piece in pieces])
    asked_at = np.concatenate([np.arange(len(piece.queries))[::every] for piece in pieces])
    asker = np.repeat(np.asarray(numbers), [len(piece.queries[::every]) for piece in pieces])
    found = keys.nearest(asking, settings.partners)
    others = (found.owner >= 0) & (found.owner != asker[:, None])
    logits = np.where(others, scale * found.similarity, _IMPOSSIBLE)
    gain = np.clip(logits - 0.5 * (of_query[:, None] + found.level), 0, None)
    # At most one of the partners is the right one: each counts by how likely it is that.
    strength = np.where(others, gain * softmax(logits, axis=1), 0).astype(np.float32)
    strength[strength < _NOTHING] = 0
    return _best_diagonals(asker, asked_at, found.owner, found.place, strength)


def _best_diagonals(asker: Ids, asked_at: Ids, owner: Ids, place: Ids, strength: Features) -> tuple[Ids, Ids, Features]:
    """(V,) each: fragment, voted for, and the sum of votes on the best diagonal; in rising order of both.

    Bins overlap by half, so that no diagonal is cut in two.
    """
    rows, columns = np.nonzero(strength)
    a, b, value = asker[rows], owner[rows, columns], strength[rows, columns]
    diagonal = asked_at[rows] + place[rows, columns]
    count = int(b.max(initial=0)) + 1
    pairs, of_pair = np.unique(a * count + b, return_inverse=True)
    best = np.zeros(len(pairs), dtype=np.float32)
    for shift in (0, _BAND // 2):
        bins = (diagonal + shift) // _BAND
        width = int(bins.max(initial=0)) + 1
        code = of_pair * width + bins
        order = np.argsort(code, kind="stable")
        unique, first = np.unique(code[order], return_index=True)
        total = np.add.reduceat(value[order], first) if len(unique) else np.zeros(0)
        np.maximum.at(best, unique // width, total.astype(np.float32))
    return pairs // count, pairs % count, best


def background_levels(points: Features, background: Features, scale: float) -> Features:
    """(N,): what a point's best few of a hundred random partners reach.

    Not the mean: in a small collection the true partners are among the random ones, and must not count.
    """
    if not len(background):
        return np.zeros(len(points), dtype=np.float32)
    place = int(_BEST_OF_ALL * (len(background) - 1))
    levels = np.empty(len(points), dtype=np.float32)
    asking, others = (torch.from_numpy(np.ascontiguousarray(each)) for each in (points, background))
    with torch.inference_mode(), one_thread():  # numpy would take all cores for blocks that are too small to share
        for first in range(0, len(points), _ROWS):
            similarity = (asking[first : first + _ROWS] @ others.T).numpy()
            levels[first : first + _ROWS] = scale * np.partition(similarity, place, axis=1)[:, place]
    return levels
