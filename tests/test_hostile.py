"""Input made to do harm: nothing leaves its folder, starts another program, or runs as code."""

from __future__ import annotations

import ast
import csv
import html.parser
import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import EpsImagePlugin

from pairingnet.errors import CollectionError, ImageError, PairingNetError
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection, read_collection, write_collection
from pairingnet.io.images import read_image, write_png
from pairingnet.io.names import fault_of_id, fault_of_image
from pairingnet.prepare.collect import left_out_of
from pairingnet.review.export import export
from pairingnet.review.pictures import group_picture
from pairingnet.review.report import Pictures, Report, embedded, outlined, write_report
from pairingnet.types import Assembly, Fragment, FragmentRecord, Group, PairMatch
from tests.conftest import ROOT, blob, fragment_of

SOURCE = ROOT / "src" / "pairingnet"

# Ids and paths -------------------------------------------------------------------------------------------------

BAD_IDS: list[Any] = [
    "../x",
    "a/b",
    "a\\b",
    "..",
    ".",
    "",
    "a\0b",
    "a\nb",
    "\x1b[31m",
    "n" * 201,
    "\ud800",
    7,
    None,
    [],
]
BAD_IMAGES: list[Any] = [
    "../x.png",
    "a/../../x.png",
    "/etc/x.png",
    "C:\\x.png",
    "C:x.png",
    "a\\b.png",
    "a\0.png",
    "",
    7,
]


def _collection(folder: Path, **changes: object) -> Path:
    entry = {"id": "a", "image": "fragments/a.png", "source": "", "canvas_from_fragment": None, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "collection.json").write_text(json.dumps({"version": 1, "made_by": {}, "fragments": [entry]}))
    return folder


@pytest.mark.parametrize("name", BAD_IDS)
def test_ids_stay_in_their_folder(tmp_path: Path, name: Any) -> None:
    assert fault_of_id(name)
    with pytest.raises(CollectionError, match=r"has the id|bad value|lacks"):
        read_collection(_collection(tmp_path, id=name))


@pytest.mark.parametrize("image", BAD_IMAGES)
def test_images_stay_in_their_folder(tmp_path: Path, image: Any) -> None:
    assert fault_of_image(image)
    with pytest.raises(CollectionError, match="has the image"):
        read_collection(_collection(tmp_path, image=image))


def test_hostile_ids_are_not_written_either(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="leave its folder"):
        write_collection(Collection(tmp_path, (FragmentRecord("../x", "x.png"),)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["sheet#3", "Blatt 1 – Vorderseite#4", "残片 黒#1", "a.b", "<script>", "n" * 200])
def test_usual_ids_are_taken(tmp_path: Path, name: str) -> None:
    assert read_collection(_collection(tmp_path, id=name)).fragments[0].id == name


def test_a_forged_part_of_a_run_deletes_nothing_outside(tmp_path: Path) -> None:
    """What a file gave is removed when it is prepared again: only below the folder."""
    from pairingnet.config import PrepareSettings
    from pairingnet.prepare.collect import PrepareJob, prepare_collection
    from tests.test_walk import piece

    piece(tmp_path / "scans" / "a.png")
    private = tmp_path / "private.png"
    private.write_bytes(b"mine")
    _collection(tmp_path / "out" / "prepared" / "a", image="../private.png")
    (tmp_path / "out" / "prepared" / "settings.json").write_text(json.dumps(_settings()))
    prepare_collection(tmp_path / "scans", tmp_path / "out", PrepareJob(PrepareSettings()))
    assert private.read_bytes() == b"mine"
    assert left_out_of(read_collection(tmp_path / "out")) == ()


def _settings() -> dict[str, Any]:
    from pairingnet.config import PrepareSettings
    from pairingnet.settings import as_dict

    return as_dict(PrepareSettings())


# Pictures ------------------------------------------------------------------------------------------------------


def test_no_other_program_reads_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: started.append(1))
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    for name in ("x.png", "x.jpg", "x.tif"):
        (tmp_path / name).write_bytes(eps)
        with pytest.raises(ImageError, match="not a picture"):
            read_image(tmp_path / name)
    assert not started


