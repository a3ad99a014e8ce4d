"""Folders as people have them: what is read, and a line for what is not."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest

from pairingnet.config import PrepareSettings
from pairingnet.errors import ImageError
from pairingnet.io.images import read_image, write_png
from pairingnet.io.names import MOST_NAME_BYTES
from pairingnet.io.resume import named_files, named_scans
from pairingnet.io.walk import walk_pictures
from pairingnet.prepare.collect import PrepareJob, prepare_collection
from pairingnet.prepare.files import read_fragments
from tests.conftest import blob
from tests.helpers import run

JOB = PrepareJob(PrepareSettings())


def piece(path: Path, seed: int = 0) -> Path:
    """A scan of one piece."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_png(path, np.where(blob(seed)[..., None] > 0, (150, 60, 40), (250, 250, 250)).astype(np.uint8))
    return path


def refused(folder: Path) -> str:
    """The one line about the one file that is not read."""
    walk = walk_pictures(folder)
    assert [path.name for path in walk.pictures] == ["good.png"]
    assert len(walk.refused) == 1
    return walk.refused[0]


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    return piece(tmp_path / "scans" / "good.png").parent


def test_a_pipe(scans: Path) -> None:
    os.mkfifo(scans / "pipe.png")
    assert "pipe.png is a pipe" in refused(scans)
    with pytest.raises(ImageError, match="is no file"):
        read_image(scans / "pipe.png")
    with pytest.raises(ImageError, match="a pipe, not a file"):
        walk_pictures(scans / "pipe.png")


def test_a_socket(scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scans)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.png")
        assert "socket.png is a socket" in refused(scans)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("loop.png", "leads back to itself"),
        ("nowhere.png", "not there"),
        ("/dev/zero", "leads to a device"),
        (".", "link to a folder"),
    ],
)
def test_links_that_lead_to_no_file(scans: Path, target: str, says: str) -> None:
    (scans / "loop.png").symlink_to(target)
    assert says in refused(scans)
    if target != ".":
        with pytest.raises(ImageError):
            read_image(scans / "loop.png")


def test_a_link_to_a_picture_is_read(scans: Path, tmp_path: Path) -> None:
    (scans / "link.png").symlink_to(piece(tmp_path / "elsewhere.png"))
    assert [path.name for path in walk_pictures(scans).pictures] == ["good.png", "link.png"]


def test_a_name_that_is_not_utf8(scans: Path) -> None:
    try:
        (scans / os.fsdecode(b"Bl\xe4tter.png")).write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    line = refused(scans)
    assert r"Bl\xe4tter.png has a name that is not UTF-8" in line
    line.encode("utf-8")
    with pytest.raises(ImageError) as caught:
        read_image(scans / os.fsdecode(b"Bl\xe4tter.png"))
    str(caught.value).encode("utf-8")


