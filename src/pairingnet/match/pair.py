"""Two fragments -> how they fit, in one call."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pairingnet.geometry import perimeter
from pairingnet.match.ring import RingMethod
from pairingnet.match.weights import SHIPPED, load_ring
from pairingnet.prepare.strip import working_step
from pairingnet.types import Fragment, PairMatch


def match_pair(source: Fragment, target: Fragment, weights: Path = SHIPPED) -> PairMatch:
    """How two fragments fit, and how likely they were neighbours."""
    network, verifier = _loaded(weights)
    step_px = working_step([perimeter(each.contour) for each in (source, target)], network.settings.points)
    method = RingMethod(network, verifier, step_px)
    return method.match(*method.know(list(method.features([source, target]))))


_loaded = lru_cache(maxsize=2)(load_ring)
