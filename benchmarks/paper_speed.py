"""What the paper's network costs here: the numbers of docs/results.md, section "The paper's network: cost".

python -m benchmarks.paper_speed --shared FOLDER     (FOLDER has photos/)
python -m benchmarks.paper_speed --shared FOLDER --training     training alone: before and after, same pairs, same run

Times are of the processor, not of the clock: another process beside does not count (what it takes of cache and
memory does).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from pairingnet.config import WEAR_LEVELS, PaperSettings, TearSettings, TrainSettings
from pairingnet.io.images import image_files, read_image
from pairingnet.match.paper import PaperMethod
from pairingnet.models import paper
from pairingnet.models.paper import LocalFeatures, PairingNet, pack
from pairingnet.models.rings import Rings
from pairingnet.prepare.load import load_fragment
from pairingnet.synth.collect import TearJob, tear_one_picture
from pairingnet.train import losses
from pairingnet.train.data import PairData
from pairingnet.train.loop import _one_step, keep_freed_memory
from pairingnet.train.matching import MatchingTask

POINTS = range(800, 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, required=True, help="folder with photos/")
    parser.add_argument("--training", action="store_true", help="training alone")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        data = _pairs_of_usual_length(arguments.shared, Path(scratch))
        print("| what | measured | wanted | published code, one core |\n|---|---|---|---|")
        rows = [*_training(data), *_searching()]
        for row in rows if arguments.training else (*rows, *_inference(data)):
            print("| " + " | ".join(row) + " |", flush=True)


def _training(data: PairData) -> Sequence[tuple[str, str, str, str]]:
    """Plain torch and what replaces it take turns, so that both see the same machine."""
    network = PairingNet(PaperSettings())
    task = MatchingTask(network, data, TrainSettings())
    task.trained().train()
    optimizer = torch.optim.Adam(task.trained().parameters(), lr=1e-4)
    groups = [list(range(first, first + 4)) for first in range(0, 20, 4)]
    pieces = [data.batch(group) for group in groups]
    taken: dict[str, list[float]] = {"plain torch": [], "as it is": []}
    for _ in range(4):
        for name, seconds in taken.items():
            plain = name == "plain torch"
            torch.set_flush_denormal(not plain)
            with _without_loops() if plain else nullcontext():
                start = time.process_time()
                _one_step(task, optimizer, pieces, [[0]] * len(pieces))
                seconds.append((time.process_time() - start) / 20)
    found = {name: float(np.median(seconds[1:])) for name, seconds in taken.items()}  # the first one compiles
    what = f"pairs a second, training step 1, {torch.get_num_threads()} threads"
    gain = found["plain torch"] / found["as it is"]
    return [
        (f"{what}, plain torch", f"{1 / found['plain torch']:.1f}", "", "0.4"),
        (f"{what}, as it is", f"{1 / found['as it is']:.1f} ({gain:.1f} times)", "3 times", ""),
    ]


@contextmanager
def _without_loops() -> Iterator[None]:
    """The plain torch that the compiled loops replace."""
    with patch.object(paper, "quick_on", lambda _: False), patch.object(losses, "quick_on", lambda _: False):
        yield


def _searching() -> Sequence[tuple[str, str, str, str]]:
    """The search encoder forwards, and forwards and back, on features of fragments of usual length."""
    lengths = (900,) * 8
    rings = Rings(lengths, torch.device("cpu"))
    network = PairingNet(PaperSettings())
    numbers = torch.randn(2, rings.total, 64)
    features = LocalFeatures(rings, numbers[0], numbers[1], numbers[0][:, :0], None)

    def step() -> None:
        with torch.no_grad():
            slope = network.vectors(features)
        network.vectors(features).backward(slope)  # type: ignore[no-untyped-call]

    seconds = _median_seconds(step, 3) / len(lengths)
    return [(f"fragments a second, training step 2, {torch.get_num_threads()} threads", f"{1 / seconds:.1f}", "", "")]


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
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return float(np.median(taken))


if __name__ == "__main__":
    main()
