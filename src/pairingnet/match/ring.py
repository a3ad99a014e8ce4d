"""Our own matching: features of two pieces -> likely correspondences -> hypotheses -> evidence -> the likeliest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pairingnet.config import RingMatchSettings
from pairingnet.geometry import Points, Rigid2D, angle_difference
from pairingnet.match.contact import Outline, contact, overlap_penalty, refine
from pairingnet.match.evidence import LEAST_CONTACT, Evidence, Side, agreements, measure, usual_level
from pairingnet.match.hypotheses import Correspondences, likely_correspondences, propose
from pairingnet.match.weights import Bank, RingModel
from pairingnet.models.device import exact_type, one_thread
from pairingnet.models.ring import KEY, QUERY, on_grid, pack_strips
from pairingnet.prepare.strip import unroll
from pairingnet.search.votes import KeysInMemory, background_levels, rank_by_votes, votes_of
from pairingnet.settings import as_dict
from pairingnet.types import Fragment, PairMatch

# Similarity to log-odds. The network's own factor grows as long as it is trained (36 to 121); all that follows counts
# in these units, so they stay.
_SCALE = 36.0
# Correspondences are told apart more sharply, nearer to the network's own factor: a blurred one proposes nothing.
_SHARPER = 2.0
_LEAST_GAP = 0.5  # steps; scanning alone makes clean edges look as if they had lost less than this
LOOKED_AT = 48  # fragments of a collection whose joins tell how worn it is
_LEAST_LIKELY = 1e-3  # less likely poses of a pair are not kept beside the likeliest
_ASTRAY = 2.0  # steps by which a pose that follows from others may be off
_LEAST_NEAR = 8.0  # steps of contact; along less, two corners meet
_ANCHORS = 32  # points that hold a pose about where it is
_HOLD = 0.1  # their weight: along a straight seam nothing else says where the pieces sit
_SAME_TURN_RAD = float(np.radians(12))
_KEYS_TO_LOOK_AT = 60_000  # of all its points, so many are enough to find them
_DIGITS = 6  # of supports and overlaps
BANK = 256  # points of a collection that tell what anything in it is like


@dataclass(frozen=True, eq=False)
class RingFeatures:
    """One fragment as the network knows it; `side` has its features, `outline` its contour at 1 px; fingerprint: of
    what they were made of, where that is known."""

    id: str
    side: Side
    outline: Outline
    fingerprint: str = ""

    @property
    def points(self) -> Points:
        return self.side.strip.points

    @cached_property
    def tangents(self) -> Points:
        """(N, 2) averaged over a few steps: single ones are too noisy to fix a transform."""
        total = sum(np.roll(self.side.strip.tangents, k, axis=0) for k in (-2, -1, 0, 1, 2))
        return np.asarray(total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-9))


@dataclass(frozen=True)
class Registration:
    """One pose of two pieces, refined by ICP, and what is known of it whatever collection they are in: the support of
    the correspondences that proposed it, and the overlap in steps."""

    target_from_source: Rigid2D
    support: float
    overlap: float


@dataclass(frozen=True)
class Registered:
    """All poses of a pair that are worth judging, the most promising first; how many points look alike.

    This is the expensive part of matching, and depends on the two pieces alone (and on whether many poses were tried,
    as among worn pieces). It is kept when a collection changes; only the judgement is made anew.
    """

    poses: tuple[Registration, ...]
    alike: int
    worn: bool


@dataclass(frozen=True, eq=False)
class Fit:
    """One way to join two pieces: the transform, which points (K,) and (K,) of the strips touch then, what was
    measured, what the seam shows point by point (T, C); then how likely it is right, and how far apart, in steps, the
    pieces should lie."""

    target_from_source: Rigid2D
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    evidence: Evidence
    seam: NDArray[np.float32]
    logit: float = 0.0
    gap: float = 0.0


class RingMethod:
    """Our own network, asked: features once, then as many pairs as wanted."""

    name = "ring"

    def __init__(self, model: RingModel, step_px: float, settings: RingMatchSettings | None = None) -> None:
        self.model, self.step_px, self.settings = model, step_px, settings or RingMatchSettings()
        self.device = next(model.network.parameters()).device
        self._dtype = exact_type(self.device)
        self.network, self.verifier = model.exact_network, model.verifier
        self.scale = _SCALE

    def describe(self) -> dict[str, Any]:
        """Network, matching, working scale, and a mark of the weights."""
        told = {**as_dict(self.network.settings), **as_dict(self.settings)}
        return {**told, "step_px": round(self.step_px, 4), "weights": self.model.mark}

    def features(self, fragments: Iterable[Fragment]) -> Iterator[RingFeatures]:
        """Features of fragments, one at a time; they do not depend on each other."""
        for fragment in fragments:
            strip = unroll(fragment, self.step_px, self.network.settings.texture)
            with torch.inference_mode(), one_thread():
                views = pack_strips([strip, strip], (QUERY, KEY), self.device, self._dtype)
                both = on_grid(self.network(views)).cpu().numpy()
            queries, keys = both[: len(strip)], both[len(strip) :]
            side = Side(strip, queries, keys, prior=self._prior(queries, keys))
            yield RingFeatures(fragment.id, side, Outline.at_step(fragment.contour, self.step_px))

    def _prior(self, queries: NDArray[np.float32], keys: NDArray[np.float32]) -> NDArray[np.float32]:
        """(N,): what each point reaches with the points that ship, asking and asked."""
        shipped = [self._some_shipped(name) for name in ("keys", "queries")]
        levels = [background_levels(*both, self.scale) for both in zip((queries, keys), shipped, strict=True)]
        return usual_level(*levels)

    def know(self, features: Sequence[RingFeatures], bank: Bank | None = None) -> list[RingFeatures]:
        """The same features, each point with how well it goes with anything in the collection.

        bank: points of the collection, queries and keys (B, D), where these features are only a part of it.
        """
        if not features:
            return []
        by_id = sorted(features, key=lambda each: each.id)  # the order in which they are given does not count
        own = bank or {name: _some([getattr(each.side, name) for each in by_id]) for name in ("queries", "keys")}
        queries, keys = (self._with_shipped(own, name) for name in ("queries", "keys"))

        def known(each: RingFeatures) -> RingFeatures:
            of_query = background_levels(each.side.queries, keys, self.scale)
            of_key = background_levels(each.side.keys, queries, self.scale)
            side = replace(each.side, query_level=of_query, key_level=of_key, crowd=len(features))
            return replace(each, side=side)

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            levelled = {each.id: each for each in pool.map(known, by_id)}
        usual = float("nan") if bank is not None else self.usual_loose(self._to_look_at(list(levelled.values())))
        return [
            replace(levelled[each.id], side=replace(levelled[each.id].side, usual_loose=usual)) for each in features
        ]

    def usual_loose(self, some: Iterable[tuple[RingFeatures, Sequence[RingFeatures]]]) -> float:
        """How loosely the contours lie in the surest joins of a collection, in steps; NaN: there are none.

        some: fragments, each with the others that it goes with best.
        """
        surest = []
        for one, others in some:
            fits = [fit.evidence for other in others for fit in self.fits(one, other)]
            surest += [max(fits, key=lambda evidence: evidence.agreement)] if fits else []
        surest.sort(key=lambda evidence: -evidence.agreement)
        # Not all of them have a neighbour; the surer half does.
        half = [evidence.loose for evidence in surest[: (len(surest) + 1) // 2]]
        return float(np.median(half)) if half else float("nan")

    def _to_look_at(self, features: Sequence[RingFeatures]) -> Iterator[tuple[RingFeatures, Sequence[RingFeatures]]]:
        """Some fragments of a collection, each with its best candidates."""
        if len(features) < 2:
            return
        sides = [each.side for each in features]
        every = max(1, sum(len(side.keys) for side in sides) // _KEYS_TO_LOOK_AT)
        keys = KeysInMemory(sides, every)
        for number in range(0, len(features), -(-len(features) // LOOKED_AT)):
            others, _ = votes_of(sides[number], keys, self.scale, number)
            yield features[number], [features[i] for i in others[:2]]

    def _with_shipped(self, own: Bank, name: str) -> NDArray[np.float32]:
        """(B, D): points of the collection, and those that ship: two pieces alone would only know each other."""
        return np.concatenate([own[name], self._some_shipped(name)])

    def _some_shipped(self, name: str) -> NDArray[np.float32]:
        """(B, D): some of the points that ship with the weights."""
        shipped = self.model.bank.get(name, np.zeros((0, self.network.settings.features), np.float32))
        return shipped[:: max(1, len(shipped) // BANK)]

    def rank(self, features: Sequence[RingFeatures], most: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """The `most` best candidates of each fragment."""
        return rank_by_votes([each.side for each in features], self.scale, most)

    def match(self, source: RingFeatures, target: RingFeatures) -> PairMatch:
        """How two fragments fit."""
        return self.judge(source, target, self.register(source, target))

    def judge(self, source: RingFeatures, target: RingFeatures, registered: Registered) -> PairMatch:
        """How likely the poses of a pair are, knowing the collection that it is in."""
        fits = self._judged(source, target, registered)
        if not fits:
            alike = registered.alike
            why = "nothing that looks alike touches" if alike > 1 else f"only {alike} points look alike"
            return PairMatch(source.id, target.id, None, reason=why)
        first, *others = self._ways(source, target, fits)
        return replace(first, others=tuple(others))

    def _ways(self, source: RingFeatures, target: RingFeatures, fits: Sequence[Fit]) -> Iterator[PairMatch]:
        """The likeliest fit, and others that are different and likely if none before is right."""
        step = max(source.side.strip.step_px, target.side.strip.step_px)
        told: list[Rigid2D] = []
        none_before = 1.0
        for fit in fits:
            seam = source.points[fit.rows]
            if any(_alike(seam, fit.target_from_source, pose, self.settings.different * step) for pose in told):
                continue
            alone = float(1 / (1 + np.exp(-fit.logit)))
            probability = none_before * alone
            if told and (probability < _LEAST_LIKELY or len(told) == self.settings.ways):
                break
            told.append(fit.target_from_source)
            gap = fit.gap if fit.gap >= _LEAST_GAP else 0.0
            yield PairMatch(
                source.id,
                target.id,
                self._apart(source, target, fit, gap, step),
                # as it was told where there is none before it: its probability may be too near to 1 for a logarithm
                fit.logit if len(told) == 1 else float(np.log(probability / (1 - probability))),
                np.stack([seam, target.points[fit.columns]], axis=1),
                probability=probability,
                evidence={**fit.evidence.in_pixels(step), "worn_px": round(gap * step, 1)},
            )
            none_before -= probability

    def _apart(self, source: RingFeatures, target: RingFeatures, fit: Fit, gap: float, step: float) -> Rigid2D:
        """The pose again, with the gap that worn edges leave."""
        if gap == 0:
            return fit.target_from_source
        a = source.points[fit.rows]
        hold = (a, fit.target_from_source.apply(a), np.full(len(a), _HOLD))  # keeps its place along the seam
        reach_px = (self.settings.contact + gap) * step
        apart = refine(source.outline, target.outline, fit.target_from_source, hold, reach_px, gap_px=gap * step)
        return apart.rounded()

    def fits(self, source: RingFeatures, target: RingFeatures) -> list[Fit]:
        """All poses of a pair, measured and judged; the likeliest first."""
        return self._judged(source, target, self.register(source, target))

    def is_worn(self, source: Side) -> bool:
        """Whether many poses are to be tried: the right one of worn pieces is often not among the first few, for their
        features are torn away."""
        return source.usual_loose > self.settings.worn  # nothing known: no

    def register(self, source: RingFeatures, target: RingFeatures) -> Registered:
        """Correspondences propose poses; the promising ones are refined, contour on contour."""
        chosen, worn = self.settings, self.is_worn(source.side)
        proposals = chosen.worn_proposals if worn else chosen.proposals
        refined = chosen.worn_hypotheses if worn else chosen.hypotheses
        hopeless = chosen.worn_hopeless if worn else chosen.hopeless
        step = max(source.side.strip.step_px, target.side.strip.step_px)
        logits = self.logits(source.side, target.side)
        found = self._likely(logits)
        hypotheses = propose(
            found,
            (source.points, source.tangents),
            (target.points, target.tangents),
            chosen.threshold * step,
            proposals,
        )
        poses = [hypothesis.target_from_source for hypothesis in hypotheses]
        hopes = agreements(source.side, target.side, logits, poses)
        hopeful = np.flatnonzero(hopes > hopes.max(initial=-np.inf) - hopeless)
        for i in hopeful:
            lying_px = overlap_penalty(source.outline, target.outline, poses[i], chosen.allowed * step, every=4)
            hopes[i] -= lying_px / step
        best = hopeful[np.argsort(-hopes[hopeful], kind="stable")][:refined]
        kept = []
        for hypothesis in (hypotheses[i] for i in best if hopes[i] > hopes[best[0]] - hopeless):
            rows, columns = found.rows[hypothesis.inliers], found.columns[hypothesis.inliers]
            anchors = (source.points[rows], target.points[columns], np.sqrt(found.probability[hypothesis.inliers]))
            start = hypothesis.target_from_source
            pose = refine(source.outline, target.outline, start, anchors, chosen.contact * step).rounded()
            overlap = overlap_penalty(source.outline, target.outline, pose, chosen.allowed * step) / step
            kept.append(Registration(pose, round(hypothesis.support, _DIGITS), round(overlap, _DIGITS)))
        return Registered(tuple(kept), len(found), worn)

    def correspondences(self, source: RingFeatures, target: RingFeatures) -> Correspondences:
        """The likeliest pairs of contour points."""
        return self._likely(self.logits(source.side, target.side))

    def _likely(self, logits: NDArray[np.float32]) -> Correspondences:
        return likely_correspondences(logits, self.settings.most_points, self.settings.least, _SHARPER)

    def match_near(
        self,
        source: RingFeatures,
        target: RingFeatures,
        near: Rigid2D,
        gap_px: float = 0.0,
        found: Correspondences | None = None,
    ) -> PairMatch | None:
        """How two fragments fit near a pose that something else proposes: refined by ICP from there, then judged; None
        where they touch along next to nothing.

        gap_px: what wear has usually taken away between neighbours; found: their correspondences, where they are known.
        """
        chosen = self.settings
        step = max(source.side.strip.step_px, target.side.strip.step_px)
        reach_px = (chosen.contact + _ASTRAY) * step + gap_px
        touching = contact(source.outline, target.outline, near, reach_px)
        if len(touching) * source.outline.spacing_px < _LEAST_NEAR * step:
            return None
        rows = touching.rows[:: max(1, len(touching) // _ANCHORS)]
        points = source.outline.points[rows]
        hold = (points, near.apply(points), np.full(len(points), _HOLD))
        pose = refine(source.outline, target.outline, near, hold, reach_px).rounded()
        found = found or self.correspondences(source, target)
        off_px = np.linalg.norm(pose.apply(source.points[found.rows]) - target.points[found.columns], axis=1)
        support = float(np.sqrt(found.probability[off_px < chosen.threshold * step]).sum())
        overlap = overlap_penalty(source.outline, target.outline, pose, chosen.allowed * step) / step
        registration = Registration(pose, round(support, _DIGITS), round(overlap, _DIGITS))
        registered = Registered((registration,), len(found), self.is_worn(source.side))
        fits = self._judged(source, target, registered)
        return next(self._ways(source, target, fits), None)

    def _judged(self, source: RingFeatures, target: RingFeatures, registered: Registered) -> list[Fit]:
        """The poses of a pair, measured and judged; the likeliest first."""
        logits = partial(self.logits_at, source.side, target.side)
        fits = [
            Fit(
                r.target_from_source,
                *measure(source.side, target.side, logits, r.target_from_source, r.support, r.overlap),
            )
            for r in registered.poses
        ]
        fits = [fit for fit in fits if len(fit.rows) >= LEAST_CONTACT]  # along less there is nothing to judge it by
        logit, gap = self.verifier.judge([fit.evidence for fit in fits], [fit.seam for fit in fits])
        judged = [replace(fit, logit=float(logit[i]), gap=float(gap[i])) for i, fit in enumerate(fits)]
        return sorted(judged, key=lambda fit: -fit.logit)

    def logits(self, source: Side, target: Side) -> NDArray[np.float32]:
        """(N, M): how well each point of the source continues in each of the target, both asking."""
        a, b, c, d = (torch.from_numpy(x) for x in (source.queries, target.keys, source.keys, target.queries))
        with one_thread():
            both = torch.addmm(a @ b.T, c, d.T)  # exact: see on_grid
        return np.asarray(both.mul_(0.5 * self.scale).numpy())

    def logits_at(
        self, source: Side, target: Side, rows: NDArray[np.intp], columns: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """(K,): the same numbers at some places, without the matrix."""
        forth = np.einsum("kd,kd->k", source.queries[rows], target.keys[columns])
        back = np.einsum("kd,kd->k", source.keys[rows], target.queries[columns])
        return np.asarray((forth + back) * np.float32(0.5 * self.scale))


def _alike(seam: Points, one: Rigid2D, other: Rigid2D, within_px: float) -> bool:
    """Whether two poses lay a seam (K, 2) at nearly the same place."""
    if angle_difference(one.angle_rad, other.angle_rad) > _SAME_TURN_RAD:
        return False
    return float(np.linalg.norm(one.apply(seam) - other.apply(seam), axis=1).mean()) < within_px


def _some(own: Sequence[NDArray[np.float32]], rng_seed: int = 0) -> NDArray[np.float32]:
    """(B, D): some points of a collection."""
    rng = np.random.default_rng(rng_seed)
    points = np.concatenate(own)
    return points[rng.choice(len(points), min(BANK, len(points)), replace=False)]
