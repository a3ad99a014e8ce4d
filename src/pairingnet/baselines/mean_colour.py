"""The simplest search that looks: fragments whose borders have nearly the same colour on average come first.

It finds no pose, for the same reason and with the same effect as `chance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from pairingnet.baselines.ranking import rank_scores
from pairingnet.baselines.segments import border_colours
from pairingnet.config import CandidateSettings
from pairingnet.match.contact import Outline
from pairingnet.types import Fragment, PairMatch


@dataclass(frozen=True, eq=False)
class MeanColour:
    """colour (3,): RGB, a little inside of the contour."""

    id: str
    colour: NDArray[np.float64]


class MeanColourMethod:
    """One colour a fragment."""

    name = "mean_colour"

    def __init__(self, depth_px: float = CandidateSettings.depth) -> None:
        self.depth_px = depth_px

    def describe(self) -> dict[str, Any]:
        """How far inside colours are taken."""
        return {"depth_px": self.depth_px}

    def features(self, fragments: Iterable[Fragment]) -> Iterator[MeanColour]:
        """The mean colour along each contour."""
        for fragment in fragments:
            colours = border_colours(fragment, Outline(fragment.contour), self.depth_px)
            yield MeanColour(fragment.id, colours.mean(axis=0))

    def know(self, features: Sequence[MeanColour]) -> Sequence[MeanColour]:
        """Nothing more."""
        return features

    def rank(self, features: Sequence[MeanColour], most: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """By distance in RGB; the score is its negative."""
        colours = np.array([each.colour for each in features]).reshape(-1, 3)
        return rank_scores(-cdist(colours, colours), most)

    def match(self, source: MeanColour, target: MeanColour) -> PairMatch:
        """No pose."""
        return PairMatch(source.id, target.id, None, reason="one colour does not say how pieces fit")
