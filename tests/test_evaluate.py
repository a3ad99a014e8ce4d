"""Answers are stored once and scored as the paper does; a perfect method gets a perfect score."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pairingnet.benchmark.ask import predict
from pairingnet.config import PaperSettings
from pairingnet.errors import CollectionError
from pairingnet.evaluate.predictions import read_predictions
from pairingnet.evaluate.scores import as_csv, as_json, as_markdown, score
from pairingnet.io.collection import Collection
from pairingnet.match.paper import PaperMethod
from pairingnet.models.paper import PairingNet
from tests.helpers import Oracle


def test_a_perfect_method_is_perfect(torn: Collection, tmp_path: Path) -> None:
    rows = score(torn, predict(torn, Oracle(torn), tmp_path))
    assert [row.difficulty for row in rows] == ["All", "High", "Medium", "Low"]
    assert sum(row.pairs for row in rows[1:]) == rows[0].pairs == len(torn.pairs)
    for row in rows:
        if row.pairs:
            assert row.values["R@20"] == row.values["RR"] == row.values["<2 px"] == 1.0
            assert row.values["HD"] == pytest.approx(0, abs=1e-3)
    # Among neighbours of all difficulties those of one are not all in front.
    assert rows[0].values["NDCG@20"] == 1.0


def test_an_error_in_pixels_is_seen_as_such(torn: Collection, tmp_path: Path) -> None:
    values = score(torn, predict(torn, Oracle(torn, off_px=5.0), tmp_path))[0].values
    assert (values["RR"], values["<2 px"], values["<4 px"], values["<8 px"]) == (1.0, 0.0, 0.0, 1.0)
    assert values["RE"] == pytest.approx(0, abs=1e-6)


def test_answers_are_asked_for_once(torn: Collection, tmp_path: Path) -> None:
    oracle = Oracle(torn)
    first = predict(torn, oracle, tmp_path)
    again = predict(torn, oracle, tmp_path)
    assert oracle.asked == len(torn.pairs)
    assert np.array_equal(first.ranked, again.ranked) and set(first.seconds) == {
        "features",
        "start",
        "search",
        "matching",
    }
    with pytest.raises(CollectionError, match=r"off_px: 0\.0 before, 3\.0 now"):
        predict(torn, Oracle(torn, off_px=3.0), tmp_path)
    with pytest.raises(CollectionError, match="collection:"):
        predict(replace(torn, fragments=torn.fragments[::-1]), oracle, tmp_path)
    with pytest.raises(CollectionError, match="no predictions"):
        read_predictions(tmp_path / "nowhere")


def test_tables_say_the_same_in_every_form(torn: Collection, tmp_path: Path) -> None:
    rows = score(torn, predict(torn, Oracle(torn, off_px=5.0), tmp_path))
    assert as_markdown(rows).splitlines()[2].startswith("| oracle | All | ")
    assert as_csv(rows).splitlines()[0].split(",")[:4] == ["method", "difficulty", "pairs", "R@5"]
    assert json.loads(as_json(rows))[0]["HD"] == pytest.approx(rows[0].values["HD"])
    assert as_markdown([]).startswith("| method")


def test_the_papers_method_answers(torn: Collection, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = PairingNet(PaperSettings(width=16, layers=2, search_layers=1, search_width=8))
    rows = score(torn, predict(torn, PaperMethod(network), tmp_path))
    assert 0 <= rows[0].values["RR"] <= 1 and 0 < rows[0].values["R@20"] <= 1


def test_answers_of_earlier_versions_are_read(torn: Collection, tmp_path: Path) -> None:
    """They know of no samples and of no costs beside seconds."""
    first = predict(torn, Oracle(torn), tmp_path)
    told = json.loads((tmp_path / "method.json").read_text())
    (tmp_path / "method.json").write_text(json.dumps({name: told[name] for name in ("wanted", "seconds")}))
    again = read_predictions(tmp_path)
    assert again.transforms == first.transforms and again.sample.is_all and not again.costs
