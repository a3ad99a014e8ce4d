"""Archives: what is added stays, what changed is replaced, what breaks is said and mended."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from pairingnet.archive.add import add, remove
from pairingnet.archive.catalogue import Catalogue
from pairingnet.archive.check import Checked, check, check_folder
from pairingnet.archive.folder import Archive, init_archive
from pairingnet.archive.joins import candidates_of, find_joins, search
from pairingnet.archive.store import first_id, point_ids
from pairingnet.config import ArchiveSettings, IndexSettings
from pairingnet.errors import CollectionError, DamagedFileError, ImageError, SettingsError
from pairingnet.io.collection import Collection
from pairingnet.io.files import write_json
from pairingnet.io.lock import LOCK_FILES
from pairingnet.io.run import read_joins, read_matches
from pairingnet.match.verify import Verifier
from pairingnet.match.weights import SHIPPED, RingModel, save_model
from pairingnet.models.ring import RingNet
from pairingnet.prepare.files import read_fragment
from pairingnet.prepare.load import load_fragment
from pairingnet.search.votes import rank_by_votes
from pairingnet.types import Fragment
from tests.conftest import ROOT
from tests.helpers import TINY_RING, run
from tests.sample import SAMPLE, pieces_of
from tests.test_lock import held_by_another_process


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_model(path, RingModel(RingNet(TINY_RING), Verifier.plain()), {"made": "for a test"})
    return path


@pytest.fixture
def scans(torn: Collection, tmp_path: Path) -> Path:
    """Nine pieces of one picture."""
    folder = tmp_path / "scans"
    folder.mkdir()
    for record in torn.fragments[:9]:
        shutil.copy2(torn.folder / record.image, folder)
    return folder


@pytest.fixture
def empty(weights: Path, tmp_path: Path) -> Path:
    init_archive(tmp_path / "archive", ArchiveSettings(least=0.0), weights)
    return tmp_path / "archive"


@pytest.fixture
def archive(empty: Path, scans: Path) -> Iterator[Archive]:
    with Archive(empty) as opened:
        add(opened, [scans])
        yield opened


def ids(archive: Archive) -> list[str]:
    return [entry.id for entry in archive.catalogue.entries()]


def test_features_are_those_of_the_scans(archive: Archive, scans: Path, torn: Collection) -> None:
    entries = archive.catalogue.entries()
    assert [entry.id for entry in entries] == [record.id for record in torn.fragments[:9]]
    made = archive.method.features([read_fragment(scans / f"{entry.id}.png") for entry in entries])
    for entry, expected in zip(entries, made, strict=True):
        found = archive.read(entry)
        assert np.abs(found.side.queries - expected.side.queries).max() < 1e-3
        assert np.abs(found.points - expected.points).max() < 1e-3
        assert np.array_equal(found.side.strip.colours, expected.side.strip.colours)
        assert np.abs(found.outline.points - expected.outline.points).max() < 1e-3
        known = archive.method.know([expected], archive.bank())[0].side
        assert np.abs(found.side.query_level - known.query_level).max() < 0.1
        assert np.abs(found.side.key_level - known.key_level).max() < 0.1


def test_an_archive_knows_how_worn_it_is(archive: Archive) -> None:
    entries = archive.catalogue.entries()
    known = archive.catalogue.facts()["usual_loose"]
    assert known["bank"] == archive.bank_number and 0 <= known["steps"] < 2.5
    assert {archive.read(entry).side.usual_loose for entry in entries} == {known["steps"]}
    with archive.writing(), archive.catalogue.transaction():
        archive.catalogue.state({"usual_loose": {}})
    with Archive(archive.folder) as again:  # it was killed before it knew
        assert np.isnan(again.read(entries[0]).side.usual_loose)
        with again.writing():
            assert not again.update_index()
        assert again.read(entries[0]).side.usual_loose == known["steps"]


def test_adding_again_does_nothing(archive: Archive, scans: Path, tmp_path: Path) -> None:
    before = archive.catalogue.entries()
    again = add(archive, [scans, scans / f"{before[0].id}.png"])
    assert again.ids == () and archive.catalogue.entries() == before
    for path in scans.iterdir():
        path.touch()  # another time, the same content
    assert add(archive, [scans]).known == 9 and archive.catalogue.entries() == before
    copy = tmp_path / "copy"
    shutil.copytree(scans, copy)
    told = add(archive, [copy])
    assert told.ids == () and told.known == 9 and "same content" in told.remarks[0]


def test_a_moved_scan_is_the_same_scan(archive: Archive, scans: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    scans.rename(elsewhere)
    assert add(archive, [elsewhere]).ids == ()
    assert {Path(entry.path).parent for entry in archive.catalogue.entries()} == {elsewhere}
    assert len(archive.catalogue.files()) == 9


def test_a_changed_scan_replaces(archive: Archive, scans: Path, torn: Collection) -> None:
    first, second = (scans / f"{record.id}.png" for record in torn.fragments[:2])
    old = archive.catalogue.entries("id = ?", (first.stem,))[0]
    find_joins(archive)
    shutil.copy(torn.folder / torn.fragments[9].image, first)
    told = add(archive, [scans])
    assert told.ids == (first.stem,) and told.replaced == 1
    new = archive.catalogue.entries("id = ?", (first.stem,))[0]
    assert new.number > old.number and archive.read(new).points.shape != archive.read(old).points.shape
    assert first.stem not in {name for join in archive.catalogue.joins() for name in (join.source, join.target)}
    second.write_bytes(b"no picture any more")
    told = add(archive, [scans])
    assert told.ids == () and second.name in told.bad_files[0]
    assert second.stem in ids(archive)  # what was there stays until something better comes


def test_names_are_unique_and_stay(archive: Archive, scans: Path, torn: Collection, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    name = torn.fragments[0].id
    shutil.copy(torn.folder / torn.fragments[9].image, other / f"{name}.png")
    assert add(archive, [other]).ids == (f"{name}_2",)
    assert add(archive, [scans, other]).ids == ()
    with pytest.raises(ImageError, match="lies in the output"):
        add(archive, [archive.folder / "segments"])


def test_several_processes_make_the_same_archive(archive: Archive, scans: Path, weights: Path, tmp_path: Path) -> None:
    init_archive(tmp_path / "two", ArchiveSettings(least=0.0), weights)
    with Archive(tmp_path / "two") as other:
        add(other, [scans], jobs=2)
        assert [(e.number, e.id, e.place) for e in other.catalogue.entries()] == [
            (e.number, e.id, e.place) for e in archive.catalogue.entries()
        ]
        joins = [find_joins(each, jobs=jobs).joins for each, jobs in ((archive, 1), (other, 2))]
    assert [(j.source, j.target, j.score) for j in joins[0]] == [(j.source, j.target, j.score) for j in joins[1]]


def test_removed_fragments_are_not_found(archive: Archive, torn: Collection) -> None:
    gone = remove(archive, [torn.fragments[2].id, f"*{torn.fragments[3].id[-2:]}"])
    assert gone == [torn.fragments[2].id, torn.fragments[3].id] and not set(gone) & set(ids(archive))
    found = search(archive, [load_fragment(torn, torn.fragments[3].id)])
    assert found and not {join.target for join in found} & set(gone)
    with pytest.raises(CollectionError, match="nobody"):
        remove(archive, ["nobody"])
    assert check(archive).repaired == ()


def test_a_removed_scan_can_come_back(archive: Archive, scans: Path, torn: Collection) -> None:
    name = torn.fragments[2].id
    remove(archive, [str(scans / f"{name}.png")])
    assert name not in ids(archive)
    assert add(archive, [scans]).ids == (name,)
    assert len(ids(archive)) == 9


def test_one_fragment_finds_what_all_together_find(archive: Archive) -> None:
    """The archive's candidates are those of a search in memory, of which they are one half."""
    entries = archive.catalogue.entries()
    sides = [archive.read(entry).side for entry in entries]
    ranked, _ = rank_by_votes(sides, archive.method.scale, 8)
    keys = archive.keys()
    for place, entry in enumerate(entries):
        found = candidates_of(archive, keys, sides[place], own=entry.number)
        assert entry.number not in found and len(set(found)) == len(found)
        assert set(found) <= {entries[i].number for i in ranked[place]}


