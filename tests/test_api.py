"""What programs may rely on: answers where nothing fits, clear errors for wrong use, threads and forks."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pairingnet
from pairingnet.types import Fragment, PairMatch
from tests.conftest import blob, fragment_of
from tests.sample import SAMPLE


@pytest.fixture(scope="module")
def two() -> tuple[Fragment, Fragment]:
    return pairingnet.read_fragment(SAMPLE / "piece-01.jpg"), pairingnet.read_fragment(SAMPLE / "piece-40.jpg")


def test_where_nothing_fits_there_is_a_typed_answer() -> None:
    """A thin strip and a black blob have not a single point in common."""
    strip = np.zeros((12, 240), dtype=np.uint8)
    strip[5:7, 5:-5] = 255
    answer = pairingnet.match_pair(fragment_of(blob(1), (0, 0, 0)), fragment_of(strip, name="strip"))
    assert answer.target_from_source is None and np.isnan(answer.probability)
    assert answer.reason and answer.reason in repr(answer)
    assert answer.score == 0 and not answer.evidence and not len(answer.points)


def test_copies_of_a_piece_are_no_neighbours(two: tuple[Fragment, Fragment]) -> None:
    answer = pairingnet.match_pair(two[0], replace(two[0], id="copy", pixels=two[0].pixels.copy()))
    assert answer.target_from_source is None and "pixel for pixel" in answer.reason
    assert pairingnet.match_pair(*two).target_from_source is not None


def test_joins_of_other_fragments_are_named(two: tuple[Fragment, Fragment]) -> None:
    joins = [PairMatch(two[0].id, "elsewhere", pairingnet.Rigid2D(), 2.0, probability=0.9)]
    with pytest.raises(pairingnet.PairingNetError, match="'elsewhere'"):
        pairingnet.assemble(two, joins)
    with pytest.raises(pairingnet.PairingNetError, match="'elsewhere'"):
        pairingnet.assemble(two, [], decisions=pairingnet.Decisions(locked=joins))
    assert pairingnet.assemble(two, [PairMatch(two[0].id, two[1].id, None)]).groups == ()


@pytest.mark.parametrize("contour", [np.zeros((0, 2)), np.zeros((5, 3)), np.full((9, 2), np.nan), np.zeros(4)])
def test_a_fragment_without_a_contour_is_named(contour: Any, two: tuple[Fragment, Fragment]) -> None:
    bad = replace(two[0], id="bad", contour=contour)
    for call in (
        lambda: pairingnet.match_pair(bad, two[1]),
        lambda: pairingnet.search([two[1], bad]),
        lambda: pairingnet.assemble([two[1], bad], []),
    ):
        with pytest.raises(pairingnet.PairingNetError, match="'bad' has no contour"):
            call()


def test_what_is_no_fragment_is_refused(two: tuple[Fragment, Fragment]) -> None:
    wrong: Any = str(SAMPLE / "piece-01.jpg")
    with pytest.raises(TypeError, match=r"not str; read_fragment\(path\)"):
        pairingnet.match_pair(wrong, two[1])
    with pytest.raises(TypeError, match="not ndarray"):
        pairingnet.search([two[1].pixels, two[0]])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"not str; load_model\(file\)"):
        pairingnet.match_pair(*two, model=wrong)


COLOUR = np.full((60, 80, 3), 9, np.uint8)


@pytest.mark.parametrize(
    ("pixels", "alpha", "error", "says"),
    [
        (COLOUR[..., 0], None, ValueError, "repeat the grey channel"),
        (COLOUR / 255, None, TypeError, "uint8 values from 0 to 255, not float64"),
        (COLOUR.astype(np.uint16), None, TypeError, "not uint16"),
        (np.dstack([COLOUR, COLOUR[..., 0]]), None, ValueError, r"\(H, W, 3\), not \(60, 80, 4\)"),
        (COLOUR, COLOUR[:50, :, 0], ValueError, r"alpha \(50, 80\) is not as large"),
        (COLOUR, COLOUR[..., 0] > 3, TypeError, "not bool"),
        (COLOUR.tolist(), None, TypeError, "not list"),
    ],
)
def test_pixels_of_another_kind_are_refused(pixels: Any, alpha: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as told:
        pairingnet.prepare_image(pairingnet.Image(pixels, alpha), "mine")
    assert "--" not in str(told.value)
    if alpha is not None:
        with pytest.raises(error, match=f"Fragment 'mine'.*{says}"):
            Fragment("mine", pixels, alpha, np.zeros((4, 2)))


def test_many_threads_find_the_same(two: tuple[Fragment, Fragment]) -> None:
    alone = pairingnet.match_pair(*two)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: pairingnet.match_pair(*two), range(8)):
            assert found.target_from_source == alone.target_from_source and found.probability == alone.probability


FORK = """
import multiprocessing, sys
import pairingnet

def chance(names):
    return pairingnet.match_pair(*(pairingnet.read_fragment(f"{sys.argv[1]}/{name}") for name in names)).probability

if __name__ == "__main__":
    two = ("piece-01.jpg", "piece-40.jpg")
    alone = chance(two)
    all_of_it = [pairingnet.read_fragment(f"{sys.argv[1]}/{name}") for name in (*two, "piece-02.jpg")]
    pairingnet.assemble(all_of_it, pairingnet.search(all_of_it))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map_async(chance, [two, two]).get(timeout=60) == [alone, alone])
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork")
@pytest.mark.slow
def test_a_forked_pool_works_after_a_call(tmp_path: Any) -> None:
    """With as many threads as libraries like to start: those that were started are missing after a fork."""
    script = tmp_path / "script.py"
    script.write_text(FORK, encoding="utf-8")
    threads = {"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}
    told = subprocess.run(
        [sys.executable, str(script), str(SAMPLE)],
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert told.stdout == "True\n", told.stderr[-2000:]
