"""Puzzles with truth, and answers to them, from the files in which they come.

A truth is a collection (a puzzle a picture), a file of poses with the images beside it or in `pieces/` (RePAIR's
`rpf,x,y,rot`, truth.json), a folder that holds such a file, or a folder of such folders. An answer is a run of `solve`,
an assembly.json, or a file of `rpf,x,y,rot`; to a folder of puzzles, a folder with one of these for each, by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.spatial import cKDTree

from pairingnet.errors import CollectionError, TruthError
from pairingnet.evaluate.puzzles import Puzzle
from pairingnet.geometry import Points, Rigid2D
from pairingnet.io.collection import FILE_NAME, Collection, read_collection
from pairingnet.io.images import image_files, read_image
from pairingnet.io.rpf import is_rpf_file, poses_of_rpf, write_rpf
from pairingnet.io.run import read_assembly
from pairingnet.io.truth import read_truth
from pairingnet.prepare.contour import trace_contour
from pairingnet.prepare.scan import prepare_image

Groups = list[Mapping[str, Rigid2D]]
Look = tuple[Points, tuple[int, int]]  # outline of a piece, size of its image
_TRUTHS = "Give a collection, a file 'rpf,x,y,rot' or truth.json beside its images, or a folder of such folders."
_ANSWERS = "Give a run folder, its assembly.json, or a file 'rpf,x,y,rot'; for several puzzles one for each, by name."
_LEAST_REACH_PX, _MORE_PX = 4.0, 2.0
_USUAL = 0.9  # of the neighbours that a collection lists lie nearer to each other than its reach


def read_puzzles(truth: Path) -> list[Puzzle]:
    """The puzzles of a truth."""
    if (truth / FILE_NAME).is_file():
        return _of_collection(read_collection(truth))
    if truth.is_file():
        return [_of_file(truth, truth.absolute().parent)]
    if not truth.is_dir():
        raise TruthError(f"There is no {truth}.", _TRUTHS)
    own = _poses_in(truth)
    if own is not None:
        return [_of_file(own, truth)]
    below = [(folder, _poses_in(folder)) for folder in sorted(truth.iterdir()) if folder.is_dir()]
    puzzles = [_of_file(file, folder) for folder, file in below if file is not None]
    if not puzzles:
        raise TruthError(f"{truth} holds no truth.", _TRUTHS)
    return puzzles


def read_layouts(answer: Path, puzzles: Sequence[Puzzle]) -> tuple[list[Groups], tuple[str, ...]]:
    """Groups of poses for each puzzle, none where there is no answer; and the names of the puzzles without one."""
    file = _answer_in(answer)
    if file is not None:
        return [_groups(file, puzzles)] * len(puzzles), ()
    if not answer.is_dir():
        raise TruthError(f"There is no {answer}.", _ANSWERS)
    files = {puzzle.name: _answer_to(answer, puzzle.name) for puzzle in puzzles}
    if not any(files.values()):
        raise TruthError(f"{answer} answers none of {', '.join(list(files)[:3])}.", _ANSWERS)
    layouts = [[] if (f := files[puzzle.name]) is None else _groups(f, [puzzle]) for puzzle in puzzles]
    return layouts, tuple(name for name, found in files.items() if found is None)


def write_layout(path: Path, puzzle: Puzzle, groups: Sequence[Mapping[str, Rigid2D]]) -> None:
    """An answer in RePAIR's form, which has one frame for all: groups and single pieces lie beside each other."""
    own = [{name: pose for name, pose in group.items() if name in puzzle.poses} for group in groups]
    placed = {name for group in own for name in group}
    alone: list[dict[str, Rigid2D]] = [{name: Rigid2D()} for name in puzzle.poses if name not in placed]
    poses: dict[str, Rigid2D] = {}
    right = 0.0
    for group in (*(group for group in own if group), *alone):
        points = np.concatenate([pose.apply(puzzle.outlines[name]) for name, pose in group.items()])
        aside = Rigid2D(0.0, right - float(points[:, 0].min()), -float(points[:, 1].min()))
        poses |= {name: aside @ pose for name, pose in group.items()}
        right += float(np.ptp(points[:, 0])) + 2 * puzzle.reach_px
    write_rpf(path, poses, puzzle.sizes)


