"""The rule-based comparison method, in the manner of Zhang & Li 2014, step 1 (pairwise matches).

Known: that the paper compares with this step alone, written again by its authors. Chosen: everything that is marked so
in `candidates.py`; the pose of a pair is that of its best candidate, its search score that candidate's score, and a
pair without candidates is no candidate of the search and has no pose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairingnet.baselines.candidates import Candidate, find_candidates
from pairingnet.baselines.ranking import rank_all_pairs
from pairingnet.baselines.segments import Piece, describe_piece
from pairingnet.config import CandidateSettings
from pairingnet.settings import as_dict
from pairingnet.types import Fragment, PairMatch

NO_CANDIDATE = "no two segments of the contours fit"


class RuleBasedMethod:
    """Polygons of contours, laid on each other segment by segment."""

    name = "rule_based"

    def __init__(self, settings: CandidateSettings | None = None) -> None:
        self.settings = settings or CandidateSettings()

    def describe(self) -> dict[str, Any]:
        """The settings."""
        return as_dict(self.settings)

    def features(self, fragments: Iterable[Fragment]) -> Iterator[Piece]:
        """Polygon and colours of each fragment."""
        return (describe_piece(fragment, self.settings) for fragment in fragments)

    def know(self, features: Sequence[Piece]) -> Sequence[Piece]:
        """Nothing: pieces are judged two by two."""
        return features

    def score(self, source: Piece, target: Piece) -> float:
        """How well two pieces fit, px; 0 where they do not."""
        return self.match(source, target).score

    def rank(self, features: Sequence[Piece], most: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """The `most` best candidates of each fragment. Every pair is laid on each other: F^2 / 2 of them."""
        return rank_all_pairs(self.score, features, most)

    def match(self, source: Piece, target: Piece) -> PairMatch:
        """How two fragments fit: the best candidate."""
        found: list[Candidate] = find_candidates(source, target, self.settings)
        if not found:
            return PairMatch(source.id, target.id, None, reason=NO_CANDIDATE)
        best = found[0]
        return PairMatch(source.id, target.id, best.target_from_source, best.score, best.line)
