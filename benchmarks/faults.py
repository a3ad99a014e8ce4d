"""What happens to archives and run folders when processes are killed, disks fill up and files rot.

python -m benchmarks.faults [--only kill disk readonly damage] [--what archive run] [--count 100] [--seed 0]

kill      kill -9 at --count random moments of `solve`, `decide`, `archive add`, `joins` and `remove`, then the same
          command again: the result must be that of an undisturbed one, and what was told of must be there
disk      a disk (tmpfs; without root a limit on the size of files) with room for a part only, at --count sizes from
          nothing to enough; then room, and the same command again
readonly  a folder that may only be read: commands that read must answer as ever, the others say what is wrong
damage    every file of a folder, one at a time, emptied, cut in half, and twice with one bit flipped; --count cases
          drawn from all of them for each command, 0 for all. Then what mends it, and the same command again

Commands are those of the command line, each in a process of its own that is forked from this one, so that what is
killed is the work and not the loading of libraries. Columns:

equal     the result is that of an undisturbed command, whether or not something had to be repaired
named     it ended with a message that names a file, or what to add again, and a next step
unnamed, trace, hang, wrong, lost must be empty: another message; a traceback, or death by a signal; more than 300 s;
          another result without a word; something that was told of is gone
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pairingnet.archive.catalogue import Catalogue
from pairingnet.archive.store import Store
from pairingnet.errors import PairingNetError
from pairingnet.io.files import read_checked_lines
from pairingnet.match.pair import match_pair
from pairingnet.prepare.files import read_fragment

SAMPLE = Path(__file__).parent.parent / "examples" / "sample"
_LIMIT_S = 300.0
_COLUMNS = ("equal", "named", "unnamed", "trace", "hang", "wrong", "lost")
_GOOD = frozenset(("equal", "named"))
_SINCE = ("--since", "2000-01-01", "--most", "1000")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(_FAULTS), choices=list(_FAULTS))
    parser.add_argument("--what", nargs="+", default=["archive", "run"], choices=["archive", "run"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pieces", type=int, default=6, help="of the sample, that are worked on")
    given = parser.parse_args()
    torch.set_num_threads(1)
    # What is loaded and compiled here is there in every child.
    match_pair(read_fragment(SAMPLE / "piece-01.jpg"), read_fragment(SAMPLE / "piece-02.jpg"))
    table = Table()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for what in given.what:
                subject = {"archive": archive_subject, "run": run_subject}[what](Path(scratch) / what, given.pieces)
                for fault in given.only:
                    _FAULTS[fault](subject, table, given.count, np.random.default_rng(given.seed))
    finally:
        print(table, flush=True)  # also of what was stopped early


@dataclass
class Table:
    """How often each fault of each command ended how."""

    rows: dict[str, Counter[str]] = field(default_factory=dict)

    def note(self, row: str, outcome: str, case: str, told: str = "") -> None:
        self.rows.setdefault(row, Counter())[outcome] += 1
        print(f"\r{row}: {sum(self.rows[row].values())}   ", end="", file=sys.stderr, flush=True)
        if outcome not in _GOOD:
            print(f"\n{outcome}: {row}: {case}\n{told[-2000:]}", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        width = max(map(len, self.rows), default=0)
        lines = [f"{'':{width}}  tried  " + "  ".join(f"{name:>7}" for name in _COLUMNS)]
        for name, counts in self.rows.items():
            cells = "  ".join(f"{counts[column] or '':>7}" for column in _COLUMNS)
            lines.append(f"{name:{width}}  {sum(counts.values()):>5}  {cells}")
        return "\n".join(lines)


# Commands


@dataclass(frozen=True)
class Command:
    """A command on a folder: its words, what counts of its result (of the folder after it, and what it printed), a word
    in the message by which it says that it was done before, and what of its output is safe from the moment it is
    printed, given the folder: whatever is lost of that."""

    name: str
    words: Callable[[Path], Sequence[str | Path]]
    result: Callable[[Path, str], Any]
    reads_only: bool = False
    done_before: str = "\0"
    lost: Callable[[Path, str], Sequence[str]] = lambda _folder, _out: ()
    mend: tuple[str, ...] = ()  # keys of the commands that mend what it refuses


@dataclass(frozen=True)
class Subject:
    """Commands, each with the folder that it starts from (None: nothing is there yet); `place` is where all are done,
    because paths stand in some files; `whole` is the folder whose files are damaged."""

    place: Path
    whole: Path
    commands: Mapping[str, tuple[Command, Path | None]]
    disturbed: tuple[str, ...]  # the commands that are killed, or find no room
    damaged: tuple[str, ...]  # those that are tried on damaged files


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (minus the signal's number), whether it was still running when it was killed
    on purpose or at the limit, and what it printed."""

    status: int
    killed: bool
    hung: bool
    out: str
    err: str
    seconds: float

    def outcome(self, folder: Path) -> str:
        """What its end alone tells; "" where its result has to be looked at."""
        if self.hung:
            return "hang"
        if self.status not in (0, 1, 2) or "Traceback (most recent call last)" in self.err:
            return "trace"
        if self.status == 0:
            return ""
        says = "pairingnet: " in self.err or "left out:" in self.err
        return "named" if says and str(folder.parent) in self.err else "unnamed"


