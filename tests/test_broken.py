"""What the benchmarks of broken pieces count is what they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.broken import counts_of, is_roughly_right, laid, shifted_px, told
from benchmarks.left_out import Judged, calibrated, joined, judged, probability, table, usual_gap
from benchmarks.wear_statistics import looks_of, turns_of

from pairingnet.config import SolveSettings, WearSettings
from pairingnet.evaluate.metrics import expected_calibration_error
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection, write_collection
from pairingnet.io.run import write_joins
from pairingnet.match.weights import load_model
from pairingnet.synth.collect import tear_one_picture
from pairingnet.types import Pixels
from tests.conftest import small_job
from tests.helpers import ENERGY, all_joins, true_join


def test_a_circle_turns_evenly() -> None:
    angles = np.linspace(0, 2 * np.pi, 360, endpoint=False)
    turns = turns_of(50 * np.stack([np.cos(angles), np.sin(angles)], axis=1))
    assert turns == pytest.approx(np.tile([2.0, 8.0, 32.0], (360, 1)))


def test_statistics_see_the_gap(picture: Pixels, tmp_path: Path) -> None:
    medians = []
    for number, gap_px in enumerate((0.0, 8.0)):
        job = replace(small_job(), wear=WearSettings(gap=gap_px))
        torn = tear_one_picture(picture, "p", job, tmp_path / str(number), "fragments")
        medians.append(np.median(np.concatenate([look.gap for look in looks_of(torn, step_px=2.0)])))
    assert medians[0] < 0.4 and medians[1] == pytest.approx(4.0, abs=0.5)


def test_roughly_right_is_ten_degrees_and_sixty_pixels(torn: Collection) -> None:
    def off(angle_deg: float, shift_px: float) -> Rigid2D:
        middle = true_join(torn, 0).points[:, 1].mean(axis=0)
        return Rigid2D(0, shift_px, 0) @ Rigid2D.about(middle, np.radians(angle_deg))

    for turned, shifted, right in ((0, 0, True), (9, 30, True), (11, 0, False), (0, 59, True), (0, 61, False)):
        assert is_roughly_right(torn, true_join(torn, 0, off=off(turned, shifted))) is right
    assert shifted_px(torn, true_join(torn, 0, off=Rigid2D(0, 5, 0))) == pytest.approx(5)
    assert not is_roughly_right(torn, replace(true_join(torn, 0), target_from_source=None))


def test_a_puzzle_laid_before_is_judged_from_its_file(torn: Collection, tmp_path: Path) -> None:
    """The true joins of all true pairs, and nothing else, in the place of what the network would say."""
    model = load_model()
    (tmp_path / "truth").symlink_to(torn.folder)
    stored = replace(torn, folder=tmp_path / "truth")
    write_collection(stored)
    joins = all_joins(torn)
    write_joins(tmp_path / f"joins-{model.mark}.jsonl", joins)
    puzzle = laid(stored, model)
    counts = counts_of(puzzle, SolveSettings(), ENERGY)
    assert counts.pairs == counts.roughly == counts.within_16 == counts.within_8 == len(torn.pairs)
    assert counts.sure >= 0.9 * len(torn.pairs) and counts.wrong == 0
    assert counts.scores.q_pos == pytest.approx(1, abs=0.01)
    assert told([counts, counts]).startswith(f"{2 * len(torn.pairs)} | 1.000 | 1.000 | 1.000 | ")
    own = judged([puzzle])
    assert own.right.all() and len(own.logit) == len(joins) and usual_gap(puzzle) == 0


def made_up(count: int, loose: float, stretch: float, seed: int) -> Judged:
    """Joins whose true log-odds are those told, less or more so."""
    rng = np.random.default_rng(seed)
    logit = rng.normal(0, 4, count)
    return Judged(logit, np.full(count, loose), rng.random(count) < 1 / (1 + np.exp(-stretch * logit)))


def test_calibration_learns_what_others_have_in_common() -> None:
    others, left = joined([made_up(3000, 1, 0.5, 0), made_up(3000, 2, 0.5, 1)]), made_up(3000, 1.5, 0.5, 2)
    weights = calibrated(others, by_wear=False)
    assert weights[0] == pytest.approx(0.5, abs=0.05) and weights[2] == weights[3] == 0
    before, after = (
        expected_calibration_error(probability(left, each), left.right) for each in (np.array([1.0, 0, 0, 0]), weights)
    )
    assert after < 0.03 and before > 0.08


def test_wear_may_say_how_much_to_doubt() -> None:
    """The wider the gaps, the less is known: seen in two kinds, it holds for a third that is wider still."""
    kinds = {f"{loose}": made_up(6000, loose, 1 - 0.3 * float(np.log1p(loose)), loose) for loose in (0, 3, 8)}
    others, left = joined([kinds["0"], kinds["3"]]), kinds["8"]
    plain, by_wear = (
        expected_calibration_error(probability(left, calibrated(others, wear)), left.right) for wear in (False, True)
    )
    assert by_wear < 0.7 * plain
    lines = table(kinds).splitlines()
    assert len(lines) == 5 and lines[2].startswith("| 0 | 6000, ")
