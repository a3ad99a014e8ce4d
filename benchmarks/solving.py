"""The main job, measured: docs/results.md, section "Solving".

python -m benchmarks.solving --shared FOLDER [--weights FILE] [--only sets|mixed|large]

sets    the third-party puzzles in FOLDER/fragments: pieces right, and joins that are wrong though sure
mixed   three pictures of photos/test with 50 intruders and a fifth of the pieces lost, ten times
large   1,000 mixed fragments, end to end: seconds and memory
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.memory import Watch
from pairingnet.config import WEAR_LEVELS, PrepareSettings, TearSettings, WearSettings
from pairingnet.geometry import Points, Rigid2D
from pairingnet.io.collection import Collection, read_collection, write_collection
from pairingnet.io.images import image_files, read_image, shrunk
from pairingnet.io.truth import read_truth
from pairingnet.match.weights import SHIPPED
from pairingnet.pipeline import solve
from pairingnet.prepare.collect import PrepareJob, prepare_collection
from pairingnet.synth.annotate import annotate_from_poses
from pairingnet.synth.collect import TearJob, tear_one_picture
from pairingnet.types import Assembly, FragmentRecord, PairMatch, TruePair

RIGHT_PX = 8.0
MIXTURES = 10
SETS = ("MIT_ex", "goa_farm", "ortho_24", "giotto_magi", "serb1_s9")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--only", choices=("sets", "mixed", "large"))
    given = parser.parse_args()
    parts = {"sets": _sets, "mixed": _mixed, "large": _large}
    for name, part in parts.items():
        if given.only in (None, name):
            with tempfile.TemporaryDirectory() as scratch:
                part(given.shared, given.weights, Path(scratch))


@dataclass(frozen=True)
class Judged:
    """How a solution compares with the truth: of its fragments, pairs and placed neighbours."""

    fragments: int
    right_fragments: int
    true_pairs: int
    found_pairs: int
    placed_pairs: int
    placed_right: int
    sure_but_wrong: int


def judge(truth: Collection, matches: Iterable[PairMatch], assembly: Assembly) -> Judged:
    """A true pair is found where both pieces are in one group and their shared contour lies within 8 px. A join is
    right where it lays its pieces as they lie in the picture, however short their shared contour is: below some length
    it is not among the true pairs. A torn piece that hangs together by a hair is two in a scan, and none of its
    neighbours found."""
    matches = [match for match in matches if match.pair <= truth.by_id.keys()]
    group_of = {name: i for i, group in enumerate(assembly.groups) for name in group.poses}
    poses = {name: pose for group in assembly.groups for name, pose in group.poses.items()}
    found: set[frozenset[str]] = set()
    neighbours: dict[str, set[frozenset[str]]] = {record.id: set() for record in truth.fragments}
    for pair in truth.pairs:
        key = frozenset((pair.source, pair.target))
        neighbours[pair.source].add(key)
        neighbours[pair.target].add(key)
        if pair.source not in group_of or group_of[pair.source] != group_of.get(pair.target):
            continue
        placed = poses[pair.target].inverse() @ poses[pair.source]
        if off_px(truth, pair.source, pair.seam, placed, truth.target_from_source(pair)) < RIGHT_PX:
            found.add(key)
    right = sum(bool(keys) and keys <= found for keys in neighbours.values())
    joins = {join.pair: join for group in assembly.groups for join in group.joins if join.pair <= truth.by_id.keys()}
    placed_right = {
        pair
        for pair, join in joins.items()
        if wrong_by_px(truth, join, poses[join.target].inverse() @ poses[join.source]) < RIGHT_PX
    }
    wrong = sum(
        match.probability >= 0.9 and wrong_by_px(truth, match, match.target_from_source) > 2 * RIGHT_PX
        for match in matches
    )
    return Judged(
        len(truth), right, len(truth.pairs), len(found), len({*joins, *found}), len(placed_right | found), wrong
    )


def wrong_by_px(truth: Collection, join: PairMatch, placed: Rigid2D | None) -> float:
    """How far from its true place the shared contour of a join lies; infinite for pieces of different pictures."""
    true = truth.lies(join.source, join.target)
    if placed is None or true is None:
        return float("inf")
    shared = join.points[:, 0] if len(join.points) else np.zeros((1, 2))
    return float(np.linalg.norm(placed.apply(shared) - true.apply(shared), axis=1).mean())


def off_px(truth: Collection, source: str, seam: Points, found: Rigid2D, true: Rigid2D) -> float:
    pose = truth.by_id[source].canvas_from_fragment
    assert pose is not None
    shared = pose.inverse().apply(seam)
    return float(np.linalg.norm(found.apply(shared) - true.apply(shared), axis=1).mean())


def read_set(shared: Path, name: str, scratch: Path, store: bool = False) -> Collection:
    """A third-party puzzle with its truth; its pieces' images stay where `scratch` is."""
    pieces, known = shared / "fragments" / name / "pieces", shared / "fragments" / name / "truth.json"
    prepared = prepare_collection(pieces, scratch, PrepareJob(PrepareSettings()), store=store)
    files = [path.name for path in image_files(pieces)]
    return annotate_from_poses(prepared.collection, read_truth(known), name, files, 6.0, 50.0).collection


