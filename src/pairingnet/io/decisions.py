"""`decisions.jsonl`: what people have said of joins and pieces. Lines are only ever added; the last word counts.

{"checksum", "when", "who", "what": "accept" | "reject" | "lock" | "clear", "source", "target", "target_from_source",
 "model", "fingerprints"}                                              of both pieces' images, which outlive their names
{"checksum", "when", "who", "what": "exclude" | "include", "source"}   source: an id, or a pattern of ids
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path
from typing import Any

import numpy as np

from pairingnet.errors import CollectionError, SettingsError
from pairingnet.geometry import Rigid2D
from pairingnet.io.files import MALFORMED, append_lines, as_checked_line, read_checked_lines
from pairingnet.io.fingerprint import fingerprint_of_bytes
from pairingnet.types import Decisions, PairMatch

WORDS = ("accept", "reject", "lock", "clear")
_OF_PIECES = ("exclude", "include")


@dataclass(frozen=True)
class Decision:
    """One line: who said what of which join, when, and on the word of which weights; or of which pieces: then it has a
    source alone. fingerprints: of the images of source and target, where known."""

    what: str
    source: str
    target: str = ""
    target_from_source: Rigid2D | None = None
    who: str = ""
    when: str = ""
    model: str = ""
    fingerprints: tuple[str, ...] = ()


def append_decision(path: Path, decision: Decision) -> None:
    """Add a decision; it is on disk, and counts, when this returns."""
    pose = decision.target_from_source
    line: dict[str, object] = {
        "when": decision.when,
        "who": decision.who,
        "what": decision.what,
        "source": decision.source,
    }
    if decision.what not in _OF_PIECES:
        line |= {
            "target": decision.target,
            "target_from_source": None if pose is None else np.round(pose.matrix, 9).tolist(),
            "model": decision.model,
            "fingerprints": list(decision.fingerprints),
        }
    append_lines(path, [as_checked_line(line)])


def read_decisions(path: Path) -> list[Decision]:
    """All decisions in their order. A line that was cut off while it was written was never said."""
    stored = read_checked_lines(path, checked=False)
    # The word of a person is not to be passed over in silence; only what was never acknowledged is.
    damaged = stored.damaged[:-1] if stored.ends_early else stored.damaged
    whole = [number for number in damaged if not _was_cut_off(path, number)]
    if whole:
        raise _no_decision(path, f"line {whole[0]} is damaged")
    try:
        return [_decision(entry) for entry in stored.entries]
    except MALFORMED as error:
        raise _no_decision(path, str(error)) from error


def _was_cut_off(path: Path, number: int) -> bool:
    """Whether a line has no end of its own: it got one when the next decision was added."""
    return not path.read_bytes().split(b"\n")[number - 1].rstrip().endswith(b"}")


def _no_decision(path: Path, why: str) -> CollectionError:
    return CollectionError(
        f"{path} holds something that is no decision ({why}).",
        "Get it from a backup, or mend the line (without its checksum), or remove the line.",
    )


def _decision(content: Mapping[str, Any]) -> Decision:
    if content["what"] not in (*WORDS, *_OF_PIECES):
        raise ValueError(f"'{content['what']}' is none")
    pose = content.get("target_from_source")
    who, when, model = (str(content.get(name, "")) for name in ("who", "when", "model"))
    return Decision(
        content["what"],
        str(content["source"]),
        "" if content["what"] in _OF_PIECES else str(content["target"]),
        None if pose is None else Rigid2D.from_matrix(pose),
        who,
        when,
        model,
        tuple(map(str, content.get("fingerprints", ()))),
    )


def mark_of(path: Path) -> str:
    """How long the file is, and a fingerprint of it."""
    data = path.read_bytes() if path.is_file() else b""
    return f"{len(data)}-{fingerprint_of_bytes(data)}"


def is_continued(path: Path, mark: str) -> bool:
    """Whether the file begins with what it was when it had that mark: nothing that was said has been lost."""
    length, _, known = mark.partition("-")
    data = path.read_bytes() if path.is_file() else b""
    return len(data) >= int(length) and fingerprint_of_bytes(data[: int(length)]) == known


def under_new_names(decisions: Iterable[Decision], ids: Mapping[str, str]) -> list[Decision]:
    """Decisions on pieces whose scans were renamed, under the names of now. ids: of pieces, by their images'
    fingerprints."""
    known = set(ids.values())

    def renamed(name: str, place: int, decision: Decision) -> str:
        return name if name in known else ids.get("".join(decision.fingerprints[place : place + 1]), name)

    return [
        replace(d, source=renamed(d.source, 0, d), target=renamed(d.target, 1, d)) if d.target else d for d in decisions
    ]


def standing(decisions: Sequence[Decision]) -> Decisions:
    """What holds after all of them: the last word on each pair."""
    last = {frozenset((said.source, said.target)): said for said in decisions if said.what in WORDS}
    return Decisions(
        accepted=frozenset(pair for pair, decision in last.items() if decision.what == "accept"),
        rejected=frozenset(pair for pair, decision in last.items() if decision.what == "reject"),
        locked=_joins(last.values(), "lock"),
        seen=_joins(last.values(), "accept"),
        words={pair: f"{said.who}, {said.when[:10]}" for pair, said in last.items() if said.what != "clear"},
    )


def excluded(decisions: Sequence[Decision]) -> tuple[str, ...]:
    """Ids and patterns of pieces that are left out, `!` before those that are taken back in; the last word counts."""
    patterns: dict[str, str] = {}
    for said in decisions:
        if said.what in _OF_PIECES:
            patterns.pop(said.source, None)
            patterns[said.source] = f"!{said.source}" if said.what == "include" else said.source
    return tuple(patterns.values())


def _joins(decisions: Iterable[Decision], what: str) -> tuple[PairMatch, ...]:
    """Joins of which that was said, in the pose of which it was said."""
    return tuple(
        PairMatch(decision.source, decision.target, decision.target_from_source, probability=1.0)
        for decision in decisions
        if decision.what == what and decision.target_from_source is not None
    )


def decision_on(
    join: PairMatch, what: str, who: str | None, model: str, fingerprints: tuple[str, ...] = ()
) -> Decision:
    """What a person says now about a join."""
    if what not in WORDS:
        raise SettingsError(f"'{what}' is no decision.", f"Say {', '.join(WORDS[:-1])} or {WORDS[-1]}.")
    if join.target_from_source is None and what in ("accept", "lock"):
        raise CollectionError(
            f"No way to join {join.source} and {join.target} was found.", "Only joins that were found can be accepted."
        )
    said = decision_now(what, join.source, who)
    return replace(
        said,
        target=join.target,
        target_from_source=join.target_from_source,
        model=model,
        fingerprints=fingerprints,
    )


def decision_now(what: str, source: str, who: str | None = None) -> Decision:
    """What a person says now of pieces."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return Decision(what, source, who=getuser() if who is None else who, when=when)


def is_decided(join: PairMatch, decisions: Decisions) -> bool:
    """Whether a person has said something about a join."""
    pair = join.pair
    return pair in decisions.accepted or pair in decisions.rejected


def state_of(pair: frozenset[str], decisions: Decisions) -> str:
    """What a person has said of a pair: "accepted", "rejected", "locked", or nothing."""
    if pair in decisions.accepted:
        return "accepted"
    if pair in decisions.rejected:
        return "rejected"
    return "locked" if any(pair == join.pair for join in decisions.locked) else ""