def test_only_new_fragments_are_matched(archive: Archive, scans: Path, torn: Collection) -> None:
    first = find_joins(archive)
    assert first.searched == 9 and first.joins and 0 < first.matched <= 36
    assert find_joins(archive).searched == 0
    early = archive.catalogue.entries()[0].added
    shutil.copy(torn.folder / torn.fragments[9].image, scans)
    add(archive, [scans])
    second = find_joins(archive)
    new = torn.fragments[9].id
    assert second.searched == 1 and second.matched <= 9
    assert second.joins and all(new in (join.source, join.target) for join in second.joins)
    late = archive.catalogue.entries()[-1].added
    assert {(j.source, j.target) for j in find_joins(archive, late).joins} == {
        (j.source, j.target) for j in second.joins
    }
    assert len(find_joins(archive, early).joins) == len(first.joins) + len(second.joins)
    assert find_joins(archive, "2999-01-01").joins == ()


def test_rounds_lay_each_pair_once(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are too unlikely to be stored."""
    monkeypatch.setattr("pairingnet.archive.joins._likely", lambda _joins, _least: [])
    at_once = find_joins(archive)
    with archive.writing(), archive.catalogue.transaction():
        archive.catalogue.forget_joins()
    monkeypatch.setattr("pairingnet.archive.joins._ROUND", 2)
    assert find_joins(archive).matched == at_once.matched


def test_the_background_is_drawn_anew_when_the_archive_has_doubled(empty: Path, scans: Path) -> None:
    files = sorted(scans.iterdir())
    with Archive(empty) as archive:
        numbers = []
        for count in (1, 2, 3, 4, 7, 8):
            add(archive, files[:count])
            numbers.append((archive.catalogue.facts()["bank"], archive.catalogue.facts()["bank_fragments"]))
        assert numbers == [(1, 1), (2, 2), (2, 2), (3, 4), (3, 4), (4, 8)]
        assert {path.name for path in (archive.folder / "banks").iterdir()} == {"3.npz", "4.npz"}
        assert len(list((archive.folder / "segments").glob("*/levels-*"))) == 2  # one for those who still read


def test_large_archives_look_into_cells(scans: Path, weights: Path, tmp_path: Path, torn: Collection) -> None:
    settings = ArchiveSettings(least=0.0, index=IndexSettings(exact_below=200, probes=1000))
    init_archive(tmp_path / "cells", settings, weights, step_px=3.0)
    init_archive(tmp_path / "flat", ArchiveSettings(least=0.0), weights, step_px=3.0)
    found = []
    for name in ("cells", "flat"):
        with Archive(tmp_path / name) as archive:
            for path in sorted(scans.iterdir()):
                add(archive, [path])
            remove(archive, [torn.fragments[1].id])
            joins = search(archive, [load_fragment(torn, torn.fragments[9].id)])
            found.append([(join.target, join.score) for join in joins])
    assert found[0] == found[1] and len(found[0]) > 2


def test_an_archive_with_its_index_in_milvus(scans: Path, weights: Path, tmp_path: Path, torn: Collection) -> None:
    pytest.importorskip("pymilvus", reason="needs the extra 'milvus'")
    pytest.importorskip("milvus_lite", reason="needs the extra 'milvus'")
    asked = [load_fragment(torn, torn.fragments[9].id)]
    found = []
    for index in ("milvus", "faiss"):
        init_archive(tmp_path / index, ArchiveSettings(least=0.0), weights, index=index)
        with Archive(tmp_path / index) as archive:
            add(archive, [scans])
            remove(archive, [torn.fragments[1].id])
            joins = find_joins(archive).joins
            found.append([(join.source, join.target, join.score) for join in (*joins, *search(archive, asked))])
            assert check(archive).repaired == ()
            assert check(archive, rebuild=True).repaired and check(archive).repaired == ()
    assert found[0] == found[1] and len(found[0]) > 10


@pytest.mark.parametrize("how", ["emptied", "cut in half", "a flipped bit"])
def test_a_damaged_file_of_milvus_is_named_then_made_again(
    scans: Path, weights: Path, tmp_path: Path, torn: Collection, how: str
) -> None:
    pytest.importorskip("pymilvus", reason="needs the extra 'milvus'")
    pytest.importorskip("milvus_lite", reason="needs the extra 'milvus'")
    folder, asked = tmp_path / "archive", load_fragment(torn, torn.fragments[9].id)
    init_archive(folder, ArchiveSettings(least=0.0), weights, index="milvus")
    with Archive(folder) as archive:
        add(archive, [scans])
    before = found_in(folder, asked)
    release(folder)
    damaged(max(folder.glob("milvus.db/**/*.parquet"), key=lambda path: path.stat().st_size), how)
    with pytest.raises(DamagedFileError, match=r"milvus\.db.* is damaged.*archive check"):
        found_in(folder, asked)
    assert check_folder(folder).repaired == ("brought the index up to date",)
    assert found_in(folder, asked) == before and check_folder(folder).repaired == ()


def release(folder: Path) -> None:
    """As when this process had ended: milvus-lite keeps its files open."""
    from milvus_lite.server_manager import server_manager_instance

    server_manager_instance.release_server(str(folder / "milvus.db"))


def test_what_a_killed_process_leaves_is_cut_off(archive: Archive) -> None:
    before = archive.catalogue.entries()
    segment = archive.folder / "segments" / "000001"
    sizes = {path: path.stat().st_size for path in segment.glob("[!l]*")}
    for path in sizes:
        with path.open("ab") as file:
            file.write(b"\x07" * 1000)
    (segment / "notes.txt").write_text("not ours")
    (archive.folder / "segments" / "000002").mkdir()
    (archive.folder / "segments" / "000002" / "keys.f2").write_bytes(b"\x07" * 128)
    told = check(archive)
    assert "cut off" in told.repaired[0] and told.lost == () and told.fragments == 9
    assert {path: path.stat().st_size for path in sizes} == sizes and (segment / "notes.txt").is_file()
    assert archive.catalogue.entries() == before and check(archive).repaired == ()


def test_points_of_fragments_that_are_gone_belong_to_nobody(archive: Archive) -> None:
    keys = archive.keys()
    gone = archive.catalogue.entries()[-1]
    remove(archive, [gone.id])
    left = archive.keys()
    ids = np.array([[point_ids(gone.place)[3], first_id(gone.place) - 1, -1]])
    told = left.explain(np.ones((1, 3), np.float32), ids)
    assert told.owner.tolist() == [[-1, archive.catalogue.entries()[-1].number, -1]]
    assert keys.explain(np.ones((1, 3), np.float32), ids).owner[0, 0] == gone.number


def test_a_lost_segment_is_said(archive: Archive, scans: Path) -> None:
    shutil.rmtree(archive.folder / "segments" / "000001")
    with Archive(archive.folder) as opened:
        assert len(check(opened).lost) == 9
        assert len(add(opened, [scans]).ids) == 9 and check(opened).lost == ()


def test_a_lost_index_is_made_again(archive: Archive, torn: Collection) -> None:
    asked = [load_fragment(torn, torn.fragments[9].id)]
    before = [(join.target, join.score) for join in search(archive, asked)]
    for damage in ("gone", "broken"):
        index = next((archive.folder / "index").iterdir())
        if damage == "gone":
            shutil.rmtree(index)
        else:
            (index / "vectors.faiss").write_bytes(b"no index")
        assert [(join.target, join.score) for join in search(archive, asked)] == before
        assert check(archive).repaired == ("brought the index up to date",)
        assert [(join.target, join.score) for join in search(archive, asked)] == before
    assert check(archive, rebuild=True).repaired


def test_broken_features_are_noticed_and_added_again(archive: Archive, scans: Path) -> None:
    entry = archive.catalogue.entries()[4]
    keys = archive.folder / "segments" / "000001" / "keys.f2"
    data = bytearray(keys.read_bytes())
    data[entry.place.first * 2 * archive.store.width + 5] ^= 0xFF
    keys.write_bytes(data)
    told = check(archive)
    assert len(told.lost) == 1 and entry.id in told.lost[0] and told.fragments == 8
    assert add(archive, [scans]).ids == (entry.id,) and check(archive).lost == ()


def test_files_that_are_too_short_are_refused_then_mended(archive: Archive, scans: Path, torn: Collection) -> None:
    last = archive.catalogue.entries()[-1]
    path = archive.folder / "segments" / "000001" / "queries.f2"
    path.write_bytes(path.read_bytes()[:-1000])
    with Archive(archive.folder) as opened, pytest.raises(CollectionError, match="archive check"):
        search(opened, [load_fragment(torn, torn.fragments[9].id)])
    with Archive(archive.folder) as opened:
        assert [last.id in line for line in check(opened).lost] == [True]
        assert add(opened, [scans]).ids == (last.id,)
        assert check(opened) == check(opened)
    for lost in ("banks/{}.npz", "segments/000001/levels-{}.f4"):
        (archive.folder / lost.format(archive.bank_number)).unlink()
        with Archive(archive.folder) as opened:
            assert "levels" in check(opened).repaired[0]
            assert check(opened).repaired == ()


@dataclass(frozen=True)
class Whole:
    """An archive to be damaged in copies of it, its scans, a piece to ask with, and what is found then."""

    folder: Path
    scans: Path
    asked: Fragment
    found: list[tuple[str, float]]
    joins: list[tuple[str, str, float]]


@pytest.fixture(scope="module")
def whole(weights: Path, torn: Collection, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder, asked = tmp_path_factory.mktemp("whole"), load_fragment(torn, torn.fragments[9].id)
    (folder / "scans").mkdir()
    for record in torn.fragments[:9]:
        shutil.copy2(torn.folder / record.image, folder / "scans")
    init_archive(folder / "archive", ArchiveSettings(least=0.0), weights)
    with Archive(folder / "archive") as archive:
        add(archive, [folder / "scans"])
        find_joins(archive)
        joins = joins_of(archive)
    return Whole(folder / "archive", folder / "scans", asked, found_in(folder / "archive", asked), joins)


def joins_of(archive: Archive) -> list[tuple[str, str, float]]:
    return [(join.source, join.target, join.score) for join in archive.catalogue.joins()]


def found_in(folder: Path, asked: Fragment) -> list[tuple[str, float]]:
    with Archive(folder) as archive:
        return [(join.target, join.score) for join in search(archive, [asked])]


def damaged(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "a flipped bit":
        data[2 * len(data) // 3] ^= 1
    else:
        del data[0 if how == "emptied" else len(data) // 2 :]
    path.write_bytes(data)


FILES = [
    "archive.sqlite",
    "weights.safetensors",
    "seal.json",
    "copies/*.sqlite",
    "banks/*.npz",
    "index/*/vectors.faiss",
    "index/*/fragments.npy",
    "index/*/marks.json",
    "segments/*/points.f4",
    "segments/*/tangents.f4",
    "segments/*/colours.u1",
    "segments/*/queries.f2",
    "segments/*/keys.f2",
    "segments/*/contour.f4",
    "segments/*/levels-*.f4",
]


def test_these_are_all_files_of_an_archive(whole: Whole) -> None:
    files = {path for path in whole.folder.rglob("*") if path.is_file() and path.name not in LOCK_FILES}
    assert files == {path for pattern in FILES for path in whole.folder.glob(pattern)}


@pytest.mark.parametrize(
    ("pattern", "how"),
    [
        (file, how)
        for number, file in enumerate(FILES)
        for how in ("a flipped bit", ("emptied", "cut in half")[number % 2])
    ],
)
def test_a_damaged_file_is_named_or_not_needed_then_mended(
    whole: Whole, pattern: str, how: str, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    shutil.copytree(whole.folder, folder)
    path = sorted(folder.glob(pattern))[-1]
    damaged(path, how)
    try:
        assert found_in(folder, whole.asked) == whole.found
    except CollectionError as error:
        # Of a segment's files only all together have a checksum.
        assert str(path) in str(error) or str(path.parent) in str(error)
        assert str(folder) in error.next_step or "backup" in error.next_step
    if path.name == "weights.safetensors":
        with pytest.raises(CollectionError, match="backup"):
            check_folder(folder)
        return
    told = check_folder(folder)
    assert told.repaired or told.lost or pattern in ("seal.json", "copies/*.sqlite")
    with Archive(folder) as archive:
        add(archive, [whole.scans])
        assert check(archive) == Checked(9, (), ())
        find_joins(archive)
        assert joins_of(archive) == whole.joins
    # Fragments that were added again have other numbers, by which equal joins are sorted.
    assert sorted(found_in(folder, whole.asked)) == sorted(whole.found)


@pytest.mark.parametrize("sealed", [True, False])
def test_the_catalogue_comes_back_from_its_copy(whole: Whole, sealed: bool, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    shutil.copytree(whole.folder, folder)
    if not sealed:  # as after a kill
        told = json.loads((folder / "seal.json").read_text())
        write_json(
            folder / "seal.json", {n: v for n, v in (told | {"catalogue": None}).items() if n != "checksum"}, True
        )
    path = folder / "archive.sqlite"
    data = path.read_bytes()
    if sealed:
        at = data.index(b"target_from_source")  # within a join: SQLite itself cannot notice this
        path.write_bytes(data[: at + 40] + bytes([data[at + 40] ^ 1]) + data[at + 41 :])
    else:
        path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DamagedFileError, match=r"archive\.sqlite is damaged .* archive check"):
        Archive(folder)
    assert "brought the catalogue back" in check_folder(folder).repaired[0]
    assert path.read_bytes() == data and found_in(folder, whole.asked) == whole.found
    path.unlink()
    with pytest.raises(DamagedFileError, match="it is missing"):
        Archive(folder)
    assert "brought the catalogue back" in check_folder(folder).repaired[0]
    shutil.rmtree(folder / "copies")
    path.write_bytes(b"")
    with pytest.raises(CollectionError, match=r"no copy of it\. Get it from a backup"):
        check_folder(folder)


def test_weights_that_ship_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    init_archive(folder)
    damaged(folder / "weights.safetensors", "a flipped bit")
    with pytest.raises(DamagedFileError, match="archive check"):
        Archive(folder)
    assert "weights" in check_folder(folder).repaired[0]
    assert check_folder(folder) == Checked(0, (), ())
    assert (folder / "weights.safetensors").read_bytes() == SHIPPED.read_bytes()


def test_damage_is_never_sealed(whole: Whole, tmp_path: Path) -> None:
    """Found before a command writes, or while it does: the copy stays what it was."""
    folder = tmp_path / "archive"
    shutil.copytree(whole.folder, folder)
    copy = next((folder / "copies").iterdir())
    before = copy.read_bytes()
    with Archive(folder) as archive:
        with pytest.raises(DamagedFileError, match="digit"), archive.writing():
            archive.catalogue.state({"bank_fragments": 4})
            raise DamagedFileError("A digit is another one.", "Run check.")
        assert list((folder / "copies").iterdir()) == [copy] and copy.read_bytes() == before
        with archive.writing():
            pass
        assert not copy.exists()
        data = bytearray((folder / "archive.sqlite").read_bytes())
        data[data.index(b"target_from_source") + 40] ^= 1
        (folder / "archive.sqlite").write_bytes(data)
        with pytest.raises(DamagedFileError, match="checksum"), archive.writing():
            pass
    assert "brought the catalogue back" in check_folder(folder).repaired[0]
    with Archive(folder) as archive:
        assert archive.catalogue.facts()["bank_fragments"] == 4


def test_a_catalogue_from_a_backup_goes_with_no_later_index(whole: Whole, torn: Collection, tmp_path: Path) -> None:
    """The index knows fragments that the catalogue does not know yet, and others got their numbers since."""
    folder, more = tmp_path / "archive", tmp_path / "more"
    shutil.copytree(whole.folder, folder)
    more.mkdir()
    shutil.copy(torn.folder / torn.fragments[10].image, more)
    with Archive(folder) as archive:
        add(archive, [more])
    for name in ("archive.sqlite", "seal.json"):
        shutil.copy(whole.folder / name, folder)
    assert found_in(folder, whole.asked) == whole.found
    with Archive(folder) as archive:
        assert add(archive, [torn.folder / torn.fragments[11].image]).ids == (torn.fragments[11].id,)
        assert torn.fragments[10].id not in {name for name, _ in found_in(folder, whole.asked)}
        check(archive)
        assert check(archive) == Checked(10, (), ())


def test_a_copied_archive_is_the_same_archive(whole: Whole, tmp_path: Path) -> None:
    shutil.copytree(whole.folder, tmp_path / "copy", copy_function=shutil.copyfile)  # with times of its own
    assert found_in(tmp_path / "copy", whole.asked) == whole.found
    assert check_folder(tmp_path / "copy") == Checked(9, (), ())


def test_an_archive_of_version_1_is_read_and_gets_its_marks(whole: Whole, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    shutil.copytree(whole.folder, folder)
    for name in ("seal.json", "copies", "index"):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with closing(sqlite3.connect(folder / "archive.sqlite")) as old:
        old.executescript(
            "DROP TABLE levels; UPDATE facts SET value = '1' WHERE name = 'version';"
            "DELETE FROM facts WHERE name IN ('bank_marks', 'bank_last')"
        )
    assert found_in(folder, whole.asked) == whole.found
    assert "levels" in check_folder(folder).repaired[0]
    assert found_in(folder, whole.asked) == whole.found and check_folder(folder) == Checked(9, (), ())


@pytest.mark.parametrize("place", ["os.fsync", "pairingnet.search.index.faiss.write_index"])
def test_a_full_disk_is_said_and_costs_nothing(
    whole: Whole, torn: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folder, one = tmp_path / "archive", torn.folder / torn.fragments[10].image
    shutil.copytree(whole.folder, folder)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Archive(folder) as archive:
        with monkeypatch.context() as patched, pytest.raises(CollectionError, match=r"room|disk"):
            patched.setattr(place, full)
            add(archive, [one])
        told = add(archive, [one])
        assert ids(archive).count(torn.fragments[10].id) == 1 and told.bad_files == ()
        assert check(archive) == Checked(10, (), ())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_adds_lose_nothing_they_told_of() -> None:
    """A handful of what `benchmarks/kills.py` does hundreds of times."""
    if not hasattr(os, "fork"):
        pytest.skip("kills children that are forked")
    words = [sys.executable, "-m", "benchmarks.kills", "--random", "4", "--every", "40"]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert result.returncode == 0, result.stderr
    assert "none lost" in result.stdout


def test_only_one_process_writes(archive: Archive, scans: Path) -> None:
    with held_by_another_process(archive.folder) as child, Archive(archive.folder, wait_s=0) as other:
        assert len(ids(other)) == 9  # reading goes on
        for work in (partial(add, other, [scans]), partial(remove, other, ["*"]), partial(find_joins, other)):
            with pytest.raises(CollectionError, match=f"process {child.pid} on .* is writing to"):
                work()
    assert len(ids(archive)) == 9


def test_two_processes_add_at_once(empty: Path, scans: Path) -> None:
    """The second waits, says whom for, and adds what the first has not added."""
    files = sorted(scans.iterdir())
    words = [sys.executable, "-m", "pairingnet", "archive", "add", "--each", str(empty)]
    started = [
        subprocess.Popen([*words, *map(str, files[part])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for part in (slice(0, 6), slice(3, 9))
    ]
    told = [each.communicate(timeout=100) for each in started]
    assert [each.returncode for each in started] == [0, 0], told
    named = [line for out, _ in told for line in out.splitlines() if line in {path.stem for path in files}]
    assert sorted(named) == [path.stem for path in files]
    with Archive(empty) as archive:
        assert sorted(ids(archive)) == sorted(named) and check(archive).repaired == ()


def test_what_is_no_archive_is_refused(empty: Path, scans: Path, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="archive init"):
        Archive(scans)
    with pytest.raises(CollectionError, match="already"):
        init_archive(empty, None, weights)
    with pytest.raises(CollectionError, match="not empty"):
        init_archive(scans, None, weights)
    with pytest.raises(SettingsError, match="step"):
        init_archive(tmp_path / "new", None, weights, step_px=0.2)
    with pytest.raises(SettingsError, match="faiss, milvus"):
        init_archive(tmp_path / "new", None, weights, index="lucene")
    with Archive(empty) as archive, pytest.raises(CollectionError, match="empty"):
        search(archive, [])
    with Archive(empty) as archive:
        archive.catalogue.state({"version": 99})
    with pytest.raises(CollectionError, match="version 99"):
        Catalogue(empty)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "archive.sqlite").write_bytes(b"no database at all, but long enough to look at" * 20)
    with pytest.raises(DamagedFileError, match=r"archive\.sqlite is damaged .* 'pairingnet archive check"):
        Archive(tmp_path / "broken")
    with pytest.raises(CollectionError, match="backup"):
        check_folder(tmp_path / "broken")


def test_other_weights_are_refused(empty: Path) -> None:
    (empty / "weights.safetensors").write_bytes(b"others")
    with pytest.raises(CollectionError, match="not what the archive was made with"):
        Archive(empty)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_archive_from_the_command_line(tmp_path: Path) -> None:
    """A torn picture in two deliveries, with the weights that ship: its joins are those that a search of all finds."""
    names = pieces_of("spices")
    for folder, part in (("first", names[1:7]), ("second", names[7:])):
        (tmp_path / folder).mkdir()
        for name in part:
            shutil.copy(SAMPLE / f"{name}.jpg", tmp_path / folder)
    (tmp_path / "second" / "broken.jpg").write_bytes(b"this is no picture")
    archive = tmp_path / "archive"
    assert run("archive", "init", archive, "--set", "index.probes=8").returncode == 0
    result = run("archive", "add", archive, tmp_path / "first", "--each")
    assert result.returncode == 0 and result.stdout.splitlines()[:6] == names[1:7]
    first = json.loads(run("archive", "joins", archive, "--json").stdout)
    result = run("archive", "add", archive, tmp_path / "second", "--json")
    assert result.returncode == 1 and json.loads(result.stdout)["fragments"] == len(names) - 1
    result = run("archive", "joins", archive, "--json", "--out", tmp_path / "joins.json")
    second = json.loads(result.stdout)
    assert first["searched"] == 6 and second["searched"] == len(names) - 7
    sure = {frozenset((j["source"], j["target"])) for j in first["joins"] + second["joins"] if j["probability"] > 0.9}
    told = json.loads(run("archive", "search", archive, SAMPLE / f"{names[0]}.jpg", "--json").stdout)["joins"]
    sure |= {frozenset((j["source"], j["target"])) for j in told if j["probability"] > 0.9}
    assert len(read_matches(tmp_path / "joins.json")) >= len(second["joins"])
    scans = tmp_path / "scans"
    scans.mkdir()
    for name in names:
        shutil.copy(SAMPLE / f"{name}.jpg", scans)
    assert run("solve", scans, tmp_path / "run", "--jobs", 1).returncode == 0
    expected = {
        frozenset((j.source, j.target)) for j in read_joins(tmp_path / "run" / "joins.jsonl") if j.probability > 0.95
    }
    assert len(expected) >= 5 and len(expected - sure) <= 1
    assert "all is well" in run("archive", "check", archive).stdout
    assert run("archive", "remove", archive, "nobody").returncode == 2
    assert run("archive", "joins", archive, "--since", "yesterday").returncode == 2
