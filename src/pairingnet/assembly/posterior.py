"""How sure a layout is of its joins and of its pieces: posterior probabilities.

What holds two pieces together is worth as much as it would cost to pull them apart: the minimum cut between them, in a
graph whose edges are what each pair of neighbours contributes to the energy. That cut is a log-odds; with what the pair
says by itself, it goes through a logistic regression learned on torn training pictures. All minimum cuts of a group lie
on one tree (Gomory and Hu, here by Gusfield's algorithm).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import maximum_flow

from pairingnet.assembly.energy import Energy, Pair, terms_of

_UNITS = 1000.0  # of capacity in a unit of log-odds: flows are whole numbers
_MOST = 20.0  # log-odds; no cut says more

Capacities = Mapping[tuple[int, int], float]


def capacities(energy: Energy, pairs: Iterable[Pair]) -> dict[tuple[int, int], float]:
    """What each pair of neighbours contributes to holding its pieces together."""
    return {pair.ends: max(0.0, energy.gain(terms_of([pair], (), 0, 1))) for pair in pairs}


class CutTree:
    """Minimum cuts between all pairs of some pieces."""

    def __init__(self, members: Sequence[int], held_by: Capacities, price: float) -> None:
        """members: numbers of pieces; price: log-odds by which any two parts are apart before anything holds them."""
        self._place = {int(member): i for i, member in enumerate(sorted(members))}
        self._price = price
        graph = _graph(held_by, self._place)
        count = len(self._place)
        self._parent, self._flow = np.zeros(count, np.intp), np.full(count, np.inf)
        for i in range(1, count):
            flow, side = _minimum_cut(graph, i, int(self._parent[i]))
            self._flow[i] = flow
            later = np.arange(i + 1, count)
            self._parent[later[side[later] & (self._parent[later] == self._parent[i])]] = i
        strength = np.asarray(graph.sum(axis=1)).ravel()
        self.core = sorted(self._place)[int(np.argmax(strength))] if count else -1

    def between(self, one: int, other: int) -> float:
        """Log-odds that two pieces lie to each other as they are placed."""
        a, b = self._place[one], self._place[other]
        return min(_MOST, min(self._path(a, b), default=np.inf) / _UNITS + self._price)

    def to_core(self, member: int) -> float:
        """The same of a piece and the one that is held best."""
        return self.between(member, self.core)

    def _path(self, a: int, b: int) -> Iterable[float]:
        """Flows along the tree between two vertices; a parent comes before its children."""
        while a != b:
            a, b = max(a, b), min(a, b)
            yield float(self._flow[a])
            a = int(self._parent[a])


def _graph(held_by: Capacities, place: Mapping[int, int]) -> csr_array:
    ends = np.array([(place[a], place[b]) for a, b in held_by], dtype=np.intp).reshape(-1, 2)
    flows = np.rint(np.array(list(held_by.values())) * _UNITS).astype(np.int32)
    rows, columns = np.concatenate([ends, ends[:, ::-1]]).T
    both = np.concatenate([flows, flows])
    return csr_array(coo_array((both, (rows, columns)), shape=(len(place), len(place)), dtype=np.int32))


def _minimum_cut(graph: csr_array, source: int, sink: int) -> tuple[float, NDArray[np.bool_]]:
    """The least capacity that separates two vertices, and which are on the source's side."""
    result = maximum_flow(graph, source, sink)
    left = csr_array(graph - result.flow)  # capacity that is left
    side = np.zeros(graph.shape[0], dtype=bool)
    side[source] = True
    waiting = deque([source])
    while waiting:
        at = waiting.popleft()
        row = slice(left.indptr[at], left.indptr[at + 1])
        for beside in left.indices[row][left.data[row] > 0]:
            if not side[beside]:
                side[beside] = True
                waiting.append(int(beside))
    return float(result.flow_value), side


def calibrated(energy: Energy, kind: str, *said: float) -> float:
    """Log-odds from what speaks for and against; `kind` names the regression: "held", "against", "apart", "piece"."""
    return float(energy.calibration[kind] @ np.array([1.0, *said]))


def probability_of(log_odds: float) -> float:
    """Between 0 and 1, and never quite either."""
    return float(1 / (1 + np.exp(-np.clip(log_odds, -50.0, 50.0))))