@pytest.mark.parametrize("kind", ["GIF", "PPM", "ICO", "TGA", "PCX", "SGI", "JPEG2000"])
def test_pictures_of_other_formats_are_refused_whatever_their_name(tmp_path: Path, kind: str) -> None:
    from PIL import Image as Pillow

    Pillow.new("RGB", (32, 32), (9, 9, 9)).save(tmp_path / "x", kind)
    (tmp_path / "x").rename(tmp_path / "x.png")
    with pytest.raises(ImageError, match="not a picture"):
        read_image(tmp_path / "x.png")


def calls_in(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]


def keyword(call: ast.Call, name: str) -> object:
    found = [k.value for k in call.keywords if k.arg == name]
    return found[0].value if found and isinstance(found[0], ast.Constant) else (found[0] if found else None)


def test_pictures_are_opened_in_one_place() -> None:
    for path in SOURCE.rglob("*.py"):
        for call in calls_in(path):
            name = ast.unparse(call.func)
            if re.search(r"(Pillow|Image|PIL)\.open$|imread|imdecode", name):
                assert path == SOURCE / "io" / "images.py", f"{path} opens a picture: {name}"
                assert not name.endswith(".open") or keyword(call, "formats") is not None


def test_nothing_is_unpickled() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(import|from) (pickle|cPickle|dill|cloudpickle|joblib|shelve|marshal)\b", text, re.M)
        for call in calls_in(path):
            name = ast.unparse(call.func)
            if name in ("np.load", "numpy.load"):
                assert keyword(call, "allow_pickle") is False, f"{path}:{call.lineno}"
            if name == "torch.load":
                assert keyword(call, "weights_only") is True, f"{path}:{call.lineno}"
            assert name not in ("eval", "exec", "yaml.load", "os.system"), f"{path}:{call.lineno}"
            assert keyword(call, "shell") is not True, f"{path}:{call.lineno}"


# What is shown -------------------------------------------------------------------------------------------------

HOSTILE = [
    "<script>document.title='ran'</script>",
    '"><img src=x onerror="document.title=\'ran\'">',
    "' onmouseover='document.title=1' x='",
    "</title></svg><script>document.title='ran'</script>",
    "javascript:document.title='ran'",
    "{body}{title}",
    "\u202egnp.exe",
    '=HYPERLINK("http://x")',
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "]]><script>document.title='ran'</script><!--",
]


def _pieces() -> dict[str, Fragment]:
    return {name: fragment_of(blob(number), name=name) for number, name in enumerate(HOSTILE)}


def _assembly() -> Assembly:
    poses = {name: Rigid2D(0.1 * i, 60.0 * i, 0.0) for i, name in enumerate(HOSTILE[:6])}
    joins = [PairMatch(a, b, Rigid2D(0, 5, 5), 1.0, probability=0.7) for a, b in pairwise(HOSTILE[:6])]
    return Assembly((Group(poses, tuple(joins)),), tuple(HOSTILE[6:]))


@pytest.fixture
def report(tmp_path: Path) -> Path:
    pieces, assembly = _pieces(), _assembly()
    group = outlined(group_picture(pieces, assembly.groups[0]))
    small = embedded(np.zeros((4, 4, 3), np.uint8))
    joins = assembly.groups[0].joins
    told = Report(HOSTILE[3], assembly, joins, left_out=HOSTILE)
    write_report(tmp_path / "report.html", told, Pictures([group], [small] * len(joins), [small] * 4))
    return tmp_path / "report.html"


class _Seen(html.parser.HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_names_in_the_report_are_text(report: Path) -> None:
    page = report.read_text(encoding="utf-8")
    seen = _Seen()
    seen.feed(page)
    allowed = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "b", "i", "br", "bdi", "ul", "li"}
    allowed |= {"figure", "figcaption", "img", "svg", "image", "polygon"}
    assert {tag for tag, _ in seen.tags} <= allowed
    for tag, attributes in seen.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href"):
                assert str(value).startswith("data:image/"), (tag, value)
    shown = [name for name in HOSTILE if "\u202e" not in name]
    assert all(seen.text.count(name) >= 2 for name in shown)  # nothing is lost by being escaped
    assert "\u202e" not in page
    assert page.count("<body>") == 1 and page.count("<h2>Groups</h2>") == 1


