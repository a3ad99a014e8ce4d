"""What the whole says about its joins: those that close a loop gain probability, those that contradict lose it.

Every join has a rival story: how its two pieces would lie if the other joins of their groups were believed instead.
The chain of joins that tells it is as sure as its weakest link. A join that the chain agrees with gains that much
log-odds (doubtful ones that close a loop of three gain more: `loops.py`), one that it contradicts loses it. Between
groups the story is told by pieces: where a join would lay pieces on each other, it contradicts the joins that hold
those pieces, and where it would make neighbours of pieces that no join speaks of, their silence counts
(`silence.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

from pairingnet.assemble.joins import by_pair, with_log_odds
from pairingnet.assemble.layout import Table, agrees, carried_over, collisions, off_px
from pairingnet.assemble.loops import confirmed
from pairingnet.assemble.silence import Silence, brought_together, silence_in
from pairingnet.geometry import Rigid2D
from pairingnet.types import Assembly, Group, PairMatch

_NEARLY = 2.0  # steps; a join that is no farther off from its group's layout keeps its own pose
_MOST = 8.0  # log-odds; no chain counts for more


def reconsider(table: Table, assembly: Assembly, matches: Iterable[PairMatch]) -> list[PairMatch]:
    """The same matches with probabilities and poses that know of the groups, one of each pair, the likeliest first;
    what probability each had on its own is kept in its evidence."""
    group_of = {name: number for number, group in enumerate(assembly.groups) for name in group.poses}
    chains = [Chains(group) for group in assembly.groups]
    usable: list[PairMatch] = []
    changed: list[PairMatch] = []
    for match in matches:
        used = match.target_from_source is not None and match.probability >= table.settings.weakest
        (usable if used else changed).append(match)
    by_loops, silence = confirmed(table, usable), silence_in(table, assembly)
    for match in usable:
        one, other = group_of.get(match.source), group_of.get(match.target)
        laid = match
        if one is None or one != other:
            sure = match.score - _against_merging(table, assembly, chains, silence, match, (one, other))
        elif agrees(table, match, assembly.groups[one].poses):
            by_chain = match.score + chains[one].without(match.source, match.target)
            sure = max(by_chain, by_loops.get(match, by_chain))
            laid = _as_laid(table, match, assembly.groups[one])
        else:
            sure = match.score - chains[one].between(match.source, match.target)
        changed.append(with_log_odds(laid, sure))
    return _likeliest(changed)


def _likeliest(matches: Iterable[PairMatch]) -> list[PairMatch]:
    """Of each pair the likeliest way to join it, the likeliest first."""
    ordered = sorted(matches, key=lambda match: (-match.score, match.source, match.target))
    return [ways[0] for ways in by_pair(ordered).values()]


def with_joins(assembly: Assembly, matches: Iterable[PairMatch]) -> Assembly:
    """The same groups, their joins as given."""
    told = {match.pair: match for match in matches}

    def those(joins: Iterable[PairMatch]) -> tuple[PairMatch, ...]:
        return tuple(told.get(join.pair, join) for join in joins)

    groups = tuple(replace(group, joins=those(group.joins)) for group in assembly.groups)
    return replace(
        assembly, groups=groups, confirmed=those(assembly.confirmed), contradicted=those(assembly.contradicted)
    )


def _as_laid(table: Table, match: PairMatch, group: Group) -> PairMatch:
    """A join that agrees with its group, but not to a step or two, lies as the group has it: many know better."""
    placed = group.poses[match.target].inverse() @ group.poses[match.source]
    return match if off_px(match, placed) < _NEARLY * table.step_px else replace(match, target_from_source=placed)


def _against_merging(
    table: Table,
    assembly: Assembly,
    chains: list[Chains],
    silence: Silence,
    match: PairMatch,
    groups: Sequence[int | None],
) -> float:
    """Log-odds against a join that would bring two groups together: how sure the chains are whose pieces would lie on
    each other then, and neighbours that no join speaks of."""
    one, other = groups
    own = assembly.groups[one].poses if one is not None else {match.source: Rigid2D()}
    fixed = assembly.groups[other].poses if other is not None else {match.target: Rigid2D()}
    moved = carried_over(match, own, fixed)
    surest = 0.0
    for name, beside in collisions(table, moved, fixed):
        links = [_MOST]
        if one is not None and name != match.source:
            links.append(chains[one].between(name, match.source))
        if other is not None and beside != match.target:
            links.append(chains[other].between(beside, match.target))
        if len(links) > 1:  # where the two pieces themselves overlap, their own evidence has said so
            surest = max(surest, min(links))
    silent = brought_together(table, moved, fixed) - {match.pair}
    return surest - silence.log_odds(moved, fixed, len(silent))


class Chains:
    """The joins that hold a group, as a graph; answers how sure the surest chain between two pieces is."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.number = {name: i for i, name in enumerate(group.poses)}
        count = len(self.number)
        sure: dict[tuple[int, int], float] = {}
        for join in group.joins:
            a, b = sorted((self.number[join.source], self.number[join.target]))
            sure[a, b] = max(sure.get((a, b), 0.0), min(join.score, _MOST))
        rows, columns = np.array(list(sure), dtype=np.intp).reshape(-1, 2).T
        # The surest chains between all pieces lie on one tree: the one of the surest joins.
        unsure = 1 + _MOST - np.array(list(sure.values()))
        tree = minimum_spanning_tree(coo_matrix((unsure, (rows, columns)), shape=(count, count)))
        self._order, self._before = breadth_first_order(tree, 0, directed=False)
        self._depth, self._link = np.zeros(count, np.intp), np.full(count, _MOST)
        for i in self._order[1:]:
            before = int(self._before[i])
            self._depth[i] = self._depth[before] + 1
            self._link[i] = sure[min(i, before), max(i, before)]
        self._detour = self._detours(sure)

    def between(self, one: str, other: str) -> float:
        """Log-odds of the weakest link of the surest chain."""
        return float(min((self._link[i] for i in self._path(self.number[one], self.number[other])), default=_MOST))

    def weakest(self, one: str, other: str) -> tuple[float, frozenset[str]]:
        """Log-odds of the weakest link of the surest chain between two different pieces, and whom it holds."""
        link = min(self._path(self.number[one], self.number[other]), key=lambda i: float(self._link[i]))
        names = list(self.number)
        return float(self._link[link]), frozenset((names[link], names[int(self._before[link])]))

    def probability(self, one: str, other: str) -> float:
        """That all links of the surest chain are right."""
        links = np.array([self._link[i] for i in self._path(self.number[one], self.number[other])])
        return float(np.exp(-np.logaddexp(0, -links).sum()))

    def without(self, one: str, other: str) -> float:
        """The same, without the join of these two themselves; 0 where no other chain leads there."""
        path = self._path(self.number[one], self.number[other])
        return float(self._detour[path[0]]) if len(path) == 1 else self.between(one, other)

    def _path(self, a: int, b: int) -> list[int]:
        """Links of the tree between two pieces, each named by its lower end."""
        links = []
        while a != b:
            if self._depth[a] < self._depth[b]:
                a, b = b, a
            links.append(a)
            a = int(self._before[a])
        return links

    def _detours(self, sure: Mapping[tuple[int, int], float]) -> np.ndarray:
        """For each link of the tree, how sure the surest chain around it is."""
        detour = np.zeros(len(self.number))
        for (a, b), own in sure.items():
            path = self._path(a, b)
            for link in path if len(path) > 1 else ():
                others = min(self._link[i] for i in path if i != link)
                detour[link] = max(detour[link], min(own, others))
        return detour
