"""Best-first agglomeration: always the merge that gains most, until none is left; then the best cut of the tree.

Merges that lose a little are made as well, in the end: two doubtful ones may pay together, when the loop that they
close comes in. Every merge is a node of a tree (a dendrogram); a node is kept if it and all below it gain more
together than its two halves do apart, which dynamic programming tells from the leaves up.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from pairingnet.assembly.bodies import Body, united
from pairingnet.assembly.candidates import Numbers
from pairingnet.assembly.merging import Merge, Problem, Proposal, bounds_of_pairs, laid_out, proposals

LEAST_GAIN = -4.0  # of a merge that may still pay later; a closed loop is worth about half of that more
Watch = Callable[[Body, Body, Merge], None]


@dataclass(frozen=True)
class Node:
    """A merge of the tree: the keys of its halves, and its gain."""

    halves: tuple[int, int]
    gain: float


@dataclass(eq=False)
class _Forest:
    """All bodies that have ever been: those that still are (`top`), and the merges that made the others."""

    bodies: dict[int, Body]
    top: set[int]
    body_of: Numbers
    nodes: dict[int, Node] = field(default_factory=dict)


def agglomerate(problem: Problem, start: Iterable[Body], watch: Watch | None = None) -> list[Body]:
    """Bodies from bodies (which are not taken apart); `watch` sees every merge that was laid out."""
    forest = _planted(problem, start)
    queue: list[tuple[float, int, int, int, int, Proposal | Merge]] = []
    count = 0

    def push(rank: float, first: int, second: int, what: Proposal | Merge) -> None:
        nonlocal count
        count += 1
        heapq.heappush(queue, (-rank, isinstance(what, Proposal), count, first, second, what))

    def propose(first: int, second: int) -> None:
        for proposal in proposals(problem, forest.bodies[first], forest.bodies[second], LEAST_GAIN):
            push(proposal.bound, first, second, proposal)

    for first, second in _linked(problem, forest):
        propose(first, second)
    while queue:
        *_, first, second, what = heapq.heappop(queue)
        if not {first, second} <= forest.top:
            continue
        if isinstance(what, Proposal):
            merge = laid_out(problem, forest.bodies[first], forest.bodies[second], what, LEAST_GAIN)
            if merge is not None:
                if watch is not None:
                    watch(forest.bodies[first], forest.bodies[second], merge)
                if merge.gain >= LEAST_GAIN:
                    push(merge.gain, first, second, merge)
            continue
        new = _merged(problem, forest, first, second, what)
        for beside in _beside(problem, forest, new):
            propose(new, beside)
    return _best_cut(forest)


def _planted(problem: Problem, start: Iterable[Body]) -> _Forest:
    bodies = dict(enumerate(start))
    body_of = np.full(len(problem.pieces), -1, np.intp)
    for key, body in bodies.items():
        body_of[body.members] = key
    return _Forest(bodies, set(bodies), body_of)


def _linked(problem: Problem, forest: _Forest) -> list[tuple[int, int]]:
    """Bodies between which there are candidates, and of single fragments only those that may be merged."""
    candidates = problem.candidates
    ends = np.stack([forest.body_of[candidates.source], forest.body_of[candidates.target]], axis=1)
    grown = np.array([len(body) > 1 for body in forest.bodies.values()])[ends].any(axis=1)
    hopeful = grown | (bounds_of_pairs(problem)[candidates.pair] >= LEAST_GAIN)
    ends = np.sort(ends[hopeful & (ends[:, 0] != ends[:, 1]) & (ends >= 0).all(axis=1)], axis=1)
    return [(int(first), int(second)) for first, second in np.unique(ends, axis=0)]


def _beside(problem: Problem, forest: _Forest, key: int) -> list[int]:
    """The bodies that candidates lead to."""
    candidates = problem.candidates
    numbers = np.concatenate([candidates.of_fragment[member] for member in forest.bodies[key].members])
    ends = forest.body_of[np.concatenate([candidates.source[numbers], candidates.target[numbers]])]
    return [int(other) for other in np.unique(ends) if other not in (key, -1)]


def _merged(problem: Problem, forest: _Forest, first: int, second: int, merge: Merge) -> int:
    key = len(forest.bodies)
    moved = forest.bodies[first].moved(merge.turn, merge.shift)
    forest.bodies[key] = united(problem.pieces, moved, forest.bodies[second], merge.links, problem.locked)
    forest.nodes[key] = Node((first, second), merge.gain)
    forest.top -= {first, second}
    forest.top.add(key)
    forest.body_of[forest.bodies[key].members] = key
    return key


def _best_cut(forest: _Forest) -> list[Body]:
    """The bodies of the cut that gains most; halves come before their merges, so one pass is enough."""
    whole: dict[int, float] = {}  # what all merges of a node gain
    best: dict[int, float] = {}  # what the best cut of it gains
    kept: dict[int, tuple[int, ...]] = {}
    for key in sorted(forest.bodies):
        node = forest.nodes.get(key)
        if node is None:
            whole[key] = best[key] = 0.0
            kept[key] = (key,)
            continue
        one, other = node.halves
        whole[key] = whole[one] + whole[other] + node.gain
        apart = best[one] + best[other]
        best[key], kept[key] = (whole[key], (key,)) if whole[key] > apart else (apart, kept[one] + kept[other])
    return [forest.bodies[key] for top in sorted(forest.top) for key in kept[top]]
