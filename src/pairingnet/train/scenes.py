"""Collections as scenes: the unrolled pieces of one picture, and which of their contour points correspond.

Scenes are made once, on all cores, and kept on disk; training reads them all into memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from pairingnet.config import RingSettings
from pairingnet.engine.jobs import run_jobs
from pairingnet.io.collection import Collection, read_collection
from pairingnet.io.files import write_whole
from pairingnet.prepare.load import load_fragment
from pairingnet.prepare.strip import MIRRORED, Strip, unroll, working_step
from pairingnet.types import Pixels, TruePair

_REACH_PX = 10.0  # worn edges lie so far from the line where they were joined
_OPPOSED = -0.5  # cosine between the tangents of corresponding points

Correspondences = tuple[NDArray[np.intp], NDArray[np.intp]]


@dataclass(frozen=True, eq=False)
class Scene:
    """Strips of a picture's pieces; for each true pair the numbers (a, b) of its pieces and the points (K,), (K,)
    of a and b that lie on each other."""

    strips: tuple[Strip, ...]
    pairs: tuple[tuple[int, int, NDArray[np.intp], NDArray[np.intp]], ...]


def load_scenes(
    folders: Sequence[Path], settings: RingSettings, spread: float, cache: Path, canny: float = 0.0, jobs: int = 0
) -> list[Scene]:
    """All pictures of all collections. The contour step is the collection's, times a factor of each picture's own
    within 1 - spread and 1 + spread; a share of the pictures is shown as Canny edges."""
    wanted = []
    for folder in folders:
        collection = read_collection(folder)
        step_px = working_step([record.perimeter_px for record in collection.fragments], settings.points)
        mark = f"{zlib.crc32(f'{collection.mark} {settings.texture} {step_px:.4f} {spread}'.encode()):08x}"
        for source in sorted({record.source for record in collection.fragments}):
            rng = np.random.default_rng(zlib.crc32(f"{mark} {source}".encode()))
            factor = float(rng.uniform(1 - spread, 1 + spread))
            edges = rng.random() < canny
            path = cache / mark / f"{source}{'#canny' if edges else ''}.npz"
            wanted.append((folder, source, step_px * factor, "canny" if edges else settings.texture, path))
    missing = [each for each in wanted if not each[-1].is_file()]
    if missing:
        run_jobs(_store_scene, missing, jobs, "unrolling pieces")
    return [_read_scene(path) for *_, path in wanted]


def make_scene(collection: Collection, source: str, step_px: float, texture: str = "rgb") -> Scene:
    """Unroll the pieces of one picture."""
    ids = [record.id for record in collection.fragments if record.source == source]
    strips = {name: unroll(load_fragment(collection, name), step_px, texture) for name in ids}
    number = {name: i for i, name in enumerate(ids)}
    pairs = []
    for pair in collection.pairs:
        if pair.source in number:
            rows, columns = correspondences(collection, pair, strips[pair.source], strips[pair.target])
            pairs.append((number[pair.source], number[pair.target], rows, columns))
    return Scene(tuple(strips.values()), tuple(pairs))


def correspondences(collection: Collection, pair: TruePair, source: Strip, target: Strip) -> Correspondences:
    """Numbers of the points of both pieces that were joined: those next to the same place of the seam."""
    seam = pair.seam
    if not len(seam):
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    places, along = [], []
    for name, strip in ((pair.source, source), (pair.target, target)):
        pose = collection.by_id[name].canvas_from_fragment
        assert pose is not None
        places.append(pose.apply(strip.points))
        along.append(pose.apply(strip.tangents) - pose.shift)
    reach_px = _reach_px(collection)
    to_seam, at = cKDTree(seam).query(places[0], distance_upper_bound=reach_px)
    rows = np.flatnonzero(np.isfinite(to_seam))
    distance, columns = cKDTree(places[1]).query(seam[np.asarray(at)[rows]])
    opposed = (along[0][rows] * along[1][columns]).sum(axis=1) < _OPPOSED
    kept = (distance < reach_px) & opposed
    return rows[kept], np.asarray(columns, dtype=np.intp)[kept]


def _reach_px(collection: Collection) -> float:
    """How far worn edges may lie from their seam: half of the widest gap that the collection was made with comes on
    top of what all wear takes."""
    wear = {name: float(collection.made_by.get(f"wear.{name}", 0.0)) for name in ("gap", "gap_varies", "gap_pictures")}
    return _REACH_PX + wear["gap"] / 2 * (1 + wear["gap_varies"]) * (1 + wear["gap_pictures"])


# A changed look ------------------------------------------------------------------------------------------------------


def mirrored(scene: Scene) -> Scene:
    """The picture seen in a mirror: contours run the other way round."""

    def turned(strip: Strip) -> Strip:
        points, tangents = strip.points[::-1] * (-1, 1), strip.tangents[::-1] * (1, -1)
        order = list(MIRRORED)
        return Strip(
            strip.id, points, tangents, strip.colours[::-1][:, order], strip.inside[::-1][:, order], strip.step_px
        )

    strips = tuple(turned(strip) for strip in scene.strips)
    pairs = tuple((a, b, len(strips[a]) - 1 - rows, len(strips[b]) - 1 - cols) for a, b, rows, cols in scene.pairs)
    return Scene(strips, pairs)


def recoloured(scene: Scene, rng: np.random.Generator, grey: float, spread: float) -> Scene:
    """Other colours: the channels in any order or one grey, and each piece with its own brightness and tint."""
    order = rng.permutation(3)
    plain = rng.random() < grey
    invert = rng.random() < 0.1

    def dyed(strip: Strip) -> Strip:
        colours = strip.colours[..., order].astype(np.float64)
        if plain:
            colours = np.repeat(colours @ np.array([[0.3], [0.59], [0.11]]), 3, axis=2)
        if invert:
            colours = 255 - colours
        gain = 1 + spread * rng.normal() + 0.5 * spread * rng.normal(size=3) * (not plain)
        colours = (colours - 128) * gain + 128 + 255 * spread * 0.5 * rng.normal()
        colours = colours + rng.normal(0, 100 * spread * rng.random(), colours.shape)
        return Strip(strip.id, strip.points, strip.tangents, _as_pixels(colours), strip.inside, strip.step_px)

    return Scene(tuple(dyed(strip) for strip in scene.strips), scene.pairs)


def _as_pixels(values: NDArray[np.floating]) -> Pixels:
    return np.asarray(np.rint(values.clip(0, 255)), dtype=np.uint8)


# On disk -------------------------------------------------------------------------------------------------------------


def _store_scene(wanted: tuple[Path, str, float, str, Path]) -> None:
    folder, source, step_px, texture, path = wanted
    scene = make_scene(read_collection(folder), source, step_px, texture)
    strips, pairs = scene.strips, scene.pairs
    arrays: dict[str, Any] = {
        "ids": np.array([strip.id for strip in strips]),
        "lengths": np.array([len(strip) for strip in strips]),
        "steps_px": np.array([strip.step_px for strip in strips]),
        "points": np.concatenate([strip.points for strip in strips]).astype(np.float32),
        "tangents": np.concatenate([strip.tangents for strip in strips]).astype(np.float32),
        "colours": np.concatenate([strip.colours for strip in strips]),
        "inside": np.concatenate([strip.inside for strip in strips]),
        "pairs": np.array([(a, b, len(rows)) for a, b, rows, _ in pairs], dtype=np.intp).reshape(-1, 3),
        "rows": np.concatenate([rows for *_, rows, _ in pairs]) if pairs else np.zeros(0, np.intp),
        "columns": np.concatenate([columns for *_, columns in pairs]) if pairs else np.zeros(0, np.intp),
    }
    write_whole(path, lambda file: np.savez(file, **arrays))


def _read_scene(path: Path) -> Scene:
    with np.load(path, allow_pickle=False) as stored:
        a = {name: stored[name] for name in stored.files}
    ends = np.cumsum(a["lengths"])[:-1]
    parts = [np.split(a[name], ends) for name in ("points", "tangents", "colours", "inside")]
    strips = tuple(
        Strip(str(name), parts[0][i], parts[1][i], parts[2][i], parts[3][i], float(step_px))
        for i, (name, step_px) in enumerate(zip(a["ids"], a["steps_px"], strict=True))
    )
    ends = np.cumsum(a["pairs"][:, 2])[:-1]
    rows, columns = np.split(a["rows"], ends), np.split(a["columns"], ends)
    return Scene(
        strips, tuple((int(p[0]), int(p[1]), r, c) for p, r, c in zip(a["pairs"], rows, columns, strict=False))
    )