def run(
    words: Sequence[str | Path],
    kill_after_s: float | None = None,
    before: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command in a child, which may be killed after a while."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _be_the_command([str(word) for word in words], out, err, before)
        killed = hung = False
        end = began + (_LIMIT_S if kill_after_s is None else kill_after_s)
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() >= end:
                os.kill(child, signal.SIGKILL)  # it is not waited for yet, so the number is still its own
                ended = os.waitpid(child, 0)
                killed, hung = kill_after_s is not None, kill_after_s is None
                break
            time.sleep(0.002)
        status = os.waitstatus_to_exitcode(ended[1])
        seconds = time.monotonic() - began
        told, said = (path.read_text(errors="replace") if path.exists() else "" for path in (out, err))
        return Ended(status, killed and status < 0, hung, told, said, seconds)


def _be_the_command(words: list[str], out: Path, err: Path, before: Callable[[], None]) -> None:
    """In the child: never returns."""
    status = 70
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        sys.argv = ["pairingnet", *words]
        before()
        from pairingnet.cli import main as command_line

        command_line()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


# What is tried


def archive_subject(scratch: Path, pieces: int) -> Subject:
    """Archives: empty, with fragments, and with their joins."""
    scans, place, asked = _scans(scratch, pieces), scratch / "place", SAMPLE / "piece-01.jpg"
    empty, filled, whole = (scratch / name for name in ("empty", "filled", "whole"))
    _must("archive", "init", place, "--step", "6")
    _copy(place, empty)
    _must("archive", "add", place, scans)
    _copy(place, filled)
    _must("archive", "joins", place)
    _copy(place, whole)
    gone = [path.stem for path in sorted(scans.iterdir())[1::3]]

    def state(folder: Path, _: str = "") -> Any:
        """Fragments with their marks, and the joins."""
        catalogue = Catalogue(folder)
        try:
            joins = [[m.source, m.target, m.score] for m in catalogue.joins()]
            return sorted([entry.id, entry.place.mark] for entry in catalogue.entries()), sorted(joins)
        finally:
            catalogue.close()

    def unsafe(folder: Path, out: str) -> list[str]:
        """Fragments that were told of, and are not there whole."""
        catalogue = Catalogue(folder)
        try:
            store = Store(folder / "segments", int(catalogue.facts()["width"]))
            there = {entry.id for entry in catalogue.entries() if store.is_whole(entry.place)}
        finally:
            catalogue.close()
        names = {path.stem for path in scans.iterdir()}
        return [line for line in out.split("\n")[:-1] if line in names and line not in there]

    heal = ("check", "add", "joins")
    commands = {
        "add": (Command("archive add", lambda f: ("archive", "add", f, scans, "--each"), state, lost=unsafe), empty),
        "joins": (
            Command("archive joins", lambda f: ("archive", "joins", f, "--json", *_SINCE), _joins_told, mend=heal),
            filled,
        ),
        "remove": (
            Command("archive remove", lambda f: ("archive", "remove", f, *gone), state, done_before="no fragment"),
            whole,
        ),
        "search": (
            Command(
                "archive search", lambda f: ("archive", "search", f, asked, "--json"), _joins_told, True, mend=heal
            ),
            whole,
        ),
        "check": (Command("archive check", lambda f: ("archive", "check", f), state, mend=heal), whole),
        "add again": (Command("archive add", lambda f: ("archive", "add", f, scans), state, mend=heal), whole),
    }
    return Subject(
        place, whole, commands, ("add", "joins", "remove"), ("search", "joins", "check", "add again", "remove")
    )


def run_subject(scratch: Path, pieces: int) -> Subject:
    """Run folders: none, one that is solved, and one with a decision."""
    scans, place = _scans(scratch, pieces), scratch / "place"
    whole = scratch / "whole"
    _must("solve", scans, place, "--jobs", "1")
    joins = sorted(json.loads((place / "matches.json").read_text())["matches"], key=lambda join: -join["probability"])
    first, last = ([join["source"], join["target"]] for join in (joins[0], joins[-1]))
    _must("decide", place, "accept", *first, "--who", "tester")
    _copy(place, whole)

    def lost(folder: Path, _: str) -> list[str]:
        """The decision that was made before."""
        kept = (folder / "decisions.jsonl").read_text(errors="replace")
        return [] if any(all(name in line for name in first) for line in kept.split("\n")) else [" ".join(first)]

    heal = ("solve",)
    commands = {
        "solve": (Command("solve", lambda f: ("solve", scans, f, "--jobs", "1"), _run_state), None),
        "decide": (
            Command(
                "decide",
                lambda f: ("decide", f, "reject", *last, "--who", "tester"),
                _run_state,
                lost=lost,
                mend=(*heal, "decide"),
            ),
            whole,
        ),
        "search": (
            Command("search", lambda f: ("search", f, first[0], "--json"), _joins_told, True, mend=heal),
            whole,
        ),
        "export": (
            Command("export", lambda f: ("export", f, "-f", "csv", "-f", "json"), _exported, mend=heal),
            whole,
        ),
        "solve again": (Command("solve", lambda f: ("solve", scans, f, "--jobs", "1"), _run_state, mend=heal), whole),
    }
    return Subject(place, whole, commands, ("solve", "decide"), ("solve again", "decide", "search", "export"))


def _joins_told(_: Path, out: str) -> Any:
    return json.loads(out)["joins"]


def _run_state(folder: Path, _: str = "") -> Any:
    """What a run says: joins, groups, the pictures of the groups and the report."""
    told: dict[str, Any] = {}
    for name in ("matches.json", "assembly.json"):
        told[name] = {key: value for key, value in json.loads((folder / name).read_text()).items() if key != "checksum"}
    joins = read_checked_lines(folder / "joins.jsonl", checked=False).entries
    told["joins.jsonl"] = sorted({json.dumps(join, sort_keys=True) for join in joins})
    for path in sorted([*folder.glob("groups/*"), folder / "report.html"]):
        if path.is_file() and not path.name.startswith("."):
            told[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return told


def _exported(folder: Path, _: str) -> Any:
    return {path.name: path.read_text() for path in sorted((folder / "export").iterdir())}


def _scans(scratch: Path, pieces: int) -> Path:
    """Pieces of one picture, so that there are joins."""
    truth = json.loads((SAMPLE / "truth.json").read_text())["fragments"]
    pictures = Counter(entry["picture"] for entry in truth)
    most = pictures.most_common(1)[0][0]
    scans = scratch / "scans"
    scans.mkdir(parents=True)
    for entry in [each for each in truth if each["picture"] == most][:pieces]:
        shutil.copy2(SAMPLE / Path(entry["file"]).name, scans)
    return scans


def _must(*words: str | Path) -> None:
    ended = run(words)
    if ended.status != 0:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{ended.err}")


def _copy(source: Path | None, place: Path) -> None:
    """The folder, fresh; nothing at all for None."""
    shutil.rmtree(place, ignore_errors=True)
    if source is not None:
        shutil.copytree(source, place, symlinks=True)


# Faults


def kills(subject: Subject, table: Table, count: int, rng: np.random.Generator) -> None:
    """Kill each command that writes at random moments, then run it again."""
    for command, start in map(subject.commands.__getitem__, subject.disturbed):
        row = f"kill {command.name}"
        expected, usual = _undisturbed(subject, command, start)
        tried = 0
        while tried < count:
            _copy(start, subject.place)
            moment = float(rng.uniform(0, usual.seconds))
            ended = run(command.words(subject.place), kill_after_s=moment)
            if not ended.killed:
                continue  # it was done before
            tried += 1
            case = f"at {moment:.3f} s"
            if start is not None:
                lost = _lost(command, subject.place, ended.out)
                if lost:
                    table.note(row, "lost", case, str(lost))
                    continue
            again = run(command.words(subject.place))
            _judge(table, row, case, subject, command, again, expected)


def full_disks(subject: Subject, table: Table, count: int, rng: np.random.Generator) -> None:
    """Let each command run out of room at several points, then give it room."""
    del rng
    for command, start in map(subject.commands.__getitem__, subject.disturbed):
        expected, _ = _undisturbed(subject, command, start)
        needed, had = _bytes_in(subject.place), 0 if start is None else _bytes_in(start)
        for number in range(count):
            room = had + (needed - had) * number // max(1, count - 1)
            with _little_room(subject.place, start, room) as (kind, limit, more):
                row = f"{kind} {command.name}"
                ended = run(command.words(subject.place), before=limit)
                first = ended.outcome(subject.place)
                if first not in ("", "named"):
                    table.note(row, first, f"{room} bytes", ended.err)
                    continue
                lost = _lost(command, subject.place, ended.out) if start else []
                if lost:
                    table.note(row, "lost", f"{room} bytes", str(lost))
                    continue
                more()
                again = run(command.words(subject.place))
                # What the first said is counted; what the second leaves behind must be right.
                outcome, told = _outcome(subject.place, command, again, expected)
                table.note(row, "named" if first and outcome == "equal" else outcome, f"{room} bytes, again", told)


def read_only(subject: Subject, table: Table, count: int, rng: np.random.Generator) -> None:
    """Every command on a folder without permission to write."""
    del count, rng
    for command, start in subject.commands.values():
        expected, _ = _undisturbed(subject, command, start)
        _copy(start, subject.place)
        subject.place.mkdir(exist_ok=True)
        _permit(subject.place, False)
        try:
            ended = run(command.words(subject.place), before=_no_more_than_others)
            case = "read-only"
            if command.reads_only:
                _judge(table, f"read-only {command.name}", case, subject, command, ended, expected)
            else:
                table.note(
                    f"read-only {command.name}", ended.outcome(subject.place) or "equal", case, ended.out + ended.err
                )
        finally:
            _permit(subject.place, True)


def damage(subject: Subject, table: Table, count: int, rng: np.random.Generator) -> None:
    """Each file damaged, then each command; then what mends it, and the same command again."""
    for key in subject.damaged:
        command = subject.commands[key][0]
        expected, _ = _undisturbed(subject, command, subject.whole)
        files = sorted(path.relative_to(subject.whole) for path in subject.whole.rglob("*") if path.is_file())
        cases = [(path, how) for path in files for how in ("emptied", "cut in half", "a flipped bit", "another one")]
        if count and count < len(cases):
            cases = [cases[i] for i in np.sort(rng.choice(len(cases), count, replace=False))]
        for path, how in cases:
            _copy(subject.whole, subject.place)
            if not _hurt(subject.place / path, how, rng):
                continue
            row, case = f"damage {command.name}", f"{path} {how}"
            ended = run(command.words(subject.place))
            outcome, told = _outcome(subject.place, command, ended, expected)
            table.note(row, outcome, case, told)
            if outcome == "named" and command.mend:
                for name in command.mend:
                    run(subject.commands[name][0].words(subject.place))
                again = run(command.words(subject.place))
                _judge(table, f"{row}, mended", case, subject, command, again, expected)


_FAULTS: dict[str, Callable[[Subject, Table, int, np.random.Generator], None]] = {
    "kill": kills,
    "disk": full_disks,
    "readonly": read_only,
    "damage": damage,
}


def _undisturbed(subject: Subject, command: Command, start: Path | None) -> tuple[Any, Ended]:
    """The result of a command to which nothing happens, and how it ended; its second run is the one that is timed."""
    for _ in range(2):
        _copy(start, subject.place)
        ended = run(command.words(subject.place))
        if ended.status != 0:
            raise SystemExit(f"{command.name} failed:\n{ended.err}")
    return command.result(subject.place, ended.out), ended


def _judge(table: Table, row: str, case: str, subject: Subject, command: Command, ended: Ended, expected: Any) -> None:
    table.note(row, *_swapped(case, _outcome(subject.place, command, ended, expected)))


def _swapped(case: str, found: tuple[str, str]) -> tuple[str, str, str]:
    return found[0], case, found[1]


def _outcome(folder: Path, command: Command, ended: Ended, expected: Any) -> tuple[str, str]:
    """How it ended, and what it said."""
    told = ended.out + ended.err
    first = ended.outcome(folder)
    if first and not (ended.status == 2 and command.done_before in ended.err):
        return first, told
    try:
        found = command.result(folder, ended.out)
    except PairingNetError as error:
        return "wrong", f"{told}{error}"
    except Exception:
        return "wrong", told + traceback.format_exc()
    return ("equal", "") if found == expected else ("wrong", f"{told}{_difference(found, expected)}")


def _difference(found: Any, expected: Any) -> str:
    if isinstance(found, dict) and isinstance(expected, dict):
        return f"differs in {[key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]}"
    return f"{str(found)[:500]}\n instead of\n{str(expected)[:500]}"


def _lost(command: Command, folder: Path, out: str) -> Sequence[str]:
    try:
        return command.lost(folder, out)
    except Exception:
        return [traceback.format_exc()]


def _hurt(path: Path, how: str, rng: np.random.Generator) -> bool:
    """Damage a file; whether there was anything to damage."""
    data = bytearray(path.read_bytes())
    if not data:
        return False
    if how == "emptied":
        data.clear()
    elif how == "cut in half":
        del data[len(data) // 2 :]
    else:
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)
    return True


def _bytes_in(folder: Path) -> int:
    """Room that a folder takes, in whole pages."""
    return sum(4096 + -(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*"))


@contextlib.contextmanager
def _little_room(
    place: Path, start: Path | None, room: int
) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """The folder where there is little room; what the faults are called, what the child has to do, and what gives more
    room."""
    _copy(None, place)
    place.parent.mkdir(exist_ok=True)
    place.mkdir()
    size = f"size={max(4096, room)}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", place], check=False, capture_output=True)
    try:
        if mounted.returncode == 0:
            kind, limit = "full disk", lambda: None

            def more() -> None:
                subprocess.run(["mount", "-o", "remount,size=2g", place], check=True)
        else:
            kind, limit = "file limit", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room // 4, room // 4))

            def more() -> None:
                return

        if start is not None:
            with contextlib.suppress(OSError):
                shutil.copytree(start, place, dirs_exist_ok=True)
        yield kind, limit, more
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", place], check=True)
        shutil.rmtree(place, ignore_errors=True)


def _permit(folder: Path, writing: bool) -> None:
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | 0o200 if writing else mode & ~0o222)


def _no_more_than_others() -> None:
    """Root gives up its right to write wherever it likes."""
    if os.geteuid() == 0:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3 of the interface, this process
        if ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)()):
            raise OSError("capset failed")


if __name__ == "__main__":
    main()
