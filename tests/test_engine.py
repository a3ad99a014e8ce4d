"""Wherever work runs, the results are the same and in the same order; what dies costs time only."""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pairingnet.engine.jobs import choose_engine, run_jobs
from pairingnet.errors import ImageError, SettingsError
from tests.conftest import PICTURES
from tests.helpers import wait_for
from tests.sample import SAMPLE, pieces_of


def square(number: int) -> int:
    return number * number


def square_or_die(folder: Path, number: int) -> int:
    """The process dies at 5, the first time."""
    if number == 5 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(number: int) -> int:
    raise ImageError(f"picture {number} is missing.", "Look for it.")


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_keep_their_order(jobs: int) -> None:
    heard: list[int] = []
    assert run_jobs(square, range(12), jobs, "squares", heard.append) == [n * n for n in range(12)]
    assert sorted(heard) == [n * n for n in range(12)]
    with pytest.raises(ImageError, match="is missing"):
        run_jobs(refuse, [1, 2, 3], jobs)
    assert run_jobs(square, [], jobs) == []


def test_a_killed_process_costs_no_result(tmp_path: Path) -> None:
    heard: list[int] = []
    results = run_jobs(partial(square_or_die, tmp_path), range(12), 2, "squares", heard.append)
    assert (tmp_path / "died").exists() and results == [n * n for n in range(12)]
    assert sorted(heard) == results  # each is told of once


def test_a_job_that_kills_every_process_is_given_up() -> None:
    with pytest.raises(Exception, match="terminated abruptly"):
        run_jobs(die, [1, 2], 2)


def test_engines_have_names() -> None:
    assert choose_engine("local", 3) == 3
    with pytest.raises(SettingsError, match="local, ray"):
        choose_engine("slurm", 1)


# A real cluster: two nodes on this machine, with a token of their own.


class Cluster:
    """Two Ray nodes; nothing but their own processes is ever killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nodes = folder, list[subprocess.Popen[bytes]]()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self.env = {
            **os.environ,
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._start("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}")
        self._start(f"--address={self.address}")

    def _start(self, *options: str) -> None:
        log = self.folder / f"node-{len(self.nodes)}.log"
        env = {name: value for name, value in self.env.items() if name != "RAY_ADDRESS"}
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--block"]
        with log.open("wb") as out:
            node = subprocess.Popen(
                [*command, "--object-store-memory=100000000", *options],
                env=env,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.nodes.append(node)
        wait_for(lambda: b"Ray runtime started" in log.read_bytes(), "a node")

    def workers(self, node: int) -> list[int]:
        """The processes of a node that run jobs: children of its raylet, each in a group of its own."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                name = path.read_bytes()
                parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
                of_node = os.getpgid(parent) == self.nodes[node].pid
            except (OSError, ValueError):
                continue  # it ended meanwhile
            if of_node and name.startswith((b"ray::_call", b"ray::_Process", b"ray::IDLE")):
                found.append(int(path.parent.name))
        return found

    def kill(self, node: int) -> None:
        os.killpg(self.nodes[node].pid, signal.SIGKILL)
        self.nodes[node].wait(timeout=60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray", reason="needs the extra 'cluster'")
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("finds the workers to kill in /proc")
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # a short path: its sockets must fit in 107 letters
    made = None
    try:
        made = Cluster(folder)
        yield made
    finally:
        for number in range(len(made.nodes) if made else 0):
            if made and made.nodes[number].poll() is None:
                made.kill(number)
        shutil.rmtree(folder, ignore_errors=True)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "pairingnet", *map(str, arguments)]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tearing_on_a_cluster_gives_the_same_bytes(cluster: Cluster, tmp_path: Path) -> None:
    options = ("--seed", 1, "--set", "longest=500", "--set", "h_min=60", "--set", "w_min=60", "--set", "d_min=40")
    for out, engine in (("here", "local"), ("there", "ray")):
        words = command("tear", PICTURES, tmp_path / out, "--engine", engine, *options)
        result = subprocess.run(words, env=cluster.env, capture_output=True, text=True, check=False, timeout=240)
        assert result.returncode == 0, result.stderr
    here, there = (tmp_path / name for name in ("here", "there"))
    files = sorted(path.relative_to(here) for path in here.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(there) for path in there.rglob("*") if path.is_file())
    assert all((here / name).read_bytes() == (there / name).read_bytes() for name in files)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_training_on_a_cluster_survives_a_killed_process(cluster: Cluster, tmp_path: Path) -> None:
    small = ("--set", "longest=500", "--set", "h_min=60", "--set", "w_min=60", "--set", "d_min=40")
    torn, here, there = (tmp_path / name for name in ("torn", "here", "there"))
    subprocess.run(command("tear", PICTURES, torn, "--seed", 1, *small), check=True, capture_output=True, timeout=240)
    training = ("--threads", 1, "--set", "batch=4", "--set", "steps=12", "--set", "layers=2")
    subprocess.run(command("train", "matching", torn, here, *training), check=True, capture_output=True, timeout=240)
    words = command("train", "on-ray", "--processes", 2, "--", "matching", torn, there, *training)
    running = subprocess.Popen(words, env=cluster.env, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (there / "log.jsonl").is_file() and steps_of(there), "the first steps")
    os.kill(cluster.workers(1)[0], signal.SIGKILL)
    _, errors = running.communicate(timeout=280)
    assert running.returncode == 0, errors
    assert [step for step, _ in steps_of(there)] == list(range(1, 13))
    # Sums over processes are rounded otherwise than sums within one; the first steps are the same all the same.
    for (_, found), (_, expected) in zip(steps_of(there)[:3], steps_of(here)[:3], strict=True):
        assert found == pytest.approx(expected, rel=1e-3)


