"""All methods side by side: sampled fairly, asked once, continued after any interruption, in one table."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pairingnet.baselines.jigsawnet import Ensemble, JigsawNet
from pairingnet.baselines.ranking import rank_all_pairs
from pairingnet.baselines.weights import save_jigsaw
from pairingnet.benchmark import costs
from pairingnet.benchmark.ask import ask, predict
from pairingnet.benchmark.costs import Ledger, peak_mb, read_costs, seconds_a_pair
from pairingnet.benchmark.entrants import MAKERS, MethodEntrant
from pairingnet.benchmark.isolated import isolated
from pairingnet.benchmark.run import Bench, benchmark
from pairingnet.benchmark.sampling import (
    LEAST_PAIRS,
    LEAST_QUERIES,
    Work,
    pool_of,
    sample_of,
    sample_within,
    shuffled_queries,
)
from pairingnet.benchmark.table import as_csv, as_json, as_markdown, table_of
from pairingnet.config import BenchmarkSettings, JigsawSettings, PaperSettings
from pairingnet.errors import CollectionError, PairingNetError, SettingsError
from pairingnet.evaluate.predictions import Sample
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection, read_collection, write_collection
from pairingnet.io.run import read_joins
from pairingnet.match.candidates import Candidates
from pairingnet.models.paper import PairingNet
from pairingnet.settings import as_dict
from pairingnet.train.checkpoints import Checkpoint, save_checkpoint
from pairingnet.types import Assembly, Fragment, PairMatch
from tests.helpers import Oracle, wait_for

EXACT = BenchmarkSettings(limit_s=0)


class Pairs:
    """Scores that look random, found pair by pair; knows the true poses; stops after `lives` pairs."""

    name = "pairs"

    def __init__(self, collection: Collection, lives: float = np.inf, slow_s: float = 0.0) -> None:
        self.truth = {(pair.source, pair.target): collection.target_from_source(pair) for pair in collection.pairs}
        self.lives, self.slow_s, self.asked = lives, slow_s, list[tuple[str, str]]()

    def describe(self) -> dict[str, Any]:
        return {}

    def features(self, fragments: Iterable[Fragment]) -> list[str]:
        return [fragment.id for fragment in fragments]

    def know(self, features: Sequence[str]) -> Sequence[str]:
        return features

    def score(self, source: str, target: str) -> float:
        drawn = np.random.default_rng([*(source + target).encode()]).random()
        return float(max(0.0, drawn - 0.3))

    def rank(self, features: Sequence[str], most: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        return rank_all_pairs(self.score, features, most)

    def match(self, source: str, target: str) -> PairMatch:
        if self.lives <= 0:
            raise KeyboardInterrupt
        self.lives -= 1
        self.asked.append((source, target))
        time.sleep(self.slow_s)
        score = self.score(source, target)
        found = next(iter(self.truth.values())) if score else None
        found = self.truth.get((source, target), found)
        return PairMatch(source, target, found, score, reason="" if found else "no", probability=min(1.0, score))


@pytest.fixture(scope="module")
def few(torn: Collection, tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Eight fragments as two pictures, stored."""
    folder = tmp_path_factory.mktemp("few")
    (folder / "fragments").mkdir()
    for record in torn.fragments[:8]:
        shutil.copy(torn.folder / record.image, folder / record.image)
    kept = tuple(replace(r, source="one" if i < 4 else "two") for i, r in enumerate(torn.fragments[:8]))
    ids = {record.id for record in kept}
    pairs = tuple(pair for pair in torn.pairs if pair.source in ids and pair.target in ids)
    collection = replace(torn, folder=folder, fragments=kept, pairs=pairs)
    write_collection(collection)
    return collection


# Samples


def test_samples_are_beginnings_of_one_list(torn: Collection) -> None:
    small = sample_of(torn, BenchmarkSettings(sample_pairs=3, sample_queries=2, seed=5))
    large = sample_of(torn, BenchmarkSettings(sample_pairs=6, sample_queries=4, seed=5))
    assert small.pairs is not None and large.pairs is not None and small.queries is not None
    assert large.pairs[:3] == small.pairs and large.queries is not None and large.queries[:2] == small.queries
    assert len(set(large.pairs)) == 6 and len(set(large.queries)) == 4
    assert sample_of(torn, BenchmarkSettings(sample_pairs=6, seed=6)).pairs != large.pairs
    assert sample_of(torn, BenchmarkSettings()).is_all
    assert sample_of(torn, BenchmarkSettings(sample_pairs=10**6, sample_queries=10**6, pool=10**6)).is_all
    neighbours = {name for pair in torn.pairs for name in (pair.source, pair.target)}
    assert set(shuffled_queries(torn, 0)) == neighbours


