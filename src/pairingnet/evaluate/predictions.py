"""What a method says about a collection, stored once; scores are made from it as often as wanted.

OUT/search.npz     ids (F,), ranked (F, K) numbers of the best candidates, -1 for none, scores (F, K)
OUT/matches.json   one entry per true pair: the transform the method found, or why it found none
OUT/method.json    the method's name and settings, and the seconds it took
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pairingnet.config import differences
from pairingnet.engine.local import progress_bar
from pairingnet.errors import CollectionError
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.io.files import write_json, write_whole
from pairingnet.io.run import read_matches, write_matches
from pairingnet.prepare.load import load_fragments
from pairingnet.types import Fragment, PairMatch

_RANKED = 50


class Method(Protocol):
    """Anything that can be judged: our networks and the comparison methods."""

    name: str

    def describe(self) -> dict[str, Any]:
        """Settings and weights, as plain values."""

    def features(self, fragments: Iterable[Fragment]) -> Iterable[Any]:
        """What it knows of each fragment."""

    def know(self, features: Sequence[Any]) -> Sequence[Any]:
        """The same features, with what can only be known of all of them together."""

    def rank(self, features: Sequence[Any], most: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """The `most` best candidates of each fragment (F, K), -1 for none, and their scores."""

    def match(self, source: Any, target: Any) -> PairMatch:
        """How two fragments fit."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """ids (F,); ranked (F, K); transforms by (source, target), None where none was found; seconds per stage."""

    ids: tuple[str, ...]
    ranked: NDArray[np.intp]
    transforms: dict[tuple[str, str], Rigid2D | None]
    method: str
    seconds: dict[str, float]


def predict(collection: Collection, method: Method, out: Path) -> Predictions:
    """Ask a method about all fragments and all true pairs, unless `out` holds its answers already."""
    wanted = {"method": method.name, "collection": collection.mark, **method.describe()}
    known = known_predictions(out, wanted)
    if known is not None:
        return known
    seconds: dict[str, float] = {}
    with progress_bar() as bar:
        began = time.perf_counter()
        shown = bar.track(load_fragments(collection), total=len(collection), description=f"{method.name}: features")
        features = method.know(list(method.features(shown)))
        seconds["features"], began = time.perf_counter() - began, time.perf_counter()
        ranked, scores = method.rank(features, _RANKED)
        seconds["search"], began = time.perf_counter() - began, time.perf_counter()
        number = {record.id: i for i, record in enumerate(collection.fragments)}
        matches = [
            method.match(features[number[pair.source]], features[number[pair.target]])
            for pair in bar.track(collection.pairs, description=f"{method.name}: matching")
        ]
        seconds["matching"] = time.perf_counter() - began
    ids = [record.id for record in collection.fragments]
    store_predictions(out, wanted, ids, ranked, scores, matches, seconds)
    return read_predictions(out)


def store_predictions(
    out: Path,
    wanted: Mapping[str, Any],
    ids: Sequence[str],
    ranked: NDArray[np.intp],
    scores: NDArray[np.float32],
    matches: Iterable[PairMatch],
    seconds: Mapping[str, float],
) -> None:
    """Write a method's answers; `wanted` says which method was asked about what."""
    names = np.array(ids)
    write_whole(out / "search.npz", lambda file: np.savez(file, ids=names, ranked=ranked, scores=scores))
    write_matches(out / "matches.json", list(matches))
    write_json(out / "method.json", {"wanted": wanted, "seconds": {k: round(v, 3) for k, v in seconds.items()}})


def read_predictions(out: Path) -> Predictions:
    """The stored answers of a method."""
    try:
        told = json.loads((out / "method.json").read_text(encoding="utf-8"))
        matches = read_matches(out / "matches.json")
        with np.load(out / "search.npz", allow_pickle=False) as search:
            ids, ranked = tuple(str(i) for i in search["ids"]), np.asarray(search["ranked"])
    except (OSError, KeyError, ValueError) as error:
        raise CollectionError(f"{out} holds no predictions ({error}).", "Run 'pairingnet evaluate' again.") from error
    transforms = {(match.source, match.target): match.target_from_source for match in matches}
    return Predictions(ids, ranked, transforms, told["wanted"]["method"], told["seconds"])


def known_predictions(out: Path, wanted: Mapping[str, Any]) -> Predictions | None:
    """The answers in `out`, or None where there are none; refuses those of another method or collection."""
    if not (out / "method.json").is_file():
        return None
    told = json.loads((out / "method.json").read_text(encoding="utf-8"))["wanted"]
    changed = differences(told, json.loads(json.dumps(wanted)))
    if changed:
        raise CollectionError(
            f"{out} holds predictions of something else ({'; '.join(changed)}).", "Choose another folder."
        )
    return read_predictions(out)