def _of_collection(collection: Collection) -> list[Puzzle]:
    placed = [record for record in collection.fragments if record.canvas_from_fragment is not None]
    if not placed:
        raise TruthError(f"{collection.folder} has no true poses.", "Make them with 'pairingnet annotate'.")
    looks = {record.id: _look(collection.folder / record.image) for record in placed}
    puzzles = []
    for source in dict.fromkeys(record.source for record in placed):
        poses = {r.id: r.canvas_from_fragment for r in placed if r.source == source and r.canvas_from_fragment}
        puzzle = _puzzle(source, poses, looks)
        puzzles.append(replace(puzzle, reach_px=_usual_reach(collection, puzzle)))
    return puzzles


def _puzzle(name: str, poses: Mapping[str, Rigid2D], looks: Mapping[str, Look]) -> Puzzle:
    return Puzzle(name, poses, {name: looks[name][0] for name in poses}, {name: looks[name][1] for name in poses})


def _usual_reach(collection: Collection, puzzle: Puzzle) -> float:
    """How near contours of neighbours come, as the collection's own pairs lie: worn pieces leave gaps."""
    pairs = [p for p in collection.pairs if {p.source, p.target} <= puzzle.poses.keys() and len(p.seam)]
    trees = {name: cKDTree(pose.apply(puzzle.outlines[name])) for name, pose in puzzle.poses.items()}
    gaps = [sum(float(np.median(trees[n].query(p.seam)[0])) for n in (p.source, p.target)) for p in pairs]
    return max(_LEAST_REACH_PX, float(np.quantile(gaps, _USUAL)) + _MORE_PX) if gaps else _LEAST_REACH_PX


def _of_file(poses: Path, folder: Path) -> Puzzle:
    """A file of poses, and the images beside it."""
    images = folder / "pieces" if (folder / "pieces").is_dir() else folder
    files = {path.stem: path for path in image_files(images)}
    if not is_rpf_file(poses):
        known = read_truth(poses)
        true = {list(files)[int(k)]: v for k, v in known.poses.items()} if known.by_position else known.poses
        looks = {name: _look(_image_of(name, files, poses)) for name in true}
    else:
        looks = {name: _look(path) for name, path in files.items()}
        true = poses_of_rpf(poses, {name: size for name, (_, size) in looks.items()})
    return _puzzle(folder.name, true, looks)


def _image_of(name: str, files: Mapping[str, Path], poses: Path) -> Path:
    if name not in files:
        raise TruthError(f"{poses} has a pose of '{name}', of which there is no image.", "Put the images beside it.")
    return files[name]


def _look(path: Path) -> Look:
    """The outline of the piece in an image file, in the file's pixels, and the size of the image."""
    image = read_image(path)
    if image.alpha is not None:
        outline = trace_contour(image.alpha)
    else:
        largest = max(prepare_image(image, path.stem).fragments, key=lambda each: each.area_px)
        outline = largest.contour + np.array(largest.offset_px)
    if not len(outline):
        raise TruthError(f"{path} shows no piece: its alpha is 0 everywhere.", "Remove it.")
    return outline, image.size


def _poses_in(folder: Path) -> Path | None:
    """The file of poses in a folder; refuse several."""
    found = [path for path in sorted(folder.iterdir()) if path.name == "truth.json" or is_rpf_file(path)]
    if len(found) > 1:
        raise TruthError(f"{folder} holds several truths: {found[0].name}, {found[1].name}.", "Name the file.")
    return found[0] if found else None


def _answer_in(path: Path) -> Path | None:
    """The file of an answer: itself, or that of a run folder."""
    return next((file for file in (path, path / "assembly.json") if file.is_file()), None)


def _answer_to(folder: Path, name: str) -> Path | None:
    """The answer to the puzzle of that name."""
    files = [folder / f"{name}{ending}" for ending in (".csv", ".txt", ".json")]
    return next((file for path in (*files, folder / name) if (file := _answer_in(path)) is not None), None)


def _groups(file: Path, puzzles: Sequence[Puzzle]) -> Groups:
    """Groups of poses, in pixels of the images."""
    if file.suffix.lower() == ".json":
        try:
            assembly = read_assembly(file)
        except CollectionError as error:
            raise TruthError(f"{file} holds no groups ({error.problem})", _ANSWERS) from error
        return [group.poses for group in assembly.groups] + [{name: Rigid2D()} for name in assembly.singles]
    sizes = {name: size for puzzle in puzzles for name, size in puzzle.sizes.items()}
    return [poses_of_rpf(file, sizes)]


def with_reach(puzzles: Sequence[Puzzle], reach_px: float | None) -> list[Puzzle]:
    """The same puzzles, neighbours told by another distance."""
    return list(puzzles) if reach_px is None else [replace(puzzle, reach_px=reach_px) for puzzle in puzzles]
