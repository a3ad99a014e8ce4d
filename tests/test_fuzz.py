"""A share of `benchmarks/fuzz.py`: a few hundred damaged and forged files, each answered by a result or an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.fuzz import format_case, own_formats, picture_case, read_own, read_picture, seed_pictures


@pytest.mark.parametrize("as_large", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_damaged_pictures(tmp_path: Path, part: int, as_large: bool) -> None:
    answers = set()
    for seed in range(100_000 + 40 * part, 100_000 + 40 * (part + 1)):
        name, data = picture_case(seed)
        (tmp_path / name).write_bytes(data)
        answers.add(read_picture(tmp_path / name, as_large))
    assert answers >= {"read", "refused"}


@pytest.mark.parametrize("as_large", [False, True])
def test_the_pictures_that_are_damaged_are_good(tmp_path: Path, as_large: bool) -> None:
    for name, data in seed_pictures().items():
        (tmp_path / name).write_bytes(data)
        answer = "refused" if "animated" in name else "read"
        assert read_picture(tmp_path / name, as_large) == answer, name


@pytest.mark.parametrize("part", range(4))
def test_forged_files_of_ours(tmp_path: Path, part: int) -> None:
    answers = set()
    for seed in range(100_000 + 100 * part, 100_000 + 100 * (part + 1)):
        name, data = format_case(seed)
        (tmp_path / name).write_bytes(data)
        answers.add(read_own(name, tmp_path / name))
    assert answers == {"read", "refused"}


def test_the_files_that_are_forged_are_good(tmp_path: Path) -> None:
    for name, (data, _) in own_formats().items():
        (tmp_path / name).write_bytes(data)
        assert read_own(name, tmp_path / name) == "read", name
