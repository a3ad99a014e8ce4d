"""What a step of each ablation costs here, and how long the table takes: docs/ablations.md, section "Longer".

python -m benchmarks.ablation_cost COLLECTION [--steps 2000] [--batch 8] [--search-steps 150] [--search-batch 48]

One step of matching after a first one that warms up, and one of searching whose frozen features are there already;
seconds of the processor, one thread. Rows that only change the search encoder stand on the preset's step 1.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from pairingnet.config import PaperSettings, TrainSettings
from pairingnet.io.collection import Collection, read_collection
from pairingnet.settings import network_and_training, with_values
from pairingnet.train.ablations import CONFIGURATIONS, MAIN, PRESET, ROWS
from pairingnet.train.data import PairData
from pairingnet.train.loop import Task, _one_step, keep_freed_memory
from pairingnet.train.matching import MatchingTask, fresh_network
from pairingnet.train.searching import SearchingTask

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--search-steps", type=int, default=150)
    parser.add_argument("--search-batch", type=int, default=48)
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    collection = read_collection(given.collection)
    print("| row | s a step of matching | s a step of searching | minutes for one seed |\n|---|---|---|---|")
    hours = 0.0
    for name in MAIN:
        matching, searching = _costs(collection, name, given.batch, given.search_batch)
        shared = name != PRESET and all(each.startswith("search_") for each in CONFIGURATIONS[name])
        searched = any(row.searching for row in ROWS if row.configuration == name)
        seconds = (0 if shared else matching * given.steps) + (searching * given.search_steps if searched else 0)
        hours += seconds / 3600
        cells = ("-" if shared else f"{matching:.2f}", f"{searching:.2f}" if searched else "-", f"{seconds / 60:.0f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"| all nine | | | {60 * hours:.0f} ({hours:.1f} hours) |")


def _costs(collection: Collection, name: str, batch: int, search_batch: int) -> tuple[float, float]:
    """Seconds of a step of matching, and of one of searching."""
    of_network, of_training = network_and_training(CONFIGURATIONS[name])
    network = fresh_network(with_values(PaperSettings(), of_network), 0)
    settings = with_values(TrainSettings(batch=batch), of_training)
    data = PairData(collection, network.settings, settings.correspond, CPU)
    task = MatchingTask(network, data, settings)
    every = range(len(data))
    pairs = [list(every[i : i + 4]) for i in range(0, min(batch, len(every)), 4)]
    matching = _second_step(task, pairs) * batch / sum(map(len, pairs))
    searched = list(every[:search_batch])
    searching = _second_step(SearchingTask(network, data, settings), [searched]) * search_batch / len(searched)
    return matching, searching


def _second_step(task: Task, groups: list[list[int]]) -> float:
    task.trained().train()
    optimizer = torch.optim.Adam(task.trained().parameters(), lr=1e-3)
    seconds = 0.0
    for number in range(2):
        pieces = list(task.pieces(groups))
        began = time.process_time()
        _one_step(task, optimizer, pieces, [[number, place] for place in range(len(pieces))])
        seconds = time.process_time() - began
    return seconds


if __name__ == "__main__":
    main()
