"""Stored files: whole or not there, and never damaged without a word."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pairingnet.errors import CollectionError, DamagedFileError
from pairingnet.io.files import (
    append_lines,
    as_checked_line,
    read_checked_lines,
    read_json,
    write_json,
    write_whole,
)

CONTENT: dict[str, Any] = {
    "version": 1,
    "nothing": [],
    "name": "größe \U0001f600 \u2028",
    "joins": [{"b": 0.1 + 0.2, "a": [1e-300, -0.0, 3]}, {"b": None, "a": True}],
    "settings": {"z": {"1": 2}, "a": 1e22},
}


@pytest.mark.parametrize("checked", [True, False])
def test_what_was_written_is_read(tmp_path: Path, checked: bool) -> None:
    write_json(tmp_path / "a.json", CONTENT, checked)
    assert read_json(tmp_path / "a.json") == CONTENT and list(read_json(tmp_path / "a.json")) == list(CONTENT)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert text.startswith('{\n "checksum": "') == checked
    (tmp_path / "other.json").write_text(json.dumps(json.loads(text), indent=4, ensure_ascii=False), encoding="utf-8")
    assert read_json(tmp_path / "other.json", checked=checked) == CONTENT  # another program wrote the same down


def test_what_python_writes_differently_is_the_same_to_it(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"pairs": [(1, 2.0)], "of": {3: float("nan")}}, checked=True)
    told = read_json(tmp_path / "a.json")
    assert told["pairs"] == [[1, 2.0]] and math.isnan(told["of"]["3"])


def test_a_flipped_bit_in_any_byte_and_any_missing_end_is_noticed(tmp_path: Path) -> None:
    """What is not noticed must be the same content."""
    path = tmp_path / "a.json"
    write_json(path, CONTENT, checked=True)
    data = path.read_bytes()
    damaged = [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data))]
    noticed = 0
    for each in (*damaged, *(data[:length] for length in range(len(data)))):
        path.write_bytes(each)
        try:
            assert json.dumps(read_json(path, checked=True)) == json.dumps(CONTENT)
        except DamagedFileError as error:
            assert str(path) in error.problem and error.next_step
            noticed += 1
    assert noticed > 0.95 * 2 * len(data)


def test_what_is_no_object_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text in (b"", b"\0" * 500, b"[1]", b"null", b"\xff\xfe{", b"[" * 100_000, b'{"checksum": 3, "a": 1}'):
        path.write_bytes(text)
        with pytest.raises(DamagedFileError, match=r"a\.json is damaged .* Ask for it again\."):
            read_json(path, "Ask for it again.")
    with pytest.raises(CollectionError, match=r"There is no .*none\.json\. Ask"):
        read_json(tmp_path / "none.json", "Ask.")
    with pytest.raises(CollectionError, match="cannot be read"):
        read_json(tmp_path)
    path.write_text('{"a": 1}')
    assert read_json(path) == {"a": 1}
    with pytest.raises(DamagedFileError, match="missing"):
        read_json(path, checked=True)


def test_lines_that_are_damaged_are_counted_and_the_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "joins.jsonl"
    assert read_checked_lines(path) == read_checked_lines(tmp_path / "none") and read_checked_lines(path).entries == ()
    entries = [{"join": number, "name": "a\u2028b"} for number in range(5)]
    append_lines(path, [as_checked_line(entry) for entry in entries])
    whole = path.read_bytes()
    assert read_checked_lines(path).entries == tuple(entries) and read_checked_lines(path).damaged == ()
    path.write_bytes(whole.replace(b'"join": 2', b'"join": 7'))
    told = read_checked_lines(path)
    assert told.damaged == (3,) and [entry["join"] for entry in told.entries] == [0, 1, 3, 4] and not told.ends_early
    path.write_bytes(whole.replace(b"\n", b"\x0b", 1))  # two lines in one
    assert read_checked_lines(path).damaged == (1,) and len(read_checked_lines(path).entries) == 3
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        told = read_checked_lines(path)
        # A line whose end is all that is missing is whole.
        assert len(told.entries) in (whole[:length].count(b"\n"), whole[: length + 1].count(b"\n"))
        assert told.ends_early == (len(told.damaged) == 1)
    path.write_text('{"join": 1}\n')
    assert read_checked_lines(path).damaged == (1,)
    assert read_checked_lines(path, checked=False).entries == ({"join": 1},)


def test_what_cannot_be_appended_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "decisions.jsonl"
    append_lines(path, [as_checked_line({"a": 1})])
    before = path.read_bytes()

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for work in (partial(append_lines, path, [as_checked_line({"a": 2})]), partial(write_whole, path, full)):
        with pytest.raises(OSError, match="space") as failed:
            work()
        assert failed.value.filename == str(path) and failed.value.errno == 28
    assert path.read_bytes() == before
    monkeypatch.undo()
    path.write_bytes(before + b'{"checksum": "12')  # killed
    append_lines(path, [as_checked_line({"a": 3})])
    assert [entry["a"] for entry in read_checked_lines(path).entries] == [1, 3]


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250 + ".json")
    write_json(path, CONTENT)

    def half(file: Path) -> None:
        file.write_text("{")
        raise ValueError("killed")

    with pytest.raises(ValueError, match="killed"):
        write_whole(path, half)
    assert read_json(path) == CONTENT and list(tmp_path.iterdir()) == [path]
