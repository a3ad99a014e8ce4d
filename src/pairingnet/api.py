"""The pipeline in memory, for programs: fragments -> ranked joins -> groups. Nothing is written.

fragments = read_fragments("scans")
joins = search(fragments)
assembly = assemble(fragments, joins)

All calls work on one thread and may run in many threads, or in processes that fork, at once: the numbers are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal, overload

import numpy as np

from pairingnet.assembly.layout import lay_out
from pairingnet.config import SolveSettings
from pairingnet.errors import CollectionError, NoFragmentError
from pairingnet.match import pair
from pairingnet.match.contact import Outline
from pairingnet.match.gap import with_gaps
from pairingnet.match.paper_weights import PaperModel, is_of_paper, load_paper, weights_path
from pairingnet.match.ring import RingMethod
from pairingnet.match.weights import SHIPPED, RingModel
from pairingnet.match.weights import load_model as load_ring
from pairingnet.models.device import one_thread
from pairingnet.types import Assembly, Decisions, Fragment, PairMatch

Model = RingModel | PaperModel


@overload
def load_model(weights: Literal["paper"], device: str = "cpu") -> PaperModel: ...
@overload
def load_model(weights: str | Path = SHIPPED, device: str = "cpu") -> Model: ...
def load_model(weights: str | Path = SHIPPED, device: str = "cpu") -> Model:
    """The model of a weights file, of our own network or of the paper's; without one, our own that ships.

    "paper": the paper's network that ships, trained as the paper says; for comparison (docs/paper.md).

    Raises CollectionError where there is no such file, or it holds neither.
    """
    path = weights_path(weights)
    return load_paper(path, device) if is_of_paper(path) else load_ring(path, device)


def match_pair(source: Fragment, target: Fragment, model: Model | None = None) -> PairMatch:
    """How two fragments fit, and how likely they were neighbours.

    model: other weights than those that ship (`load_model`).

    The answer is a `PairMatch` in any case. Where nothing fits, its `target_from_source` is None, `reason` says why in
    words, `probability` is NaN, `score` 0 and `evidence` empty: test `target_from_source` first. Exact copies of one
    picture are no neighbours; they get such an answer as well.

    Else `target_from_source` carries pixels of the source's image to the target's, `probability` is what these two say
    by themselves: two pieces alone cannot tell what is usual in a collection, and `search` of all fragments may think
    otherwise.

    Raises NoFragmentError for a fragment without a contour, TypeError for what is no fragment.
    """
    _check([source, target], model)
    if are_copies(source, target):
        return PairMatch(source.id, target.id, None, reason="both are the same picture, pixel for pixel")
    with one_thread():
        return pair.match_pair(source, target, model)


def are_copies(one: Fragment, other: Fragment) -> bool:
    """Whether two fragments are one picture, pixel for pixel: a file given twice, or its copy."""
    return np.array_equal(one.alpha, other.alpha) and np.array_equal(one.pixels, other.pixels)


def search(
    fragments: Sequence[Fragment], model: Model | None = None, settings: SolveSettings | None = None
) -> list[PairMatch]:
    """How the fragments fit, the likeliest joins first: all pairs of a few, the best candidates among many.

    Joins less likely than `settings.least` are left out, so every one has a pose. Each probability is what the two
    fragments say by themselves, in this collection; `solve`, and the joins in the groups of `assemble`, tell what is
    left of it when all other joins have been heard: more where loops close, less where another fragment claims the
    same edge.

    Raises CollectionError where two fragments have one id, NoFragmentError for a fragment without a contour.
    """
    settings = settings or SolveSettings()
    _check(fragments, model)
    _refuse_repeated(fragments)
    if len(fragments) < 2:
        return []
    if isinstance(model, PaperModel):
        model.check_complete()
    with one_thread():
        method = pair.any_method(fragments, model)
        features = method.know(list(method.features(fragments)))
        pairs = set(combinations(range(len(features)), 2))
        if len(features) > settings.all_pairs_up_to:
            ranked, _ = method.rank(features, settings.candidates)
            pairs = {(min(a, int(b)), max(a, int(b))) for a, row in enumerate(ranked) for b in row if b >= 0}
        joins = [method.match(features[a], features[b]) for a, b in sorted(pairs)]
        if isinstance(method, RingMethod):  # the paper's network knows no gaps
            joins = with_gaps(joins, {each.id: each.outline for each in features}, method.step_px)
    likely = [join for join in joins if join.target_from_source is not None and join.probability >= settings.least]
    return sorted(likely, key=lambda join: (-join.score, join.source, join.target))


def assemble(
    fragments: Sequence[Fragment],
    joins: Sequence[PairMatch],
    settings: SolveSettings | None = None,
    decisions: Decisions | None = None,
) -> Assembly:
    """Put fragments together by their joins.

    joins: of `search` or `match_pair`; those without a pose say nothing. The joins in `groups[i].joins`, `confirmed`
    and `contradicted` have the probabilities that are left when all joins have been heard; those given keep theirs.

    Raises CollectionError where two fragments have one id, or a join names a fragment that is not among them.
    """
    _check(fragments)
    _refuse_repeated(fragments)
    known = {fragment.id for fragment in fragments}
    told = [*joins, *(decisions.locked if decisions else ())]
    strangers = sorted({name for join in told for name in (join.source, join.target)} - known)
    if strangers:
        raise CollectionError(
            f"A join names '{strangers[0]}', which is none of the {len(known)} fragments.",
            "Give all fragments that the joins were found among, or only the joins between these.",
        )
    if not fragments:
        return Assembly()
    step_px = pair.method_for(fragments).step_px
    outlines = {fragment.id: Outline.at_step(fragment.contour, step_px) for fragment in fragments}
    return lay_out(outlines, joins, step_px, settings, decisions)[1]


def _check(fragments: Sequence[Fragment], model: Model | None = None) -> None:
    if model is not None and not isinstance(model, RingModel | PaperModel):
        raise TypeError(
            f"A model is a pairingnet.RingModel or PaperModel, not {type(model).__name__}; load_model(file) reads one."
        )
    for each in fragments:
        if not isinstance(each, Fragment):
            raise TypeError(
                f"A fragment is a pairingnet.Fragment, not {type(each).__name__}; "
                "read_fragment(path) reads one, prepare_image finds those of a picture in memory."
            )
        contour = np.asarray(each.contour)
        if contour.ndim != 2 or contour.shape[1] != 2 or len(contour) < 3 or not np.isfinite(contour).all():
            raise NoFragmentError(
                f"The fragment '{each.id}' has no contour: an array {contour.shape}, not (N, 2) of 3 and more points.",
                "Let read_fragment or prepare_image trace it.",
            )


def _refuse_repeated(fragments: Sequence[Fragment]) -> None:
    repeated = [name for name, count in Counter(fragment.id for fragment in fragments).items() if count > 1]
    if repeated:
        raise CollectionError(f"Several fragments are called '{repeated[0]}'.", "Give each an id of its own.")
