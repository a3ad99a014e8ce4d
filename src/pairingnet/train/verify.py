"""The verifier learns from joins of torn pictures: true neighbours, and the most tempting wrong candidates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import combinations, cycle
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional

from pairingnet.config import SolveSettings
from pairingnet.engine.jobs import run_jobs
from pairingnet.engine.local import progress_bar
from pairingnet.evaluate.metrics import expected_calibration_error
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import FILE_NAME, Collection, read_collection
from pairingnet.io.files import write_whole
from pairingnet.io.resume import content_mark
from pairingnet.match.evidence import CHANNELS, Evidence
from pairingnet.match.ring import Fit, RingFeatures, RingMethod
from pairingnet.match.verify import NAMES, Verifier, as_inputs, new_network, packed
from pairingnet.match.weights import Bank, RingModel, load_model, load_unverified
from pairingnet.prepare.load import load_fragment, load_fragments
from pairingnet.prepare.strip import working_step
from pairingnet.train.checkpoints import read_checkpoint, ring_of

_RIGHT_STEPS = 6.0  # a pose is right when the contact lies so near to the truth, on average, but for a gap
_GAPS = (-3.0, 8.0)  # steps; what wear may have taken away
_PAIRS_AT_ONCE = 160
_CHOICE_COUNTS = 0.1  # how much choosing the right fit counts beside right and wrong
_GAP_COUNTS = 0.05  # and a step of gap


@dataclass(frozen=True, eq=False)
class Joins:
    """Fits of candidate pairs: evidence of each fit; what the seams show, point by point (T, C), one after the other,
    and how many points each has (P,); whether it is right (P,), which pair it belongs to (P,), and the gap (P,) that
    is missing between the pieces, in steps; NaN where the fit is wrong."""

    evidence: list[Evidence]
    points: NDArray[np.float16]
    lengths: NDArray[np.int64]
    right: NDArray[np.bool_]
    pair: NDArray[np.intp]
    gap: NDArray[np.float64]

    def seams(self, chosen: NDArray[np.intp]) -> list[NDArray[np.float32]]:
        """What the seams of some fits show."""
        ends = self._ends
        return [self.points[ends[i] - self.lengths[i] : ends[i]].astype(np.float32) for i in chosen]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths)

    def save(self, path: Path) -> None:
        """Store all of it, whole or not at all."""
        told = np.array([[getattr(each, name) for name in NAMES] for each in self.evidence]).reshape(-1, len(NAMES))
        arrays = {field.name: getattr(self, field.name) for field in fields(self)} | {"evidence": told}
        write_whole(path, lambda file: np.savez(file, **arrays))

    @classmethod
    def load(cls, path: Path) -> Joins:
        with np.load(path, allow_pickle=False) as stored:
            evidence = [Evidence(*map(float, row)) for row in stored["evidence"]]
            return cls(evidence, **{name: stored[name] for name in stored.files if name != "evidence"})


def all_joins(parts: Sequence[Joins]) -> Joins:
    """Those of several collections together."""
    pairs, first = [], 0
    for part in parts:
        pairs.append(part.pair + first)
        first += int(part.pair.max(initial=-1)) + 1
    return Joins(
        [each for part in parts for each in part.evidence],
        np.concatenate([part.points for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.right for part in parts]),
        np.concatenate(pairs),
        np.concatenate([part.gap for part in parts]),
    )


def collect_joins(collection: Collection, method: RingMethod, candidates: int) -> Joins:
    """Lay all pairs of a small collection on each other; of a large one all true pairs, and the best candidates."""
    features = method.know(list(method.features(load_fragments(collection))))
    number = {record.id: i for i, record in enumerate(collection.fragments)}
    asked = {(number[pair.source], number[pair.target]) for pair in collection.pairs}
    if len(features) <= SolveSettings().all_pairs_up_to:
        others = list(combinations(range(len(features)), 2))
    else:
        ranked, _ = method.rank(features, candidates)
        others = [(a, int(b)) for a, row in enumerate(ranked) for b in row if b >= 0]
    asked |= {(a, b) for a, b in others if (b, a) not in asked}
    fits: list[Fit] = []
    missing: list[float] = []
    pair_of: list[int] = []
    for place, (a, b) in enumerate(sorted(asked)):
        # Neighbours that share too little contour to be among the true pairs are right where they lie right.
        true = collection.lies(features[a].id, features[b].id)
        for fit in method.fits(features[a], features[b]):
            fits.append(fit)
            missing.append(float("nan") if true is None else _missing_gap(true, features[a], features[b], fit))
            pair_of.append(place)
    gap = np.array(missing)
    return Joins(
        [fit.evidence for fit in fits],
        np.concatenate([np.zeros((0, CHANNELS), np.float16), *(fit.seam.astype(np.float16) for fit in fits)]),
        np.array([len(fit.seam) for fit in fits], dtype=np.int64),
        ~np.isnan(gap),
        np.array(pair_of, dtype=np.intp),
        gap,
    )


@dataclass(frozen=True)
class JoinsJob:
    """Pictures of a collection (none: all), how many of their pieces (0: all), how many candidates of each; and where
    the joins are kept, so that what was interrupted goes on."""

    folder: Path
    sources: tuple[str, ...]
    pieces: int
    weights: Path
    candidates: int
    kept: Path

    @property
    def path(self) -> Path:
        first = Path(self.sources[0]).stem if self.sources else "all"
        # Another collection of the same name, or the same torn anew, has other joins.
        mark = content_mark(self.folder / FILE_NAME)
        return self.kept / f"{self.folder.name}-{mark}-{first}-{len(self.sources)}-{self.pieces}-{self.candidates}.npz"


def joins_of(
    folders: Sequence[Path],
    weights: Path,
    pictures: int,
    together: Sequence[float],
    candidates: int,
    crowds: Sequence[Path] = (),
) -> Joins:
    """Joins of the first `pictures` of each collection, on all cores. Mixed are as many pictures at a time as
    `together` says, in turn, or a share of the pieces of one: what is unique among few is common among thousands.
    Of `crowds`, everything is mixed. Joins are kept beside the weights until those change."""
    kept = weights.parent / "joins" / content_mark(weights)
    jobs = [JoinsJob(folder, (), 0, weights, candidates, kept) for folder in crowds]
    for folder in folders:
        fragments = read_collection(folder).fragments
        sources = sorted({record.source for record in fragments})[:pictures]
        sizes = cycle(together)
        while sources:
            size = next(sizes)
            chosen, sources = tuple(sources[: max(1, int(size))]), sources[max(1, int(size)) :]
            count = sum(record.source in chosen for record in fragments)
            pieces = 0 if size >= 1 else max(4, round(size * count))
            jobs.append(JoinsJob(folder, chosen, pieces, weights, candidates, kept))
    run_jobs(_make_joins, jobs, 0, "joins")
    return all_joins([Joins.load(job.path) for job in jobs])


def to_learn_from(start: Path, folders: Sequence[Path], seed: int) -> tuple[RingModel, dict[str, str]]:
    """A network without a verifier, and how it was made: of a checkpoint, with usual features of the collections; or
    of a weights file, with its own."""
    if start.suffix == ".safetensors":
        return load_unverified(start)
    checkpoint = read_checkpoint(start)
    model = RingModel(ring_of(checkpoint), Verifier.plain())
    story = {
        "training": json.dumps(checkpoint.made_by),
        "steps": str(checkpoint.step),
        "seconds": str(round(checkpoint.seconds)),
    }
    return replace(model, bank=usual_features(folders, model, seed)), story


def usual_features(folders: Sequence[Path], model: RingModel, seed: int, count: int = 2048) -> Bank:
    """Queries and keys (B, D) of contour points of many pictures."""
    rng = np.random.default_rng(seed)
    of_each = 8  # points of a fragment
    queries, keys = [], []
    for folder in folders:
        collection = read_collection(folder)
        step_px = working_step([record.perimeter_px for record in collection.fragments], model.network.settings.points)
        chosen = rng.choice(len(collection), min(len(collection), count // of_each // len(folders)), replace=False)
        fragments = [load_fragment(collection, collection.fragments[i].id) for i in chosen]
        for features in RingMethod(model, step_px).features(fragments):
            at = rng.choice(len(features.points), of_each)
            queries.append(features.side.queries[at])
            keys.append(features.side.keys[at])
    return {"queries": np.concatenate(queries), "keys": np.concatenate(keys)}


def _make_joins(job: JoinsJob) -> None:
    if job.path.is_file():
        return
    model = load_model(job.weights)
    puzzle = read_collection(job.folder)
    if job.sources:
        puzzle = part_of(puzzle, job.sources)
    if job.pieces:
        puzzle = few_of(puzzle, job.pieces)
    # Its own step, as it has when it is solved.
    step_px = working_step([record.perimeter_px for record in puzzle.fragments], model.network.settings.points)
    collect_joins(puzzle, RingMethod(model, step_px), job.candidates).save(job.path)


def fit_verifier(joins: Joins, seed: int = 0, rounds: int = 7000) -> Verifier:
    """Train the networks, a few pairs at a time: every fit is an example of right or wrong, every pair with a right fit
    one of what to choose, every right fit one of a gap."""
    inputs = as_inputs(joins.evidence)
    mean, deviation = inputs.mean(axis=0), inputs.std(axis=0) + 1e-6
    some = joins.points[:: max(1, len(joins.points) // 200_000)].astype(np.float32)
    seam_mean, seam_deviation = some.mean(axis=0), some.std(axis=0) + 1e-3
    x = ((inputs - mean) / deviation).astype(np.float32)
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    network = new_network()
    optimizer = torch.optim.AdamW(network.parameters(), 3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, rounds, pct_start=0.1)
    draw = _Draw(joins, rng)
    with progress_bar() as bar:
        for _ in bar.track(range(rounds), description="verifier"):
            chosen, pair = draw()
            points, lengths = packed(joins.seams(chosen))
            seen = torch.from_numpy((points - seam_mean) / seam_deviation)
            told = network(torch.from_numpy(x[chosen]), seen, torch.from_numpy(lengths))
            loss = _judged(told, joins.right[chosen], pair, joins.gap[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    weights = {f"network.{name}": value.detach().numpy() for name, value in network.state_dict().items()}
    weights |= {"mean": mean.astype(np.float32), "deviation": deviation.astype(np.float32)}
    weights |= {"seam_mean": seam_mean, "seam_deviation": seam_deviation}
    return Verifier({**weights, "slope": np.ones(1, np.float32), "offset": np.zeros(1, np.float32)})


class _Draw:
    """Some pairs at random, an eighth of them with a right fit: there are few, and calibration corrects for it."""

    def __init__(self, joins: Joins, rng: np.random.Generator) -> None:
        self._rng = rng
        self._order = np.argsort(joins.pair, kind="stable")
        _, self._first, self._count = np.unique(joins.pair[self._order], return_index=True, return_counts=True)
        some_right = np.add.reduceat(joins.right[self._order], self._first) > 0
        self._kinds = [kind for kind in (np.flatnonzero(some_right), np.flatnonzero(~some_right)) if len(kind)]

    def __call__(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Numbers (P,) of their fits, and which of the pairs (P,) each belongs to."""
        shares = (1, 7) if len(self._kinds) == 2 else (8,)
        drawn = np.concatenate(
            [
                self._rng.choice(kind, share * _PAIRS_AT_ONCE // 8)
                for kind, share in zip(self._kinds, shares, strict=True)
            ]
        )
        fits = [self._order[self._first[i] : self._first[i] + self._count[i]] for i in drawn]
        return np.concatenate(fits), np.repeat(np.arange(len(drawn)), self._count[drawn])


def _judged(told: Tensor, right: NDArray[np.bool_], pair: NDArray[np.intp], gap: NDArray[np.float64]) -> Tensor:
    """The loss of what was told (K, P, 2): right or wrong, which fit of its pair, and how far apart."""
    y, group = torch.from_numpy(right), torch.from_numpy(pair)
    loss = functional.binary_cross_entropy_with_logits(told[..., 0], y.float().expand(len(told), -1))
    if not right.any():
        return loss
    every, best = (_log_sum(told[..., 0].masked_fill(hidden, -1e4), group) for hidden in (torch.zeros_like(y), ~y))
    asked = torch.from_numpy(np.unique(pair[right]))
    choice = (every[:, asked] - best[:, asked]).mean()
    known = torch.from_numpy(np.flatnonzero(right))
    wanted = torch.from_numpy(gap[right].astype(np.float32)).expand(len(told), -1)
    return loss + _CHOICE_COUNTS * choice + _GAP_COUNTS * functional.smooth_l1_loss(told[:, known, 1], wanted)


def _log_sum(logits: Tensor, group: Tensor) -> Tensor:
    """(K, G): the logarithm of the sum of the exponentials of logits (K, P) of each group (P,)."""
    index = group.expand(len(logits), -1)
    nothing = torch.full((len(logits), int(group.max()) + 1), -1e4)
    largest = nothing.scatter_reduce(1, index, logits.detach(), "amax")
    total = torch.zeros_like(nothing).scatter_add(1, index, (logits - largest.gather(1, index)).exp())
    return total.log() + largest


def judge_all(verifier: Verifier, joins: Joins, at_once: int = 2048) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(P,), (P,): logit and gap of every fit."""
    told = []
    for first in range(0, len(joins.evidence), at_once):
        chosen = np.arange(first, min(first + at_once, len(joins.evidence)))
        told.append(verifier.judge([joins.evidence[i] for i in chosen], joins.seams(chosen)))
    return np.concatenate([logit for logit, _ in told]), np.concatenate([gap for _, gap in told])


def calibrate(verifier: Verifier, joins: Joins) -> Verifier:
    """Stretch and shift the logits until, on other pictures, what is said to be 80 % likely is right in 80 %.

    What counts is the likeliest fit of each pair: that is what is shown.
    """
    logits, _ = judge_all(verifier, joins)
    best = best_fits(logits, joins.pair)
    x, y = logits[best], joins.right[best].astype(float)

    def loss(parameters: NDArray[np.float64]) -> float:
        z = parameters[0] * x + parameters[1]
        return float(np.mean(np.logaddexp(0, z) - y * z))

    slope, offset = minimize(loss, np.array([1.0, 0.0]), method="Nelder-Mead").x
    told = dict(verifier.weights)
    told["offset"] = (slope * told["offset"] + offset).astype(np.float32)
    told["slope"] = (slope * told["slope"]).astype(np.float32)
    return Verifier(told)


def best_fits(logits: NDArray[np.float64], pair: NDArray[np.intp]) -> NDArray[np.intp]:
    """The number of each pair's likeliest fit."""
    order = np.lexsort((-logits, pair))
    first = np.unique(pair[order], return_index=True)[1]
    return np.asarray(order[first])


def report(verifier: Verifier, joins: Joins) -> dict[str, float]:
    """How good the likeliest fit of each pair is."""
    logits, gaps = judge_all(verifier, joins)
    best = best_fits(logits, joins.pair)
    probability, right = 1 / (1 + np.exp(-logits[best])), joins.right[best]
    possible = len(np.unique(joins.pair[joins.right]))
    order = np.argsort(-probability)
    found = np.cumsum(right[order])
    precision = found / np.arange(1, len(order) + 1)
    told = {
        "pairs": float(len(best)),
        "with a right fit": float(possible),
        "chosen right": float(right.sum()),
        "ECE": round(expected_calibration_error(probability, right), 4),
        "gap, mean error in steps": round(float(np.abs(gaps - joins.gap)[joins.right].mean()), 4),
    }
    crowds = np.round([joins.evidence[i].crowd for i in best], 3)
    for crowd in np.unique(crowds):
        of_size = crowds == crowd
        error = expected_calibration_error(probability[of_size], right[of_size])
        told[f"ECE among {np.exp(crowd):.0f}"] = round(error, 4)
    for share in (0.6, 0.8, 0.9, 0.95):
        place = int(np.searchsorted(found, share * possible))
        told[f"precision at {share:.0%}"] = round(float(precision[min(place, len(precision) - 1)]), 4)
    return told


def part_of(collection: Collection, sources: Sequence[str]) -> Collection:
    """Only the fragments of some pictures."""
    kept = tuple(record for record in collection.fragments if record.source in set(sources))
    ids = {record.id for record in kept}
    return replace(collection, fragments=kept, pairs=tuple(p for p in collection.pairs if p.source in ids))


def few_of(collection: Collection, count: int) -> Collection:
    """A few fragments that hang together: a small puzzle of its own."""
    beside: dict[str, list[str]] = {record.id: [] for record in collection.fragments}
    for pair in collection.pairs:
        beside[pair.source].append(pair.target)
        beside[pair.target].append(pair.source)
    taken = dict.fromkeys([max(beside, key=lambda name: len(beside[name]))])
    waiting = list(taken)
    while waiting and len(taken) < count:
        for name in beside[waiting.pop(0)]:
            if name not in taken and len(taken) < count:
                taken[name] = None
                waiting.append(name)
    kept = tuple(record for record in collection.fragments if record.id in taken)
    pairs = tuple(pair for pair in collection.pairs if pair.source in taken and pair.target in taken)
    return replace(collection, fragments=kept, pairs=pairs)


def _missing_gap(true: Rigid2D, source: RingFeatures, target: RingFeatures, fit: Fit) -> float:
    """How much farther apart than in a fit the pieces lie in truth, across the contact, on average, in steps; NaN: the
    fit is wrong. A fit closes the gap that wear has left, and is right all the same."""
    touching = source.points[fit.rows]
    moved = true.apply(touching) - fit.target_from_source.apply(touching)
    moved /= source.side.strip.step_px
    outwards = -target.side.strip.normals[fit.columns]
    gap = float((moved * outwards).sum(axis=1).mean())
    off = float(np.linalg.norm(moved - gap * outwards, axis=1).mean())
    return gap if off < _RIGHT_STEPS and _GAPS[0] < gap < _GAPS[1] else float("nan")
