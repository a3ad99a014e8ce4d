"""What the paper's network costs here: the numbers of docs/results.md, section "The paper's network: cost".

python -m benchmarks.paper_speed --shared FOLDER     (FOLDER has photos/)
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pairingnet.config import WEAR_LEVELS, PaperSettings, TearSettings, TrainSettings
from pairingnet.io.images import image_files, read_image
from pairingnet.match.paper import PaperMethod
from pairingnet.models.paper import PairingNet, pack
from pairingnet.prepare.load import load_fragment
from pairingnet.synth.collect import TearJob, tear_one_picture
from pairingnet.train.data import PairData
from pairingnet.train.loop import _one_step, keep_freed_memory
from pairingnet.train.matching import MatchingTask

POINTS = range(800, 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="folder with photos/")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        data = _pairs_of_usual_length(arguments.shared, Path(scratch))
        print("| what | measured | wanted | published code, one core |\n|---|---|---|---|")
        for row in (*_training(data), *_inference(data)):
            print("| " + " | ".join(row) + " |", flush=True)


def _training(data: PairData) -> Sequence[tuple[str, str, str, str]]:
    network = PairingNet(PaperSettings())
    task = MatchingTask(network, data, TrainSettings())
    optimizer = torch.optim.Adam(task.trained().parameters())
    groups = [list(range(first, first + 4)) for first in range(0, 20, 4)]
    pieces = [data.batch(group) for group in groups]
    seconds = _median_seconds(lambda: _one_step(task, optimizer, pieces, [[0]] * len(pieces)), 4)
    what = f"s a pair, training step 1, {torch.get_num_threads()} threads"
    return [(what, f"{seconds / 20:.3f}", "<= 0.35", "2.5")]


def _inference(data: PairData) -> Sequence[tuple[str, str, str, str]]:
    torch.set_num_threads(1)
    method = PaperMethod(PairingNet(PaperSettings()))
    names = [pair.source for pair in data.pairs[:10]]
    fragments = [load_fragment(data.collection, name) for name in names]
    inputs = [pack([data.input_of(name)]) for name in names]
    with torch.no_grad():
        local = _median_seconds(lambda: [method.network.local(batch) for batch in inputs], 3) / len(names)
        known = [method.network.local(batch) for batch in inputs]
        vector = _median_seconds(lambda: [method.network.vectors(each) for each in known], 3) / len(names)
    features = list(method.features(fragments))
    pair = _median_seconds(lambda: [method.match(features[i], features[i + 1]) for i in range(9)], 3) / 9
    held = np.mean([f.points.nbytes + f.local.nelement() * f.local.element_size() + f.vector.nbytes for f in features])
    return [
        ("ms a fragment, local features, one thread", f"{1000 * local:.0f}", "<= 60", "242"),
        ("ms a fragment, search vector, one thread", f"{1000 * vector:.0f}", "", "127"),
        ("ms a pair, similarity to transform, one thread", f"{1000 * pair:.0f}", "<= 60", "750, and RANSAC"),
        ("MB a fragment, kept for matching", f"{held / 1e6:.2f}", "< 2", "70"),
    ]


def _pairs_of_usual_length(shared: Path, scratch: Path) -> PairData:
    """Pairs of photos/val whose two contours have about 900 points."""
    job = TearJob(TearSettings(), WEAR_LEVELS["none"], seed=1)
    fragments, pairs = [], []
    for path in image_files(shared / "photos/val"):
        torn = tear_one_picture(read_image(path).pixels, path.stem, job, scratch, "fragments")
        data = PairData(torn, PaperSettings(), 2.0)
        fragments += list(torn.fragments)
        pairs += [p for p in torn.pairs if all(len(data.input_of(name)) in POINTS for name in (p.source, p.target))]
        if len(pairs) >= 20:
            break
    return PairData(replace(torn, fragments=tuple(fragments), pairs=tuple(pairs[:20])), PaperSettings(), 2.0)


def _median_seconds(work: Callable[[], object], times: int) -> float:
    work()  # warm
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


if __name__ == "__main__":
    main()
