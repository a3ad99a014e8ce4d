"""What one pair costs: docs/results.md, section "One pair".

OMP_NUM_THREADS=1 python -m benchmarks.pair_speed --shared FOLDER [--pictures 8]

Pieces of the first pictures of photos/test, turned, all mixed: true neighbours, as many of their candidates that are
none, and as many pairs at random are matched and verified, one after the other on one core.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.solving import torn_pictures
from pairingnet.config import TearSettings
from pairingnet.io.images import image_files
from pairingnet.match.pair import method_for
from pairingnet.match.ring import RingFeatures, RingMethod
from pairingnet.prepare.load import load_fragments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--pictures", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        pictures = image_files(given.shared / "photos" / "test")[: given.pictures]
        truth = torn_pictures(pictures, Path(scratch), TearSettings(), 1)
        fragments = list(load_fragments(truth))
    method = method_for(fragments)
    features = method.know(list(method.features(fragments)))
    number = {each.id: i for i, each in enumerate(features)}
    true = {(number[pair.source], number[pair.target]) for pair in truth.pairs}
    ranked, _ = method.rank(features, 20)
    candidates = {(a, int(b)) for a, row in enumerate(ranked) for b in row if b >= 0}
    wrong = sorted(candidates - true - {(b, a) for a, b in true})
    rng = np.random.default_rng(0)
    kinds = {
        "true neighbours": sorted(true),
        "candidates that are none": [wrong[i] for i in rng.permutation(len(wrong))[: len(true)]],
        "at random": [tuple(rng.choice(len(features), 2, replace=False)) for _ in true],
    }
    print(f"{len(features)} fragments, {np.median([len(each.points) for each in features]):.0f} contour points each\n")
    print("| pairs | how many | ms a pair |\n|---|---|---|")
    for name, pairs in kinds.items():
        _lay(method, features, pairs[:20])  # loads and compiles
        print(f"| {name} | {len(pairs)} | {1e3 * _lay(method, features, pairs) / len(pairs):.1f} |", flush=True)


def _lay(method: RingMethod, features: Sequence[RingFeatures], pairs: Sequence[tuple[int, int]]) -> float:
    """Seconds of the processor for all of them."""
    began = time.process_time()
    for a, b in pairs:
        method.match(features[a], features[b])
    return time.process_time() - began


if __name__ == "__main__":
    main()
