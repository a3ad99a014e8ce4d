"""What is not said: neighbours that a merge would bring together, and that no join speaks of.

A join of two outer borders lays whole pictures side by side. Alone it may look right; but then other pieces along that
line would be neighbours as well, and where nearly all neighbours have found each other, that none of them has is
evidence. How many neighbours find each other is learned from the groups as they grow: of worn pieces few do, and their
silence says little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pairingnet.assemble.joins import Pair
from pairingnet.assemble.layout import Poses, Table, touching, within
from pairingnet.types import Assembly

_LEAST = 24.0  # steps of contact; shorter seams are often not found
# Neighbours of one merge are silent for the same reasons, so that each counts for less than it would alone.
_COUNTS = 0.5


@dataclass
class Silence:
    """How many neighbours there were that could have been silent, and how many were; a guess to begin with."""

    neighbours: float = 4.0
    silent: float = 1.2

    def note(self, neighbours: int, silent: int, needed: int = 1) -> None:
        """Groups have grown. needed: joins without which they would not have, so that they could not be silent."""
        self.neighbours += max(0, neighbours - needed)
        self.silent += silent

    def log_odds(self, moved: Poses, fixed: Poses, silent: int) -> float:
        """What so many silent neighbours say about a merge; not above 0. Around a single piece few could speak."""
        if len(moved) == 1 or len(fixed) == 1:
            return 0.0
        return self.of_silent(silent)

    def of_silent(self, silent: float | None = None) -> float:
        """What so many silent neighbours say about a layout, where they are as usual as here; by default its own."""
        count = self.silent if silent is None else silent
        return _COUNTS * count * float(np.log(self.silent / self.neighbours))


def brought_together(table: Table, moved: Poses, fixed: Poses) -> set[Pair]:
    """Pieces of two groups that would be neighbours."""
    return {frozenset(pair) for pair in touching(table, moved, fixed, _LEAST * table.step_px)}


def silence_in(table: Table, assembly: Assembly) -> Silence:
    """How silent neighbours are in groups that are finished."""
    said = {join.pair for join in assembly.confirmed}
    learned = Silence()
    for group in assembly.groups:
        pairs = touching(table, group.poses, group.poses, _LEAST * table.step_px)
        near = {frozenset(pair) for pair in within(group.poses, pairs)}
        learned.note(len(near), len(near - said), needed=len(group) - 1)
    return learned
