"""Neighbours that no join of their own holds: other joins have laid them beside each other.

Short, plain seams look like many others, and are often not found, or not believed, alone. Where the pieces around
them are joined, they follow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from pairingnet.assemble.belief import Chains
from pairingnet.assemble.layout import Table, agrees, boxes_meet, seam_of, within
from pairingnet.types import Assembly, Group, PairMatch

_LEAST = 8.0  # steps of contact; along less, only two corners meet
_ENOUGH = 16.0  # steps of contact that are certainly a seam


def with_implied(
    table: Table, assembly: Assembly, matches: Iterable[PairMatch], rejected: Collection[frozenset[str]] = ()
) -> list[PairMatch]:
    """The matches, and those that follow from the groups, the likeliest first; of a pair the likelier one, and none
    that a person has rejected."""
    known = {match.pair: match for match in matches}
    for group in assembly.groups:
        for implied in implied_joins(table, group, known.values()):
            pair = implied.pair
            if pair not in rejected and (pair not in known or known[pair].score < implied.score):
                known[pair] = implied
    return sorted(known.values(), key=lambda match: (-match.score, match.source, match.target))


def implied_joins(table: Table, group: Group, matches: Iterable[PairMatch]) -> Iterator[PairMatch]:
    """Pieces of a group that touch although no match says so; as sure as all the joins between them together."""
    said = {
        match.pair
        for match in matches
        if match.source in group.poses and match.target in group.poses and match.target_from_source is not None
        if agrees(table, match, group.poses)
    }
    chains = Chains(group)
    for a, b in within(group.poses, boxes_meet(table, group.poses, group.poses, table.reach_px)):
        if frozenset((a, b)) in said:
            continue
        pose = group.poses[b].inverse() @ group.poses[a]
        points, contact_px = seam_of(table, a, b, pose)
        steps = contact_px / table.step_px
        if steps < _LEAST:
            continue
        probability = chains.probability(a, b) * min(1.0, steps / _ENOUGH)
        yield PairMatch(
            a,
            b,
            pose,
            float(np.log(probability) - np.log1p(-probability)),
            points,
            probability=probability,
            evidence={"implied": 1.0, "contact_px": round(contact_px, 1)},
        )