def test_an_unreadable_folder(scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    piece(scans / "closed" / "x.png")
    scandir = os.scandir

    def guarded(path: Path) -> object:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert "closed cannot be opened (Permission denied)" in refused(scans)


@pytest.mark.parametrize("name", ["IMG_1.HEIC", "pages.pdf", "a.jp2", "a.gif", "a.docx", "a.cr2", "a.xyz", "a.zip"])
def test_other_kinds_are_told_of_with_what_to_do(scans: Path, name: str) -> None:
    (scans / name).write_bytes(b"x")
    assert f"{name} is not read" in refused(scans)


def test_many_files_of_a_kind_are_one_line(scans: Path) -> None:
    for number in range(20):
        (scans / f"{number:02}.heic").write_bytes(b"x")
    assert "has 20 .heic files" in refused(scans)


def test_files_that_go_along_with_pictures_are_passed_over(scans: Path) -> None:
    for name in ("notes.txt", "truth.json", "a.XMP", "table.csv", "README"):
        (scans / name).write_bytes(b"x")
    assert walk_pictures(scans).refused == ()


def test_a_picture_without_an_ending_is_told_of(scans: Path) -> None:
    piece(scans / "x.png").rename(scans / "noending")
    assert "noending has no ending" in refused(scans)


@pytest.mark.parametrize("name", ["a.jfif", "a.JPE", "a.jpeg"])
def test_jpeg_has_many_endings(scans: Path, name: str) -> None:
    piece(scans / name)  # the content decides
    assert {path.name for path in walk_pictures(scans).pictures} == {"good.png", name}


def test_a_folder_of_nothing_but_other_kinds_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.heic").write_bytes(b"x")
    with pytest.raises(ImageError, match=r"a\.heic is not read"):
        walk_pictures(tmp_path)


# Names under which things are stored ---------------------------------------------------------------------------


@pytest.mark.parametrize("length", [200, 251])
def test_long_names_are_shortened_and_stay_apart(tmp_path: Path, length: int) -> None:
    scans = tmp_path / "scans"
    for end in "ab":
        piece(scans / f"{'n' * (length - 1)}{end}.png", ord(end))
    names = list(named_files(scans, tmp_path / "out"))
    assert len(set(names)) == 2
    assert all(len(name.encode()) <= MOST_NAME_BYTES for name in names)
    assert names == list(named_files(scans, tmp_path / "out"))
    assert len(prepare_collection(scans, tmp_path / "out", JOB).collection) == 2


def test_deep_folders(tmp_path: Path) -> None:
    scans = tmp_path / "scans"
    piece(scans.joinpath(*["a folder of some length"] * 30) / "x.png")
    result = prepare_collection(scans, tmp_path / "out", JOB)
    assert len(result.collection) == 1


def test_letters_of_many_bytes_are_not_cut_in_two(tmp_path: Path) -> None:
    piece(tmp_path / f"{'残' * 80}.png")
    (name,) = named_files(tmp_path, tmp_path / "out")
    assert name.startswith("残残") and len(name.encode()) <= MOST_NAME_BYTES


def test_a_scan_called_settings_json(tmp_path: Path) -> None:
    scans = tmp_path / "scans"
    piece(scans / "settings.json.png", 1)
    piece(scans / "settings.json" / "x.png", 2)
    for _ in range(2):
        assert len(prepare_collection(scans, tmp_path / "out", JOB).collection) == 2


@pytest.mark.parametrize("odd", ["\x1b[31mred", "a\nb", "a\tb", "\u202egnp", "a\x85b"])
def test_control_characters_are_never_printed(tmp_path: Path, odd: str) -> None:
    scans = tmp_path / "scans"
    piece(scans / f"{odd}.png")
    piece(scans / "bad" / f"{odd}.jpg").write_bytes(b"no picture")
    (scans / f"{odd}.heic").write_bytes(b"x")
    (name,) = [name for name in named_scans(scans, tmp_path / "out").files if not name.startswith("bad")]
    told = run("prepare", scans, tmp_path / "out")
    assert told.returncode == 1
    assert name in (tmp_path / "out" / "collection.json").read_text()
    assert told.stderr.count("\n") == 3  # a heading and a line for each file
    for text in (told.stdout, told.stderr, name):
        assert not set(text) & {"\x1b", "\t", "\u202e", "\x85"}


# Through the whole program -------------------------------------------------------------------------------------


def test_nothing_odd_stops_the_others(tmp_path: Path) -> None:
    scans = tmp_path / "scans"
    piece(scans / "good.png", 1)
    (scans / "broken.png").write_bytes(b"\x89PNG nonsense")
    (scans / "photo.heic").write_bytes(b"x")
    os.mkfifo(scans / "pipe.png")
    result = prepare_collection(scans, tmp_path / "out", JOB)
    assert [record.id for record in result.collection.fragments] == ["good"]
    assert [name for name in ("broken.png", "pipe.png", "photo.heic") if any(name in line for line in result.bad_files)]
    assert len(result.bad_files) == 3


def test_an_unexpected_failure_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pairingnet.prepare import files, scan

    scans = tmp_path / "scans"
    piece(scans / "a.png", 1)
    piece(scans / "b.png", 2)
    prepare = scan.prepare_image

    def failing(image: object, name: str, settings: PrepareSettings) -> object:
        if name == "a":
            raise failures.pop()
        return prepare(image, name, settings)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "prepare_image", failing)
    failures = [MemoryError(), RuntimeError("surprise")]
    for says in ("surprise", "memory"):
        result = prepare_collection(scans, tmp_path / "out", JOB)
        assert [record.id for record in result.collection.fragments] == ["b"]
        (line,) = result.bad_files
        assert "a.png" in line and says in line


def test_a_full_disk_is_no_fault_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pairingnet.prepare import collect

    piece(tmp_path / "scans" / "a.png")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(collect, "write_fragment", full)
    with pytest.raises(OSError, match="No space"):
        prepare_collection(tmp_path / "scans", tmp_path / "out", JOB)


def test_exact_copies_are_left_out(tmp_path: Path) -> None:
    scans = tmp_path / "scans"
    first = piece(scans / "x.png", 1)
    (scans / "x copy.png").write_bytes(first.read_bytes())
    read = read_image(first)
    write_png(scans / "y.png", read.pixels, dpi=300)  # the same pixels in another file
    piece(scans / "z.png", 2)
    result = prepare_collection(scans, tmp_path / "out", JOB)
    assert [record.id for record in result.collection.fragments] == ["x copy", "z"]
    assert [remark for remark in result.remarks if "exact copy" in remark] == [
        "x was left out: it is an exact copy of x copy",
        "y was left out: it is an exact copy of x copy",
    ]


def test_fragments_of_a_folder_warn_of_what_is_not_read(scans: Path) -> None:
    (scans / "a.heic").write_bytes(b"x")
    with pytest.warns(UserWarning, match=r"a\.heic is not read"):
        assert len(read_fragments(scans)) == 1
