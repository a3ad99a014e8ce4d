"""The paper's Table 3 on fragments that nobody tore here: docs/paper.md, section "Real fragments".

python -m benchmarks.real_data --shared FOLDER [--sets MIT_ex ortho_24] [--methods paper ring] [--paper FILE]
                               [--jigsaw FILE] [--out FOLDER]

Every method is asked about all true pairs and about the neighbours of all fragments of each set in FOLDER/fragments,
each set by itself. JigsawNet is left out without weights (docs/baselines.md has their command). With --out, answers
are kept there, and what was interrupted goes on.

true    where truth.json names the pairs, those; else pieces whose contours touch along 50 px, within 6 px
all     mean of the sets, each weighted by its true pairs
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.solving import read_set
from pairingnet.benchmark.entrants import Given
from pairingnet.benchmark.run import Bench, ask_named
from pairingnet.config import BenchmarkSettings
from pairingnet.evaluate.scores import ScoreRow, score, short_number
from pairingnet.io.collection import Collection
from pairingnet.match.paper_weights import SHIPPED_PAPER
from pairingnet.train.portable import load_trained

METHODS = ("paper", "ring", "rule_based", "jigsawnet")
SHOWN = ("R@5", "R@10", "R@20", "NDCG@5", "NDCG@10", "NDCG@20", "RR", "HD", "RE", "NTE e-4")
EVERYTHING = BenchmarkSettings(limit_s=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", help="without any, all")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=METHODS)
    parser.add_argument("--paper", type=Path, default=SHIPPED_PAPER)
    parser.add_argument("--jigsaw", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    sets = given.sets or sorted(path.name for path in (given.shared / "fragments").iterdir())
    methods = [name for name in given.methods if name != "jigsawnet" or given.jigsaw]
    bench = Bench(tuple(methods), Given(jigsaw=given.jigsaw, paper=lambda: load_trained(given.paper)), EVERYTHING)
    print(f"| set | fragments | pairs | method | {' | '.join(SHOWN)} |\n{'|---' * (4 + len(SHOWN))}|")
    rows: list[ScoreRow] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in sets:
            folder = (given.out or Path(scratch)) / name
            truth = read_set(given.shared, name, folder / "pieces", store=True)
            rows += [_row(truth, bench, folder, name, method) for method in methods]
    for method in methods if len(sets) > 1 else ():
        _print("all", "", _mean([row for row in rows if row.method == method]))


def _row(truth: Collection, bench: Bench, folder: Path, name: str, method: str) -> ScoreRow:
    row = score(truth, ask_named(truth, folder / method, bench, method))[0]
    _print(name, str(len(truth)), row)
    return row


def _mean(rows: Sequence[ScoreRow]) -> ScoreRow:
    pairs = [row.pairs for row in rows]
    values = {name: float(np.average([row.values[name] for row in rows], weights=pairs)) for name in SHOWN}
    return ScoreRow(rows[0].method, "All", sum(pairs), values)


def _print(name: str, fragments: str, row: ScoreRow) -> None:
    cells = [short_number(row.values[metric]) for metric in SHOWN]
    print("| " + " | ".join([name, fragments, str(row.pairs), row.method, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
