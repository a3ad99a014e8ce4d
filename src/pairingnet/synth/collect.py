"""Pictures -> a collection: tear every picture, remember the truth, continue where it stopped.

OUT/torn/NAME/collection.json   one picture's pieces and pairs, written when all its images are there
OUT/fragments/NAME_07.png       its pieces
OUT/collection.json             all pictures together, written last
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pairingnet.assembly.canvas import compose
from pairingnet.config import TearSettings, WearSettings
from pairingnet.engine.jobs import Workers, run_jobs
from pairingnet.errors import CollectionError, ImageError
from pairingnet.geometry import Rigid2D, perimeter
from pairingnet.io.collection import Collection, read_collection, write_collection
from pairingnet.io.files import write_whole
from pairingnet.io.images import MAX_PIXELS, read_image, shrunk, write_jpeg, write_png
from pairingnet.io.resume import content_mark, named_files, remember_settings
from pairingnet.prepare.contour import trace_contour
from pairingnet.prepare.load import load_fragment
from pairingnet.prepare.sheets import contact_sheet
from pairingnet.settings import as_dict
from pairingnet.synth.extract import extract_piece
from pairingnet.synth.scanned import scanned
from pairingnet.synth.splits import split_by_fragment, split_by_picture
from pairingnet.synth.tear import tear_picture
from pairingnet.synth.truth import DIFFICULTY_THRESHOLDS, keep_pairs, true_pairs
from pairingnet.synth.wear import wear_edge, wear_of_picture, wear_surface
from pairingnet.types import FragmentRecord, Pixels

_SHEET_FRAGMENTS = 48
_LEAST_SIDE = 8  # px
_OF_BROKEN = (
    *("gap", "gap_varies", "gap_scale", "gap_pictures", "corners", "corner_size"),
    *("flakes", "fading", "dirt", "marks", "light", "lost"),
)


@dataclass(frozen=True)
class TearJob:
    """All that decides what the pieces look like."""

    settings: TearSettings
    wear: WearSettings
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """For a collection's file. What is broken is told where anything is, so that others stay as they were."""
        none = as_dict(WearSettings())
        wear = as_dict(self.wear)
        broken = any(wear[name] != none[name] for name in _OF_BROKEN)
        told = [name for name in wear if broken or name not in _OF_BROKEN]
        return {"seed": self.seed, **as_dict(self.settings), **{f"wear.{name}": wear[name] for name in told}}


@dataclass(frozen=True)
class TornResult:
    """The collection, how many pictures were torn now, and why some could not be."""

    collection: Collection
    torn_now: int
    bad_files: tuple[str, ...]


def tear_collection(
    pictures: Path, out: Path, job: TearJob, split: str = "picture", jobs: Workers = 1, max_pixels: int = MAX_PIXELS
) -> TornResult:
    """Tear all pictures of a folder into `out`; pictures torn there before and not changed since are left alone."""
    files = named_files(pictures, out)
    remember_settings(out, "torn", job.as_dict())
    missing = [(name, path) for name, path in files.items() if content_mark(path) != _mark_then(out, name)]
    problems = run_jobs(partial(_tear_one, out=out, job=job, max_pixels=max_pixels), missing, jobs, "tearing")
    bad = {name: problem for (name, _), problem in zip(missing, problems, strict=True) if problem}
    torn = [name for name in files if name not in bad]
    if not torn:
        raise ImageError(f"No picture in {pictures} could be torn: {next(iter(bad.values()))}", "Mend the files.")
    collection = _gather(out, torn, files, pictures, job, split)
    if write_collection(collection) or missing:
        _write_sheets(collection)
    return TornResult(collection, len(missing) - len(bad), tuple(bad.values()))


