"""Leaves of one manuscript, mixed: their straight margins fit each other everywhere, and must not be glued.

python -m benchmarks.leaves --shared FOLDER [--part test] [--layouts FILE] [--keep FOLDER]
python -m benchmarks.leaves --shared FOLDER --part train --make OUT     # leaves as pictures, to tear and learn from

A leaf is a part of a page of photos/PART that comes from a manuscript (photos/credits.csv), with a margin of the page's
own parchment around it, cut straight. Each mixture: five leaves of one page, torn, of whose pieces 30 % are lost.
Glued: pieces of different leaves in one group; sure: joins between leaves above .5 and .9. (photos/val has no page of a
manuscript: weights are learned from those of photos/train. One term was changed after leaves of photos/test had been
measured, so that part is not unseen any more.)
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np

from benchmarks.solving import judge, torn_pictures
from pairingnet.assembly.energy import SHIPPED as SHIPPED_LAYOUTS
from pairingnet.assembly.energy import load_energy
from pairingnet.assembly.layout import lay_out
from pairingnet.config import TearSettings
from pairingnet.engine.jobs import run_jobs
from pairingnet.io.images import read_image, shrunk, write_png
from pairingnet.match.weights import SHIPPED, load_model
from pairingnet.prepare.load import load_fragments
from pairingnet.train.layouts import puzzle_of, without
from pairingnet.types import Pixels

_MIXTURES = 20
_LEAVES = 5
_GRID = 2, 3  # columns and rows of a page; each cell becomes a leaf
_LONGEST = 1000  # px
_MARGIN = 0.12  # of a leaf's longer side
_LOST = 0.3
_CLOUDS, _GRAIN = (40.0, 4.0), 2.0  # px and grey levels of the margin's uneven colour, and of its grain


@dataclass(frozen=True)
class Told:
    """Of a mixture: true neighbours found, and all of them; groups of several leaves; joins between leaves that are
    likelier than .5 and .9; neighbours placed, and right."""

    found: int
    pairs: int
    glued: int
    likely: int
    sure: int
    placed: int
    placed_right: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--part", choices=("train", "val", "test"), default="test")
    parser.add_argument("--make", type=Path, metavar="OUT")
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--layouts", type=Path, default=SHIPPED_LAYOUTS)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    pages = manuscripts(given.shared, given.part)
    if given.make is not None:
        given.make.mkdir(parents=True, exist_ok=True)
        for page in pages:
            for number, pixels in enumerate(leaves_of(page, seed=0)):
                write_png(given.make / f"{page.stem}_{number}.png", pixels)
        return
    asked = [(pages[seed % len(pages)], seed) for seed in range(_MIXTURES)]
    told = run_jobs(partial(_told, given.weights, given.layouts, given.keep), asked, given.jobs, "leaves")
    total = Told(*map(sum, zip(*map(astuple, told), strict=True)))
    print("| mixtures | true neighbours found | groups of several leaves | joins between leaves > .5, > .9 |")
    print("|---|---|---|---|")
    print(f"| {len(told)} | {total.found} of {total.pairs} | {total.glued} | {total.likely}, {total.sure} |")
    print(f"\nneighbours placed: {total.placed}, of which right: {total.placed_right}")


def manuscripts(shared: Path, part: str) -> list[Path]:
    """Pages of a part of the photos, by the list of their sources."""
    with (shared / "photos" / "credits.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if "manuscripts" in row["source"]]
    return sorted(shared / "photos" / row["file"] for row in rows if row["file"].startswith(f"{part}/"))


def leaves_of(page: Path, seed: int) -> Iterator[Pixels]:
    """Parts of one page, each with a margin of its parchment."""
    pixels = read_image(page).pixels
    rng = np.random.default_rng(seed)
    columns, rows = _GRID
    height, width = pixels.shape[0] // rows, pixels.shape[1] // columns
    cells = [(row * height, column * width) for row in range(rows) for column in range(columns)]
    for place in rng.permutation(len(cells))[:_LEAVES]:
        top, left = cells[place]
        yield with_margin(shrunk(pixels[top : top + height, left : left + width], _LONGEST), rng)


def with_margin(written: Pixels, rng: np.random.Generator) -> Pixels:
    """What is written, on parchment: its usual light colour, a little uneven, with grain."""
    margin = round(_MARGIN * max(written.shape))
    shape = written.shape[0] + 2 * margin, written.shape[1] + 2 * margin
    grey = written.mean(axis=2)
    parchment = np.median(written[grey >= np.median(grey)], axis=0)
    scale_px, levels = _CLOUDS
    clouds = cv2.GaussianBlur(rng.normal(size=shape).astype(np.float32), (0, 0), scale_px)
    noise = clouds * (levels / clouds.std()) + rng.normal(scale=_GRAIN, size=shape)
    leaf: Pixels = np.clip(parchment + noise[..., None], 0, 255).astype(np.uint8)
    leaf[margin:-margin, margin:-margin] = written
    return leaf


def _told(weights: Path, layouts: Path, keep: Path | None, asked: tuple[Path, int]) -> Told:
    page, seed = asked
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        pictures = []
        for number, pixels in enumerate(leaves_of(page, seed)):
            pictures.append(folder / f"leaf-{number}.png")
            write_png(pictures[-1], pixels)
        truth = torn_pictures(pictures, folder / "torn", replace(TearSettings(), longest=_LONGEST), seed)
        truth = without(truth, _LOST, np.random.default_rng(seed))
        kept = None if keep is None else keep / f"{page.stem}-{seed}.jsonl"
        puzzle = puzzle_of(truth, list(load_fragments(truth)), load_model(weights), kept)
        energy = load_energy(layouts)
        matches, assembly = lay_out(puzzle.outlines, puzzle.matches, puzzle.step_px, judge=puzzle.judge, energy=energy)
    leaf_of = {record.id: record.source for record in truth.fragments}
    across = [match.probability for match in matches if leaf_of[match.source] != leaf_of[match.target]]
    judged = judge(truth, matches, assembly)
    return Told(
        judged.found_pairs,
        judged.true_pairs,
        sum(len({leaf_of[name] for name in group.poses}) > 1 for group in assembly.groups),
        sum(chance > 0.5 for chance in across),
        sum(chance > 0.9 for chance in across),
        judged.placed_pairs,
        judged.placed_right,
    )


if __name__ == "__main__":
    main()
