"""Small puzzles of pictures of photos/val, clean and worn, put together: what choices between ways to do it rest on.

python -m benchmarks.puzzles --shared FOLDER [--weights FILE] [--kinds sherds rubbed] [--mixed] [--set rivals.free=0]

The last 17 pictures of photos/val, which the verifier is not calibrated on: every second one whole, of the others
6 to 10 pieces. A piece is right when every true neighbour is in its group, within 8 px; RR is of true pairs, each by
itself; wrong are neighbours that were placed as they do not belong.

--mixed: instead, four mixtures of pictures of photos/val as in benchmarks.solving: three, of whose pieces a fifth is
lost, with 50 pieces of others.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path

from benchmarks.solving import judge, mixture, off_px, torn_pictures
from pairingnet.assemble.together import put_together
from pairingnet.config import WEAR_LEVELS, SolveSettings, TearSettings, WearSettings
from pairingnet.engine.jobs import run_jobs
from pairingnet.io.collection import Collection
from pairingnet.io.images import image_files
from pairingnet.match.contact import Outline
from pairingnet.match.pair import method_for
from pairingnet.match.weights import SHIPPED, load_model
from pairingnet.prepare.load import load_fragments
from pairingnet.settings import parse_assignments, solve_settings
from pairingnet.train.verify import few_of
from pairingnet.types import Fragment, PairMatch

_LARGE, _WHOLE = TearSettings(longest=1000), TearSettings()
_SMALL = TearSettings(longest=560, h_min=60, w_min=60, d_min=40, min_overlap=25)
_SHERDS = WEAR_LEVELS["sherds"]
KINDS: dict[str, tuple[TearSettings, WearSettings]] = {
    "clean": (_WHOLE, WEAR_LEVELS["none"]),
    "scanned": (_LARGE, WEAR_LEVELS["scanned"]),
    "medium": (_WHOLE, WEAR_LEVELS["medium"]),
    "small-medium": (_SMALL, WEAR_LEVELS["medium"]),
    "sherds": (_LARGE, _SHERDS),
    "small-sherds": (_SMALL, _SHERDS),
    "rubbed": (_LARGE, replace(_SHERDS, rubbed=0.8)),
    "small-rubbed": (_SMALL, replace(_SHERDS, rubbed=0.8, erosion=3.0, erosion_scale=30.0)),
}
_CALIBRATED = 22  # pictures of photos/val


@dataclass(frozen=True, eq=False)
class Puzzle:
    """A torn picture, or some of its pieces, with all pairs laid on each other."""

    truth: Collection
    outlines: dict[str, Outline]
    joins: list[PairMatch]
    step_px: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--kinds", nargs="*", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of solve")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    settings = solve_settings(parse_assignments(given.set))
    print("| pieces | RR | right fit likely | pieces right | true neighbours found | wrong | wrong above .9 |")
    print("|---|---|---|---|---|---|---|")
    for kind in given.kinds:
        puzzles = (mixtures_of if given.mixed else puzzles_of)(given.shared, kind, given.weights, given.jobs)
        print(f"| {kind} | {_told(puzzles, settings)} |", flush=True)


def puzzles_of(shared: Path, kind: str, weights: Path, jobs: int) -> list[Puzzle]:
    """The puzzles of one kind."""
    pictures = image_files(shared / "photos" / "val")[_CALIBRATED:]
    asked = [(path, 6 + number % 5 if number % 2 else 0) for number, path in enumerate(pictures)]
    return run_jobs(partial(_puzzle, *KINDS[kind], weights), asked, jobs, kind)


def mixtures_of(shared: Path, kind: str, weights: Path, jobs: int) -> list[Puzzle]:
    """Mixtures of one kind."""
    photos = image_files(shared / "photos" / "val")
    return run_jobs(partial(_mixture, *KINDS[kind], weights, photos), range(100, 104), jobs, f"{kind}, mixed")


def _mixture(settings: TearSettings, wear: WearSettings, weights: Path, photos: list[Path], seed: int) -> Puzzle:
    with tempfile.TemporaryDirectory() as folder:
        truth = mixture(photos, Path(folder), settings, wear, seed)
        return _laid(truth, list(load_fragments(truth)), weights)


def _puzzle(settings: TearSettings, wear: WearSettings, weights: Path, asked: tuple[Path, int]) -> Puzzle:
    path, pieces = asked
    with tempfile.TemporaryDirectory() as folder:
        truth = torn_pictures([path], Path(folder), settings, 1, wear)
        truth = few_of(truth, pieces) if pieces else truth
        return _laid(truth, list(load_fragments(truth)), weights)


def _laid(truth: Collection, fragments: list[Fragment], weights: Path) -> Puzzle:
    method = method_for(fragments, load_model(weights))
    features = method.know(list(method.features(fragments)))
    joins = [method.match(a, b) for a, b in combinations(features, 2)]
    return Puzzle(truth, {each.id: each.outline for each in features}, joins, method.step_px)


def _told(puzzles: Sequence[Puzzle], settings: SolveSettings) -> str:
    found = likely = right = pieces = neighbours = placed = wrong = sure = pairs = 0
    for puzzle in puzzles:
        by_pair = {join.pair: join for join in puzzle.joins}
        for pair in puzzle.truth.pairs:
            join = by_pair[frozenset((pair.source, pair.target))]
            pose = join.target_from_source
            if pose is not None:
                pose = pose if join.source == pair.source else pose.inverse()
                good = off_px(puzzle.truth, pair.source, pair.seam, pose, puzzle.truth.target_from_source(pair)) < 16
                found, likely = found + good, likely + (good and join.probability > 0.5)
        matches, assembly = put_together(puzzle.outlines, puzzle.joins, puzzle.step_px, settings)
        told = judge(puzzle.truth, matches, assembly)
        right, pieces = right + told.right_fragments, pieces + told.fragments
        neighbours, pairs = neighbours + told.found_pairs, pairs + told.true_pairs
        placed, wrong = placed + told.placed_pairs, wrong + told.placed_pairs - told.placed_right
        sure += told.sure_but_wrong
    shares = " | ".join(f"{value / max(1, pairs):.3f}" for value in (found, likely))
    return f"{shares} | {right} of {pieces} | {neighbours} of {pairs} | {wrong} of {placed} | {sure}"


if __name__ == "__main__":
    main()
