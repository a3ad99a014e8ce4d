"""Tearing, preparing and annotating, measured: the numbers of docs/results.md, section "Foundations".

python -m benchmarks.foundations --shared FOLDER     (FOLDER has photos/ and fragments/)
"""

from __future__ import annotations

import argparse
import filecmp
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from pairingnet.assembly.canvas import compose
from pairingnet.config import WEAR_LEVELS, PrepareSettings, TearSettings, WearSettings
from pairingnet.geometry import Rigid2D, angle_difference
from pairingnet.io.collection import Collection
from pairingnet.io.images import image_files, read_image, write_png
from pairingnet.io.truth import read_truth
from pairingnet.prepare.collect import PrepareJob, prepare_collection
from pairingnet.prepare.load import load_fragment, load_fragments
from pairingnet.prepare.scan import prepare_image
from pairingnet.synth.annotate import annotate_from_picture, annotate_from_poses
from pairingnet.synth.collect import TearJob, tear_collection, tear_one_picture
from pairingnet.synth.sheet import lay_out
from pairingnet.types import Image

Row = tuple[str, str, str]
CLEAN = TearJob(TearSettings(), WEAR_LEVELS["none"], seed=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="folder with photos/ and fragments/")
    parser.add_argument("--only", choices=sorted(MEASUREMENTS), help="one of the measurements")
    arguments = parser.parse_args()
    print("| what | measured | wanted |\n|---|---|---|")
    for name, measure in MEASUREMENTS.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory() as scratch:
                for row in measure(arguments.shared, Path(scratch)):
                    print("| " + " | ".join(row) + " |", flush=True)


def tearing(shared: Path, scratch: Path) -> Iterator[Row]:
    """photos/test torn with seed 1: how many pieces, do they tile, is it repeatable, how long does it take."""
    start = time.perf_counter()
    first = tear_collection(shared / "photos/test", scratch / "one", CLEAN, jobs=1).collection
    elapsed = time.perf_counter() - start
    pictures = len(first.sources)
    yield "pictures, fragments, true pairs of photos/test", f"{pictures}, {len(first)}, {len(first.pairs)}", ""
    yield "fragments per picture", f"{len(first) / pictures:.1f}", "18 to 24"
    shares = [f"{np.mean([pair.difficulty == name for pair in first.pairs]):.1%}" for name in ("High", "Medium", "Low")]
    yield "High / Medium / Low difficulty", " / ".join(shares), "about 28 / 46 / 26 %"
    overlaps, covers = zip(*(_tiling(first, source) for source in first.sources), strict=True)
    yield "re-assembled from the truth: overlap, worst picture", f"{max(overlaps):.3%}", "< 1 %"
    yield "re-assembled from the truth: covered, worst picture", f"{min(covers):.2%}", "> 99 %"
    tear_collection(shared / "photos/test", scratch / "two", CLEAN, jobs=2)
    same = _same_files(scratch / "one", scratch / "two")
    yield "one process and two give the same files", f"{same}", "True"
    yield "seconds per picture, one process, images written", f"{elapsed / pictures:.2f}", ""
    yield "seconds per 1400-px picture on one core", f"{_seconds_per_large_picture(shared, scratch):.2f}", "<= 0.6"


def preparing(shared: Path, scratch: Path) -> Iterator[Row]:
    """The five sets: one fragment an image, and true neighbours that do not overlap."""
    for folder in sorted((shared / "fragments").iterdir()):
        job = PrepareJob(PrepareSettings())
        prepared = prepare_collection(folder / "pieces", scratch / folder.name, job).collection
        files = len(image_files(folder / "pieces"))
        placed = annotate_from_poses(prepared, read_truth(folder / "truth.json"), folder.name).collection
        fragments = {fragment.id: fragment for fragment in load_fragments(placed)}
        overlaps, shares = [], []
        for pair in placed.pairs:
            both = [(fragments[i], _pose(placed, i)) for i in (pair.source, pair.target)]
            canvas = compose(both)
            overlaps.append(canvas.overlap)
            shares.append((canvas.cover > 1).sum() / min(fragment.area_px for fragment, _ in both))
        yield f"{folder.name}: fragments / images", f"{len(prepared)} / {files}", "equal"
        yield f"{folder.name}: overlap of true neighbours, worst, of their joint area", f"{max(overlaps):.2%}", "< 2 %"
        yield f"{folder.name}: the same of the smaller piece, mean and worst", _mean_and_worst(shares), ""


def sheets(shared: Path, _scratch: Path) -> Iterator[Row]:
    """Twenty fragments on a noisy grey mat with a ruler; and the same on other mats."""
    rng = np.random.default_rng(0)
    mats = {"grey": (128, 128, 128), "white": (246, 246, 244), "black": (12, 12, 14), "green": (40, 120, 60)}
    for name, mat in mats.items():
        whole, exact, total = 0, 0, 0
        paths = image_files(shared / "photos/test")[:10]
        for path in paths:
            with tempfile.TemporaryDirectory() as folder:
                torn = tear_one_picture(read_image(path).pixels, path.stem, CLEAN, Path(folder), "fragments")
                pieces = list(load_fragments(torn))
            chosen = (pieces * 2)[:20]
            sheet = lay_out(chosen, rng, mat, noise=4.0, shadow=0.25, ruler=True)
            found = prepare_image(Image(sheet, path="sheet"), "sheet")
            areas, wanted = [f.area_px for f in found.fragments], [f.area_px for f in chosen]
            ruler = [f.notes for f in found.left_out] == [("ruler",)]
            whole += len(areas) == 20 and ruler
            total += 20
            exact += int(np.isclose(areas, wanted, rtol=0.03).sum()) if len(areas) == 20 else 0
        yield (
            f"sheets on a noisy {name} mat that give their 20 pieces and no ruler",
            f"{whole} of {len(paths)}",
            "the 20 fragments" if name == "grey" else "",
        )
        yield f"of those pieces, within 3 % of their area ({name})", f"{exact} of {total}", ""


