"""Run folders, the report and exports: what is written can be read, and is what it says."""

from __future__ import annotations

import csv
import io
import json
import shutil
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest

from pairingnet.errors import CollectionError, SettingsError
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.io.decisions import append_decision, decision_on, read_decisions, standing
from pairingnet.io.frames import moved_assembly, moved_match
from pairingnet.io.images import read_image
from pairingnet.io.run import (
    append_joins,
    read_assembly,
    read_joins,
    read_matches,
    write_assembly,
    write_matches,
)
from pairingnet.match.contact import Outline
from pairingnet.prepare.load import load_fragment
from pairingnet.review.export import FORMATS, export, layers_of
from pairingnet.review.pictures import group_picture, join_picture
from pairingnet.review.report import Report, write_report
from pairingnet.review.results import make_pictures
from pairingnet.types import Assembly, Fragment, Group, PairMatch
from tests.helpers import all_joins, laid


@pytest.fixture(scope="module")
def joins(torn: Collection) -> list[PairMatch]:
    return all_joins(torn)


@pytest.fixture(scope="module")
def assembly(joins: list[PairMatch], pieces: list[Fragment]) -> Assembly:
    return laid({piece.id: Outline(piece.contour) for piece in pieces}, joins[:6])[1]


def test_matches_and_groups_survive_the_disk(joins: list[PairMatch], assembly: Assembly, tmp_path: Path) -> None:
    write_matches(tmp_path / "matches.json", joins)
    read = read_matches(tmp_path / "matches.json")
    for before, after in zip(joins, read, strict=True):
        assert before.target_from_source is not None and after.target_from_source is not None
        assert np.allclose(before.target_from_source.matrix, after.target_from_source.matrix, atol=1e-5)
        assert after.probability == pytest.approx(before.probability, abs=1e-4)
    write_assembly(tmp_path / "assembly.json", assembly)
    again = read_assembly(tmp_path / "assembly.json", read)
    assert [set(g.poses) for g in again.groups] == [set(g.poses) for g in assembly.groups]
    for group, same in zip(assembly.groups, again.groups, strict=True):
        assert same.probabilities == pytest.approx(group.probabilities, abs=1e-4)
    assert again.singles == assembly.singles and len(again.confirmed) == len(assembly.confirmed)


def test_different_ways_to_join_a_pair_survive_the_disk(joins: list[PairMatch], tmp_path: Path) -> None:
    another = replace(joins[0], target_from_source=Rigid2D(1.0, 2.0, 3.0), score=-2.0, probability=0.12)
    append_joins(tmp_path / "joins.jsonl", [replace(joins[0], others=(another,)), joins[1]])
    first, second = read_joins(tmp_path / "joins.jsonl")
    assert first.pair == joins[0].pair and second.others == ()
    assert first.others[0].target_from_source is not None
    assert np.allclose(first.others[0].target_from_source.matrix, Rigid2D(1.0, 2.0, 3.0).matrix, atol=1e-5)
    assert (first.others[0].score, first.others[0].probability) == (-2.0, 0.12)


def test_a_line_cut_off_costs_only_itself(joins: list[PairMatch], tmp_path: Path) -> None:
    path = tmp_path / "joins.jsonl"
    append_joins(path, joins[:3])
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])  # as if the process had been killed while writing
    assert len(read_joins(path)) == 2
    append_joins(path, joins[3:5])
    assert [join.source for join in read_joins(path)] == [joins[i].source for i in (0, 1, 3, 4)]
    assert read_joins(tmp_path / "nothing.jsonl") == []


def test_a_missing_or_foreign_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="solve"):
        read_matches(tmp_path / "matches.json")
    (tmp_path / "matches.json").write_text(json.dumps({"version": 99, "matches": []}))
    with pytest.raises(CollectionError, match="99"):
        read_matches(tmp_path / "matches.json")


