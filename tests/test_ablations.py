"""Every row of the paper's ablation tables is a configuration that trains, is judged, and stands in one table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pairingnet.config import PaperSettings, TrainSettings
from pairingnet.errors import CollectionError, SettingsError
from pairingnet.io.collection import Collection
from pairingnet.settings import network_and_training, with_values
from pairingnet.train.ablations import CONFIGURATIONS, METRICS, ROWS, Budget, ablate, as_csv, as_markdown, read_results

QUICK = Budget(steps=1, batch=1, search_steps=1, search_batch=2)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def few(torn: Collection) -> Collection:
    """Three pairs and their fragments."""
    pairs = torn.pairs[:3]
    ids = {name for pair in pairs for name in (pair.source, pair.target)}
    return replace(torn, fragments=tuple(r for r in torn.fragments if r.id in ids), pairs=pairs)


def test_each_configuration_is_in_the_tables_and_differs() -> None:
    assert {row.configuration for row in ROWS} == set(CONFIGURATIONS)
    made = set()
    for values in CONFIGURATIONS.values():
        of_network, of_training = network_and_training(values)
        made.add((with_values(PaperSettings(), of_network), with_values(TrainSettings(), of_training)))
    assert len(made) == len(CONFIGURATIONS)


def test_rows_train_and_are_judged(few: Collection, tmp_path: Path) -> None:
    names = ["resgcn-10", "temperature-0.2", "canny"]
    ablate(few, few, tmp_path, QUICK, names, CPU)
    results = read_results(tmp_path)
    assert list(results) == sorted(names, key=list(CONFIGURATIONS).index)
    assert "R@5" not in results["resgcn-10"] and set(METRICS) <= set(results["canny"])
    # A row that changes step 2 only stands on the preset's step 1.
    assert (tmp_path / "preset" / "matching").is_dir() and not (tmp_path / "temperature-0.2" / "matching").exists()
    before = (tmp_path / "canny" / "result.json").stat().st_mtime_ns
    ablate(few, few, tmp_path, QUICK, names, CPU)
    assert (tmp_path / "canny" / "result.json").stat().st_mtime_ns == before
    with pytest.raises(CollectionError, match="steps"):
        ablate(few, few, tmp_path, replace(QUICK, steps=2), names, CPU)


def test_the_table_has_every_row_with_the_papers_numbers() -> None:
    table = as_markdown({"preset": {"RR": 0.5, "R@5": 0.25}})
    assert table.count("\n") == 1 + 2 * len(ROWS)
    assert "| 0.835 | 43.2 | 0.352 | 7.735 |" in table and "0.500" in table
    lines = as_csv({}).splitlines()
    assert len(lines) == 1 + 2 * len(ROWS)


def test_an_unknown_configuration_is_refused(few: Collection, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="resgcn-18"):
        ablate(few, few, tmp_path, QUICK, ["resgcn-20"], CPU)