def _chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
    if found is None:
        pytest.skip("NO BROWSER: chromium is not on the PATH, so no page was opened in one")
    return found


def _opened(page: Path, folder: Path) -> str:
    """The page as a browser has it, after its scripts (if any) ran."""
    told = subprocess.run(
        [
            _chromium(),
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
            *("--disable-background-networking", "--disable-component-update", f"--user-data-dir={folder}"),
            *("--virtual-time-budget=2000", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "HOME": str(folder)},
    )
    assert told.returncode == 0, told.stderr[-500:]
    return told.stdout


def _title(dom: str) -> str:
    found = re.search(r"<title>(.*?)</title>", dom, re.S)
    return found[1] if found else ""


def test_no_script_runs_in_a_browser(report: Path, tmp_path: Path) -> None:
    page = report.read_text(encoding="utf-8")
    assert "Content-Security-Policy" in page
    # Without the policy, which would stop what the escaping lets through.
    open_to_all = re.sub(r"<meta http-equiv=[^>]*>", "", page)
    report.write_text(open_to_all, encoding="utf-8")
    title = _title(_opened(report, tmp_path / "profile"))
    assert title and title != "ran"
    # The test can fail: one name that is not escaped runs.
    (tmp_path / "open.html").write_text(open_to_all.replace("</body>", f"{HOSTILE[0]}</body>"), encoding="utf-8")
    assert _title(_opened(tmp_path / "open.html", tmp_path / "profile")) == "ran"


def _stored(fragments: Iterable[Fragment], folder: Path) -> Collection:
    """Fragments as a collection in memory, their images on disk."""
    (folder / "fragments").mkdir(parents=True)
    records = []
    for number, fragment in enumerate(fragments):
        records.append(FragmentRecord(fragment.id, f"fragments/{number}.png"))
        write_png(folder / records[-1].image, fragment.rgba)
    return Collection(folder, tuple(records))


def test_names_in_exports_are_text(tmp_path: Path) -> None:
    assembly = _assembly()
    collection = _stored(_pieces().values(), tmp_path / "pieces")
    matches = assembly.groups[0].joins
    made = {kind: export(kind, assembly, matches, collection, tmp_path) for kind in ("svg", "ora", "csv", "json")}
    drawing = ElementTree.parse(made["svg"][0]).getroot()
    assert {element.tag.rpartition("}")[2] for element in drawing.iter()} <= {"svg", "image", "title", "g"}
    assert not [name for element in drawing.iter() for name in element.attrib if name.startswith("on")]
    with zipfile.ZipFile(made["ora"][0]) as file:
        layers = ElementTree.fromstring(file.read("stack.xml")).iter("layer")
        assert sorted(str(layer.get("name")) for layer in layers) == sorted(HOSTILE[:6])
        assert all(".." not in name and not name.startswith("/") for name in file.namelist())
    with made["csv"][0].open(encoding="utf-8-sig", newline="") as table:
        rows = list(csv.DictReader(table))
    assert [row["fragment"] for row in rows] == HOSTILE[:6]
    assert list(json.loads(made["json"][0].read_text(encoding="utf-8"))["groups"][0]) == HOSTILE[:6]


def test_formulas_are_text_in_tables(tmp_path: Path) -> None:
    assembly = Assembly((Group({"=1+1": Rigid2D(), "+a": Rigid2D(), "b": Rigid2D()}),))
    pieces = [fragment_of(blob(0), name=name) for name in assembly.groups[0].poses]
    (table,) = export("csv", assembly, (), _stored(pieces, tmp_path / "pieces"), tmp_path)
    with table.open(encoding="utf-8-sig", newline="") as file:
        assert [row["fragment"] for row in csv.DictReader(file)] == ["'=1+1", "'+a", "b"]


def test_messages_hold_no_control_characters() -> None:
    error = PairingNetError("There is no \x1b[31mred\nfile\u202e \udce4.", "Check.")
    assert str(error) == r"There is no \x1b[31mred\x0afile\u202e \xe4. Check."