def _sets(shared: Path, weights: Path, scratch: Path) -> None:
    print("| set | pieces right | true neighbours found | joins above .9 that are wrong | groups, alone | s |")
    print("|---|---|---|---|---|---|")
    for name in SETS:
        pieces = shared / "fragments" / name / "pieces"
        truth = read_set(shared, name, scratch / name / "truth")
        began = time.perf_counter()
        solution = solve(pieces, scratch / name / "run", weights=weights)
        seconds = time.perf_counter() - began
        told = judge(truth, solution.matches, solution.assembly)
        groups = f"{[len(group) for group in solution.assembly.groups]}, {len(solution.assembly.singles)}"
        print(
            f"| {name} | {told.right_fragments} of {told.fragments} | {told.found_pairs} of {told.true_pairs} "
            f"| {told.sure_but_wrong} | {groups} | {seconds:.0f} |",
            flush=True,
        )


def _mixed(shared: Path, weights: Path, scratch: Path) -> None:
    print("\n| three pictures, 50 intruders, a fifth lost | placed right | precision | recall | wrong above .9 |")
    print("|---|---|---|---|---|")
    photos = image_files(shared / "photos" / "test")
    all_told = []
    for seed in range(MIXTURES):
        truth = mixture(photos, scratch / f"{seed}", TearSettings(), WEAR_LEVELS["none"], seed)
        folder = _as_scans(truth, scratch / f"{seed}-scans")
        solution = solve(folder, scratch / f"{seed}-run", weights=weights)
        told = judge(truth, solution.matches, solution.assembly)
        all_told.append(told)
        print(_row(f"seed {seed}", told), flush=True)
    print(_row("all together", Judged(*map(sum, zip(*map(astuple, all_told), strict=True)))))


def _row(name: str, told: Judged) -> str:
    precision, recall = told.placed_right / max(1, told.placed_pairs), told.found_pairs / max(1, told.true_pairs)
    return (
        f"| {name} | {told.placed_right} of {told.placed_pairs} | {precision:.3f} | {recall:.3f} "
        f"| {told.sure_but_wrong} |"
    )


def _large(shared: Path, weights: Path, scratch: Path) -> None:
    photos = image_files(shared / "photos" / "test")[:48]
    torn = torn_pictures(photos, scratch / "torn", TearSettings(), 1)
    kept = {record.id for record in torn.fragments[:1000]}
    pairs = tuple(pair for pair in torn.pairs if {pair.source, pair.target} <= kept)
    truth = replace(torn, fragments=torn.fragments[:1000], pairs=pairs)
    folder = _as_scans(truth, scratch / "scans")
    began = time.perf_counter()
    with Watch() as memory:
        solution = solve(folder, scratch / "run", weights=weights)
    seconds = time.perf_counter() - began
    told = judge(truth, solution.matches, solution.assembly)
    print(f"\n{len(truth)} fragments end to end: {seconds:.0f} s; at most {memory.most_gb:.2f} GB in all processes")
    print(f"true neighbours found: {told.found_pairs} of {told.true_pairs}; wrong above .9: {told.sure_but_wrong}")


def _as_scans(truth: Collection, folder: Path) -> Path:
    """A folder with an image of each fragment, as a person would have it."""
    folder.mkdir()
    for record in truth.fragments:
        (folder / f"{record.id}.png").symlink_to(truth.folder / record.image)
    return folder


def mixture(photos: list[Path], folder: Path, settings: TearSettings, wear: WearSettings, seed: int) -> Collection:
    """Three pictures, a fifth of their pieces lost, with 50 pieces of 17 others as intruders."""
    rng = np.random.default_rng(seed)
    chosen = [photos[i] for i in rng.permutation(len(photos))]
    torn = torn_pictures(chosen[:3], folder, replace(settings, drop=0.2), seed, wear)
    others = torn_pictures(chosen[3:20], folder, settings, seed, wear)
    intruders = [others.fragments[i] for i in rng.permutation(len(others))[:50]]
    # Some intruders are neighbours of each other; a join of those is right, too.
    names = {record.id for record in intruders}
    among = [pair for pair in others.pairs if pair.source in names and pair.target in names]
    return replace(torn, fragments=(*torn.fragments, *intruders), pairs=(*torn.pairs, *among))


def torn_pictures(
    pictures: list[Path], folder: Path, settings: TearSettings, seed: int, wear: WearSettings = WEAR_LEVELS["none"]
) -> Collection:
    """Pictures torn into one collection."""
    fragments: list[FragmentRecord] = []
    pairs: list[TruePair] = []
    for path in pictures:
        pixels = read_image(path).pixels
        pixels = shrunk(pixels, settings.longest or max(pixels.shape))
        part = tear_one_picture(pixels, path.stem, TearJob(settings, wear, seed), folder, "fragments")
        fragments += part.fragments
        pairs += part.pairs
    write_collection(Collection(folder, tuple(fragments), tuple(pairs)))
    return read_collection(folder)


if __name__ == "__main__":
    main()
