"""What a method says about a collection, stored once; scores are made from it as often as wanted.

OUT/search.npz     ids (F,), ranked (F, K) numbers of the best candidates, -1 for none, scores (F, K)
OUT/matches.json   the true pairs, and candidates that were laid on each other: the transform, or why there is none
OUT/assembly.json  groups of poses, where the method makes any
OUT/method.json    the method's name and settings, what it was asked, and what that cost
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pairingnet.errors import CollectionError
from pairingnet.geometry import Rigid2D
from pairingnet.io.files import write_json, write_whole
from pairingnet.io.run import read_assembly, read_matches, write_assembly, write_matches
from pairingnet.settings import differences
from pairingnet.types import Assembly, Fragment, PairMatch

Pair = tuple[str, str]


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


@dataclass(frozen=True)
class Cost:
    """Of one stage: seconds on the clock, seconds of all cores, and how many pairs were laid on each other in it."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    pairs: int = 0


@dataclass(frozen=True)
class Sample:
    """What a method was asked: true pairs and queries (None: all of them); pool: fragments among which each query was
    answered (0: all others); reason: why it was not asked everything."""

    pairs: tuple[Pair, ...] | None = None
    queries: tuple[str, ...] | None = None
    pool: int = 0
    reason: str = ""

    @property
    def is_all(self) -> bool:
        return self.pairs is None and self.queries is None and not self.pool


@dataclass(frozen=True, eq=False)
class Predictions:
    """ids (F,); ranked (F, K); transforms by (source, target), None where none was found; seconds per stage;
    probabilities of joins that have one; costs per stage; peak_mb: memory of its largest process."""

    ids: tuple[str, ...]
    ranked: NDArray[np.intp]
    transforms: Mapping[Pair, Rigid2D | None]
    method: str
    seconds: Mapping[str, float]
    probabilities: Mapping[Pair, float] = field(default_factory=dict)
    sample: Sample = Sample()
    costs: Mapping[str, Cost] = field(default_factory=dict)
    peak_mb: float = float("nan")
    assembly: Assembly | None = None


def store_predictions(
    out: Path,
    wanted: Mapping[str, Any],
    ids: Sequence[str],
    ranked: NDArray[np.intp],
    scores: NDArray[np.float32],
    matches: Iterable[PairMatch],
    costs: Mapping[str, Cost],
    peak_mb: float = float("nan"),
    sample: Sample | None = None,
    assembly: Assembly | None = None,
) -> None:
    """Write a method's answers; `wanted` says which method was asked about what. They count once method.json is
    there, which is written last."""
    names = np.array(ids)
    write_whole(out / "search.npz", lambda file: np.savez(file, ids=names, ranked=ranked, scores=scores))
    write_matches(out / "matches.json", list(matches))
    if assembly is not None:
        write_assembly(out / "assembly.json", assembly)
    told = {
        "wanted": wanted,
        "seconds": {stage: round(cost.wall_s, 3) for stage, cost in costs.items()},
        "costs": {stage: asdict(cost) for stage, cost in costs.items()},
        "peak_mb": None if np.isnan(peak_mb) else round(peak_mb, 1),
        "sample": asdict(sample or Sample()),
    }
    write_json(out / "method.json", told)


def read_predictions(out: Path) -> Predictions:
    """The stored answers of a method."""
    try:
        told = json.loads((out / "method.json").read_text(encoding="utf-8"))
        matches = read_matches(out / "matches.json")
        with np.load(out / "search.npz", allow_pickle=False) as search:
            ids, ranked = tuple(str(i) for i in search["ids"]), np.asarray(search["ranked"])
        asked = told.get("sample") or {}
        sample = Sample(
            None if asked.get("pairs") is None else tuple((a, b) for a, b in asked["pairs"]),
            None if asked.get("queries") is None else tuple(asked["queries"]),
            asked.get("pool", 0),
            asked.get("reason", ""),
        )
        costs = {stage: Cost(**cost) for stage, cost in told.get("costs", {}).items()}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CollectionError(f"{out} holds no predictions ({error}).", "Run 'pairingnet evaluate' again.") from error
    peak_mb = told.get("peak_mb")
    return Predictions(
        ids,
        ranked,
        {(match.source, match.target): match.target_from_source for match in matches},
        told["wanted"]["method"],
        told["seconds"],
        {(match.source, match.target): match.probability for match in matches if not np.isnan(match.probability)},
        sample,
        costs,
        float("nan") if peak_mb is None else float(peak_mb),
        read_assembly(out / "assembly.json", matches) if (out / "assembly.json").is_file() else None,
    )


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
