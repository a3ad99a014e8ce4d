"""What is started for one command is not open to others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A Ray of its own runs a job; then: which addresses do this process and its children listen at, and who may come in.
_SCRIPT = """
import os
from tests.test_closed import listening_at
from tests.test_engine import square
from pairingnet.engine.ray import RayEngine
assert RayEngine().run(square, [3], "", lambda _: None) == [9]
print(os.environ["RAY_AUTH_MODE"], len(os.environ["RAY_AUTH_TOKEN"]), *listening_at(os.getpid()))
"""


@pytest.mark.cluster
def test_ray_for_one_command_listens_on_this_machine_alone(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra 'cluster'")
    if not Path("/proc/net/tcp").exists():
        pytest.skip("looks into /proc")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    words = [sys.executable, "-c", _SCRIPT]
    told = subprocess.run(
        words, env={**environment, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=200, check=False
    )
    assert told.returncode == 0, told.stderr
    mode, length, *addresses = told.stdout.split()
    assert mode == "token" and int(length) >= 32 and not (tmp_path / ".ray").exists()
    assert len(addresses) >= 3 and set(addresses) == {"loopback"}


def test_milvus_in_a_file_listens_on_this_machine_alone(tmp_path: Path) -> None:
    pytest.importorskip("pymilvus", reason="needs the extra 'milvus'")
    pytest.importorskip("milvus_lite", reason="needs the extra 'milvus'")
    if not Path("/proc/net/tcp").exists():
        pytest.skip("looks into /proc")
    import numpy as np

    from pairingnet.search.milvus import MilvusIndex

    index = MilvusIndex(str(tmp_path / "a.db"), "keys", 16, lambda ids: np.zeros((len(ids), 16), np.float32))
    try:
        assert set(listening_at(os.getpid())) == {"loopback"}
    finally:
        index.close()


def listening_at(process: int) -> list[str]:
    """For each TCP port at which a process and its descendants listen: "loopback", or the address in /proc."""
    family, sockets = {process}, dict[str, str]()
    parents = {int(path.name): _parent(path) for path in Path("/proc").glob("[0-9]*")}
    while len(family) != len(family := family | {child for child, parent in parents.items() if parent in family}):
        pass
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:] if Path(table).exists() else ():
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A":
                sockets[inode] = _meaning(local.partition(":")[0])
    found = []
    for each in family:
        for number in Path(f"/proc/{each}/fd").glob("*"):
            try:
                held = str(number.readlink())
            except OSError:
                continue  # it was closed meanwhile
            if held.startswith("socket:[") and held[8:-1] in sockets:
                found.append(sockets[held[8:-1]])
    return found


def _meaning(address: str) -> str:
    """Addresses stand there in words of 32 bits, each with its bytes turned round."""
    words = [
        bytes.fromhex(address[first : first + 8])[:: 1 if sys.byteorder == "big" else -1]
        for first in range(0, len(address), 8)
    ]
    plain = b"".join(words)
    is_v4 = len(plain) == 4 or plain[:12] == b"\0" * 10 + b"\xff\xff"
    return "loopback" if (plain[-4] == 127 if is_v4 else plain == b"\0" * 15 + b"\1") else address


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0
