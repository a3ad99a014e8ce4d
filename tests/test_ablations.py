"""Every row of the paper's ablation tables is a configuration that trains, is judged, and stands in one table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from pairingnet.cli import app
from pairingnet.config import PaperSettings, TrainSettings
from pairingnet.errors import CollectionError, SettingsError
from pairingnet.io.collection import Collection
from pairingnet.settings import network_and_training, with_values
from pairingnet.train.ablations import (
    CONFIGURATIONS,
    MAIN,
    METRICS,
    ROWS,
    Budget,
    ablate,
    as_csv,
    as_markdown,
    read_results,
    read_seeds,
    seeds_as_markdown,
)

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


def test_the_nine_of_the_paper_itself() -> None:
    """Fusion way, layers of both kinds and modality in colour: their rows, and no others."""
    groups = {"fusion", "ResGCN layers", "transformer layers", "modality, RGB"}
    assert {row.configuration for row in ROWS if row.group in groups} == set(MAIN)
    assert len(MAIN) == len(set(MAIN)) == 9


def test_seeds_tell_which_rows_differ() -> None:
    """Rows whose seeds overlap are not told apart; the others stand as in the paper, or not."""
    table = seeds_as_markdown(
        {
            "preset": [{"RR": 0.8, "R@5": 0.5}, {"RR": 0.7, "R@5": 0.4}],
            "resgcn-10": [{"RR": 0.6}, {"RR": 0.65}],
            "resgcn-18": [{"RR": 0.95}, {"RR": 0.75}],
            "transformer-3": [{"R@5": 0.6}, {"R@5": 0.55}],
        }
    )
    assert "| ResGCN layers | 14 | 2 | 0.450 ± 0.050 | - | - | - | 0.750 ± 0.050 | 0.835 |" in table
    # 10 lies apart from both others, as in the paper; 14 and 18 overlap.
    assert "- ResGCN layers, RR: 2 of 3 pairs of rows are told apart by the seeds, 2 as in the paper" in table
    assert "- transformer layers, R@5: 1 of 1 pairs of rows are told apart by the seeds, 0 as in the paper" in table
    assert "| fusion |" not in table


def test_seeds_have_folders_of_their_own(few: Collection, tmp_path: Path) -> None:
    words = ["ablate", few.folder, few.folder, tmp_path / "out", "--only", "contour", "--steps", 1, "--batch", 1]
    words += ["--search-steps", 1, "--search-batch", 2, "--seeds", 2, "--threads", 1]
    told = CliRunner().invoke(app, [str(word) for word in [*words, "--json"]], catch_exceptions=False)
    found = json.loads(told.stdout)
    assert found == read_seeds(tmp_path / "out", (0, 1)) and len(found["contour"]) == 2
    assert (tmp_path / "out" / "seed-1" / "ablations.md").is_file() and (tmp_path / "out" / "seeds.md").is_file()


def test_an_unknown_configuration_is_refused(few: Collection, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="resgcn-18"):
        ablate(few, few, tmp_path, QUICK, ["resgcn-20"], CPU)
