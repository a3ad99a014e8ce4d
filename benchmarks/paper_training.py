"""The paper's network, trained here and judged: docs/results.md, section "The paper's network: scores".

python -m benchmarks.paper_training protocol --shared FOLDER --runs FOLDER    the paper's protocol, docs/paper.md
python -m benchmarks.paper_training rotated --shared FOLDER --runs FOLDER     pieces turned at random
python -m benchmarks.paper_training upright --shared FOLDER --runs FOLDER     not turned, as in the paper

FOLDER of --shared has photos/train, photos/val and photos/test. Everything continues where it was stopped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

# Equal in all but the time there was: two epochs in about two hours, one in about one.
EPOCHS = {"rotated": 2, "upright": 1}
PARTS = ("train", "val", "test")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", choices=[*EPOCHS, "protocol"])
    parser.add_argument("--shared", type=Path, required=True, help="folder with photos/")
    parser.add_argument("--runs", type=Path, required=True, help="folder for collections, trainings and answers")
    given = parser.parse_args()
    if given.setting == "protocol":
        _protocol(given.shared, given.runs)
    else:
        _by_picture(given)


def _protocol(shared: Path, runs: Path) -> None:
    """All pictures, not turned, fragments split 5:1:4: about fourteen hours of one core, and five."""
    pictures, torn = runs / "pictures", runs / "paper390"
    pictures.mkdir(parents=True, exist_ok=True)
    for photo in (path for part in PARTS for path in sorted((shared / "photos" / part).iterdir())):
        link = pictures / photo.name
        if not link.exists():
            link.symlink_to(photo.resolve())
    _run("tear", pictures, torn, "--no-rotate", "--split", "paper", "--seed", 1, "--jobs", 0)
    first, second = runs / "matching", runs / "searching"
    own = ["--part", "train", "--threads", 1]
    _run("train", "matching", torn, first, *own, "--set", "batch=8", "--set", "epochs=60", "--set", "dropout=0")
    _run("train", "searching", torn, second, "--from", first / "best.pt", *own, "--set", "epochs=12")
    _run("evaluate", torn, "--model", second / "best.pt", "--part", "test", "--out", runs / "paper390-test")


def _by_picture(given: argparse.Namespace) -> None:
    name = given.setting
    collections = {part: given.runs / f"{given.setting}-{part}" for part in PARTS}
    for part, folder in collections.items():
        turn = "--rotate" if given.setting == "rotated" else "--no-rotate"
        _run("tear", given.shared / "photos" / part, folder, "--seed", 1, turn, "--jobs", 0)
    first, second = given.runs / f"paper-{name}", given.runs / f"paper-{name}-search"
    epochs = ["--set", f"epochs={EPOCHS[given.setting]}", "--validation", collections["val"]]
    # A batch of 4 instead of 20: with a fiftieth of the paper's steps, more and smaller ones get further.
    _run("train", "matching", collections["train"], first, "--set", "batch=4", *epochs)
    start = ["--from", first / "checkpoint.pt", "--set", "batch=64"]
    _run("train", "searching", collections["train"], second, *start, *epochs)
    answers = given.runs / f"paper-{name}-test"
    _run("evaluate", collections["test"], "--model", second / "checkpoint.pt", "--out", answers)


def _run(*arguments: object) -> None:
    command = [str(argument) for argument in arguments]
    print("pairingnet", *command, file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "pairingnet", *command], check=True)


if __name__ == "__main__":
    main()
