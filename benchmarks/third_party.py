"""True pairs of the third-party puzzles, laid on each other: docs/results.md, section "Third-party pairs".

python -m benchmarks.third_party --shared FOLDER [--weights FILE]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.solving import SETS, off_px, read_set
from pairingnet.match.pair import method_for
from pairingnet.match.weights import SHIPPED, load_model
from pairingnet.prepare.load import load_fragments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    given = parser.parse_args()
    model = load_model(given.weights)
    print("| set | true pairs | RR | within 8 px | probability above .5 | ms a pair |\n|---|---|---|---|---|---|")
    for name in SETS:
        with tempfile.TemporaryDirectory() as scratch:
            truth = read_set(given.shared, name, Path(scratch), store=True)
            fragments = list(load_fragments(truth))
        method = method_for(fragments, model)
        known = {each.id: each for each in method.know(list(method.features(fragments)))}
        first = truth.pairs[0]
        method.match(known[first.source], known[first.target])  # loads and compiles
        errors, probabilities, seconds = [], [], 0.0
        for pair in truth.pairs:
            began = time.process_time()
            found = method.match(known[pair.source], known[pair.target])
            seconds += time.process_time() - began
            pose, true = found.target_from_source, truth.target_from_source(pair)
            errors.append(np.inf if pose is None else off_px(truth, pair.source, pair.seam, pose, true))
            probabilities.append(0.0 if pose is None else found.probability)
        error, sure = np.array(errors), np.array(probabilities)
        shares = " | ".join(f"{share:.3f}" for share in ((error < 16).mean(), (error < 8).mean(), (sure > 0.5).mean()))
        print(f"| {name} | {len(error)} | {shares} | {1e3 * seconds / len(error):.1f} |", flush=True)


if __name__ == "__main__":
    main()
