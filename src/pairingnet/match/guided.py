"""Guided matching: two fragments judged where a layout has laid them, though nothing proposed that pose.

Most hypotheses of a pair are lost where its features are torn away. But once other pieces say where two of them must
lie, the verifier can be asked about that place: a true seam that nobody found still looks like one, a chance one does
not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pairingnet.geometry import Rigid2D
from pairingnet.match.hypotheses import Correspondences
from pairingnet.match.ring import RingFeatures, RingMethod
from pairingnet.types import PairMatch

Place = tuple[str, str, Rigid2D]


@dataclass(frozen=True, eq=False)
class GuidedMatching:
    """Asks a method about poses; what it has answered is remembered. method: gives it, when the first question comes;
    features_of: features of a fragment by its id, in the collection that it is in; gap_px: what wear has usually taken
    away between neighbours."""

    method: Callable[[], RingMethod]
    features_of: Callable[[str], RingFeatures]
    gap_px: float = 0.0
    _known: dict[Place, PairMatch | None] = field(default_factory=dict)
    _found: dict[tuple[str, str], Correspondences] = field(default_factory=dict)

    def __call__(self, source: str, target: str, near: Rigid2D) -> PairMatch | None:
        """How two fragments fit near a pose; None where they do not touch there."""
        place = source, target, near
        if place not in self._known:
            method, a, b = self.method(), self.features_of(source), self.features_of(target)
            if (source, target) not in self._found:
                self._found[source, target] = method.correspondences(a, b)
            self._known[place] = method.match_near(a, b, near, self.gap_px, self._found[source, target])
        return self._known[place]


def guided_matching(method: RingMethod, features: Iterable[RingFeatures], gap_px: float = 0.0) -> GuidedMatching:
    """Of fragments in memory."""
    by_id = {each.id: each for each in features}
    return GuidedMatching(lambda: method, by_id.__getitem__, gap_px)
