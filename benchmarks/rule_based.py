"""How often the rule-based method finds the pose of a true pair, and how long that takes.

python -m benchmarks.rule_based VAL [--pairs 200] [--seed 0] [--set name=value]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from pairingnet.baselines.candidates import Candidate, find_candidates
from pairingnet.baselines.rule_based import RuleBasedMethod
from pairingnet.config import CandidateSettings
from pairingnet.evaluate.metrics import RR_THRESHOLD_PX, MatchErrors, by_difficulty, match_errors, match_scores
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection, read_collection
from pairingnet.prepare.load import load_fragment
from pairingnet.settings import parse_assignments, with_values
from pairingnet.types import TruePair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collection", type=Path, help="a collection with truth")
    parser.add_argument("--pairs", type=int, default=200, help="true pairs, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of that choice")
    parser.add_argument("--set", action="append", default=[], help="a setting of the candidates, name=value")
    told = parser.parse_args()
    collection = read_collection(told.collection)
    settings = with_values(CandidateSettings(), parse_assignments(told.set), "the candidates")
    rng = np.random.default_rng(told.seed)
    count = min(told.pairs, len(collection.pairs))
    pairs = [collection.pairs[i] for i in rng.choice(len(collection.pairs), count, replace=False)]

    method = RuleBasedMethod(settings)
    names = sorted({name for pair in pairs for name in (pair.source, pair.target)})
    fragments = [load_fragment(collection, name) for name in names]
    began = time.perf_counter()
    known = {piece.id: piece for piece in method.features(fragments)}
    per_fragment_ms = 1e3 * (time.perf_counter() - began) / len(names)
    began = time.perf_counter()
    found = [find_candidates(known[pair.source], known[pair.target], settings) for pair in pairs]
    per_pair_ms = 1e3 * (time.perf_counter() - began) / count

    off = [_off(collection, pair, candidates) for pair, candidates in zip(pairs, found, strict=True)]
    best = match_scores([errors[0] for errors in off])
    right = np.array([errors[0].mean_px < RR_THRESHOLD_PX for errors in off])
    among = np.mean([min(error.mean_px for error in errors) < RR_THRESHOLD_PX for errors in off])
    parts = by_difficulty([pair.difficulty for pair in pairs])
    print(f"RR            {best.rr:.3f}   " + "   ".join(f"{k} {right[v].mean():.2f}" for k, v in parts.items()))
    print(f"within 2 px   {best.within[2.0]:.3f}")
    print(f"a right one among all candidates {among:.3f}")
    counts = np.array([len(each) for each in found])
    print(f"candidates per pair {counts.mean():.2f}; none for {np.mean(counts == 0):.3f} of the pairs")
    print(f"{per_fragment_ms:.1f} ms a fragment, {per_pair_ms:.1f} ms a pair")


def _off(collection: Collection, pair: TruePair, candidates: list[Candidate]) -> list[MatchErrors]:
    source, target = collection.by_id[pair.source], collection.by_id[pair.target]
    assert source.canvas_from_fragment is not None
    shared = source.canvas_from_fragment.inverse().apply(pair.seam)
    poses: list[Rigid2D | None] = [candidate.target_from_source for candidate in candidates]
    truth = collection.target_from_source(pair)
    return [match_errors(pose, truth, shared, source.area_px, target.area_px) for pose in poses or [None]]


if __name__ == "__main__":
    main()
