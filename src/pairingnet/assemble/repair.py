"""Merges that came too early are taken back, and others tried first.

The surest joins come first, so that a wrong one among them may shut out several right ones that come later: their
pieces would lie on others then. Where a sure join was refused, the weakest link of the layout that stands against it
is left out, and everything is put together again. And which of two doubtful joins comes first is little more than
chance, but much may depend on it: so everything is put together in several orders.
What counts is how much of what all joins say then holds, less what is silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from pairingnet.assemble.belief import Chains
from pairingnet.assemble.joins import Pair, by_pair
from pairingnet.assemble.layout import Poses, Table, agrees, carried_over, collisions
from pairingnet.assemble.merge import assemble
from pairingnet.assemble.silence import Silence, silence_in
from pairingnet.config import AssembleSettings
from pairingnet.geometry import Rigid2D
from pairingnet.match.contact import Outline
from pairingnet.types import Assembly, Decisions, PairMatch

_SURE = 2.0  # log-odds of a join whose refusal is worth another try
_MOST = 8.0  # log-odds; no join counts for more
_BETTER = 1.0  # log-odds by which another layout has to be better
_TRIES = 24


def assemble_well(
    outlines: Mapping[str, Outline],
    matches: Sequence[PairMatch],
    step_px: float,
    settings: AssembleSettings | None = None,
    decisions: Decisions | None = None,
) -> Assembly:
    """Put fragments together in several orders; the layout stays that holds most of what all joins say, less what is
    silent in it."""
    settings, decisions = settings or AssembleSettings(), decisions or Decisions()
    table = Table(outlines, settings, step_px)
    said = [match for match in matches if match.target_from_source is not None]
    best = _mended(table, matches, said, decisions, order=0)
    usual = silence_in(table, best)
    merit = holds(table, best, said) + usual.of_silent()
    at_most = sum(max(map(_counted, ways)) for ways in by_pair(said).values()) + usual.of_silent(Silence().silent)
    for order in range(1, min(settings.orders, settings.orders_of // max(1, len(outlines)))):
        if merit >= at_most:
            break
        other = _mended(table, matches, said, decisions, order)
        its_merit = holds(table, other, said) + usual.of_silent(silence_in(table, other).silent)
        if its_merit > merit:
            best, merit = other, its_merit
    return best


def _mended(
    table: Table, matches: Sequence[PairMatch], said: Sequence[PairMatch], decisions: Decisions, order: int
) -> Assembly:
    """Put fragments together in one order, and again without what stands against sure joins."""
    outlines, step_px, settings = table.outlines, table.step_px, table.settings
    kept = list(matches)
    best = assemble(outlines, kept, step_px, settings, decisions, order)
    tried: set[Pair] = set(decisions.accepted)
    for _ in range(_TRIES):
        found = next(((weak, names) for weak, names in _against(table, best, said) if weak not in tried), None)
        if found is None:
            break
        weak, names = found
        tried.add(weak)
        without = [match for match in kept if match.pair != weak]
        # Only the groups that it is about are tried: in a large collection most others have nothing to do with it.
        there = {name: outlines[name] for name in names}
        other = assemble(there, _among(without, names), step_px, settings, decisions, order)
        about = _among(said, names)
        if holds(table, other, about) > holds(table, best, about) + _BETTER:
            kept = without
            best = assemble(outlines, kept, step_px, settings, decisions, order)
    return best


def _among(joins: Iterable[PairMatch], names: set[str]) -> list[PairMatch]:
    return [join for join in joins if join.source in names and join.target in names]


def holds(table: Table, assembly: Assembly, joins: Iterable[PairMatch]) -> float:
    """How much of what joins say a layout agrees with."""
    group_of = {name: group for group in assembly.groups for name in group.poses}
    return sum(
        _counted(join)
        for join in joins
        if join.source in group_of and group_of[join.source] is group_of.get(join.target)
        if agrees(table, join, group_of[join.source].poses)
    )


def _counted(join: PairMatch) -> float:
    """The log-odds of a join that is likely; of a doubtful one that holds, for by chance few would, a little."""
    return float(np.log1p(np.exp(min(join.score, _MOST))))


def _against(table: Table, assembly: Assembly, joins: Iterable[PairMatch]) -> Iterator[tuple[Pair, set[str]]]:
    """The weakest links that stand against sure joins, those of the surest first; and the pieces of its groups."""
    sure = sorted((j for j in joins if j.score >= _SURE), key=lambda j: (-j.score, j.source, j.target))
    chain_of = {name: chains for chains in map(Chains, assembly.groups) for name in chains.group.poses}
    for join in sure:
        own, fixed = (
            chain_of[name].group.poses if name in chain_of else {name: Rigid2D()} for name in (join.source, join.target)
        )
        links = []
        if join.target in own:
            if not agrees(table, join, own):
                links.append(chain_of[join.source].weakest(join.source, join.target))
        else:
            for name, beside in _clashes(table, join, own, fixed, sure):
                for end, piece in ((join.source, name), (join.target, beside)):
                    if end != piece:
                        links.append(chain_of[end].weakest(end, piece))
        for _, pair in sorted(links, key=lambda link: link[0]):
            yield pair, {*own, *fixed}


def _clashes(
    table: Table, join: PairMatch, own: Poses, fixed: Poses, sure: Iterable[PairMatch]
) -> Iterator[tuple[str, str]]:
    """Which pieces of two groups speak against their merge by a join: they would lie on each other, or not as another
    sure join says."""
    moved = carried_over(join, own, fixed)
    yield from collisions(table, moved, fixed)
    together = {**fixed, **moved}
    for said in sure:
        ends = (said.source, said.target) if said.source in own else (said.target, said.source)
        if ends[0] in own and ends[1] in fixed and not agrees(table, said, together):
            yield ends
