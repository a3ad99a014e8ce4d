"""The pipeline in memory, for programs: fragments -> ranked joins -> groups. Nothing is written.

fragments = read_fragments("scans")
joins = search(fragments)
assembly = assemble(fragments, joins)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from pairingnet.assemble.together import put_together
from pairingnet.config import SolveSettings
from pairingnet.errors import CollectionError
from pairingnet.match.contact import Outline
from pairingnet.match.pair import method_for
from pairingnet.match.weights import RingModel
from pairingnet.types import Assembly, Decisions, Fragment, PairMatch


def search(
    fragments: Sequence[Fragment], model: RingModel | None = None, settings: SolveSettings | None = None
) -> list[PairMatch]:
    """How the fragments fit, the likeliest joins first: all pairs of a few, the best candidates among many."""
    settings = settings or SolveSettings()
    _refuse_repeated([fragment.id for fragment in fragments])
    if len(fragments) < 2:
        return []
    method = method_for(fragments, model)
    features = method.know(list(method.features(fragments)))
    pairs = set(combinations(range(len(features)), 2))
    if len(features) > settings.all_pairs_up_to:
        ranked, _ = method.rank(features, settings.candidates)
        pairs = {(min(a, int(b)), max(a, int(b))) for a, row in enumerate(ranked) for b in row if b >= 0}
    joins = [method.match(features[a], features[b]) for a, b in sorted(pairs)]
    likely = [join for join in joins if join.target_from_source is not None and join.probability >= settings.least]
    return sorted(likely, key=lambda join: (-join.score, join.source, join.target))


def assemble(
    fragments: Sequence[Fragment],
    joins: Sequence[PairMatch],
    settings: SolveSettings | None = None,
    decisions: Decisions | None = None,
) -> Assembly:
    """Put fragments together by their joins, whose probabilities then know of each other."""
    _refuse_repeated([fragment.id for fragment in fragments])
    if not fragments:
        return Assembly()
    step_px = method_for(fragments).step_px
    outlines = {fragment.id: Outline.at_step(fragment.contour, step_px) for fragment in fragments}
    return put_together(outlines, joins, step_px, settings or SolveSettings(), decisions)[1]


def _refuse_repeated(ids: Sequence[str]) -> None:
    repeated = [name for name, count in Counter(ids).items() if count > 1]
    if repeated:
        raise CollectionError(f"Several fragments are called '{repeated[0]}'.", "Give each an id of its own.")