def test_a_pool_holds_the_neighbours_and_others() -> None:
    for query in range(10):
        pool = pool_of(query, [11, 14], 20, 6, seed=1).tolist()
        assert len(pool) == len(set(pool)) == 6 and {11, 14} <= set(pool) and query not in pool
    assert pool_of(0, [1, 2, 3], 20, 2, seed=1).tolist() == [1, 2, 3]
    assert pool_of(0, [1], 4, 100, seed=1).tolist() == [1, 2, 3]


def test_a_limit_is_shared_out(torn: Collection) -> None:
    """By hand: 1000 pairs of 1 s, and 10 queries of 100 pairs of 1 s that have none in common, take 2000 s."""
    many = replace(torn, pairs=torn.pairs * 40)
    work = Work(1000, 10, 1000, 100, 1.0, 1.0)
    assert work.total_s == 2000
    assert sample_within(2000.0, work, many, 0) == Sample()
    told = sample_within(1000.0, work, many, 0)
    assert told.pairs is not None and len(told.pairs) == 300  # 0.3 of the limit
    assert told.queries is not None and len(told.queries) == 7  # the other 700 s
    assert told.reason == "all of it would take about 33 min, the limit is 17 min"
    # Alone a query costs more than its share of all of them: 140 pairs instead of 100.
    told = sample_within(1000.0, replace(work, pairs_a_query=140), many, 0)
    assert told.queries is not None and len(told.queries) == 5
    # A cheap search leaves its share to the pairs.
    told = sample_within(500.0, Work(1000, 10, 10, 1, 1.0, 1.0), many, 0)
    assert told.pairs is not None and len(told.pairs) == 490 and told.queries is None
    # A search that lays no pairs is never sampled.
    told = sample_within(1.0, Work(1000, 10, 0, 0, 1.0, 0.0), many, 0)
    assert told.pairs is not None and len(told.pairs) == LEAST_PAIRS and told.queries is None
    # Too little for anything: the least that says something.
    told = sample_within(1.0, Work(1000, 10, 1000, 100, 1.0, 1.0), many, 0)
    assert told.pairs is not None and len(told.pairs) == LEAST_PAIRS
    assert told.queries is not None and len(told.queries) == LEAST_QUERIES


def test_a_sample_is_all_that_is_asked_and_scored(torn: Collection, tmp_path: Path) -> None:
    oracle = Oracle(torn)
    settings = replace(EXACT, sample_pairs=5, sample_queries=3)
    answers = ask(torn, MethodEntrant(oracle, torn), tmp_path, settings)
    assert oracle.asked == 5
    column = table_of("data", torn, [answers]).columns[0]
    assert (column.pairs, column.queries) == (f"5 of {len(torn.pairs)}", f"3 of {len(torn)}")
    told = column.estimates()
    assert told["R@20"].value == told["NDCG@20"].value == told["RR"].value == 1.0
    assert (told["RR"].items, told["NDCG@5"].items) == (5, 3)
    queries = answers.sample.queries
    assert queries is not None
    neighbours = [pair for pair in torn.pairs if {pair.source, pair.target} & set(queries)]
    both = sum({pair.source, pair.target} <= set(queries) for pair in torn.pairs)
    assert told["R@5"].items == len(neighbours) + both


