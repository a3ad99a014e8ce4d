"""What JigsawNet learns from: stitched candidates of a collection with truth, right ones and wrong ones.

The published training set is not public. Chosen: candidates of all pairs of a picture, and of some pairs with pieces of
other pictures; right are those near the true pose, as the published code judges them, and beside them the true poses
themselves, exactly and slightly off. There are about four wrong samples for each right one.

Samples are drawn picture by picture, on all cores, and kept on disk; so interrupted work continues:
OUT/samples/PICTURE.npz (regions, right) and PICTURE.npy (pixels), which is read piece by piece while training.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pairingnet.baselines.candidates import find_candidates
from pairingnet.baselines.jigsawnet import JigsawFeatures, jigsaw_features
from pairingnet.baselines.stitch import Stitched, stitch
from pairingnet.config import CandidateSettings, JigsawTrainSettings
from pairingnet.engine.jobs import run_jobs
from pairingnet.errors import CollectionError
from pairingnet.geometry import Points, Rigid2D, angle_difference
from pairingnet.io.collection import Collection, read_collection
from pairingnet.io.files import write_array, write_whole
from pairingnet.io.resume import remember_settings
from pairingnet.match.contact import contact
from pairingnet.prepare.load import load_fragment
from pairingnet.settings import as_dict
from pairingnet.types import Pixels

_LEAST_LINE = 10  # contour points that touch; fewer are no seam
_OF_SAMPLES = (
    "right_deg",
    "right_px",
    "samples",
    "negatives",
    "jitters",
    "jitter_deg",
    "jitter_px",
    "strangers",
    "seed",
)


@dataclass(frozen=True, eq=False)
class Drawing:
    """A sample before it is drawn; line (K, 2) in pixels of the source."""

    source: JigsawFeatures
    target: JigsawFeatures
    target_from_source: Rigid2D
    line: Points


class Samples:
    """N stitched candidates: regions (N, 4), right (N,); pixels stay on disk."""

    def __init__(self, pixels: Sequence[Pixels], regions: NDArray[np.float32], right: NDArray[np.bool_]) -> None:
        self._parts, self.regions, self.right = pixels, regions, right
        self._ends = np.cumsum([len(part) for part in pixels])

    def __len__(self) -> int:
        return len(self.right)

    def pixels(self, numbers: Sequence[int]) -> Pixels:
        """(B, S, S, 3) of some samples."""
        parts = np.searchsorted(self._ends, numbers, side="right")
        starts = self._ends - [len(part) for part in self._parts]
        return np.stack([self._parts[p][n - starts[p]] for p, n in zip(parts, numbers, strict=True)])


def load_samples(
    folder: Path, out: Path, candidates: CandidateSettings, settings: JigsawTrainSettings, side: int, jobs: int = 0
) -> Samples:
    """The samples of a collection; drawn where `out/samples` lacks them."""
    collection = read_collection(folder)
    told = {name: value for name, value in as_dict(settings).items() if name in _OF_SAMPLES}
    told |= {"collection": collection.mark, "side": side, **as_dict(candidates)}
    remember_settings(out, "samples", told)
    pictures = sorted({record.source for record in collection.fragments})
    wanted = {picture: out / "samples" / f"{picture}.npy" for picture in pictures}
    missing = [(folder, picture, path) for picture, path in wanted.items() if not path.is_file()]
    if missing:
        job = partial(_store, candidates=candidates, settings=settings, side=side)
        run_jobs(job, missing, jobs, "drawing candidates")
    samples = _read(list(wanted.values()))
    if not samples.right.any() or samples.right.all():
        raise CollectionError(
            f"{folder} gives {int(samples.right.sum())} right and {int((~samples.right).sum())} wrong candidates.",
            "Both are needed; use a collection with truth and more pieces.",
        )
    return samples


def is_right(found: Rigid2D, true: Rigid2D, settings: JigsawTrainSettings) -> bool:
    """Whether a pose is near the truth: what is left between them turns and shifts little."""
    left = found @ true.inverse()
    turned = np.degrees(angle_difference(left.angle_rad, 0.0))
    return bool(turned < settings.right_deg and np.hypot(left.x_px, left.y_px) < settings.right_px)


def draw_samples(
    collection: Collection, picture: str, candidates: CandidateSettings, settings: JigsawTrainSettings, side: int
) -> tuple[list[Stitched], NDArray[np.bool_]]:
    """The samples of one picture, and which are right; in any order."""
    rng = np.random.default_rng([settings.seed, zlib.crc32(picture.encode())])
    ids = [record.id for record in collection.fragments if record.source == picture]
    pieces = {name: jigsaw_features(load_fragment(collection, name), candidates) for name in ids}
    right, wrong = _of_picture(collection, pieces, candidates, settings)
    count = sum(pair.source in pieces for pair in collection.pairs)
    right += _true_poses(collection, pieces, candidates.touch, settings, rng)
    wrong += _with_strangers(collection, pieces, round(settings.strangers * count), candidates, rng)
    most_right = max(1, round(settings.samples / (1 + settings.negatives)))
    right = _some(right, most_right, rng)
    wrong = _some(wrong, round(settings.negatives * max(1, len(right))), rng)
    drawn = [
        stitch(each.source.cutout, each.target.cutout, each.target_from_source, each.line, side)
        for each in right + wrong
    ]
    return drawn, np.arange(len(drawn)) < len(right)


def _of_picture(
    collection: Collection,
    pieces: Mapping[str, JigsawFeatures],
    candidates: CandidateSettings,
    settings: JigsawTrainSettings,
) -> tuple[list[Drawing], list[Drawing]]:
    """Candidates of all pairs of a picture's pieces: right ones, wrong ones."""
    right: list[Drawing] = []
    wrong: list[Drawing] = []
    for a, b in combinations(pieces, 2):
        true = collection.lies(a, b)
        for found in find_candidates(pieces[a].piece, pieces[b].piece, candidates):
            near = true is not None and is_right(found.target_from_source, true, settings)
            drawing = Drawing(pieces[a], pieces[b], found.target_from_source, found.line[:, 0])
            (right if near else wrong).append(drawing)
    return right, wrong


