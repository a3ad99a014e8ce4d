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
from pairingnet.io.collection import Collection
from pairingnet.io.files import append_lines
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
    """All decisions in their order; a last line that was cut off is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            told = json.loads(line)
            pose = told["target_from_source"]
            found.append(
                Decision(
                    told["what"],
                    told["source"],
                    told["target"],
                    None if pose is None else Rigid2D.from_matrix(pose),
                    told.get("who", ""),
                    told.get("when", ""),
                    told.get("model", ""),
                )
            )
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            if number == len(lines):
                break
            # Work of a person is not to be skipped in silence.
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
        locked=tuple(
            PairMatch(decision.source, decision.target, decision.target_from_source, probability=1.0)
            for decision in last.values()
            if decision.what == "lock" and decision.target_from_source is not None
        ),
    )


def decision_on(
    collection: Collection,
    joins: Iterable[PairMatch],
    what: str,
    source: str,
    target: str,
    who: str | None,
    model: str,
) -> Decision:
    """What a person says now about two fragments, with the join that was found between them."""
    if what not in WORDS:
        raise SettingsError(f"'{what}' is no decision.", f"Say {', '.join(WORDS[:-1])} or {WORDS[-1]}.")
    for name in (source, target):
        if name not in collection.by_id:
            raise CollectionError(f"There is no fragment '{name}'.", f"The ids are in {collection.folder}.")
    found = next((join for join in joins if {join.source, join.target} == {source, target}), None)
    pose = None if found is None else found.target_from_source
    if pose is None and what in ("accept", "lock"):
        raise CollectionError(
            f"No way to join {source} and {target} was found.", "Only joins that were found can be accepted."
        )
    if found is not None:
        source, target = found.source, found.target
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return Decision(what, source, target, pose, getuser() if who is None else who, when, model)


def is_decided(join: PairMatch, decisions: Decisions) -> bool:
    """Whether a person has said something about a join."""
    pair = frozenset((join.source, join.target))
    return pair in decisions.accepted or pair in decisions.rejected