def test_search_by_pairs_is_the_methods_own(torn: Collection, tmp_path: Path) -> None:
    """What is laid pair by pair gives the ranking of the method itself; a sample gives its rows."""
    method = Pairs(torn)
    exact = ask(torn, MethodEntrant(method, torn), tmp_path / "all", EXACT)
    assert len(method.asked) == len({frozenset(pair) for pair in method.asked}) == len(torn) * (len(torn) - 1) // 2
    features = [record.id for record in torn.fragments]
    expected, _ = method.rank(features, exact.ranked.shape[1])
    posed = {frozenset(pair) for pair in method.truth}
    for own, (row, wanted) in enumerate(zip(exact.ranked, expected, strict=True)):
        # A true pair of score 0 has a pose here, and so is a candidate, the last one.
        kept = [b for b in row.tolist() if b >= 0]
        more = [b for b in kept if b not in wanted.tolist()]
        assert kept[: len(kept) - len(more)] == [b for b in wanted.tolist() if b >= 0]
        assert all(frozenset((features[own], features[b])) in posed for b in more)
    some = ask(torn, MethodEntrant(Pairs(torn), torn), tmp_path / "some", replace(EXACT, sample_queries=4))
    assert some.sample.queries is not None
    rows = [features.index(query) for query in some.sample.queries]
    assert np.array_equal(some.ranked[rows], exact.ranked[rows])
    assert (np.delete(some.ranked, rows, axis=0) == -1).all()
    pooled = ask(torn, MethodEntrant(Pairs(torn), torn), tmp_path / "pool", replace(EXACT, sample_queries=4, pool=8))
    for row in rows:
        inside = set(pooled.ranked[row].tolist()) - {-1}
        assert len(inside) <= 8
        assert [b for b in exact.ranked[row].tolist() if b in inside] == [b for b in pooled.ranked[row] if b >= 0]


def test_an_assembly_is_made_of_what_the_search_found(torn: Collection, tmp_path: Path) -> None:
    """True pairs are matched whether the search finds them or not; that must not help the assembly."""

    class Assembling(MethodEntrant):
        def candidates(self, most: int) -> Candidates:
            found = super().candidates(most)
            return replace(found, ranked=np.where(found.ranked < 3, found.ranked, -1))

        def assemble(self, joins: Iterable[PairMatch]) -> tuple[list[PairMatch], Assembly]:
            self.given = {frozenset((join.source, join.target)) for join in joins}
            return [implied], Assembly()

    ids = [record.id for record in torn.fragments]
    implied = PairMatch(ids[-2], ids[-1], Rigid2D(), 1e3, probability=0.9)

    entrant = Assembling(Pairs(torn), torn)
    answers = ask(torn, entrant, tmp_path, EXACT)
    first = {record.id for record in torn.fragments[:3]}
    assert answers.assembly is not None and "assembly" in answers.costs
    assert len(entrant.given) == 3 * (len(torn) - 3) + 3 and all(pair & first for pair in entrant.given)
    assert len(read_joins(tmp_path / "joins.jsonl")) > len(entrant.given)
    # What the groups know counts in the ranking, whoever was a candidate before.
    assert answers.ranked[-1, 0] == len(ids) - 2 and answers.ranked[-2, 0] == len(ids) - 1
    assert set(answers.ranked[-1].tolist()) <= {-1, 0, 1, 2, len(ids) - 2}


# Interruptions


def test_a_stopped_run_goes_on(torn: Collection, tmp_path: Path) -> None:
    whole = ask(torn, MethodEntrant(Pairs(torn), torn), tmp_path / "whole", EXACT)
    asked: list[tuple[str, str]] = []
    for lives in (1, 30, 60, 10**6):
        method = Pairs(torn, lives)
        try:
            answers = ask(torn, MethodEntrant(method, torn), tmp_path / "parts", EXACT)
        except KeyboardInterrupt:
            assert lives < 10**6
        asked += method.asked
    stored = read_joins(tmp_path / "parts" / "joins.jsonl")
    assert len(stored) == len({(join.source, join.target) for join in stored})
    assert len(asked) < len(stored) + 3 * 16, "only the handful under way is lost"
    assert np.array_equal(answers.ranked, whole.ranked) and answers.transforms == whole.transforms
    assert sum(cost.pairs for cost in answers.costs.values()) == len(stored)
    before = Pairs(torn, lives=0)
    ask(torn, MethodEntrant(before, torn), tmp_path / "parts", EXACT)
    assert not before.asked