def tear_one_picture(
    picture: Pixels, name: str, job: TearJob, folder: Path, image_folder: str, dpi: float | None = None
) -> Collection:
    """Tear one picture (H, W, 3): write its pieces to `folder / image_folder`, return them with their truth."""
    # One stream for each purpose: turning the pieces or wearing them does not change the cuts.
    seed = [job.seed, zlib.crc32(name.encode())]
    cuts, poses, losses, wearing, of_picture = np.random.default_rng(seed).spawn(5)
    wear = wear_of_picture(job.wear, of_picture)
    lost = job.settings.drop + wear.lost * (1 - job.settings.drop)
    height, width = picture.shape[:2]
    records, contours = [], {}
    for number, piece in enumerate(tear_picture((width, height), job.settings, cuts, wear.straight)):
        angle_rad = float(poses.uniform(-np.pi, np.pi)) if job.settings.rotate else 0.0
        edge_rng, surface_rng = wearing.spawn(2)
        mask = 255 * piece.mask
        worn = wear_edge(mask, wear, edge_rng)
        left = trace_contour(worn)
        if losses.random() < lost or not len(left):  # lost, or worn away
            continue
        pixels, alpha, canvas_from_fragment = extract_piece(
            picture, worn, piece.left, piece.top, angle_rad, job.settings.margin
        )
        pixels = wear_surface(pixels, alpha, wear, surface_rng)
        if surface_rng.random() < wear.scanned:
            pixels, alpha = scanned(pixels, alpha, wear.jpeg or 90, surface_rng)
        fragment_id = f"{name}_{number:02d}"
        image = f"{image_folder}/{fragment_id}.png"
        write_whole(folder / image, partial(write_png, pixels=np.dstack([pixels, alpha]), dpi=dpi))
        # Neighbours are those before the wear.
        contours[fragment_id] = (left if worn is mask else trace_contour(mask)) + (piece.left, piece.top)
        area_px = float(alpha.sum(dtype=np.float64) / 255)
        records.append(
            FragmentRecord(
                fragment_id, image, name, canvas_from_fragment, dpi=dpi, area_px=area_px, perimeter_px=perimeter(left)
            )
        )
    pairs = true_pairs(contours, job.settings.touch, job.settings.min_overlap)
    return Collection(folder, tuple(records), tuple(pairs), DIFFICULTY_THRESHOLDS, {name: (width, height)})


def truth_picture(collection: Collection, source: str, apart: float = 0.06) -> Pixels:
    """The pieces of one picture where they belong, moved apart a little so that the cuts show."""
    width, height = collection.sources[source]
    centre = np.array([width / 2, height / 2])
    placed = []
    for record in collection.fragments:
        if record.source == source and record.canvas_from_fragment is not None:
            fragment = load_fragment(collection, record.id)
            pose = record.canvas_from_fragment
            away = apart * (pose.apply(fragment.contour).mean(axis=0) - centre)
            placed.append((fragment, Rigid2D(0.0, float(away[0]), float(away[1])) @ pose))
    return compose(placed, background=(236, 236, 232)).pixels


def _tear_one(named: tuple[str, Path], out: Path, job: TearJob, max_pixels: int) -> str:
    """Tear one file; "" or what was wrong with it."""
    name, path = named
    try:
        picture = read_image(path, max_pixels=max_pixels)
    except ImageError as error:
        return str(error)
    if min(picture.size) < _LEAST_SIDE:
        return f"{path} is too small to tear ({picture.size[0]} x {picture.size[1]} pixels). Use a larger one."
    torn = tear_one_picture(
        shrunk(picture.pixels, job.settings.longest or max(picture.size)), name, job, out, "fragments", picture.dpi
    )
    made_by = {"file": content_mark(path)}
    write_collection(replace(torn, folder=out / "torn" / name, made_by=made_by))
    return ""


def _mark_then(out: Path, name: str) -> str:
    """The content mark of the file that was torn under this name, or "" if none was."""
    try:
        return str(read_collection(out / "torn" / name).made_by["file"])
    except (CollectionError, KeyError):
        return ""


def _gather(out: Path, torn: Sequence[str], paths: dict[str, Path], root: Path, job: TearJob, split: str) -> Collection:
    """One collection of all torn pictures, each fragment with its part."""
    each = [read_collection(out / "torn" / name) for name in torn]
    records = [record for collection in each for record in collection.fragments]
    if split == "paper":
        part_of = split_by_fragment((record.id for record in records), job.seed)
    else:
        by_picture = split_by_picture(((name, _folders(paths[name], root)) for name in torn), job.seed)
        part_of = {record.id: by_picture[record.source] for record in records}
    pairs = keep_pairs([pair for collection in each for pair in collection.pairs], part_of)
    sources = {name: size for collection in each for name, size in collection.sources.items()}
    made_by = {"command": "tear", "split": split, **job.as_dict()}
    fragments = tuple(replace(record, part=part_of[record.id]) for record in records)
    return Collection(out, fragments, tuple(pairs), DIFFICULTY_THRESHOLDS, sources, made_by)


def _folders(path: Path, root: Path) -> list[str]:
    """The folder that was named, and those below it in which a file lies."""
    if not root.is_dir():
        return []
    return [root.absolute().name, *path.relative_to(root).parent.parts]


def _write_sheets(collection: Collection) -> None:
    """Something to look at: the first pieces, and the first picture put together."""
    first = islice(collection.fragments, _SHEET_FRAGMENTS)
    sheet = contact_sheet(load_fragment(collection, record.id) for record in first)
    write_jpeg(collection.folder / "contact_sheet.jpg", sheet)
    write_jpeg(collection.folder / "truth_sheet.jpg", truth_picture(collection, next(iter(collection.sources))))
