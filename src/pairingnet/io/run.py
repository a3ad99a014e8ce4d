"""Run folders: what `solve` found, as files for people and programs (docs/formats.md).

joins.jsonl      every pair that was laid on each other, one line each, the likeliest first; in pixels of the pieces,
                 for the program itself
matches.json     the joins worth looking at, the likeliest first; in pixels of the scans (`frames.py`)
assembly.json    groups, poses, and what is left; likewise
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pairingnet.errors import CollectionError
from pairingnet.geometry import Rigid2D
from pairingnet.io.files import MALFORMED, append_lines, write_json, write_whole
from pairingnet.types import Assembly, Group, PairMatch

VERSION = 1
_SEAM_POINTS = 24


def match_as_json(match: PairMatch) -> dict[str, Any]:
    """One join as plain values."""
    found = match.target_from_source
    entry: dict[str, Any] = {
        "source": match.source,
        "target": match.target,
        "target_from_source": None if found is None else np.round(found.matrix, 6).tolist(),
        "score": round(match.score, 4),
    }
    if not np.isnan(match.probability):
        entry["probability"] = round(match.probability, 4)
    entry |= match.evidence
    if len(match.points):
        chosen = np.linspace(0, len(match.points) - 1, min(_SEAM_POINTS, len(match.points))).astype(int)
        entry["seam"] = np.round(match.points[chosen].reshape(-1, 4), 1).tolist()
    if match.reason:
        entry["reason"] = match.reason
    if match.others:
        entry["others"] = [match_as_json(other) for other in match.others]
    return entry


def match_from_json(entry: Mapping[str, Any]) -> PairMatch:
    """A join as it was written."""
    known = {"source", "target", "target_from_source", "score", "probability", "seam", "reason", "others"}
    found = entry["target_from_source"]
    return PairMatch(
        entry["source"],
        entry["target"],
        None if found is None else Rigid2D.from_matrix(found),
        float(entry.get("score", 0.0)),
        np.array(entry.get("seam", []), dtype=np.float64).reshape(-1, 2, 2),
        entry.get("reason", ""),
        float(entry.get("probability", float("nan"))),
        {name: value for name, value in entry.items() if name not in known},
        tuple(match_from_json(other) for other in entry.get("others", [])),
    )


def append_joins(path: Path, matches: Iterable[PairMatch]) -> None:
    """Add joins to the list; they count from then on."""
    append_lines(path, [json.dumps(match_as_json(match)) for match in matches])


def write_joins(path: Path, matches: Iterable[PairMatch]) -> None:
    """Store the whole list."""
    text = "".join(f"{json.dumps(match_as_json(match))}\n" for match in matches)
    write_whole(path, lambda file: file.write_text(text, encoding="utf-8"))


def read_joins(path: Path) -> list[PairMatch]:
    """All joins that are complete; a line that was cut off is left out."""
    if not path.is_file():
        return []
    joins = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            joins.append(match_from_json(json.loads(line)))
        except MALFORMED:
            continue
    return joins


def write_matches(path: Path, matches: Sequence[PairMatch]) -> None:
    """The joins, the likeliest first."""
    write_json(path, {"version": VERSION, "matches": [match_as_json(match) for match in matches]})


def read_matches(path: Path) -> list[PairMatch]:
    """Joins of `matches.json`."""
    try:
        return [match_from_json(entry) for entry in _content(path)["matches"]]
    except MALFORMED as error:
        raise _damaged(path, error) from error


def write_assembly(path: Path, assembly: Assembly, scan_of: Mapping[str, str] | None = None) -> None:
    """Groups with their poses, and the fragments that are in none; scan_of: the file that each fragment is from."""
    files = scan_of or {}
    groups = [
        {
            "fragments": [
                {
                    "id": name,
                    **({"image": files[name]} if name in files else {}),
                    "canvas_from_fragment": np.round(pose.matrix, 6).tolist(),
                    **({"probability": round(group.probabilities[name], 4)} if name in group.probabilities else {}),
                }
                for name, pose in group.poses.items()
            ],
            "joins": [[join.source, join.target] for join in group.joins],
        }
        for group in assembly.groups
    ]
    told = {
        name: [[join.source, join.target] for join in joins]
        for name, joins in (("confirmed", assembly.confirmed), ("contradicted", assembly.contradicted))
    }
    write_json(path, {"version": VERSION, "groups": groups, "singles": list(assembly.singles), **told})


def read_assembly(path: Path, matches: Iterable[PairMatch] = ()) -> Assembly:
    """Groups of `assembly.json`; `matches` give the joins their transforms."""
    try:
        return _assembly(_content(path), matches)
    except MALFORMED as error:
        raise _damaged(path, error) from error


def _assembly(content: Mapping[str, Any], matches: Iterable[PairMatch]) -> Assembly:
    by_pair = {match.pair: match for match in matches}

    def joins(pairs: Iterable[Sequence[str]]) -> tuple[PairMatch, ...]:
        return tuple(by_pair[frozenset(pair)] for pair in pairs if frozenset(pair) in by_pair)

    groups = tuple(
        Group(
            {entry["id"]: Rigid2D.from_matrix(entry["canvas_from_fragment"]) for entry in group["fragments"]},
            joins(group.get("joins", [])),
            {entry["id"]: float(entry["probability"]) for entry in group["fragments"] if "probability" in entry},
        )
        for group in content["groups"]
    )
    told = [joins(content.get(name, [])) for name in ("confirmed", "contradicted")]
    return Assembly(groups, tuple(content.get("singles", [])), *told)


def _damaged(path: Path, why: object) -> CollectionError:
    return CollectionError(f"{path} cannot be read ({why}).", "Run 'pairingnet solve' again.")


def _content(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CollectionError(f"There is no {path}.", "Run 'pairingnet solve' first.") from None
    except (OSError, *MALFORMED) as error:
        raise _damaged(path, error) from error
    if not isinstance(content, dict):
        raise _damaged(path, "it is no object")
    if content.get("version") != VERSION:
        raise CollectionError(f"{path} has version {content.get('version')}.", f"This program reads {VERSION}.")
    return content
