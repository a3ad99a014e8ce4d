"""Joins and groups that know of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pairingnet.assemble.belief import reconsider, with_joins
from pairingnet.assemble.implied import with_implied
from pairingnet.assemble.layout import Table
from pairingnet.assemble.merge import assemble
from pairingnet.config import SolveSettings
from pairingnet.io.decisions import is_decided
from pairingnet.match.contact import Outline
from pairingnet.types import Assembly, Decisions, PairMatch


def put_together(
    outlines: Mapping[str, Outline],
    joins: Sequence[PairMatch],
    step_px: float,
    settings: SolveSettings,
    decisions: Decisions | None = None,
) -> tuple[list[PairMatch], Assembly]:
    """The joins that are worth a look, and groups of fragments; both know of each other."""
    decisions = decisions or Decisions()
    likely = [join for join in joins if join.probability >= settings.least or is_decided(join, decisions)]
    assembly = assemble(outlines, likely, step_px, settings.assemble, decisions)
    table = Table(outlines, settings.assemble, step_px)
    matches = reconsider(table, assembly, likely)
    return with_implied(table, assembly, matches, decisions.rejected), with_joins(assembly, matches)
