"""A method of somebody else is scored from its files; what is wrong in them is named."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pairingnet.benchmark.ask import predict
from pairingnet.benchmark.table import table_of
from pairingnet.cli import app
from pairingnet.errors import TruthError
from pairingnet.evaluate.submitted import read_answers, read_ranking, read_submission
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection
from tests.helpers import Oracle


def entry(source: str, target: str, pose: Rigid2D | None, **more: object) -> dict[str, Any]:
    return {
        "source": source,
        "target": target,
        "target_from_source": None if pose is None else pose.matrix.tolist(),
        **more,
    }


@pytest.fixture
def perfect(torn: Collection, tmp_path: Path) -> Path:
    """The truth, every second pair told from the other side."""
    matches = []
    for number, pair in enumerate(torn.pairs):
        pose = torn.target_from_source(pair)
        told = entry(pair.source, pair.target, pose) if number % 2 else entry(pair.target, pair.source, pose.inverse())
        matches.append(told)
    (tmp_path / "matches.json").write_text(json.dumps({"version": 1, "matches": matches}))
    return tmp_path / "matches.json"


def ranking_of(torn: Collection) -> dict[str, list[str]]:
    """All true neighbours of each fragment."""
    lists: dict[str, list[str]] = {record.id: [] for record in torn.fragments}
    for pair in torn.pairs:
        lists[pair.source].append(pair.target)
        lists[pair.target].append(pair.source)
    return lists


def test_the_truth_is_perfect(torn: Collection, perfect: Path) -> None:
    (perfect.parent / "search.json").write_text(json.dumps({"version": 1, "rankings": ranking_of(torn)}))
    told = read_submission(torn, perfect, perfect.parent / "search.json", name="truth")
    assert told.remarks == ()
    values = {name: each.value for name, each in table_of("", torn, [told.predictions]).columns[0].estimates().items()}
    assert values["R@20"] == values["NDCG@10"] == values["RR"] == values["<2 px"] == 1.0
    assert values["HD"] == pytest.approx(0, abs=1e-3) and values["no pose"] == 0
    assert np.isnan(values["ECE"]) and np.isnan(values["assembly recall"])


def test_our_own_files_score_as_inside(torn: Collection, tmp_path: Path) -> None:
    """What `evaluate` stores of a method gives the same numbers through the door for others."""
    answers = predict(torn, Oracle(torn, off_px=5.0), tmp_path)
    told = read_submission(torn, tmp_path / "matches.json", name="oracle").predictions
    inside, outside = (table_of("", torn, [each]).columns[0].estimates() for each in (answers, told))
    for name in ("RR", "HD", "RE", "NTE e-4", "<2 px", "no pose"):
        assert inside[name].value == pytest.approx(outside[name].value)


def test_json_and_csv_say_the_same(torn: Collection, tmp_path: Path) -> None:
    lists = ranking_of(torn)
    (tmp_path / "search.json").write_text(json.dumps({"version": 1, "rankings": lists}))
    plain = [f"{query},{other}" for query, others in lists.items() for other in others]
    (tmp_path / "plain.csv").write_text("\n".join(["query,candidate", *plain]))
    # With scores the order of the lines does not matter.
    scored = [f"{q},{other},{-i}" for q, others in lists.items() for i, other in enumerate(others)]
    (tmp_path / "scored.csv").write_text("\n".join(["query,candidate,score", *reversed(scored)]))
    first = read_ranking(torn, tmp_path / "search.json")
    assert np.array_equal(first, read_ranking(torn, tmp_path / "plain.csv"))
    assert np.array_equal(first, read_ranking(torn, tmp_path / "scored.csv"))
    ids = [record.id for record in torn.fragments]
    assert [[ids[b] for b in row if b >= 0] for row in first] == [lists[name] for name in ids]


def test_missing_pairs_are_not_found_and_said(torn: Collection, perfect: Path) -> None:
    content = json.loads(perfect.read_text())
    content["matches"] = content["matches"][:-3]
    perfect.write_text(json.dumps(content))
    lists = dict(list(ranking_of(torn).items())[1:])
    (perfect.parent / "search.json").write_text(json.dumps({"version": 1, "rankings": lists}))
    told = read_submission(torn, perfect, perfect.parent / "search.json")
    assert f"3 of {len(torn.pairs)} true pairs" in told.remarks[0] and "not found" in told.remarks[0]
    assert "1 of" in told.remarks[1]
    values = table_of("", torn, [told.predictions]).columns[0].estimates()
    assert values["no pose"].value == pytest.approx(3 / len(torn.pairs))
    assert values["RR"].value == pytest.approx(1 - 3 / len(torn.pairs))
    assert "Without --search" in read_submission(torn, perfect).remarks[1]


def test_probabilities_are_judged_with_wrong_pairs_too(torn: Collection, tmp_path: Path) -> None:
    """Two right joins with .9 and two that are no neighbours with .4: the gaps are .1 and .4."""
    pairs = torn.pairs[:2]
    true = {frozenset((pair.source, pair.target)) for pair in torn.pairs}
    ids = [record.id for record in torn.fragments]
    strangers = [(a, b) for a in ids for b in ids if a < b and frozenset((a, b)) not in true][:2]
    matches = [entry(p.source, p.target, torn.target_from_source(p), probability=0.9) for p in pairs]
    matches += [entry(a, b, Rigid2D(), probability=0.4) for a, b in strangers]
    (tmp_path / "matches.json").write_text(json.dumps({"version": 1, "matches": matches}))
    told = read_submission(torn, tmp_path / "matches.json").predictions
    assert table_of("", torn, [told]).columns[0].estimates()["ECE"].value == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"source": "coloseum_00"}, "Did you mean 'colosseum_00'"),
        ({"source": "colosseum_01", "target": "colosseum_01"}, "with itself"),
        ({"target": 3}, "does not name"),
        ({"target_from_source": [[2, 0, 0], [0, 2, 0]]}, "scales"),
        ({"target_from_source": [[-1, 0, 0], [0, 1, 0]]}, "mirrors"),
        ({"target_from_source": [[1, 0], [0, 1]]}, "2x3"),
        ({"target_from_source": [[1, 0, float("nan")], [0, 1, 0]]}, "finite"),
        ({"target_from_source": "identity"}, "could not convert"),
        ({"probability": 1.5}, "between 0 and 1"),
    ],
)
def test_bad_matches_are_named(torn: Collection, perfect: Path, change: dict[str, Any], says: str) -> None:
    content = json.loads(perfect.read_text())
    content["matches"][1] |= change
    perfect.write_text(json.dumps(content))
    with pytest.raises(TruthError, match=says) as error:
        read_answers(torn, perfect)
    assert "match 2" in str(error.value)


def test_bad_files_are_named(torn: Collection, perfect: Path, tmp_path: Path) -> None:
    good = json.loads(perfect.read_text())
    twice = copy.deepcopy(good)
    first = good["matches"][0]
    twice["matches"].append({**first, "source": first["target"], "target": first["source"]})
    lacking = {"version": 1, "matches": [{"source": "colosseum_00", "target": "colosseum_01"}]}
    for content, says in (
        (twice, "were there before"),
        (lacking, "no target_from_source"),
        ({"version": 2, "matches": []}, "version is 1"),
        ({"version": 1}, "no list 'matches'"),
        ([], "version"),
    ):
        perfect.write_text(json.dumps(content))
        with pytest.raises(TruthError, match=says):
            read_answers(torn, perfect)
    perfect.write_text("{")
    with pytest.raises(TruthError, match="not valid JSON"):
        read_answers(torn, perfect)
    with pytest.raises(TruthError, match="no file"):
        read_answers(torn, tmp_path / "nowhere.json")
    perfect.write_text(json.dumps(good))
    for text, says in (
        ('{"version": 1}', "groups"),
        ('{"version": 1, "groups": [{"fragments": [{"id": "x", "canvas_from_fragment": [[1, 0, 0]]}]}]}', "2x3"),
        ('{"version": 1, "groups": [{"fragments": [{"id": "x", "canvas_from_fragment": [[1,0,0],[0,1,0]]}]}]}', "'x'"),
        ('{"version": 3}', "version"),
    ):
        (tmp_path / "assembly.json").write_text(text)
        with pytest.raises(TruthError, match=says):
            read_submission(torn, perfect, assembly=tmp_path / "assembly.json")
    for name, text, says in (
        ("a.csv", "query,other\n", "columns"),
        ("b.csv", "query,candidate,score\ncolosseum_00,colosseum_01,high\n", "line 2"),
        ("c.csv", "query,candidate\ncolosseum_00,colosseum_99x\n", "no fragment"),
        ("d.csv", "query,candidate\ncolosseum_00,colosseum_00\n", "itself"),
        ("e.json", '{"version": 1, "rankings": {"colosseum_00": "colosseum_01"}}', "rankings"),
        ("f.json", '{"version": 1, "rankings": {"colosseum_00": ["colosseum_01", "colosseum_01"]}}', "twice"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(TruthError, match=says):
            read_ranking(torn, tmp_path / name)


def test_the_command_scores(torn: Collection, perfect: Path, tmp_path: Path) -> None:
    groups = [
        {
            "fragments": [
                {"id": record.id, "canvas_from_fragment": record.canvas_from_fragment.matrix.tolist()}
                for record in torn.fragments
                if record.canvas_from_fragment is not None
            ],
            "joins": [[pair.source, pair.target] for pair in torn.pairs],
        }
    ]
    (tmp_path / "assembly.json").write_text(json.dumps({"version": 1, "groups": groups, "singles": []}))
    words = ["score", torn.folder, "--matches", perfect, "--assembly", tmp_path / "assembly.json", "--name", "theirs"]
    result = CliRunner().invoke(app, [str(word) for word in [*words, "--out", tmp_path, "--json"]])
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "scores.json").read_text())["methods"][0]
    assert row["method"] == "theirs" and row["RR"] == 1.0 and row["R@5"] is None
    assert row["assembly precision"] == row["assembly recall"] == 1.0
