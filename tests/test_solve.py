"""The main job on real scans, with the weights that ship."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import pairingnet
from pairingnet.geometry import Rigid2D
from pairingnet.io.run import read_assembly, read_joins, read_matches
from tests.helpers import run
from tests.sample import POSES, SAMPLE, TRUTH, pieces_of, seam_off_px


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pieces of one picture, and a file that is no picture."""
    folder = tmp_path_factory.mktemp("solve") / "scans"
    folder.mkdir()
    for name in pieces_of("spices"):
        shutil.copy(SAMPLE / f"{name}.jpg", folder)
    (folder / "broken.jpg").write_bytes(b"this is no picture")
    return folder


@pytest.fixture(scope="module")
def solved(scans: Path) -> Path:
    result = run("solve", scans, scans.parent / "run", "--jobs", 1)
    assert result.returncode == 1, result.stderr  # one file was left out
    assert "broken.jpg" in result.stderr and "report.html" in result.stdout
    return scans.parent / "run"


def off_px(source: str, target: str, placed: Rigid2D) -> float:
    """How far a relation of two pieces is from the truth, at the target's middle."""
    true = POSES[target].inverse() @ POSES[source]
    point = [[100.0, 100.0]]
    return float(np.linalg.norm(placed.apply(point) - true.apply(point)))


def test_a_torn_picture_is_put_together(solved: Path) -> None:
    matches = read_matches(solved / "matches.json")
    assembly = read_assembly(solved / "assembly.json", matches)
    largest = assembly.groups[0].poses
    assert len(largest) >= 0.8 * len(pieces_of("spices"))
    for pair in TRUTH["pairs"]:
        source, target = Path(pair["source"]).stem, Path(pair["target"]).stem
        if source in largest and target in largest:
            assert off_px(source, target, largest[target].inverse() @ largest[source]) < 16
    for match in matches:
        if match.probability > 0.9:
            assert seam_off_px(match) < 8
    assert (solved / "groups" / "group-01.png").is_file()


