"""One contract for every index of vectors; and what the search makes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pairingnet.config import IndexSettings, VoteSettings
from pairingnet.errors import CollectionError
from pairingnet.search.index import FaissIndex, Features, Ids, VectorIndex
from pairingnet.search.votes import KeysInMemory, rank_by_votes, votes_of
from tests.helpers import Piece, unit

WIDTH = 16
VECTORS = unit(np.random.default_rng(0).normal(size=(600, WIDTH))).astype(np.float32)
IDS = 7 * np.arange(600, dtype=np.int64) + 3


def exact(ids: Ids) -> Features:
    return VECTORS[(ids - 3) // 7]


def faiss_exact(path: Path) -> VectorIndex:
    return FaissIndex.open(path, WIDTH, exact) if path.exists() else FaissIndex(WIDTH, exact, path=path)


def faiss_in_cells(path: Path) -> VectorIndex:
    """Cells from the hundredth vector on; all of them are looked into, so that the answers are exact."""
    settings = IndexSettings(exact_below=100, probes=1000, rescored=60)
    return FaissIndex.open(path, WIDTH, exact, settings) if path.exists() else FaissIndex(WIDTH, exact, settings, path)


def milvus_file(path: Path) -> VectorIndex:
    pytest.importorskip("pymilvus", reason="needs the extra 'milvus'")
    pytest.importorskip("milvus_lite", reason="needs the extra 'milvus'")
    from pairingnet.search.milvus import MilvusIndex

    return MilvusIndex(str(path.with_suffix(".db")), "keys", WIDTH, exact)


Open = Callable[[Path], VectorIndex]


@pytest.fixture(params=[faiss_exact, faiss_in_cells, milvus_file])
def opened(request: pytest.FixtureRequest) -> Open:
    function: Open = request.param
    return function


def nearest(queries: Features, among: Ids, most: int) -> Ids:
    order = np.argsort(-(queries @ exact(among).T), axis=1, kind="stable")[:, :most]
    return np.asarray(among[order])


def test_the_nearest_are_found(opened: Open, tmp_path: Path) -> None:
    index = opened(tmp_path / "vectors.index")
    assert len(index) == 0
    similarity, found = index.search(VECTORS[:2], 3)
    assert found.tolist() == [[-1] * 3] * 2 and np.isneginf(similarity).all()
    index.add(IDS[:250], VECTORS[:250])
    index.add(IDS[250:500], VECTORS[250:500])
    assert len(index) == 500
    similarity, found = index.search(VECTORS[:40], 10)
    assert found.shape == (40, 10) and found.dtype == np.int64 and similarity.dtype == np.float32
    assert np.array_equal(found, nearest(VECTORS[:40], IDS[:500], 10))
    assert np.array_equal(found[:, 0], IDS[:40])
    assert np.allclose(similarity[:, 0], 1, atol=1e-5) and (np.diff(similarity, axis=1) <= 0).all()


def test_ids_stay_when_others_go(opened: Open, tmp_path: Path) -> None:
    index = opened(tmp_path / "vectors.index")
    index.add(IDS[:500], VECTORS[:500])
    index.remove(IDS[100:300])
    index.remove(IDS[100:110])  # again, and nothing happens
    left = np.concatenate([IDS[:100], IDS[300:500]])
    assert len(index) == 300
    assert np.array_equal(index.search(VECTORS[90:120], 5)[1], nearest(VECTORS[90:120], left, 5))
    index.add(IDS[100:120], VECTORS[100:120])
    assert len(index) == 320 and index.search(VECTORS[105:106], 1)[1].tolist() == [[IDS[105]]]


def test_an_id_has_one_vector(opened: Open, tmp_path: Path) -> None:
    index = opened(tmp_path / "vectors.index")
    index.add(IDS[:50], VECTORS[:50][::-1].copy())
    index.add(IDS[:50], VECTORS[:50])
    assert len(index) == 50
    assert np.array_equal(index.search(VECTORS[:50], 1)[1][:, 0], IDS[:50])
    few = index.search(VECTORS[:2], 60)
    assert (few[1][:, 50:] == -1).all() and np.isneginf(few[0][:, 50:]).all() and (few[1][:, :50] >= 0).all()


def test_it_is_the_same_after_closing(opened: Open, tmp_path: Path) -> None:
    index = opened(tmp_path / "vectors.index")
    index.add(IDS[:400], VECTORS[:400])
    index.remove(IDS[:10])
    index.save()
    before = index.search(VECTORS[:30], 8)
    index.close()
    again = opened(tmp_path / "vectors.index")
    assert len(again) == 390
    after = again.search(VECTORS[:30], 8)
    assert np.array_equal(before[1], after[1]) and np.allclose(before[0], after[0], atol=1e-6)
    again.add(IDS[:10], VECTORS[:10])
    assert len(again) == 400 and again.search(VECTORS[:1], 1)[1].tolist() == [[IDS[0]]]
    again.clear()
    assert len(again) == 0 and again.search(VECTORS[:1], 1)[1].tolist() == [[-1]]
    again.close()


def test_two_indexes_with_one_history_answer_alike(opened: Open, tmp_path: Path) -> None:
    answers = []
    for name in ("a", "b"):
        index = opened(tmp_path / f"{name}.index")
        for first in range(0, 600, 150):
            index.add(IDS[first : first + 150], VECTORS[first : first + 150])
        index.remove(IDS[::5])
        answers.append(index.search(VECTORS[:50], 12))
    assert np.array_equal(answers[0][1], answers[1][1]) and np.array_equal(answers[0][0], answers[1][0])


def test_many_vectors_lie_in_cells_and_few_of_them_are_enough() -> None:
    rng = np.random.default_rng(1)
    centres = unit(rng.normal(size=(200, 32)))
    vectors = unit(centres[rng.integers(200, size=20_000)] + 0.1 * rng.normal(size=(20_000, 32))).astype(np.float32)
    index = FaissIndex(32, lambda ids: vectors[ids], IndexSettings(exact_below=5_000, rescored=10))
    index.add(np.arange(4_000), vectors[:4_000])
    kinds = [index.is_exact]
    index.add(np.arange(4_000, 20_000), vectors[4_000:])
    assert [*kinds, index.is_exact] == [True, False] and np.array_equal(index.ids(), np.arange(20_000))
    asked = vectors[::100]
    similarity, found = index.search(asked, 10)
    truth = np.argsort(-(asked @ vectors.T), axis=1)[:, :10]
    hits = [len(set(a.tolist()) & set(b.tolist())) for a, b in zip(found, truth, strict=True)]
    assert np.mean(hits) > 9.8
    assert np.allclose(similarity, np.einsum("qd,qkd->qk", asked, vectors[found]), atol=1e-5)  # not those of the codes


def test_what_comes_after_removed_vectors_is_not_mixed_with_them() -> None:
    """Without comparing again: the codes themselves are those of an index from which nothing was removed."""
    settings = IndexSettings(exact_below=100, cells=0.2, probes=1000, rescored=1)
    fresh, used = (FaissIndex(WIDTH, exact, settings) for _ in range(2))
    for index in (fresh, used):
        index.add(IDS, VECTORS)
    for gone in (slice(0, 30), slice(200, 490)):
        used.remove(IDS[gone])
        used.add(IDS[gone], VECTORS[gone])
    for asked in VECTORS[:20]:
        found, expected = (set(index.search(asked[None], 300)[1][0].tolist()) for index in (used, fresh))
        assert len(found & expected) >= 297  # codes that are equally near come in any order


def test_only_a_stored_index_of_that_width_is_opened(tmp_path: Path) -> None:
    index = faiss_in_cells(tmp_path / "vectors.index")
    index.add(IDS, VECTORS)
    index.save()
    settings = IndexSettings(exact_below=100, probes=1000, rescored=60)
    shared = FaissIndex.open(tmp_path / "vectors.index", WIDTH, exact, settings)
    assert np.array_equal(shared.search(VECTORS[:20], 5)[1], index.search(VECTORS[:20], 5)[1])
    with pytest.raises(CollectionError, match="16 numbers, not 8"):
        FaissIndex.open(tmp_path / "vectors.index", 8, exact)
    (tmp_path / "bad.index").write_bytes(b"no index at all")
    with pytest.raises(CollectionError, match=r"bad\.index"):
        FaissIndex.open(tmp_path / "bad.index", WIDTH, exact)


def pieces_with_a_seam(rng: np.random.Generator, count: int) -> list[Piece]:
    queries, keys = ([unit(rng.normal(size=(60, 16))) for _ in range(count)] for _ in range(2))
    keys[4][20:40] = queries[1][10:30][::-1]
    keys[1][10:30] = queries[4][20:40][::-1]
    return [Piece(q, k) for q, k in zip(queries, keys, strict=True)]


def test_one_fragment_asks_alone(rng: np.random.Generator) -> None:
    pieces = pieces_with_a_seam(rng, 8)
    keys = KeysInMemory(pieces)
    others, scores = votes_of(pieces[1], keys, 20.0, own=1, settings=VoteSettings(1, 1, 24))
    assert others[0] == 4 and 1 not in others and (np.diff(scores) <= 0).all()
    stranger, _ = votes_of(pieces[1], KeysInMemory(pieces[:1] + pieces[2:]), 20.0, settings=VoteSettings(1, 1, 24))
    assert stranger[0] == 3  # not among the keys: the same piece, which is one place further on now


def test_votes_are_symmetric_and_everybody_has_candidates(rng: np.random.Generator) -> None:
    pieces = pieces_with_a_seam(rng, 70)  # more than ask at a time
    ranked, scores = rank_by_votes(pieces, 20.0, 69)
    assert all(sorted([number, *row.tolist()]) == list(range(70)) for number, row in enumerate(ranked))
    table = np.zeros((70, 70), np.float32)
    np.put_along_axis(table, ranked, scores, axis=1)
    assert np.allclose(table, table.T) and (np.diff(scores, axis=1) <= 0).all()