def test_the_report_is_one_file_with_every_piece(
    torn: Collection, joins: list[PairMatch], assembly: Assembly, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    report = Report("a <title>", assembly, joins, ("bad.tif cannot be read",))
    write_report(path, report, make_pictures(torn, report, tmp_path / "groups"))
    assert len(list((tmp_path / "groups").iterdir())) == len(assembly.groups)
    page = path.read_text(encoding="utf-8")
    assert "a &lt;title&gt;" in page and "bad.tif" in page
    for record in torn.fragments:
        assert record.id in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page


def test_pictures_of_groups_and_joins(torn: Collection, joins: list[PairMatch], assembly: Assembly) -> None:
    group = assembly.groups[0]
    picture = group_picture({name: load_fragment(torn, name) for name in group.poses}, group)
    for points in picture.outlines.values():
        assert (points > -3).all() and (points.max(axis=0) < np.array(picture.pixels.shape[1::-1]) + 3).all()
    shown = join_picture(load_fragment(torn, joins[0].source), load_fragment(torn, joins[0].target), joins[0], 200)
    assert shown.shape == (200, 600, 3)
    pink = (np.abs(shown.astype(int) - (230, 30, 120)).max(axis=2) < 40).mean()
    assert pink > 0.001
    nothing = PairMatch(joins[0].source, joins[0].target, None, reason="too plain")
    empty = join_picture(load_fragment(torn, nothing.source), load_fragment(torn, nothing.target), nothing, 100)
    assert empty.shape == (100, 200, 3)


def test_exports(torn: Collection, joins: list[PairMatch], assembly: Assembly, tmp_path: Path) -> None:
    load = partial(load_fragment, torn)
    made = {kind: export(kind, assembly, joins, torn, tmp_path) for kind in FORMATS}
    group = assembly.groups[0]
    flat = read_image(made["png"][0])
    assert flat.alpha is not None and (flat.alpha > 0).any() and (flat.alpha == 0).any() and flat.dpi is None
    area = sum(load(name).area_px for name in group.poses)
    assert (flat.alpha > 127).sum() == pytest.approx(area, rel=0.02)
    with zipfile.ZipFile(io.BytesIO(made["ora"][0].read_bytes())) as file:
        assert file.namelist()[0] == "mimetype" and file.read("mimetype") == b"image/openraster"
        layers = ElementTree.fromstring(file.read("stack.xml")).findall("./stack/layer")
        assert {layer.get("name") for layer in layers} == set(group.poses)
        for layer in layers:
            pixels = cv2.imdecode(np.frombuffer(file.read(str(layer.get("src"))), np.uint8), cv2.IMREAD_UNCHANGED)
            assert pixels is not None and pixels.shape[2] == 4
    drawing = ElementTree.parse(made["svg"][0]).getroot()
    assert {image.get("id") for image in drawing.findall(f"{SVG}image")} == set(group.poses)
    assert drawing.get("width") is None
    told = json.loads(made["json"][0].read_text())
    assert set(told["groups"][0]) == set(group.poses)
    text = made["alignments"][0].read_text().splitlines()
    assert sum(line.startswith("Node") for line in text) == len(torn)
    with pytest.raises(SettingsError, match="png"):
        export("docx", assembly, joins, torn, tmp_path)


SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def sheet(torn: Collection, tmp_path: Path) -> Collection:
    """The pieces as if they came from a sheet at 300 dpi: with numbers, and a name that no link may have as it is."""
    (tmp_path / "run" / "pieces").mkdir(parents=True)
    records = []
    for record in torn.fragments:
        image = f"Blatt 1 – ü & 100%#{record.id}.png"
        shutil.copy(torn.folder / record.image, tmp_path / "run" / "pieces" / image)
        records.append(replace(record, image=image, dpi=300.0, origin="Blatt 1.tif", offset_px=(70, 50)))
    return replace(torn, folder=tmp_path / "run" / "pieces", fragments=tuple(records))


@pytest.mark.parametrize("out", ["run/export", "elsewhere/deep er/#down", "run"])
def test_linked_pieces_are_found_from_any_folder(
    out: str, sheet: Collection, joins: list[PairMatch], assembly: Assembly, tmp_path: Path
) -> None:
    (path,) = export("svg", assembly, joins, sheet, tmp_path / out, link=True)
    images = ElementTree.parse(path).getroot().findall(f"{SVG}image")
    assert len(images) == len(assembly.groups[0])
    for image in images:
        link = urlsplit(urljoin(path.as_uri(), image.get("href")))
        assert not link.fragment
        found = read_image(Path(unquote(link.path)))
        assert (str(found.size[0]), str(found.size[1])) == (image.get("width"), image.get("height"))


def test_exports_know_the_resolution(
    sheet: Collection, joins: list[PairMatch], assembly: Assembly, tmp_path: Path
) -> None:
    made = {kind: export(kind, assembly, joins, sheet, tmp_path / "out")[0] for kind in ("png", "ora", "svg")}
    assert read_image(made["png"]).dpi == pytest.approx(300, abs=0.1)
    with zipfile.ZipFile(made["ora"]) as file:
        stack = ElementTree.fromstring(file.read("stack.xml"))
    assert (stack.get("xres"), stack.get("yres")) == ("300", "300")
    drawing = ElementTree.parse(made["svg"]).getroot()
    _, _, *box = (float(number) for number in str(drawing.get("viewBox")).split())
    for name, pixels in zip(("width", "height"), box, strict=True):
        size = str(drawing.get(name))
        assert size.endswith("mm") and float(size[:-2]) == pytest.approx(pixels / 300 * 25.4, abs=0.01)
    # A drawing is as large as the picture: nothing but the pieces is in it.
    assert box == pytest.approx(read_image(made["png"]).size, abs=3)
    first, *others = sheet.fragments
    mixed = replace(sheet, fragments=(replace(first, dpi=400.0), *others))
    assert read_image(export("png", assembly, joins, mixed, tmp_path / "mixed")[0]).dpi is None


def test_the_table_of_poses_opens_in_a_spreadsheet(
    sheet: Collection, joins: list[PairMatch], assembly: Assembly, tmp_path: Path
) -> None:
    (path,) = export("csv", assembly, joins, sheet, tmp_path)
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(group) for group in assembly.groups)
    for row in rows:
        pose = assembly.groups[int(row["group"]) - 1].poses[row["fragment"]]
        assert (row["scan"], row["offset_x_px"], row["offset_y_px"]) == ("Blatt 1.tif", "70", "50")
        assert float(row["x_px"]) == pytest.approx(pose.x_px, abs=1e-3)
        assert np.radians(float(row["angle_deg"])) == pytest.approx(pose.angle_rad, abs=1e-5)