def steps_of(folder: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_worker_and_a_node_are_killed_and_the_joins_are_the_same(cluster: Cluster, tmp_path: Path) -> None:
    scans = tmp_path / "scans"
    scans.mkdir()
    for name in (*pieces_of("spices"), *pieces_of("casa-mila")):
        shutil.copy(SAMPLE / f"{name}.jpg", scans)
    subprocess.run(
        command("solve", scans, tmp_path / "here", "--jobs", 1), check=True, capture_output=True, timeout=240
    )
    there = tmp_path / "there"
    running = subprocess.Popen(
        command("solve", scans, there, "--engine", "ray"), env=cluster.env, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: list(there.glob("pieces/fragments/*.png")) and cluster.workers(1), "the first fragments")
    os.kill(cluster.workers(1)[0], signal.SIGKILL)
    wait_for((there / "joins.jsonl").is_file, "the first joins")
    cluster.kill(1)
    _, errors = running.communicate(timeout=280)
    assert running.returncode == 0, errors
    for name in ("matches.json", "assembly.json"):
        assert (there / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def threads_of_torch(_: int) -> tuple[int, str]:
    import torch

    return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]


def test_processes_use_one_thread_each_and_this_one_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert run_jobs(threads_of_torch, range(2), 2) == [(1, "1"), (1, "1")]
    assert os.environ["OMP_NUM_THREADS"] == "2"


GUARDED = """
from pairingnet.engine.jobs import run_jobs
def negative(number):
    return -number
if __name__ == "__main__":
    print(run_jobs(negative, [1, 2, 3], 2))
"""
UNGUARDED = """
from pairingnet.engine.jobs import run_jobs
print("begun")
print(run_jobs(abs, [-1, -2, -3], 2))
"""


@pytest.mark.parametrize(
    ("script", "piped", "says"),
    [
        (UNGUARDED, False, "begun\n[1, 2, 3]\n"),
        (UNGUARDED, True, "begun\n[1, 2, 3]\n"),
        (GUARDED, False, "[-1, -2, -3]\n"),  # a job that only the script knows
    ],
)
def test_a_script_is_not_run_again_by_its_processes(script: str, piped: bool, says: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(script, encoding="utf-8")
    words = [sys.executable, "-"] if piped else [sys.executable, str(path)]
    told = subprocess.run(words, input=script if piped else "", capture_output=True, text=True, check=False, timeout=60)
    assert (told.returncode, told.stdout, told.stderr) == (0, says, "")


@pytest.mark.slow
def test_a_script_solves_without_a_guard(tmp_path: Path) -> None:
    scans = tmp_path / "scans"
    scans.mkdir()
    for name in pieces_of("spices")[:3]:
        shutil.copy(SAMPLE / f"{name}.jpg", scans)
    script = f"import pairingnet\nprint(len(pairingnet.solve({str(scans)!r}, {str(tmp_path / 'run')!r}).collection))\n"
    words = [sys.executable, "-"]
    told = subprocess.run(words, input=script, capture_output=True, text=True, check=False, timeout=120)
    assert told.returncode == 0 and told.stdout == "3\n", told.stderr[-2000:]


def run_squares_here(numbers: range) -> list[int]:
    return run_jobs(square, numbers, 2)


def test_a_worker_of_somebody_elses_pool_works_alone() -> None:
    """It may not start processes."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(run_squares_here, (range(4),)).get(timeout=60) == [0, 1, 4, 9]
