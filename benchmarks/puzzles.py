"""Small puzzles of pictures of photos/val, clean and worn, put together: what choices between ways to do it rest on.

python -m benchmarks.puzzles --shared FOLDER [--kinds sherds rubbed] [--mixed] [--layouts FILE] [--keep FOLDER]

The last 17 pictures of photos/val, which the verifier is not calibrated on: every second one whole, of the others
6 to 10 pieces. A piece is right when every true neighbour is in its group, within 8 px; RR is of true pairs, each by
itself; wrong are neighbours that were placed as they do not belong; s: of one core, to put together what has been
matched.

--mixed: instead, four mixtures of pictures of photos/val as in benchmarks.solving: three, of whose pieces a fifth is
lost, with 50 pieces of others. --layouts: other weights than those that ship. --alone: nobody is asked about pairs that
a layout brings together. --keep: where matches are kept, so that they are not made again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.solving import Judged, judge, mixture, off_px, torn_pictures
from pairingnet.assembly.energy import SHIPPED as SHIPPED_LAYOUTS
from pairingnet.assembly.energy import load_energy
from pairingnet.assembly.layout import lay_out
from pairingnet.config import WEAR_LEVELS, TearSettings, WearSettings
from pairingnet.engine.jobs import run_jobs
from pairingnet.io.collection import Collection
from pairingnet.io.images import image_files
from pairingnet.match.weights import SHIPPED, load_model
from pairingnet.prepare.load import load_fragments
from pairingnet.train.layouts import Puzzle, puzzle_of
from pairingnet.train.verify import few_of

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


@dataclass(frozen=True)
class PuzzleOf:
    """A puzzle that is not made yet: its kind; a picture and how many of its pieces (0: all), or the seed of a mixture;
    the weights, and where its matches are kept."""

    kind: str
    pictures: tuple[Path, ...]
    pieces: int
    mixture: int
    weights: Path
    keep: Path | None

    @property
    def kept(self) -> Path | None:
        """The file of its matches."""
        name = f"mixture-{self.mixture}" if self.mixture else f"{self.pictures[0].stem}-{self.pieces}"
        return None if self.keep is None else self.keep / self.kind / f"{name}.jsonl"


@dataclass(frozen=True)
class Told:
    """Of a puzzle: true pairs whose likeliest pose is right, and likely; how it was put together, and in what time."""

    found: int
    likely: int
    judged: Judged
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments_of(parser)
    given = parser.parse_args()
    print("| pieces | RR | right fit likely | pieces right | true neighbours found | wrong | wrong above .9 | s |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in given.kinds:
        asked = puzzles_of(given.shared, kind, given.weights, given.keep, given.mixed)
        told = run_jobs(partial(_told, given.layouts, not given.alone), asked, given.jobs, kind)
        print(f"| {kind} | {_row(told)} |", flush=True)


def arguments_of(parser: argparse.ArgumentParser) -> None:
    """Which puzzles, and how they are put together."""
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--layouts", type=Path, default=SHIPPED_LAYOUTS)
    parser.add_argument("--kinds", nargs="*", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--jobs", type=int, default=2)


def puzzles_of(shared: Path, kind: str, weights: Path, keep: Path | None = None, mixed: bool = False) -> list[PuzzleOf]:
    """The puzzles of one kind."""
    photos = tuple(image_files(shared / "photos" / "val"))
    if mixed:
        return [PuzzleOf(kind, photos, 0, seed, weights, keep) for seed in range(100, 104)]
    return [
        PuzzleOf(kind, (path,), 6 + number % 5 if number % 2 else 0, 0, weights, keep)
        for number, path in enumerate(photos[_CALIBRATED:])
    ]


def make(asked: PuzzleOf) -> Puzzle:
    """Tear it, and match all pairs."""
    settings, wear = KINDS[asked.kind]
    with tempfile.TemporaryDirectory() as folder:
        if asked.mixture:
            truth = mixture(list(asked.pictures), Path(folder), settings, wear, asked.mixture)
        else:
            truth = torn_pictures(list(asked.pictures), Path(folder), settings, 1, wear)
            truth = few_of(truth, asked.pieces) if asked.pieces else truth
        return puzzle_of(truth, list(load_fragments(truth)), load_model(asked.weights), asked.kept)


def _told(layouts: Path, guided: bool, asked: PuzzleOf) -> Told:
    puzzle = make(asked)
    began = time.process_time()
    judge_of_poses = puzzle.judge if guided else None
    energy = load_energy(layouts, guided)
    matches, assembly = lay_out(puzzle.outlines, puzzle.matches, puzzle.step_px, judge=judge_of_poses, energy=energy)
    seconds = time.process_time() - began
    found = _found(puzzle.truth, puzzle)
    return Told(len(found), sum(found), judge(puzzle.truth, matches, assembly), seconds)


def _found(truth: Collection, puzzle: Puzzle) -> list[bool]:
    """Of each true pair whose likeliest pose is right, whether it is likely."""
    by_pair = {match.pair: match for match in puzzle.matches}
    likely = []
    for pair in truth.pairs:
        match = by_pair[frozenset((pair.source, pair.target))]
        pose = match.target_from_source
        if pose is not None:
            pose = pose if match.source == pair.source else pose.inverse()
            if off_px(truth, pair.source, pair.seam, pose, truth.target_from_source(pair)) < 16:
                likely.append(match.probability > 0.5)
    return likely


def _row(told: Sequence[Told]) -> str:
    judged = [each.judged for each in told]
    pairs = sum(each.true_pairs for each in judged)
    shares = f"{sum(each.found for each in told) / pairs:.3f} | {sum(each.likely for each in told) / pairs:.3f}"
    right, pieces = sum(each.right_fragments for each in judged), sum(each.fragments for each in judged)
    placed, well = sum(each.placed_pairs for each in judged), sum(each.placed_right for each in judged)
    found, sure = sum(each.found_pairs for each in judged), sum(each.sure_but_wrong for each in judged)
    seconds = sum(each.seconds for each in told)
    return f"{shares} | {right} of {pieces} | {found} of {pairs} | {placed - well} of {placed} | {sure} | {seconds:.0f}"


if __name__ == "__main__":
    main()