def _true_poses(
    collection: Collection,
    pieces: Mapping[str, JigsawFeatures],
    touch_px: float,
    settings: JigsawTrainSettings,
    rng: np.random.Generator,
) -> list[Drawing]:
    """The true pose of every true pair, and a few that are slightly off, turned about the middle of the seam."""
    drawings = []
    for pair in collection.pairs:
        if pair.source not in pieces:
            continue
        source, target, true = pieces[pair.source], pieces[pair.target], collection.target_from_source(pair)
        touching = contact(source.piece.outline, target.piece.outline, true, touch_px)
        if len(touching) < _LEAST_LINE:
            continue
        line = source.piece.outline.points[touching.rows]
        middle = true.apply(line).mean(axis=0)
        drawings.append(Drawing(source, target, true, line))
        for _ in range(settings.jitters):
            turn = np.radians(rng.uniform(-settings.jitter_deg, settings.jitter_deg))
            x_px, y_px = rng.uniform(-settings.jitter_px, settings.jitter_px, 2)
            off = Rigid2D(0.0, float(x_px), float(y_px)) @ Rigid2D.about(middle, float(turn))
            drawings.append(Drawing(source, target, off @ true, line))
    return drawings


def _with_strangers(
    collection: Collection,
    pieces: Mapping[str, JigsawFeatures],
    count: int,
    candidates: CandidateSettings,
    rng: np.random.Generator,
) -> list[Drawing]:
    """Candidates of `count` pairs with pieces of other pictures: all wrong."""
    own = list(pieces)
    others = [record.id for record in collection.fragments if record.id not in pieces]
    drawings: list[Drawing] = []
    for _ in range(count if others else 0):
        source = pieces[own[rng.integers(len(own))]]
        stranger = load_fragment(collection, others[rng.integers(len(others))])
        target = jigsaw_features(stranger, candidates)
        drawings += [
            Drawing(source, target, found.target_from_source, found.line[:, 0])
            for found in find_candidates(source.piece, target.piece, candidates)
        ]
    return drawings


def _some(drawings: list[Drawing], most: int, rng: np.random.Generator) -> list[Drawing]:
    chosen = np.sort(rng.choice(len(drawings), min(most, len(drawings)), replace=False))
    return [drawings[number] for number in chosen]


# On disk -------------------------------------------------------------------------------------------------------------


def _store(
    wanted: tuple[Path, str, Path], candidates: CandidateSettings, settings: JigsawTrainSettings, side: int
) -> None:
    folder, picture, path = wanted
    drawn, right = draw_samples(read_collection(folder), picture, candidates, settings, side)
    regions = np.array([each.region for each in drawn], dtype=np.float32).reshape(-1, 4)
    pixels = np.array([each.pixels for each in drawn], dtype=np.uint8).reshape(-1, side, side, 3)
    write_whole(path.with_suffix(".npz"), lambda file: np.savez(file, regions=regions, right=right))
    write_array(path, pixels)  # last: where it is, the picture is done


def _read(paths: Sequence[Path]) -> Samples:
    pixels, regions, right = [], [], []
    for path in paths:
        pixels.append(np.load(path, mmap_mode="r", allow_pickle=False))
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as stored:
            regions.append(stored["regions"])
            right.append(stored["right"])
    if not paths:
        return Samples([], np.zeros((0, 4), np.float32), np.zeros(0, dtype=bool))
    return Samples(pixels, np.concatenate(regions), np.concatenate(right))