def annotating(shared: Path, scratch: Path) -> Iterator[Row]:
    """Torn, colour-shifted, re-scaled pieces placed in their picture by SIFT."""
    drift = replace(CLEAN, wear=WearSettings(colour=0.08, noise=3.0, jpeg=85))
    for factor in (0.8, 1.0, 1.25):
        right, total, unplaced, shares = 0, 0, 0, []
        for path in image_files(shared / "photos/test")[:20]:
            work = scratch / f"{factor}_{path.stem}"
            torn = tear_one_picture(read_image(path).pixels, path.stem, drift, work / "torn", "fragments")
            _store_scaled(torn, factor, work / "scans")
            prepared = prepare_collection(work / "scans", work / "out", PrepareJob(PrepareSettings())).collection
            annotated = annotate_from_picture(prepared, path)
            scale = float(annotated.collection.made_by["picture_px_per_px"])
            good = sum(
                _pose_is_right(record.canvas_from_fragment, _pose(torn, record.id), factor, scale, torn, record.id)
                for record in annotated.collection.fragments
                if record.canvas_from_fragment is not None
            )
            unplaced += len(annotated.not_placed)
            right, total = right + good, total + len(torn)
            shares.append(good / len(torn))
            shutil.rmtree(work)
        what = f"pieces at {factor} of the picture's scale placed within 1 px and 0.2 degrees"
        yield f"{what}, median picture of {len(shares)}", f"{np.median(shares):.1%}", ">= 95 %"
        yield f"{what}, all pictures", f"{right / total:.1%} of {total} ({unplaced} not placed, too plain)", ""


def answering(_shared: Path, _scratch: Path) -> Iterator[Row]:
    """How long the command line takes to say who it is."""
    for option in ("--version", "--help"):
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-m", "pairingnet", option], capture_output=True, check=True)
            seconds.append(time.perf_counter() - start)
        yield f"seconds for pairingnet {option}", f"{np.median(seconds):.2f}", "< 0.5"


MEASUREMENTS: dict[str, Callable[[Path, Path], Iterator[Row]]] = {
    "tearing": tearing,
    "preparing": preparing,
    "sheets": sheets,
    "annotating": annotating,
    "answering": answering,
}


def _tiling(collection: Collection, source: str) -> tuple[float, float]:
    """Overlap and cover of one picture's pieces at their true poses."""
    placed = [
        (load_fragment(collection, record.id), _pose(collection, record.id))
        for record in collection.fragments
        if record.source == source
    ]
    canvas = compose(placed, collection.sources[source])
    return canvas.overlap, float((canvas.cover > 0).mean())


def _pose(collection: Collection, fragment_id: str) -> Rigid2D:
    pose = collection.by_id[fragment_id].canvas_from_fragment
    assert pose is not None
    return pose


def _same_files(one: Path, two: Path) -> bool:
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    if files != sorted(path.relative_to(two) for path in two.rglob("*") if path.is_file()):
        return False
    return all(filecmp.cmp(one / file, two / file, shallow=False) for file in files)


def _seconds_per_large_picture(shared: Path, scratch: Path) -> float:
    cv2.setNumThreads(1)
    seconds = []
    for path in image_files(shared / "photos/val"):
        if max(read_image(path).size) == 1400:
            start = time.perf_counter()
            picture = read_image(path).pixels
            tear_one_picture(picture, path.stem, CLEAN, scratch / "timed", "fragments")
            seconds.append(time.perf_counter() - start)
    return float(np.mean(seconds))


def _mean_and_worst(values: list[float]) -> str:
    return f"{np.mean(values):.2%}, {max(values):.2%}"


def _store_scaled(torn: Collection, factor: float, folder: Path) -> None:
    """The pieces as scans of another resolution: x' = factor * x."""
    folder.mkdir(parents=True)
    matrix = np.array([[factor, 0.0, 0.0], [0.0, factor, 0.0]])
    for fragment in load_fragments(torn):
        h, w = fragment.alpha.shape
        size = (round(factor * w) + 1, round(factor * h) + 1)
        rgba = fragment.rgba if factor == 1 else cv2.warpAffine(fragment.rgba, matrix, size, flags=cv2.INTER_AREA)
        write_png(folder / f"{fragment.id}.png", np.asarray(rgba, dtype=np.uint8))


def _pose_is_right(
    found: Rigid2D, true: Rigid2D, factor: float, scale: float, torn: Collection, fragment_id: str
) -> bool:
    """Within 0.2 degrees, and 1 px (of the picture) at the contour on average."""
    contour = load_fragment(torn, fragment_id).contour
    landed = scale * found.apply(factor * contour)
    apart = np.linalg.norm(landed - true.apply(contour), axis=1).mean()
    return bool(apart <= 1.0 and np.rad2deg(angle_difference(found.angle_rad, true.angle_rad)) <= 0.2)


if __name__ == "__main__":
    main()
