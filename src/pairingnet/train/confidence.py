"""How likely a pose of the paper's network is right: learned from the candidates of a collection with truth.

The paper scores poses against the truth, and does not say which to believe; whoever puts pieces together has to know.
Three numbers of a logistic regression, see `match/paper.py: Confidence`. The candidates are those that `solve` lays on
each other: all pairs of pieces of one picture, as in a small collection, and of some pieces the ones whose vectors are
most alike, as among many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from pairingnet.config import SolveSettings
from pairingnet.engine.local import progress_bar
from pairingnet.errors import CollectionError
from pairingnet.evaluate.metrics import RR_THRESHOLD_PX, expected_calibration_error
from pairingnet.evaluate.scores import errors_of
from pairingnet.io.collection import Collection, read_collection
from pairingnet.match.paper import Confidence, PaperFeatures, Support
from pairingnet.match.paper_weights import PaperModel, load_paper
from pairingnet.prepare.load import load_fragment
from pairingnet.train.portable import with_story

_PIECES = 60  # of as many pictures as that takes: a thousand pairs are enough for three numbers
_SHRINK = 1e-3  # how much the squares of the numbers count: finite where right and wrong are told apart perfectly
_HELD_OUT = 4  # every so many-th pair is judged by what was learned from the others


def calibrate_weights(path: Path, folder: Path, part: str | None = None) -> dict[str, float]:
    """Learn the confidence of a weights file, and store it there; how good it is, on pairs it was not learned from."""
    collection = read_collection(folder)
    collection = collection if part is None else collection.part(part)
    supports, right = judged_candidates(load_paper(path), collection)
    if right.all() or not right.any():
        told = "right" if right.any() else "wrong"
        raise CollectionError(f"All poses of {folder} are {told}.", "Calibrate on another collection.")
    held = np.arange(len(right)) % _HELD_OUT == 0
    learned = fit_confidence([s for s, h in zip(supports, held, strict=True) if not h], right[~held])
    checked = np.array([learned.log_odds(s) for s, h in zip(supports, held, strict=True) if h])
    error = expected_calibration_error(1 / (1 + np.exp(-checked)), right[held])
    with_story(path, {"confidence": asdict(fit_confidence(supports, right))})
    return {"candidates": len(right), "of them right": int(right.sum()), "calibration error": round(float(error), 4)}


def judged_candidates(model: PaperModel, collection: Collection) -> tuple[list[Support], NDArray[np.bool_]]:
    """What supports the pose of each candidate pair, and whether it is right, as RR counts it."""
    method = model.method()
    with progress_bar() as bar:
        shown = bar.track(_some_of(collection), description="features")
        features = [next(iter(method.features([load_fragment(collection, name)]))) for name in shown]
        truth = {frozenset((pair.source, pair.target)): pair for pair in collection.pairs}
        supports, right = [], []
        for a, b in bar.track(_candidates(model, collection, features), description="candidates"):
            true = truth.get(frozenset((a.id, b.id)))
            source, target = (b, a) if true is not None and true.source == b.id else (a, b)
            pose, support = method.supported(source, target)
            if support is not None:
                supports.append(support)
                right.append(
                    true is not None and errors_of(collection, true, pose.target_from_source).mean_px < RR_THRESHOLD_PX
                )
    return supports, np.array(right, dtype=bool)


def fit_confidence(supports: Sequence[Support], right: NDArray[np.bool_]) -> Confidence:
    """The most likely numbers."""
    inputs = np.array([(1.0, *support.as_inputs()) for support in supports])
    sign = np.where(right, 1.0, -1.0)

    def loss(numbers: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        margins = sign * (inputs @ numbers)
        wrong = sign / (1 + np.exp(margins))
        own = _SHRINK * np.square(numbers).sum()
        return float(np.logaddexp(0, -margins).mean() + own), -inputs.T @ wrong / len(sign) + 2 * _SHRINK * numbers

    found = minimize(loss, np.zeros(3), jac=True, method="BFGS").x
    return Confidence(*(round(float(number), 6) for number in found))


def _some_of(collection: Collection) -> list[str]:
    """The fragments of the first pictures."""
    chosen: dict[str, list[str]] = {}
    for record in collection.fragments:
        if record.source in chosen or sum(map(len, chosen.values())) < _PIECES:
            chosen.setdefault(record.source, []).append(record.id)
    return [name for names in chosen.values() for name in names]


def _candidates(
    model: PaperModel, collection: Collection, features: Sequence[PaperFeatures]
) -> list[tuple[PaperFeatures, PaperFeatures]]:
    number = range(len(features))
    source = [collection[each.id].source for each in features]
    pairs = {(a, b) for a, b in combinations(number, 2) if source[a] == source[b]}
    if model.searches:
        ranked, _ = model.method().rank(features, SolveSettings().candidates)
        pairs |= {(min(a, int(b)), max(a, int(b))) for a in number for b in ranked[a] if b >= 0}
    return [(features[a], features[b]) for a, b in sorted(pairs)]
