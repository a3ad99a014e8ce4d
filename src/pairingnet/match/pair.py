"""Two fragments -> how they fit, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pairingnet.geometry import perimeter
from pairingnet.match.paper_weights import PaperModel
from pairingnet.match.ring import RingMethod
from pairingnet.match.weights import RingModel, load_model
from pairingnet.prepare.strip import working_step
from pairingnet.types import Fragment, PairMatch


def match_pair(source: Fragment, target: Fragment, model: RingModel | PaperModel | None = None) -> PairMatch:
    """How two fragments fit, and how likely they were neighbours; with the model that ships unless another is given."""
    method = any_method([source, target], model)
    found: PairMatch = method.match(*method.know(list(method.features([source, target]))))
    return found


def any_method(fragments: Sequence[Fragment], model: RingModel | PaperModel | None = None) -> Any:
    """The method of a model, with `features`, `know`, `rank` and `match`."""
    return model.method() if isinstance(model, PaperModel) else method_for(fragments, model)


def method_for(fragments: Sequence[Fragment], model: RingModel | None = None) -> RingMethod:
    """Our own method at the working scale of some fragments."""
    model = model or _shipped()
    step_px = working_step([perimeter(each.contour) for each in fragments], model.network.settings.points)
    return RingMethod(model, step_px)


_shipped = lru_cache(maxsize=1)(load_model)
