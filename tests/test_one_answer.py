"""The same scans, weights and settings give the same bytes, however a run came about and whatever machine it ran on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import pairingnet
from pairingnet.io.run import read_assembly, read_matches
from pairingnet.pipeline import decide, read_run
from tests.sample import PICTURE_OF, SAMPLE

NAMES = [name for name, picture in PICTURE_OF.items() if picture == "spices"][:7] + ["piece-02"]
ANSWER = ("matches.json", "assembly.json", "joins.jsonl")
TIMEOUT_S = 240


def solve(scans: Path, out: Path, *options: str, **environment: str) -> Path:
    command = [sys.executable, "-m", "pairingnet", "solve", str(scans), str(out), *options]
    done = subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return out


def answer(run: Path) -> dict[str, bytes]:
    """What a run says; its joins as a set."""
    told = {name: (run / name).read_bytes() for name in ANSWER}
    told["joins.jsonl"] = b"\n".join(sorted(told["joins.jsonl"].splitlines()))
    return told


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answer") / "scans"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(SAMPLE / f"{name}.jpg", folder)
    return folder


@pytest.fixture(scope="module")
def at_once(scans: Path) -> Path:
    return solve(scans, scans.parent / "at-once", "--jobs", "1", OMP_NUM_THREADS="1")


@pytest.fixture
def copied(at_once: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the run, in which something is changed."""
    yield shutil.copytree(at_once, tmp_path / "copied")


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (("--jobs", "1"), {"OMP_NUM_THREADS": "2"}),
        (("--jobs", "1"), {"OMP_NUM_THREADS": "4", "PYTHONHASHSEED": "5"}),
        (("--jobs", "2"), {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}),
        pytest.param(("--engine", "ray"), {"OMP_NUM_THREADS": "1"}, marks=pytest.mark.cluster),
    ],
)
def test_threads_processes_and_engines_give_the_same_bytes(
    scans: Path, at_once: Path, tmp_path: Path, options: tuple[str, ...], environment: dict[str, str]
) -> None:
    if "ray" in options:
        pytest.importorskip("ray", reason="needs the extra 'cluster'")
    assert answer(solve(scans, tmp_path / "run", *options, **environment)) == answer(at_once)


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_other_vector_instructions_give_the_same_groups(
    scans: Path, at_once: Path, tmp_path: Path, capability: str
) -> None:
    """Networks, BLAS and numpy as on an older processor."""
    older = {"ATEN_CPU_CAPABILITY": capability, "OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "1"}
    other = solve(scans, tmp_path / "run", "--jobs", "1", **older)
    before, after = (read_matches(run / "matches.json") for run in (at_once, other))
    assert [m.pair for m in before if m.probability > 0.5] == [m.pair for m in after if m.probability > 0.5]
    known = {match.pair: match for match in after}
    for match in before:
        if match.probability > 0.5:
            one, two = match.target_from_source, known[match.pair].target_from_source
            assert one is not None and two is not None
            corners = [[0.0, 0.0], [500.0, 0.0], [0.0, 500.0]]
            assert np.abs(one.apply(corners) - two.apply(corners)).max() < 0.01
    groups = [[set(group.poses) for group in read_assembly(run / "assembly.json").groups] for run in (at_once, other)]
    assert groups[0] == groups[1]


def test_a_run_that_grew_is_one_that_was_made_at_once(at_once: Path, tmp_path: Path) -> None:
    """Scan by scan, in another order; with a scan that was another one for a while, and one that is gone in the end."""
    growing, run = tmp_path / "scans", tmp_path / "run"
    growing.mkdir()
    shutil.copy(SAMPLE / "piece-05.jpg", growing / f"{NAMES[0]}.jpg")
    for some in (NAMES[5:], NAMES[3:5], NAMES[:3], ["piece-07"]):
        before = answer(run) if run.exists() else None
        for name in some:
            shutil.copy(SAMPLE / f"{name}.jpg", growing)
        pairingnet.solve(growing, run, jobs=1)
        assert answer(run) != before
    (growing / "piece-07.jpg").unlink()
    pairingnet.solve(growing, run, jobs=1)
    assert answer(run) == answer(at_once)


@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
def test_an_interrupted_run_goes_on_to_the_same_answer(scans: Path, at_once: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "pairingnet", "solve", str(scans), str(run), "--jobs", "1"]
    for made, signal_of in (("features", signal.SIGINT), ("registered.jsonl", signal.SIGKILL)):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + TIMEOUT_S
        while not (run / made).exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal_of)
        process.wait(TIMEOUT_S)
    assert answer(solve(scans, run, "--jobs", "1")) == answer(at_once)


