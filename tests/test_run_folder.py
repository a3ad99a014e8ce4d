"""A run folder that lives on: scans are removed, renamed, left out; people decide; others want to write."""

from __future__ import annotations

import json
import shutil
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pairingnet
from pairingnet.cli import app
from pairingnet.config import PrepareSettings
from pairingnet.errors import CollectionError
from pairingnet.io.decisions import decision_now
from pairingnet.io.lock import one_writer
from pairingnet.io.run import read_matches
from pairingnet.pipeline import decide, joins_of, read_run
from pairingnet.prepare.collect import PrepareJob, prepare_collection
from tests.sample import SAMPLE, pieces_of

NAMES = pieces_of("spices")[:6]


def copied(names: list[str], folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        shutil.copy(SAMPLE / f"{name}.jpg", folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lives")
    pairingnet.solve(copied(NAMES, folder / "scans"), folder / "run", jobs=1)
    return folder


@pytest.fixture
def scans(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "scans", tmp_path / "scans")


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "run", tmp_path / "run")


def told(*words: object, code: int = 0) -> str:
    """What a command prints."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(done.exception, Exception) and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


def surest(run: Path) -> tuple[str, str]:
    best = read_matches(run / "matches.json")[0]
    return best.source, best.target


def test_a_scan_that_is_gone_leaves_nothing_behind(scans: Path, run: Path) -> None:
    gone, left = NAMES[-1], NAMES[0]
    (scans / f"{gone}.jpg").unlink()
    pairingnet.solve(scans, run, jobs=1)
    assert gone not in told("search", run, left) and gone not in (run / "joins.jsonl").read_text()
    assert "changed" in told("decide", run, "reject", *surest(run))
    with pytest.raises(CollectionError, match=gone):
        told("search", run, gone)


def test_a_scan_that_is_renamed_keeps_its_decisions(scans: Path, run: Path) -> None:
    source, target = surest(run)
    decide(run, "reject", source, target, "Ada")
    (scans / f"{source}.jpg").rename(scans / "other name.jpg")
    after = pairingnet.solve(scans, run, jobs=1)
    assert after.decisions.rejected == {frozenset(("other name", target))}
    held = {join.pair for group in after.assembly.groups for join in group.joins}
    assert frozenset(("other name", target)) not in held


def test_pieces_can_be_left_out_and_taken_back(scans: Path, run: Path, made: Path) -> None:
    name = NAMES[2]
    told("solve", scans, run, "--jobs", 1, "--exclude", "piece-*", "--include", "piece-[0-9]*")
    told("solve", scans, run, "--jobs", 1, "--exclude", name)
    assert name not in read_run(run).collection.by_id
    assert f"{name} was left out: excluded" in told("solve", scans, run, "--jobs", 1)  # it is remembered, and said
    assert name in (run / "report.html").read_text()
    told("solve", scans, run, "--jobs", 1, "--include", name)
    for result in ("matches.json", "assembly.json", "joins.jsonl"):
        assert (run / result).read_bytes() == (made / "run" / result).read_bytes()


def test_a_prepared_folder_is_gone_on_from(scans: Path, tmp_path: Path) -> None:
    """Its pieces are the scans: no overlays, no contact sheet, none that was excluded."""
    settings = PrepareSettings()
    prepare_collection(scans, tmp_path / "prepared", PrepareJob(settings, (NAMES[1],)))
    found = pairingnet.solve(tmp_path / "prepared", tmp_path / "run", jobs=1)
    assert set(found.collection.by_id) == set(NAMES) - {NAMES[1]}


def test_other_scans_do_not_replace_a_run(run: Path, tmp_path: Path) -> None:
    before = (run / "matches.json").read_bytes()
    others = copied(pieces_of("casa-mila")[:3], tmp_path / "others")
    with pytest.raises(CollectionError, match="other scans"):
        pairingnet.solve(others, run, jobs=1)
    assert (run / "matches.json").read_bytes() == before
    renamed = tmp_path / "renamed"  # the same scans, all under new names, are no others
    renamed.mkdir()
    for name in NAMES:
        shutil.copy(SAMPLE / f"{name}.jpg", renamed / f"new {name}.jpg")
    assert pairingnet.solve(renamed, run, jobs=1).news
    with pytest.raises(pairingnet.PairingNetError, match="nope"):
        pairingnet.solve(tmp_path / "nope", tmp_path / "nope-joined", jobs=1)
    assert not (tmp_path / "nope-joined").exists()


def test_decisions_are_seen_everywhere(scans: Path, run: Path) -> None:
    source, target = surest(run)
    sure = json.loads(told("solve", scans, run, "--jobs", 1, "--json"))["sure_joins"]
    said = told("decide", run, "reject", source, target, "--who", "Ada")
    assert "groups of" in said or "alone now" in said or "changed" in said
    line = next(line for line in told("search", run, source).splitlines() if target in line)
    assert "rejected by Ada" in line
    after = read_run(run)
    assert json.loads(told("search", run, source, "--json"))["joins"]
    assert (
        f"rejected by a person (Ada, {after.decisions.words[frozenset((source, target))][5:15]}"
        in (run / "report.html").read_text()
    )
    assert json.loads(told("solve", scans, run, "--jobs", 1, "--json"))["sure_joins"] < sure
    told("decide", run, "clear", source, target)
    stamp = (run / "report.html").stat().st_mtime_ns
    assert "nothing had been said" in told("decide", run, "clear", source, target)
    assert (run / "report.html").stat().st_mtime_ns == stamp


def test_an_unlikely_join_is_accepted_with_a_word(run: Path) -> None:
    unlikely = [
        join
        for name in NAMES
        for join in joins_of(run, read_run(run).collection, name).values()
        if join.target_from_source is not None and join.probability < 0.3
    ]
    assert unlikely, "these pieces no longer serve: all their joins are likely"
    assert "unlikely" in told("decide", run, "accept", unlikely[0].source, unlikely[0].target)


def test_one_writer_at_a_time(scans: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        with one_writer(run, "pairingnet solve"):
            ready.set()
            done.wait(30)

    other = threading.Thread(target=hold)
    other.start()
    ready.wait(30)
    monkeypatch.setattr("pairingnet.pipeline.one_writer", lambda *a, **k: one_writer(*a, **{**k, "wait_s": 0.3}))
    try:
        for ask in (partial(pairingnet.solve, scans, run, jobs=1), partial(decide, run, "reject", *surest(run))):
            with pytest.raises(CollectionError, match="pairingnet solve"):
                ask(told=heard.append)
    finally:
        done.set()
        other.join(30)
    assert len(heard) == 2 and "waiting" in heard[0]
    assert not (run / "decisions.jsonl").exists()
    decided = pairingnet.solve(scans, run, jobs=1, said=[decision_now("exclude", NAMES[0])])
    assert NAMES[0] not in decided.collection.by_id  # the lock is free again


def test_what_is_noted_is_what_was_seen(run: Path) -> None:
    source, target = surest(run)
    decide(run, "accept", source, target, "Ada")
    line = json.loads((run / "decisions.jsonl").read_text())
    seen = read_matches(run / "matches.json")[0].target_from_source
    assert seen is not None and np.abs(np.array(line["target_from_source"]) - seen.matrix).max() < 0.01
    assert len(line["fingerprints"]) == 2 and line["who"] == "Ada" and line["checksum"]
