"""`decisions.jsonl`: what people have said of joins. Lines are only ever added; the last one of a pair counts.

{"when", "who", "what": "accept" | "reject" | "lock" | "clear", "source", "target", "target_from_source", "model"}
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path

import numpy as np

from pairingnet.errors import CollectionError, SettingsError
from pairingnet.geometry import Rigid2D
from pairingnet.io.files import MALFORMED, append_lines
from pairingnet.types import Decisions, PairMatch

WORDS = ("accept", "reject", "lock", "clear")


@dataclass(frozen=True)
class Decision:
    """One line: who said what of which join, when, and on the word of which weights."""

    what: str
    source: str
    target: str
    target_from_source: Rigid2D | None
    who: str = ""
    when: str = ""
    model: str = ""


def append_decision(path: Path, decision: Decision) -> None:
    """Add a decision; it counts from then on."""
    pose = decision.target_from_source
    line = {
        "when": decision.when,
        "who": decision.who,
        "what": decision.what,
        "source": decision.source,
        "target": decision.target,
        "target_from_source": None if pose is None else np.round(pose.matrix, 9).tolist(),
        "model": decision.model,
    }
    append_lines(path, [json.dumps(line)])


def read_decisions(path: Path) -> list[Decision]:
    """All decisions in their order. A line that was cut off while it was written was never said."""
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            continue
        try:
            pose = told["target_from_source"]
            transform = None if pose is None else Rigid2D.from_matrix(pose)
            others = {name: str(told.get(name, "")) for name in ("who", "when", "model")}
            what, source, target = told["what"], told["source"], told["target"]
            if not all(isinstance(word, str) for word in (what, source, target)):
                raise ValueError("what, source and target are text")
            found.append(Decision(what, source, target, transform, **others))
        except MALFORMED as error:
            # The word of a person is not to be passed over in silence.
            raise CollectionError(
                f"Line {number} of {path} is no decision ({error}).", "Mend the line, or remove it."
            ) from error
    return found


def standing(decisions: list[Decision]) -> Decisions:
    """What holds after all of them: the last word on each pair."""
    last = {frozenset((decision.source, decision.target)): decision for decision in decisions}
    return Decisions(
        accepted=frozenset(pair for pair, decision in last.items() if decision.what == "accept"),
        rejected=frozenset(pair for pair, decision in last.items() if decision.what == "reject"),
        locked=_joins(last.values(), "lock"),
        seen=_joins(last.values(), "accept"),
    )


def _joins(decisions: Iterable[Decision], what: str) -> tuple[PairMatch, ...]:
    """Joins of which that was said, in the pose of which it was said."""
    return tuple(
        PairMatch(decision.source, decision.target, decision.target_from_source, probability=1.0)
        for decision in decisions
        if decision.what == what and decision.target_from_source is not None
    )


def decision_on(join: PairMatch, what: str, who: str | None, model: str) -> Decision:
    """What a person says now about a join."""
    if what not in WORDS:
        raise SettingsError(f"'{what}' is no decision.", f"Say {', '.join(WORDS[:-1])} or {WORDS[-1]}.")
    if join.target_from_source is None and what in ("accept", "lock"):
        raise CollectionError(
            f"No way to join {join.source} and {join.target} was found.", "Only joins that were found can be accepted."
        )
    when = datetime.now(UTC).isoformat(timespec="seconds")
    who = getuser() if who is None else who
    return Decision(what, join.source, join.target, join.target_from_source, who, when, model)


def is_decided(join: PairMatch, decisions: Decisions) -> bool:
    """Whether a person has said something about a join."""
    pair = join.pair
    return pair in decisions.accepted or pair in decisions.rejected
