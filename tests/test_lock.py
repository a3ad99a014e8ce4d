"""One writer per folder, whatever processes and threads there are, and however they end."""

from __future__ import annotations

import os
import platform
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pairingnet.errors import CollectionError
from pairingnet.io.lock import LOCK, LOCK_FILES, NOTE, holder_of, one_writer

_LIMIT_S = 60
_HOLD = (
    "import sys; from pathlib import Path; from pairingnet.io.lock import one_writer\n"
    "with one_writer(Path(sys.argv[1]), 'solve'):\n"
    "    print('held', flush=True); sys.stdin.read()\n"
)


@contextmanager
def held_by_another_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", _HOLD, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        ends = threading.Timer(_LIMIT_S, child.kill)  # so that no read here waits for ever
        ends.start()
        try:
            assert child.stdout is not None and child.stdout.readline() == "held\n"
            yield child
        finally:
            ends.cancel()
            child.kill()


def test_the_second_is_refused_with_who_holds_it(tmp_path: Path) -> None:
    with held_by_another_process(tmp_path) as child:
        heard: list[str] = []
        with pytest.raises(CollectionError) as refused, one_writer(tmp_path, "decide", 0.3, heard.append):
            pytest.fail("two writers")
        for told in (str(refused.value), *heard):
            assert f"'solve' (process {child.pid} on {platform.node()}, since 20" in told and str(tmp_path) in told
        assert len(heard) == 1 and "waiting" in heard[0]
        assert "again when it is done" in refused.value.next_step


@pytest.mark.parametrize("end", ["as it should", "killed"])
def test_who_waits_goes_on_when_the_first_has_ended(tmp_path: Path, end: str) -> None:
    with held_by_another_process(tmp_path) as child:

        def told(_: str) -> None:
            assert child.stdin is not None
            child.kill() if end == "killed" else child.stdin.close()

        with one_writer(tmp_path, "decide", _LIMIT_S, told):
            holder = holder_of(tmp_path)
            assert holder is not None and (holder.doing, holder.process) == ("decide", os.getpid())
    assert holder_of(tmp_path) is None


def test_what_a_killed_process_left_is_taken_over_at_once(tmp_path: Path) -> None:
    with held_by_another_process(tmp_path) as child:
        child.kill()
        child.wait(_LIMIT_S)
    assert holder_of(tmp_path) is not None  # its note is still there
    with one_writer(tmp_path, "decide", 0):
        pass


def test_two_threads_are_two_writers_and_one_is_not(tmp_path: Path) -> None:
    refused: list[CollectionError] = []

    def second() -> None:
        try:
            with one_writer(tmp_path, "second", 0):
                pass
        except CollectionError as error:
            refused.append(error)

    with one_writer(tmp_path, "first", 0), one_writer(tmp_path / "." / "x" / "..", "first", 0):
        for _ in range(2):  # the inner one does not give it back
            thread = threading.Thread(target=second)
            thread.start()
            thread.join(_LIMIT_S)
    assert [f"process {os.getpid()}" in str(error) for error in refused] == [True, True]
    second()
    assert len(refused) == 2


def test_threads_take_turns(tmp_path: Path) -> None:
    inside, most = [0], [0]

    def work() -> None:
        with one_writer(tmp_path, "work", _LIMIT_S):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            (tmp_path / "count").open("a").close()
            inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(_LIMIT_S)
    assert most == [1] and not any(each.is_alive() for each in threads)


def test_it_ends_with_an_error_and_leaves_nothing_to_stumble_over(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of its own"), one_writer(tmp_path / "new" / "run", "solve"):
        raise ValueError("of its own")
    assert {path.name for path in (tmp_path / "new" / "run").iterdir()} <= LOCK_FILES
    with one_writer(tmp_path / "new" / "run", "solve", 0):
        pass


def test_only_its_two_files_lie_there(tmp_path: Path) -> None:
    with one_writer(tmp_path, "solve"):
        assert {path.name for path in tmp_path.iterdir()} == LOCK_FILES


def test_a_note_of_somebody_elses_making_is_only_text(tmp_path: Path) -> None:
    with held_by_another_process(tmp_path):
        for note in ("", "[1]", "{}", '{"doing": "\\u001b[31mred", "process": 1, "machine": "m", "since": "s"}'):
            (tmp_path / NOTE).write_text(note)
            with pytest.raises(CollectionError) as refused, one_writer(tmp_path, "decide", 0):
                pass
            assert re.search(r"Another process|'\?\[31mred'", str(refused.value)) and "\x1b" not in str(refused.value)


def test_where_nothing_can_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(CollectionError, match="cannot be written to"), one_writer(tmp_path / "file", "solve"):
        pass
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / LOCK).write_bytes(b"no database at all" * 100)
    with pytest.raises(CollectionError, match="Delete it"), one_writer(tmp_path / "broken", "solve"):
        pass


@pytest.mark.parametrize("before", ["never written to", "written to"])
def test_a_read_only_folder_is_said(tmp_path: Path, before: str) -> None:
    if before == "written to":
        with one_writer(tmp_path, "solve"):
            pass
        (tmp_path / LOCK).chmod(stat.S_IRUSR)
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("permissions do not bind this user")
        with pytest.raises(CollectionError, match="permissions"), one_writer(tmp_path, "solve"):
            pass
    finally:
        tmp_path.chmod(stat.S_IRWXU)