def test_time_stamps_say_nothing(scans: Path, at_once: Path, copied: Path) -> None:
    """A copied folder, a restored backup, a clock that went wrong: there is nothing to do."""
    for stamp in (4e9, 1e6):
        for path in copied.rglob("*"):
            os.utime(path, (stamp, stamp))
        assert not pairingnet.solve(scans, copied, jobs=1).news
        assert answer(copied) == answer(at_once)


def test_the_order_of_files_in_a_folder_says_nothing(
    scans: Path, at_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk, iterdir, listdir = os.walk, Path.iterdir, os.listdir

    def backwards(folder: Path) -> Iterator[Path]:
        return iter(sorted(iterdir(folder), reverse=True))

    monkeypatch.setattr(Path, "iterdir", backwards)
    monkeypatch.setattr(os, "listdir", lambda *a: sorted(listdir(*a), reverse=True))
    monkeypatch.setattr(os, "walk", lambda *a, **k: ((r, d[::-1], f[::-1]) for r, d, f in walk(*a, **k)))
    pairingnet.solve(scans, tmp_path / "run", jobs=1)
    assert answer(tmp_path / "run") == answer(at_once)


def _damage(path: Path, how: str) -> None:
    whole = path.read_bytes()
    place = len(whole) // 2
    path.write_bytes(whole[:place] + (b"" if how == "cut" else bytes([whole[place] ^ 4]) + whole[place + 1 :]))


KINDS = [
    "matches.json",
    "assembly.json",
    "joins.jsonl",
    "registered.jsonl",
    "statistics.safetensors",
    "scale.json",
    "report.html",
    "groups/group-01.png",
    f"features/{NAMES[0]}.safetensors",
    f"pieces/fragments/{NAMES[0]}.png",
    f"pieces/overlays/{NAMES[0]}.jpg",
    f"pieces/prepared/{NAMES[0]}/collection.json",
    "pieces/prepared/settings.json",
    "pieces/collection.json",
    "pieces/contact_sheet.jpg",
    "run/settings.json",
    "run/manifest.json",
]


def test_damaged_files_are_made_again(scans: Path, at_once: Path, copied: Path) -> None:
    """One after the other, cut off or with a flipped bit; and no file of a run is forgotten in the list."""
    there = {path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file()}
    kinds = {re.sub(r"piece-\d+|group-\d+", "*", name) for name in KINDS} | {"lock.sqlite"}
    assert {re.sub(r"piece-\d+|group-\d+", "*", name) for name in there} == kinds
    # One keeps a damaged line until that pair is asked for again, the others hold the name of the run's folder.
    others = ("registered.jsonl", "report.html", "run/manifest.json")
    for number, name in enumerate(KINDS):
        _damage(copied / name, ("cut", "flipped")[number % 2])
        pairingnet.solve(scans, copied, jobs=1)
        assert answer(copied) == answer(at_once), name
        assert name in others or (copied / name).read_bytes() == (at_once / name).read_bytes(), name


@pytest.mark.parametrize(
    "name", ["matches.json", "assembly.json", "joins.jsonl", "pieces/collection.json", "scale.json"]
)
def test_readers_name_a_damaged_file(copied: Path, name: str) -> None:
    """They cannot make it again, and never use it: search and export read the run, decide does at first."""
    _damage(copied / name, "flipped")
    for ask in (partial(read_run, copied), partial(decide, copied, "reject", NAMES[0], NAMES[1])):
        with pytest.raises(pairingnet.PairingNetError, match=f"{Path(name).name}.*solve"):
            ask()
    assert not (copied / "decisions.jsonl").exists()  # a decision that does nothing is not noted


def test_decisions_that_are_lost_are_missed(scans: Path, copied: Path) -> None:
    first, second = read_matches(copied / "matches.json")[:2]
    for match in (first, second):
        decide(copied, "reject", match.source, match.target, "Ada")
    path = copied / "decisions.jsonl"
    whole = path.read_bytes()
    for damaged in (b"", whole.splitlines(keepends=True)[0], whole[:-40], whole.replace(b"reject", b"accept", 1)):
        path.write_bytes(damaged)
        with pytest.raises(pairingnet.PairingNetError, match=r"decisions\.jsonl"):
            pairingnet.solve(scans, copied, jobs=1)
    path.write_bytes(whole)
    assert len(pairingnet.solve(scans, copied, jobs=1).decisions.rejected) == 2
    path.write_bytes(whole + b'{"when": "cut o')  # of a process that was killed, and never said that it was done
    assert len(pairingnet.solve(scans, copied, jobs=1).decisions.rejected) == 2
    third = read_matches(copied / "matches.json")[-1]
    decide(copied, "reject", third.source, third.target, "Ada")
    assert [json.loads(line).get("what") for line in path.read_text().splitlines() if line.endswith("}")] == [
        "reject"
    ] * 3
