"""Joins and groups that know of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pairingnet.assemble.belief import reconsider, with_joins
from pairingnet.assemble.implied import with_implied
from pairingnet.assemble.layout import Table, off_px, seam_of, usual_gap_px
from pairingnet.assemble.repair import assemble_well
from pairingnet.assemble.rivals import among_rivals
from pairingnet.config import SolveSettings
from pairingnet.io.decisions import is_decided
from pairingnet.match.contact import Outline
from pairingnet.types import Assembly, Decisions, PairMatch

_SAME_PX = 0.5
_HEARD = 0.005  # joins below this probability do not even count as rivals of others


def put_together(
    outlines: Mapping[str, Outline],
    joins: Sequence[PairMatch],
    step_px: float,
    settings: SolveSettings,
    decisions: Decisions | None = None,
) -> tuple[list[PairMatch], Assembly]:
    """The joins that are worth a look, and groups of fragments; both know of each other."""
    decisions = decisions or Decisions()
    settings = among_so_many(settings, len(outlines))
    table = Table(outlines, settings.assemble, step_px, usual_gap_px(joins))
    heard = [join for join in joins if join.probability >= _HEARD or is_decided(join, decisions)]
    ways = among_rivals(table, _all_ways(_as_seen(table, heard, decisions.seen), decisions), settings.rivals, decisions)
    likely = [join for join in ways if join.probability >= settings.least or is_decided(join, decisions)]
    assembly = assemble_well(outlines, likely, step_px, settings.assemble, decisions)
    matches = reconsider(table, assembly, likely)
    return with_implied(table, assembly, matches, decisions.rejected), with_joins(assembly, matches)


def among_so_many(settings: SolveSettings, fragments: int) -> SolveSettings:
    """Settings for so many fragments. Those of a puzzle belong together; among many there are strangers, and borders of
    other pictures that nobody contests: more is asked of a merge there, and nothing is gained by being alone."""
    crowd = float(np.log(max(1.0, fragments / settings.few)))
    rivals, groups = settings.rivals, settings.assemble
    return replace(
        settings,
        rivals=replace(rivals, free=max(0.0, rivals.free - rivals.crowd * crowd)),
        assemble=replace(groups, log_odds=groups.log_odds + min(groups.careful, crowd)),
    )


def _all_ways(joins: Sequence[PairMatch], decisions: Decisions) -> list[PairMatch]:
    """The joins, and different ways to join the same pieces: the others tell which one is right. What a person has
    decided on is as it was seen."""
    ways = []
    for join in joins:
        ways += [replace(join, others=()), *(() if is_decided(join, decisions) else join.others)]
    return ways


def _as_seen(table: Table, joins: Sequence[PairMatch], seen: Sequence[PairMatch]) -> list[PairMatch]:
    """The joins, those that a person has accepted as they were then: groups may have shown another pose than the join
    alone has, or a join that there is none of alone."""
    by_pair = {join.pair: join for join in joins}
    for said in seen:
        pose, pair = said.target_from_source, said.pair
        if pose is None or not pair <= set(table.outlines):
            continue
        own = by_pair.get(pair)
        if own is None or own.source != said.source or own.target_from_source is None or off_px(own, pose) > _SAME_PX:
            by_pair[pair] = replace(said, points=seam_of(table, said.source, said.target, pose)[0])
    return list(by_pair.values())