def test_the_second_run_has_nothing_to_do(scans: Path, solved: Path) -> None:
    before = (solved / "joins.jsonl").read_bytes()
    result = run("solve", scans, solved, "--jobs", 1, "--json")
    told = json.loads(result.stdout)
    assert told["news"] is False and (solved / "joins.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_killed_run_continues(scans: Path, solved: Path, tmp_path: Path) -> None:
    """Half of the poses and some features are missing: only they are made, and the result is the same."""
    again = tmp_path / "run"
    shutil.copytree(solved, again)
    lines = (again / "registered.jsonl").read_bytes().splitlines(keepends=True)
    (again / "registered.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:30])
    next(iter((again / "features").iterdir())).unlink()
    answer = ("matches.json", "assembly.json", "joins.jsonl")
    for name in (*answer, "report.html"):
        (again / name).unlink()
    assert run("solve", scans, again, "--jobs", 1).returncode == 1
    after = (again / "registered.jsonl").read_bytes().splitlines(keepends=True)
    assert set(after) - set(lines) == {lines[-1][:30] + b"\n"} and len(after) == len(lines) + 1
    assert all((solved / name).read_bytes() == (again / name).read_bytes() for name in answer)


@pytest.mark.slow
def test_scans_that_are_added_are_all_that_is_matched(scans: Path, solved: Path, tmp_path: Path) -> None:
    more, again = tmp_path / "scans", tmp_path / "run"
    shutil.copytree(scans, more, copy_function=shutil.copy2)
    shutil.copytree(solved, again, copy_function=shutil.copy2)
    added = pieces_of("casa-mila")[1]  # the working scale stays
    shutil.copy(SAMPLE / f"{added}.jpg", more)
    known = (again / "registered.jsonl").read_bytes()
    assert run("solve", more, again, "--jobs", 1).returncode == 1
    count = len(read_joins(again / "joins.jsonl"))
    after = (again / "registered.jsonl").read_bytes()
    assert after.startswith(known) and len(after.splitlines()) == count
    assert count == len(known.splitlines()) + len(list(scans.glob("piece-*")))


def test_one_process_solves_a_folder_that_grows(tmp_path: Path) -> None:
    """What the first call has read from the run folder is not what the second finds there."""
    scans = tmp_path / "scans"
    scans.mkdir()
    counts = []
    for name in pieces_of("spices")[:4]:
        shutil.copy(SAMPLE / f"{name}.jpg", scans)
        if len(list(scans.iterdir())) > 2:
            counts.append(len(pairingnet.solve(scans, tmp_path / "run", jobs=1).collection))
    assert counts == [3, 4]
    assert len(read_joins(tmp_path / "run" / "joins.jsonl")) == 6


@pytest.mark.slow
def test_a_first_filter_leaves_pairs_out(tmp_path: Path) -> None:
    """With vectors of the paper's network; a run with it is not continued without it."""
    from pairingnet.config import PaperSettings
    from pairingnet.errors import CollectionError
    from pairingnet.match.first_filter import FirstFilter
    from pairingnet.match.paper import PaperMethod
    from pairingnet.models.paper import PairingNet

    scans = tmp_path / "scans"
    scans.mkdir()
    for name in pieces_of("spices")[:5]:
        shutil.copy(SAMPLE / f"{name}.jpg", scans)
    network = PairingNet(PaperSettings(layers=2, width=8, search_layers=1))
    first = FirstFilter(PaperMethod(network, weights="fresh"), keep=1)
    collection = pairingnet.solve(scans, tmp_path / "run", jobs=1, first_filter=first).collection
    vectors = first.vectors(collection, tmp_path / "run" / "vectors")
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    similarity = vectors @ vectors.T - 2 * np.eye(len(vectors))
    ids = [record.id for record in collection.fragments]
    wanted = {frozenset((ids[i], ids[int(best)])) for i, best in enumerate(similarity.argmax(axis=1))}
    assert {frozenset((j.source, j.target)) for j in read_joins(tmp_path / "run" / "joins.jsonl")} == wanted
    changed = tmp_path / "run" / "vectors" / f"{ids[0]}.npy"
    np.save(changed, np.zeros_like(vectors[0]))
    os.utime(changed, (1, 1))  # older than the image
    assert np.allclose(first.vectors(collection, tmp_path / "run" / "vectors"), vectors, atol=1e-5)
    with pytest.raises(CollectionError, match="first_filter"):
        pairingnet.solve(scans, tmp_path / "run", jobs=1)


def test_other_settings_are_refused_with_their_names(scans: Path, solved: Path) -> None:
    result = run("solve", scans, solved, "--set", "candidates=7")
    assert result.returncode == 2 and "candidates" in result.stderr
    result = run("solve", scans, solved, "--set", "prepare.margins=7")
    assert result.returncode == 2 and "Did you mean 'margin'" in result.stderr


def test_search_and_export(solved: Path) -> None:
    name = pieces_of("spices")[0]
    told = json.loads(run("search", solved, name, "--json").stdout)
    assert told["joins"] and all(name in (join["source"], join["target"]) for join in told["joins"])
    assert run("search", solved, "nobody").returncode == 2
    result = run("export", solved, "-f", "csv", "-f", "svg")
    assert result.returncode == 0 and (solved / "export" / "poses.csv").is_file()
    assert run("export", solved, "-f", "docx").returncode == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_people_have_the_last_word(scans: Path, solved: Path, tmp_path: Path) -> None:
    again = tmp_path / "run"
    shutil.copytree(solved, again, copy_function=shutil.copy2)
    before = read_assembly(again / "assembly.json", read_matches(again / "matches.json"))
    sure = before.groups[0].joins[0]
    assert run("decide", again, "reject", sure.target, sure.source, "--who", "Ada").returncode == 0
    line = json.loads((again / "decisions.jsonl").read_text(encoding="utf-8"))
    assert line["who"] == "Ada" and line["what"] == "reject" and line["source"] == sure.source and line["when"]
    after = read_assembly(again / "assembly.json", read_matches(again / "matches.json"))
    held = {frozenset((join.source, join.target)) for group in after.groups for join in group.joins}
    assert frozenset((sure.source, sure.target)) not in held
    told = json.loads(run("solve", scans, again, "--jobs", 1, "--json").stdout)
    assert told["groups"] == [len(group) for group in after.groups]  # it holds in later runs
    assert run("decide", again, "clear", sure.source, sure.target).returncode == 0
    cleared = read_assembly(again / "assembly.json", read_matches(again / "matches.json"))
    assert [len(group) for group in cleared.groups] == [len(group) for group in before.groups]
    assert run("decide", again, "maybe", sure.source, sure.target).returncode == 2
    assert run("decide", again, "accept", sure.source, "nobody").returncode == 2
    assert run("decide", tmp_path, "accept", "a", "b").returncode == 2


def test_the_same_in_memory(scans: Path, solved: Path) -> None:
    with pytest.raises(pairingnet.PairingNetError, match=r"broken\.jpg"):
        pairingnet.read_fragments(scans)
    names = pieces_of("spices")
    fragments = [pairingnet.read_fragment(SAMPLE / f"{name}.jpg") for name in names]
    joins = pairingnet.search(fragments, pairingnet.load_model())
    stored = read_joins(solved / "joins.jsonl")
    likely = {(join.source, join.target): join.probability for join in stored if join.probability > 0.5}
    assert {(join.source, join.target) for join in joins if join.probability > 0.5} >= set(likely)
    assembly = pairingnet.assemble(fragments, joins)
    before = read_assembly(solved / "assembly.json")
    assert [set(group.poses) for group in assembly.groups] == [set(group.poses) for group in before.groups]
    with pytest.raises(pairingnet.PairingNetError, match=names[0]):
        pairingnet.search([fragments[0], fragments[0]])
    assert pairingnet.search(fragments[:1]) == [] and pairingnet.assemble([], []).groups == ()


LONGEST = sorted(TRUTH["pairs"], key=lambda entry: -entry["contact_px"])[:6]


def test_pair(tmp_path: Path) -> None:
    pair = LONGEST[2]
    result = run("pair", SAMPLE / pair["source"], SAMPLE / pair["target"], "--json", "--out", tmp_path / "fit.png")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["probability"] > 0.9
    source, target = Path(pair["source"]).stem, Path(pair["target"]).stem
    assert off_px(source, target, Rigid2D.from_matrix(told["target_from_source"])) < 10
    assert (tmp_path / "fit.png").is_file()


def test_pairs_from_python_fit_both_ways() -> None:
    sure = 0
    for pair in LONGEST:
        source, target = (pairingnet.read_fragment(SAMPLE / pair[side]) for side in ("source", "target"))
        forth, back = pairingnet.match_pair(source, target), pairingnet.match_pair(target, source)
        assert forth.target_from_source is not None and back.target_from_source is not None
        both = back.target_from_source @ forth.target_from_source
        assert np.linalg.norm(both.apply([[50.0, 50.0]]) - [[50.0, 50.0]]) < 3
        assert off_px(source.id, target.id, forth.target_from_source) < 12
        assert forth.probability == pytest.approx(back.probability, abs=0.1)
        sure += forth.probability > 0.9
    assert sure >= 3
