"""Joins that close a loop confirm each other.

Three joins of three pieces say the same thing twice: where one piece lies beside another, directly and by way of the
third. Wrong joins hardly ever agree by chance, so that three doubtful joins which do are rather sure together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import numpy as np

from pairingnet.assemble.joins import by_pair
from pairingnet.assemble.layout import Table, agrees
from pairingnet.geometry import Rigid2D
from pairingnet.types import PairMatch

_CHANCE = 0.01  # that joins of which one is wrong close a loop; measured: 0 to .007 (docs/ring.md)
_NEVER_QUITE = 1 - 1e-9


def log_odds_together(probabilities: Sequence[float], loops: int) -> float:
    """Log-odds that all of some joins are right, which close so many loops."""
    all_right = float(np.log(np.minimum(probabilities, _NEVER_QUITE)).sum())
    return all_right - loops * float(np.log(_CHANCE)) - float(np.log(-np.expm1(all_right)))


def confirmed(table: Table, joins: Iterable[PairMatch]) -> dict[PairMatch, float]:
    """Log-odds of each join that closes a loop with two others, if the surest such loop is believed."""
    ways = by_pair(joins)
    beside: dict[str, set[str]] = {}
    for source, target in ways:
        beside.setdefault(source, set()).add(target)
        beside.setdefault(target, set()).add(source)
    best: dict[PairMatch, float] = {}
    for a in sorted(beside):
        for b in sorted(name for name in beside[a] if name > a):
            for c in sorted(name for name in beside[a] & beside[b] if name > b):
                for loop in product(*(ways[frozenset(pair)] for pair in ((a, b), (b, c), (a, c)))):
                    if _closes(table, loop, (a, b, c)):
                        sure = log_odds_together([join.probability for join in loop], loops=1)
                        best |= {join: max(sure, best.get(join, sure)) for join in loop}
    return best


def _closes(table: Table, loop: Sequence[PairMatch], names: Sequence[str]) -> bool:
    """Whether the last of three joins lays its pieces as the first two do."""
    a, b, c = names
    to_b, to_c = _carries(loop[0], a), _carries(loop[1], b)
    poses: Mapping[str, Rigid2D] = {a: to_c @ to_b, b: to_c, c: Rigid2D()}
    return agrees(table, loop[2], poses)


def _carries(join: PairMatch, name: str) -> Rigid2D:
    """The join's transform, from the named piece to the other."""
    assert join.target_from_source is not None
    return join.target_from_source if join.source == name else join.target_from_source.inverse()
