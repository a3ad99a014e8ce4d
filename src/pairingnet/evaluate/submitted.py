"""Answers of a method that is not ours, from the files it wrote (docs/benchmark.md): read strictly, then scored as any.

matches.json     how pairs fit; true pairs that are missing in it count as not found
search.json      {"version": 1, "rankings": {"a": ["b", "c"]}}, best first
search.csv       query,candidate[,score]: by score where there is one, else in the order of the lines
search.npz       ids (F,) and ranked (F, K), as `evaluate` writes it (predictions.py)
assembly.json    groups of poses
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from pairingnet.errors import CollectionError, TruthError
from pairingnet.evaluate.predictions import Predictions
from pairingnet.io.collection import Collection
from pairingnet.io.run import VERSION, match_from_json, read_assembly
from pairingnet.types import Assembly, PairMatch

_FORMAT = "See docs/benchmark.md, section 'Score your own method'."


@dataclass(frozen=True, eq=False)
class Submission:
    """What was handed in, and what should be known of it."""

    predictions: Predictions
    remarks: tuple[str, ...]


def read_submission(
    collection: Collection, matches: Path, search: Path | None = None, assembly: Path | None = None, name: str = ""
) -> Submission:
    """Read and check all files. What is wrong is refused with its place; what is missing is said."""
    found = read_answers(collection, matches)
    true = {(pair.source, pair.target) for pair in collection.pairs}
    # A join says the same in both directions; the truth's direction is the one that is looked up.
    turned = [_turned(match) if (match.target, match.source) in true else match for match in found]
    by_pair = {(match.source, match.target): match for match in turned}
    ranked = np.zeros((len(collection), 0), dtype=np.intp) if search is None else read_ranking(collection, search)
    groups = None if assembly is None else read_groups(collection, assembly, turned)
    missing = len(true - by_pair.keys())
    remarks = []
    if missing:
        remarks.append(f"{missing} of {len(true)} true pairs are not in {matches.name}; they count as not found.")
    if search is None:
        remarks.append("Without --search there are no R@k and NDCG@k.")
    elif (silent := int((ranked < 0).all(axis=1).sum())) > 0:
        remarks.append(f"{silent} of {len(collection)} fragments have no candidates in {search.name}.")
    answers = Predictions(
        tuple(record.id for record in collection.fragments),
        ranked,
        {pair: match.target_from_source for pair, match in by_pair.items()},
        name or matches.stem,
        {},
        {pair: match.probability for pair, match in by_pair.items() if not np.isnan(match.probability)},
        assembly=groups,
    )
    return Submission(answers, tuple(remarks))


def read_answers(collection: Collection, path: Path) -> list[PairMatch]:
    """Joins of `matches.json`; every id, transform and probability is checked."""
    entries = _json(path).get("matches")
    if not isinstance(entries, list):
        raise TruthError(f"{path} has no list 'matches'.", _FORMAT)
    found: dict[frozenset[str], PairMatch] = {}
    for number, entry in enumerate(entries, start=1):
        where = f"{path}, match {number}"
        match = _match(entry, where)
        _check_known(collection, (match.source, match.target), where)
        pair = match.pair
        if len(pair) < 2:
            raise TruthError(f"{where}: '{match.source}' is matched with itself.", "Remove it.")
        if pair in found:
            raise TruthError(f"{where}: {match.source} and {match.target} were there before.", "Give each pair once.")
        found[pair] = match
    return list(found.values())


def read_ranking(collection: Collection, path: Path) -> NDArray[np.intp]:
    """(F, K) numbers of the candidates of each fragment, best first, -1 after the last."""
    readers = {".csv": _ranking_of_csv, ".npz": _ranking_of_npz}
    lists = readers.get(path.suffix.lower(), _ranking_of_json)(path)
    number = {record.id: i for i, record in enumerate(collection.fragments)}
    ranked = np.full((len(number), max([1, *map(len, lists.values())])), -1, dtype=np.intp)
    for query, others in lists.items():
        _check_known(collection, (query, *others), f"{path}, candidates of '{query}'")
        if query in others or len(set(others)) < len(others):
            raise TruthError(
                f"{path} lists a candidate of '{query}' twice, or itself.", "Name each other fragment once."
            )
        ranked[number[query], : len(others)] = [number[other] for other in others]
    return ranked


def read_groups(collection: Collection, path: Path, matches: Iterable[PairMatch]) -> Assembly:
    """Groups of `assembly.json`."""
    _json(path)  # says what is wrong with the file itself
    try:
        groups = read_assembly(path, matches)
    except CollectionError as error:
        raise TruthError(f"{path} has no groups that can be read ({error.problem}).", "See docs/formats.md.") from error
    for group in groups.groups:
        _check_known(collection, group.poses, str(path))
    return groups


def _match(entry: Any, where: str) -> PairMatch:
    if not isinstance(entry, Mapping) or not all(isinstance(entry.get(name), str) for name in ("source", "target")):
        raise TruthError(f"{where} does not name its source and its target.", _FORMAT)
    pair = f"{where} ({entry['source']}, {entry['target']})"
    if "target_from_source" not in entry:
        raise TruthError(f"{pair} has no target_from_source.", "Give a 2x3 matrix, or null where none was found.")
    try:
        match = match_from_json(entry)
    except (TypeError, ValueError) as error:
        raise TruthError(f"{pair}: {error}.", "Transforms turn and shift, in pixels of the images.") from error
    if not np.isnan(match.probability) and not 0 <= match.probability <= 1:
        raise TruthError(f"{pair} has the probability {match.probability}.", "It lies between 0 and 1.")
    return match


def _turned(match: PairMatch) -> PairMatch:
    """The same join, told from the other side."""
    pose = match.target_from_source
    return replace(
        match,
        source=match.target,
        target=match.source,
        target_from_source=None if pose is None else pose.inverse(),
        points=match.points[:, ::-1],
    )


def _ranking_of_json(path: Path) -> dict[str, list[str]]:
    rankings = _json(path).get("rankings")
    if not isinstance(rankings, Mapping) or not all(isinstance(others, list) for others in rankings.values()):
        raise TruthError(f"{path} has no 'rankings', one list of ids a query.", _FORMAT)
    return {query: [str(other) for other in others] for query, others in rankings.items()}


def _ranking_of_csv(path: Path) -> dict[str, list[str]]:
    rows: dict[str, list[tuple[float, str]]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if not {"query", "candidate"} <= set(reader.fieldnames or ()):
                raise TruthError(f"{path} lacks the columns query and candidate.", _FORMAT)
            for line, row in enumerate(reader, start=2):
                try:
                    score = float(row["score"]) if "score" in row else 0.0
                except (TypeError, ValueError):
                    raise TruthError(f"{path}, line {line}: '{row['score']}' is no score.", _FORMAT) from None
                rows.setdefault(row["query"], []).append((score, row["candidate"]))
    except (OSError, UnicodeDecodeError) as error:
        raise TruthError(f"{path} cannot be read ({error}).", "Check the path.") from error
    return {query: [other for _, other in sorted(found, key=lambda each: -each[0])] for query, found in rows.items()}


def _ranking_of_npz(path: Path) -> dict[str, list[str]]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            ids, ranked = [str(name) for name in stored["ids"]], np.asarray(stored["ranked"], dtype=np.intp)
        if ranked.ndim != 2 or len(ranked) != len(ids) or (ranked >= len(ids)).any():
            raise ValueError(f"its ranked {ranked.shape} does not go with {len(ids)} ids")
    except (OSError, EOFError, KeyError, ValueError, BadZipFile) as error:
        raise TruthError(f"{path} holds no ids and ranked ({error}).", _FORMAT) from error
    return {ids[query]: [ids[other] for other in row if other >= 0] for query, row in enumerate(ranked)}


def _json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TruthError(f"There is no file {path}.", "Check the path.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TruthError(f"{path} is not valid JSON ({error}).", _FORMAT) from error
    if not isinstance(content, Mapping) or content.get("version") != VERSION:
        raise TruthError(f"{path} does not say that its version is {VERSION}.", _FORMAT)
    return content


def _check_known(collection: Collection, names: Iterable[str], where: str) -> None:
    unknown = [name for name in names if name not in collection.by_id]
    if unknown:
        near: Sequence[str] = get_close_matches(unknown[0], collection.by_id, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else "Ids are those of collection.json."
        raise TruthError(f"{where}: there is no fragment '{unknown[0]}' in {collection.folder}.", hint)