def test_layers_lie_where_the_pieces_belong(torn: Collection, assembly: Assembly) -> None:
    group = assembly.groups[0]
    layers = layers_of(group, partial(load_fragment, torn))
    picture = layers.flattened()
    assert picture.shape == (layers.height, layers.width, 4)
    assert min(layer.x for layer in layers.layers) == 0 and min(layer.y for layer in layers.layers) == 0


def test_jigsawnets_matrices_carry_the_second_into_the_first(
    torn: Collection, joins: list[PairMatch], assembly: Assembly, tmp_path: Path
) -> None:
    (path,) = export("alignments", assembly, joins[:1], torn, tmp_path)
    words = path.read_text().splitlines()[-1].split()
    matrix = np.array([float(word) for word in words[3:12]]).reshape(3, 3)
    x, y = joins[0].points[0, 0]
    row, column, _ = matrix @ (y, x, 1)
    assert joins[0].target_from_source is not None
    assert np.allclose((column, row), joins[0].target_from_source.apply([[x, y]])[0], atol=1e-3)
    names = sorted(record.id for record in torn.fragments)
    assert [names[int(word)] for word in words[:2]] == [joins[0].target, joins[0].source]
    stitch = np.array([float(word) for word in words[13:]]).reshape(-1, 2)
    assert np.abs(stitch - joins[0].points[:, 0]).max() <= 0.5


def test_scans_and_pieces_are_counted_from_their_own_corners() -> None:
    """A join and its pose, moved to the scans, carry the same points onto each other; and back again."""
    match = PairMatch("a", "b", Rigid2D(0.7, 5.0, -3.0), 2.0, np.array([[[1.0, 2.0], [3.0, 4.0]]]))
    offsets = {"a": (30.0, 12.0), "b": (-7.0, 90.0)}
    moved = moved_match(match, offsets)
    assert moved.target_from_source is not None and match.target_from_source is not None
    point = np.array([[40.0, 25.0]])
    expected = match.target_from_source.apply(point) + offsets["b"]
    assert np.allclose(moved.target_from_source.apply(point + offsets["a"]), expected)
    assert moved.points.tolist() == [[[31.0, 14.0], [-4.0, 94.0]]]
    away = {name: (-x, -y) for name, (x, y) in offsets.items()}
    back = moved_match(moved, away)
    assert back.target_from_source is not None
    assert np.allclose(back.target_from_source.matrix, match.target_from_source.matrix)
    assembly = Assembly((Group({"a": Rigid2D(0.2, 1.0, 2.0), "b": Rigid2D()}, (match,)),))
    poses = moved_assembly(assembly, offsets).groups[0].poses
    assert np.allclose(poses["a"].apply(point + offsets["a"]), Rigid2D(0.2, 1.0, 2.0).apply(point))
    other_way = moved_match(replace(moved, others=(match,)), offsets).others[0]
    assert other_way.points.tolist() == moved.points.tolist()
    none = moved_match(PairMatch("a", "b", None, reason="nothing"), offsets)
    assert none.target_from_source is None and none.reason == "nothing"


def test_decisions_only_grow_and_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    join = PairMatch("a", "b", Rigid2D(0.1, 2.0, 3.0))
    for what in ("accept", "reject", "lock"):
        append_decision(path, decision_on(join, what, "Ada", "mark"))
    said = read_decisions(path)
    assert [each.what for each in said] == ["accept", "reject", "lock"] and said[0].who == "Ada"
    now = standing(said)
    assert not now.accepted and not now.rejected and len(now.locked) == 1
    kept, said_then = now.locked[0].target_from_source, join.target_from_source
    assert kept is not None and said_then is not None and np.allclose(kept.matrix, said_then.matrix, atol=1e-8)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"what": "acc')  # a line that was cut off
    append_decision(path, decision_on(join, "clear", "Ada", "mark"))
    assert len(read_decisions(path)) == 4 and not standing(read_decisions(path)).locked
    with path.open("a", encoding="utf-8") as file:
        file.write('{"what": "accept", "source": "a"}\n')
    with pytest.raises(CollectionError, match=r"decisions\.jsonl.*target"):
        read_decisions(path)
    with pytest.raises(CollectionError, match="No way to join"):
        decision_on(PairMatch("a", "b", None), "accept", "Ada", "mark")
    with pytest.raises(SettingsError, match="perhaps"):
        decision_on(join, "perhaps", "Ada", "mark")
