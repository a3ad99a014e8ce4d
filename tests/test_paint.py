"""Pictures of walls and pots, made from nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pairingnet.cli import app
from pairingnet.config import WEAR_LEVELS
from pairingnet.io.images import read_image
from pairingnet.synth.collect import tear_one_picture
from pairingnet.synth.paint import PAINTERS, paint_pictures
from tests.conftest import small_job


@pytest.mark.parametrize("kind", PAINTERS)
def test_pictures_are_the_same_for_a_seed_and_differ_between_seeds(kind: str) -> None:
    once, again, other = (PAINTERS[kind]((300, 200), np.random.default_rng(seed)) for seed in (4, 4, 5))
    assert once.shape == (200, 300, 3) and once.dtype == np.uint8
    assert np.array_equal(once, again)
    assert np.abs(once.astype(int) - other).mean() > 5


@pytest.mark.parametrize("kind", PAINTERS)
def test_pictures_have_areas_and_edges(kind: str) -> None:
    """Plain nearly everywhere, and sharp somewhere: that is what makes them hard."""
    grey = PAINTERS[kind]((600, 400), np.random.default_rng(1)).mean(axis=2)
    steps = np.abs(np.diff(grey, axis=0))
    assert np.median(steps) < 5 and np.quantile(steps, 0.998) > 15


def test_a_number_alone_decides_a_picture(tmp_path: Path) -> None:
    few = paint_pictures(tmp_path / "few", "pottery", 1, seed=2, size=(160, 120))
    more = paint_pictures(tmp_path / "more", "pottery", 2, seed=2, size=(160, 120))
    assert few[0].read_bytes() == more[0].read_bytes() != more[1].read_bytes()


def test_the_command_paints_what_can_be_torn(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["paint", str(tmp_path / "walls"), "--count", "1", "--seed", "3"])
    assert result.exit_code == 0 and "1 picture" in result.stdout
    pixels = read_image(tmp_path / "walls" / "fresco-0001.png").pixels[::2, ::2]
    job = replace(small_job(), wear=WEAR_LEVELS["fresco"])
    assert len(tear_one_picture(np.ascontiguousarray(pixels), "wall", job, tmp_path, "fragments").pairs) > 8
    result = CliRunner().invoke(app, ["paint", str(tmp_path), "--kind", "glass"])
    assert result.exit_code != 0 and "Choose one of fresco, pottery" in str(result.exception)
