"""Chance: a ranking at random. What a number is worth when nothing is known.

It finds no pose. The metrics read that as "the fragments stay as their images lie", which is a wrong place for nearly
every pair (images are cropped to their pieces), and yet the right turn for all pieces that were never turned: a method
without any pose has RE 0 there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairingnet.baselines.ranking import rank_scores
from pairingnet.types import Fragment, PairMatch


class ChanceMethod:
    """Knows nothing."""

    name = "chance"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def describe(self) -> dict[str, Any]:
        """The seed."""
        return {"seed": self.seed}

    def features(self, fragments: Iterable[Fragment]) -> list[str]:
        """The names."""
        return [fragment.id for fragment in fragments]

    def know(self, features: Sequence[str]) -> Sequence[str]:
        """Nothing."""
        return features

    def rank(self, features: Sequence[str], most: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Any others, in any order."""
        rng = np.random.default_rng(self.seed)
        return rank_scores(rng.random((len(features), len(features)), dtype=np.float32), most)

    def match(self, source: str, target: str) -> PairMatch:
        """No pose."""
        return PairMatch(source, target, None, reason="chance does not look at the pieces")
