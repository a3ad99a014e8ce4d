"""The project keeps its own promises: imports go one way, the docs run, the names are pinned."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import pairingnet
from pairingnet.config import (
    ArchiveSettings,
    BenchmarkSettings,
    CandidateSettings,
    IndexSettings,
    JigsawSettings,
    JigsawTrainSettings,
    PaperMatchSettings,
    PaperSettings,
    PrepareSettings,
    RingMatchSettings,
    RingSettings,
    RingTrainSettings,
    SliceSettings,
    SolveSettings,
    TearSettings,
    TrainSettings,
    VoteSettings,
    WearSettings,
)
from pairingnet.io.run import read_assembly, read_matches
from tests.conftest import ROOT
from tests.helpers import run
from tests.sample import PAIRS, PICTURE_OF, seam_off_px

SOURCE = ROOT / "src" / "pairingnet"

# Each layer may import those before it, never those after it.
LAYERS = [
    "steps",
    "errors",
    "config",
    "settings",
    "geometry",
    "jit",
    "types",
    "engine",
    "io",
    "prepare",
    "models",
    "search",
    "match",
    "baselines",
    "assembly",
    "review",
    "stages",
    "paper_stages",
    "pipeline",
    "api",
    "archive",
    "synth",
    "evaluate",
    "benchmark",
    "train",
    "cli",
]


def layer_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("pairingnet"):
            found.add(node.module)
    return found


def test_imports_go_one_way() -> None:
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).with_suffix("").parts[0]
        if own in ("__init__", "__main__"):
            continue
        assert own in LAYERS, f"{path} is in no layer"
        for module in imports_of(path):
            other = layer_of(module)
            if other:
                assert LAYERS.index(other) <= LAYERS.index(own), f"{path} imports {module}"


def test_metrics_know_nothing_of_methods() -> None:
    for page in (SOURCE / "evaluate").glob("*.py"):
        layers = {layer_of(module) for module in imports_of(page)}
        assert not layers & {"models", "match", "search", "baselines", "benchmark", "train"}
    assert imports_of(SOURCE / "evaluate" / "metrics.py") == {"pairingnet.geometry"}


def test_public_names() -> None:
    assert set(pairingnet.__all__) == {
        "Assembly",
        "Collection",
        "Decisions",
        "Fragment",
        "Group",
        "Image",
        "PairMatch",
        "PairingNetError",
        "PaperModel",
        "Rigid2D",
        "RingModel",
        "Solution",
        "__version__",
        "assemble",
        "load_fragment",
        "load_fragments",
        "load_model",
        "match_pair",
        "prepare_image",
        "read_collection",
        "read_fragment",
        "read_fragments",
        "read_image",
        "search",
        "solve",
    }
    for name in pairingnet.__all__:
        assert getattr(pairingnet, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        pairingnet.nonsense  # noqa: B018


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_readme_commands_run(tmp_path: Path) -> None:
    """The shell blocks of the README, in order, in a folder that has the examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = [line for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("pairingnet ")]
    assert len(commands) >= 4
    for command in commands:
        words = [sys.executable, "-m", *command.split("#")[0].split()]
        result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
        assert result.returncode == 0, f"{command}\n{result.stderr}"
    check_sample(tmp_path / "joined")


def check_sample(run: Path) -> None:
    """What the demo promises: groups of one picture each, few pieces alone, and no wrong join that looks likely."""
    assembly = read_assembly(run / "assembly.json")
    assert all(len({PICTURE_OF[name] for name in group.poses}) == 1 for group in assembly.groups)
    assert len(assembly.singles) <= 2
    likely = [match for match in read_matches(run / "matches.json") if match.probability > 0.5]
    assert len(likely) > 0.6 * len(PAIRS)
    assert max(map(seam_off_px, likely)) < 8
    # Pieces that lie beside each other by way of others may touch along less than a true pair does; what is likely by
    # itself is a true pair.
    own = [m for m in likely if "implied" not in m.evidence and m.evidence.get("probability_alone", 1.0) > 0.5]
    assert [match for match in own if frozenset((match.source, match.target)) not in PAIRS] == []


@pytest.mark.slow
def test_the_readme_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    assert run("tear", "examples/pictures", "pieces", "--seed", "1", cwd=tmp_path).returncode == 0
    code = blocks(ROOT / "README.md", "python")
    assert code
    names: dict[str, object] = {}
    for block in code:
        exec(compile(block, "README.md", "exec"), names)
    check_told(capsys.readouterr().out)


def check_told(printed: str) -> None:
    """What the README's program prints is true: the joins, and what lies together."""
    joins = re.findall(r"^(\S+) and (\S+): (\d+)% Rigid2D", printed, flags=re.MULTILINE)
    assert len(joins) >= 3
    for source, target, percent in joins:
        assert frozenset((source, target)) in PAIRS and int(percent) > 90
    groups = [words.split() for words in re.findall(r"^together: (.+)$", printed, flags=re.MULTILINE)]
    assert groups and all(len({PICTURE_OF[name] for name in group}) == 1 for group in groups)


def test_pieces_in_the_readme_belong_together() -> None:
    """What a newcomer asks about first is a true join: `pair` and `decide`."""
    named = []
    for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith(("pairingnet pair ", "pairingnet decide ")):
            named.append(frozenset(re.findall(r"piece-\d+", line)))
    assert len(named) >= 2 and set(named) <= PAIRS


def test_the_readme_shows_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text and "make test" in text


@pytest.mark.parametrize(
    "settings",
    [
        TearSettings,
        WearSettings,
        PrepareSettings,
        PaperSettings,
        PaperMatchSettings,
        TrainSettings,
        VoteSettings,
        RingSettings,
        RingTrainSettings,
        RingMatchSettings,
        SolveSettings,
        IndexSettings,
        ArchiveSettings,
        CandidateSettings,
        JigsawSettings,
        JigsawTrainSettings,
        BenchmarkSettings,
        SliceSettings,
    ],
)
def test_every_setting_is_documented_with_its_default(settings: type) -> None:
    """Some line of a table has its name and its default; several settings may have one name."""
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .", text, flags=re.MULTILINE)
    for field in fields(settings):
        default = getattr(settings(), field.name)
        if not is_dataclass(default):  # settings of a stage have a table of their own
            told = [value_of(cell) for name, cell in rows if name == field.name]
            assert default in told, f"{settings.__name__}.{field.name} is {default!r}, docs/settings.md says {told}"


def value_of(cell: str) -> object:
    """A default as the page writes it: a Python value, or a quotient of two numbers."""
    above, _, below = cell.partition(" / ")
    return float(above) / float(below) if below else ast.literal_eval(cell)


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_no_test_waits_for_ever() -> None:
    """Every process that a test starts or waits for has a timeout of its own."""
    for path in (ROOT / "tests").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or any(keyword.arg == "timeout" for keyword in node.keywords):
                continue
            called = ast.unparse(node.func)
            waits = called in ("subprocess.run", "subprocess.check_output", "subprocess.check_call")
            waits |= called.endswith(".communicate") or (called.endswith(".wait") and not node.args)
            assert not waits, f"{path.name}, line {node.lineno}: {called} has no timeout"