def test_other_settings_are_refused_by_name(torn: Collection, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        ask(torn, MethodEntrant(Pairs(torn, 20), torn), tmp_path, replace(EXACT, sample_queries=4))
    with pytest.raises(CollectionError, match="sample_queries: 4 before, 5 now"):
        ask(torn, MethodEntrant(Pairs(torn), torn), tmp_path, replace(EXACT, sample_queries=5))
    ask(torn, MethodEntrant(Pairs(torn), torn), tmp_path, replace(EXACT, sample_queries=4))
    with pytest.raises(CollectionError, match="sample_seed: 0 before, 1 now"):
        ask(torn, MethodEntrant(Pairs(torn), torn), tmp_path, replace(EXACT, sample_queries=4, seed=1))


@pytest.mark.slow
def test_a_killed_command_goes_on(torn: Collection, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pairingnet", "benchmark", str(torn.folder), str(tmp_path)]
    command += ["--methods", "rule_based", "--limit", "none", "--json"]
    joins = tmp_path / "rule_based" / "joins.jsonl"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    wait_for(lambda: joins.is_file() and len(read_joins(joins)) >= 40, "forty joins", of=process)
    os.killpg(process.pid, signal.SIGKILL)  # with the process of the method
    process.communicate(timeout=30)
    known = len(read_joins(joins))
    assert known < len(torn) * (len(torn) - 1) // 2, "it was to be killed half-way"
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr
    stored = read_joins(joins)
    assert len(stored) == len({frozenset((j.source, j.target)) for j in stored}) == len(torn) * (len(torn) - 1) // 2
    assert json.loads(result.stdout)["methods"][0]["RR"] > 0.4


def test_a_stopped_command_ends_at_once_and_says_how_to_go_on(torn: Collection, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pairingnet", "benchmark", str(torn.folder), str(tmp_path), "--limit", "none"]
    process = subprocess.Popen([*command, "--methods", "rule_based"], stderr=subprocess.PIPE, text=True)
    wait_for((tmp_path / "rule_based" / "joins.jsonl").is_file, "the first joins", of=process)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "again to continue" in complaint and "Traceback" not in complaint
    assert not (tmp_path / "rule_based" / "method.json").is_file()


# Limits, costs


def test_a_slow_method_is_sampled_and_says_so(
    torn: Collection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = BenchmarkSettings(limit_s=0.4)
    answers = ask(torn, MethodEntrant(Pairs(torn, slow_s=0.004), torn), tmp_path, settings)
    assert not answers.sample.is_all and "limit" in answers.sample.reason and answers.assembly is None
    assert "sampled" in capsys.readouterr().err
    quick = ask(torn, MethodEntrant(Pairs(torn), torn), tmp_path / "quick", BenchmarkSettings(limit_s=60))
    assert quick.sample.is_all
    table = as_markdown(table_of("data", torn, [answers, quick]))
    assert "| pairs (sampled) | pairs |" in table and "pairs was asked a sample: all of it would take" in table
    again = ask(torn, MethodEntrant(Pairs(torn, lives=0), torn), tmp_path, settings)
    assert again.sample == answers.sample


def test_costs_are_added_up_over_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: now, process_time=lambda: 0.0))
    for features_s in (2.0, 1.0):
        ledger = Ledger(tmp_path / "costs.jsonl")
        now += features_s
        ledger.note("features")
        now += 3.0
        ledger.note("search", 5)
    with (tmp_path / "costs.jsonl").open("a") as file:
        file.write('{"stage": "search", "wall')  # killed while it was writing
    told, peak = read_costs(tmp_path / "costs.jsonl")
    assert (told["search"].pairs, told["search"].wall_s) == (10, 6.0)
    assert told["features"].wall_s == 2.0  # they start over after an interruption: the longest counts
    # What is done beside laying pairs does not make a pair dearer.
    assert seconds_a_pair(tmp_path / "costs.jsonl", "search") == pytest.approx(0.6)
    now += 50.0
    ledger.note("search")
    assert seconds_a_pair(tmp_path / "costs.jsonl", "search") == pytest.approx(0.6)
    assert seconds_a_pair(tmp_path / "costs.jsonl", "matching") == 0
    assert 10 < peak <= peak_mb() + 1


def test_memory_is_that_of_the_method_alone() -> None:
    held = np.ones(300 * 2**17)
    assert isolated(peak_mb) < peak_mb() - 300 * held[0]


def test_what_goes_wrong_in_a_process_is_told() -> None:
    with pytest.raises(CollectionError, match="nowhere"):
        isolated(partial(read_collection, "nowhere"))
    with pytest.raises(PairingNetError, match="code 7"):
        isolated(partial(os._exit, 7))


# The command


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint of the paper's network and weights of JigsawNet, small and not trained."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    settings = PaperSettings(width=16, layers=1, search_layers=1, search_width=8)
    network = PairingNet(settings)
    paper = Checkpoint(as_dict(settings), network.state_dict(), {}, "searching", 0, 0.0, {})
    save_checkpoint(folder / "paper.pt", paper)
    judge = JigsawNet(JigsawSettings(side=32, widths=(4, 6), pools=(1,), cells=2, hidden=4))
    save_jigsaw(folder / "jigsaw.safetensors", Ensemble([judge], (1.0,)), {})
    return folder / "paper.pt", folder / "jigsaw.safetensors"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_methods_in_one_table(few: Collection, weights: tuple[Path, Path], tmp_path: Path) -> None:
    paper, jigsaw = weights
    command = [sys.executable, "-m", "pairingnet", "benchmark", str(few.folder), str(tmp_path)]
    command += ["--methods", ",".join(MAKERS), "--paper-weights", str(paper), "--jigsaw-weights", str(jigsaw)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "benchmark.md").read_text().strip() in result.stdout
    rows = {row["method"]: row for row in json.loads((tmp_path / "benchmark.json").read_text())["methods"]}
    assert list(rows) == list(MAKERS)
    for row in rows.values():
        assert 0 <= row["R@5"] <= 1 and 0 <= row["RR"] <= 1 and row["peak memory, MB"] > 30
        assert row["features, CPU s"] > 0 and row["ms a matched pair, wall"] > 0 and not row["sampled"]
    assert rows["ring"]["RR"] > 0.6 and rows["ring"]["ECE"] < 0.6 and rows["ring"]["assembly recall"] is not None
    assert rows["rule_based"]["ECE"] is None and rows["jigsawnet"]["ECE"] is not None
    assert rows["chance"]["no pose"] == rows["same_picture"]["no pose"] == 1.0
    assert rows["rule_based"]["assembly recall"] is None
    lines = list(csv.DictReader((tmp_path / "benchmark.csv").read_text().splitlines()))
    assert float(lines[0]["RR"]) == pytest.approx(rows["ring"]["RR"], abs=1e-5) and lines[2]["ECE"] == ""
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert again.returncode == 0 and "asked now" not in again.stderr
    assert again.stdout == result.stdout


def test_what_cannot_be_run_is_refused_first(few: Collection, tmp_path: Path) -> None:
    for bench, says in (
        (Bench(("ring", "rings")), "rings"),
        (Bench(("jigsawnet",)), "--jigsaw-weights"),
        (Bench(("chance",), sampled=("nobody",)), "nobody"),
    ):
        with pytest.raises(SettingsError, match=says):
            benchmark(few, tmp_path, bench, "few")
    with pytest.raises(CollectionError, match="no true pairs"):
        benchmark(replace(few, pairs=()), tmp_path, Bench(("chance",)), "few")
    assert not list(tmp_path.iterdir())


def test_samples_can_be_for_some_methods_only(few: Collection, tmp_path: Path) -> None:
    settings = replace(EXACT, sample_pairs=2, sample_queries=2)
    bench = Bench(("chance", "mean_colour"), settings=settings, sampled=("mean_colour",), apart=False)
    table = benchmark(few, tmp_path, bench, "few")
    assert [column.sampled for column in table.columns] == ["", "as asked"]
    assert table.columns[1].pairs == f"2 of {len(few.pairs)}"


def test_tables_say_the_same(torn: Collection, tmp_path: Path) -> None:
    table = table_of("torn", torn, [predict(torn, Oracle(torn), tmp_path)])
    rows = json.loads(as_json(table))
    assert rows["bounds"]["R@5"] <= 1 and rows["methods"][0]["RR low"] is None  # one picture
    told = next(csv.DictReader(as_csv(table).splitlines()))
    assert told["RR"] == "1" and told["RR low"] == "" and told["method"] == "oracle"
    assert "| RR | 1.000 |" in as_markdown(table)
