"""Whether a gap that is fitted together with the pose pays: docs/ring.md, "Broken pieces".

python -m benchmarks.gap_fit --shared FOLDER [--weights FILE] [--kinds broken worn-8px] [--pictures 4]

True pairs of puzzles of photos/val, laid on each other; of those whose pose is roughly right (10 degrees, 60 px), how
far the seam lies from its true place (mean and median, px, share within 8 px) and by how much the gap is wrong:

closed      the fit that closes the gap
told        what is answered: the gap that the verifier tells
fitted      pose and gap by match.gap, each pair by itself, what the verifier tells as a weak prior
pooled      the same, with the gap that the surest of all pairs of the puzzle's true pairs tell as the prior
varying     pooled, with a gap that changes along the seam
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.solving import off_px
from benchmarks.wear_kinds import KINDS, THIRD_PARTY, puzzles_of
from pairingnet.geometry import Rigid2D, angle_difference
from pairingnet.io.collection import Collection
from pairingnet.match.gap import GapFit, GapPrior, fit_gap, pooled_prior
from pairingnet.match.pair import method_for
from pairingnet.match.ring import RingFeatures, RingMethod
from pairingnet.match.weights import SHIPPED, RingModel, load_model
from pairingnet.prepare.load import load_fragment, load_fragments
from pairingnet.synth.truth import seam_gap
from pairingnet.types import PairMatch, TruePair

ROUGHLY_DEG, ROUGHLY_PX = 10.0, 60.0
_BROAD = 8.0  # steps: what is known of a gap by itself
_REACH = 12.0  # steps
WAYS = ("closed", "told", "fitted", "pooled", "varying")


@dataclass(frozen=True, eq=False)
class Laid:
    """A true pair: its pieces, what is answered, and the fit that it was made from."""

    pair: TruePair
    source: RingFeatures
    target: RingFeatures
    told: PairMatch
    closed: Rigid2D


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--kinds", nargs="*", choices=(*KINDS, *THIRD_PARTY), default=("broken", "worn-8px"))
    parser.add_argument("--pictures", type=int, default=4)
    given = parser.parse_args()
    model = load_model(given.weights)
    print("| pieces | gap | of true pairs | off px, mean | median | within 8 px | gap wrong, px |")
    print("|---|---|---|---|---|---|---|")
    for kind in given.kinds:
        rows: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        pairs = 0
        with tempfile.TemporaryDirectory() as folder:
            for puzzle in puzzles_of(given.shared, kind, given.pictures, Path(folder)):
                pairs += len(puzzle.pairs)
                for way, wrong in compared(puzzle, model):
                    rows[way].append(wrong)
        for way, found in rows.items():
            off, gap = np.array(found).reshape(-1, 2).T
            cells = f"{off.mean():.1f} | {np.median(off):.1f} | {(off < 8).mean():.3f} | {np.nanmedian(gap):.1f}"
            print(f"| {kind} | {way} | {len(off)} of {pairs} | {cells} |", flush=True)


def compared(puzzle: Collection, model: RingModel) -> Iterator[tuple[str, tuple[float, float]]]:
    """For each way and pair: how far the seam lies from its place, and by how much the gap is wrong."""
    fragments = list(load_fragments(puzzle))
    method = method_for(fragments, model)
    known = {each.id: each for each in method.know(list(method.features(fragments)))}
    laid = list(_laid(puzzle, method, known))
    step = method.step_px
    broad = [GapPrior(each.told.evidence["worn_px"], _BROAD * step) for each in laid]
    fitted = [_fit(each, step, prior) for each, prior in zip(laid, broad, strict=True)]
    usual = pooled_prior(fitted, GapPrior(float(np.median([p.width_px for p in broad] or [0.0])), _BROAD * step))
    pooled = [_fit(each, step, usual) for each in laid]
    varying = [_fit(each, step, usual, varying=True) for each in laid]
    for number, each in enumerate(laid):
        gap_px = _true_gap(puzzle, each.pair)
        assert each.told.target_from_source is not None
        yield "closed", (_off(puzzle, each.pair, each.closed), abs(gap_px))
        worn_px = each.told.evidence["worn_px"]
        yield "told", (_off(puzzle, each.pair, each.told.target_from_source), abs(worn_px - gap_px))
        for way, fits in (("fitted", fitted), ("pooled", pooled), ("varying", varying)):
            fit = fits[number]
            yield way, (_off(puzzle, each.pair, fit.target_from_source), abs(fit.width_px - gap_px))


def _laid(puzzle: Collection, method: RingMethod, known: dict[str, RingFeatures]) -> Iterator[Laid]:
    for pair in puzzle.pairs:
        source, target = known[pair.source], known[pair.target]
        registered = method.register(source, target)
        told = method.judge(source, target, registered)
        if told.target_from_source is None or not roughly(puzzle, pair, told.target_from_source):
            continue
        near = [_off(puzzle, pair, told.target_from_source, r.target_from_source) for r in registered.poses]
        yield Laid(pair, source, target, told, registered.poses[int(np.argmin(near))].target_from_source)


def roughly(puzzle: Collection, pair: TruePair, pose: Rigid2D) -> bool:
    """Whether a pose of a true pair is right within 10 degrees and 60 px."""
    true = puzzle.target_from_source(pair)
    turned = np.degrees(angle_difference(pose.angle_rad, true.angle_rad))
    return bool(turned < ROUGHLY_DEG and _off(puzzle, pair, pose) < ROUGHLY_PX)


def _off(puzzle: Collection, pair: TruePair, pose: Rigid2D, true: Rigid2D | None = None) -> float:
    return off_px(puzzle, pair.source, pair.seam, pose, true or puzzle.target_from_source(pair))


def _fit(each: Laid, step_px: float, prior: GapPrior, varying: bool = False) -> GapFit:
    start = each.told.target_from_source
    assert start is not None
    return fit_gap(each.source.outline, each.target.outline, start, step_px, prior, _REACH * step_px, varying)


def _true_gap(puzzle: Collection, pair: TruePair) -> float:
    """The gap that the truth leaves, px; NaN without a seam."""
    if not len(pair.seam):
        return float("nan")
    placed = []
    for name in (pair.source, pair.target):
        pose = puzzle.by_id[name].canvas_from_fragment
        assert pose is not None
        placed.append(pose.apply(load_fragment(puzzle, name).contour))
    return float(np.median(seam_gap(pair.seam, *placed)))


if __name__ == "__main__":
    main()
