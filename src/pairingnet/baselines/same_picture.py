"""An oracle that knows which picture each fragment is from, and nothing else.

Its score is what any method reaches that recognises the picture but not the join. Where the fragments of one picture
are few, or where a network saw other fragments of the same pictures in training, that alone is a good search. It finds
no pose, for the same reason and with the same effect as `chance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pairingnet.baselines.chance import ChanceMethod
from pairingnet.baselines.ranking import rank_scores
from pairingnet.errors import CollectionError
from pairingnet.types import PairMatch


class SamePictureMethod(ChanceMethod):
    """Fragments of the same picture first, in any order; then the others."""

    name = "same_picture"

    def __init__(self, source_of: Mapping[str, str], seed: int = 0) -> None:
        """source_of: the picture of each fragment, by id."""
        super().__init__(seed)
        self.source_of = source_of

    def rank(self, features: Sequence[str], most: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Scores from 1 on are of the same picture."""
        unknown = [name for name in features if not self.source_of.get(name)]
        if unknown:
            raise CollectionError(
                f"It is not known which picture '{unknown[0]}' is from.", "Leave out same_picture, or add the truth."
            )
        pictures = np.unique([self.source_of[name] for name in features], return_inverse=True)[1]
        scores = np.random.default_rng(self.seed).random((len(features), len(features)), dtype=np.float32)
        return rank_scores(scores + (pictures[:, None] == pictures[None]), most)

    def match(self, source: str, target: str) -> PairMatch:
        """No pose."""
        return PairMatch(source, target, None, reason="the same-picture oracle knows no poses")
