"""Whether probabilities of joins are honest: docs/results.md, section "The ring network".

python -m benchmarks.calibration COLLECTION RUN

COLLECTION has the truth; RUN is a folder of `pairingnet evaluate` with joins.jsonl. A join is right where it lays its
pieces within 16 px of their true place.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.solving import RIGHT_PX, wrong_by_px
from pairingnet.evaluate.metrics import expected_calibration_error
from pairingnet.io.collection import read_collection
from pairingnet.io.run import read_joins

BINS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    parser.add_argument("run", type=Path)
    given = parser.parse_args()
    truth = read_collection(given.collection)
    joins = [join for join in read_joins(given.run / "joins.jsonl") if join.target_from_source is not None]
    said = np.array([join.probability for join in joins])
    off_px = [wrong_by_px(truth, join, join.target_from_source) for join in joins]
    right = np.array(off_px) < 2 * RIGHT_PX
    print(f"{len(said)} joins, {right.sum()} right; calibration error {expected_calibration_error(said, right):.4f}\n")
    print("| said | joins | said on average | right |\n|---|---|---|---|")
    place = np.minimum((said * BINS).astype(int), BINS - 1)
    for number in range(BINS):
        here = place == number
        if here.any():
            limits = f"{number / BINS:.1f} to {(number + 1) / BINS:.1f}"
            print(f"| {limits} | {here.sum()} | {said[here].mean():.3f} | {right[here].mean():.3f} |")
    order = np.argsort(-said, kind="stable")
    found = np.cumsum(right[order])
    print("\n| share of all true pairs found | right, of the surest joins that hold them |\n|---|---|")
    for share in (0.6, 0.8, 0.9, 0.95):
        count = int(np.searchsorted(found, share * len(truth.pairs))) + 1
        told = f"{found[count - 1] / count:.3f}" if count <= len(found) else "never so many"
        print(f"| {share} | {told} |")


if __name__ == "__main__":
    main()
