"""The pictures that were trained on, made again from originals: what is exact, remade, missing or something else."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from pairingnet.cli.training import train_app
from pairingnet.errors import CollectionError
from pairingnet.io.images import read_image, write_jpeg, write_png
from pairingnet.train.pictures import (
    ListedPicture,
    build_pictures,
    listed_picture,
    look_of,
    read_list,
    sha256_of,
    write_list,
)
from pairingnet.types import Pixels
from tests.conftest import ROOT

LIST = ROOT / "training" / "pictures.csv"


def scene(seed: int, width: int = 360, height: int = 240) -> Pixels:
    """Soft blobs of colour: large shapes, as photographs have."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (6, 9, 3)).astype(np.uint8)
    return np.asarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), dtype=np.uint8)


@pytest.fixture
def originals(tmp_path: Path) -> tuple[Path, list[ListedPicture]]:
    """Originals of three pictures, and the list of what was made of them."""
    folder, used, listed = tmp_path / "originals", tmp_path / "used", []
    for place in (folder / "somewhere", used):
        place.mkdir(parents=True)
    for number, licence in enumerate(("CC0-1.0", "CC0/GPL (either)", "CC0-1.0 (scans)")):
        write_png(folder / "somewhere" / f"photo {number}.png", scene(number, 720, 480))
        small = cv2.resize(scene(number, 720, 480), (360, 240), interpolation=cv2.INTER_LINEAR)
        write_jpeg(used / f"train_{number:03}.jpg", np.asarray(small, dtype=np.uint8))
        name = f"photo {number}.png"
        listed.append(listed_picture(used / f"train_{number:03}.jpg", "train", name, "here", licence))
    return folder, listed


def test_pictures_are_made_again(originals: tuple[Path, list[ListedPicture]], tmp_path: Path) -> None:
    folder, listed = originals
    built = build_pictures(folder, tmp_path / "out", listed)
    assert (built.exact, built.missing, built.different) == ((), (), ())
    assert built.remade == tuple(each.file for each in listed)
    made = read_image(tmp_path / "out" / "train" / "train_001.jpg").pixels
    assert made.shape == (240, 360, 3)
    wanted = read_image(tmp_path / "used" / "train_001.jpg").pixels
    assert np.abs(made.astype(int) - wanted).mean() < 3


def test_the_files_that_were_used_are_taken_as_they_are(
    originals: tuple[Path, list[ListedPicture]], tmp_path: Path
) -> None:
    _, listed = originals
    built = build_pictures(tmp_path / "used", tmp_path / "out", listed)
    assert built.exact == tuple(each.file for each in listed)
    assert [sha256_of(tmp_path / "out/train" / each.file) for each in listed] == [each.sha256 for each in listed]
    # The originals are not asked for once more.
    assert build_pictures(tmp_path / "out", tmp_path / "out", listed).exact == built.exact


def test_what_is_missing_or_something_else_is_named(
    originals: tuple[Path, list[ListedPicture]], tmp_path: Path
) -> None:
    folder, listed = originals
    (folder / "somewhere" / "photo 0.png").unlink()
    write_png(folder / "somewhere" / "photo 1.png", scene(99, 720, 480))
    write_png(folder / "somewhere" / "photo 2.png", scene(2, 480, 480))
    built = build_pictures(folder, tmp_path / "out", listed)
    assert built.remade == () and built.exact == ()
    assert "no photo 0.png (here, CC0-1.0)" in built.missing[0]
    assert "shows something else" in built.different[0]
    assert "480 x 480 pixels, which does not become 360 x 240" in built.different[1]
    assert not (tmp_path / "out" / "train" / "train_001.jpg").exists()


def test_one_of_two_originals_of_a_name_is_that_of_its_source(
    originals: tuple[Path, list[ListedPicture]], tmp_path: Path
) -> None:
    folder, listed = originals
    for name in ("aside", "zz"):
        (folder / name).mkdir()
        write_png(folder / name / "photo 0.png", scene(50, 720, 480))
    (folder / "somewhere").rename(folder / "here")
    assert build_pictures(folder, tmp_path / "out", listed).remade == tuple(each.file for each in listed)


def test_a_list_is_read_as_it_was_written(originals: tuple[Path, list[ListedPicture]], tmp_path: Path) -> None:
    _, listed = originals
    write_list(tmp_path / "list.csv", listed)
    assert read_list(tmp_path / "list.csv") == listed
    assert [each.file for each in read_list(tmp_path / "list.csv", "CC0")] == ["train_000.jpg", "train_002.jpg"]
    with pytest.raises(CollectionError, match="licence XYZ"):
        read_list(tmp_path / "list.csv", "XYZ")
    with pytest.raises(CollectionError, match="no list nowhere"):
        read_list(Path("nowhere"))
    (tmp_path / "bad.csv").write_text("file,part\na,b\n")
    with pytest.raises(CollectionError, match="no list of pictures"):
        read_list(tmp_path / "bad.csv")


def test_the_command_tells(originals: tuple[Path, list[ListedPicture]], tmp_path: Path) -> None:
    folder, listed = originals
    write_list(tmp_path / "list.csv", [*listed, replace(listed[0], file="test_000.jpg", original="x.png", part="test")])
    words = ["pictures", folder, tmp_path / "out", "--list", tmp_path / "list.csv"]
    result = CliRunner().invoke(train_app, [str(word) for word in words])
    assert result.exit_code == 1
    assert "3 of 4 pictures" in result.stdout and "a smaller set" in result.stdout
    assert "test_000.jpg: no x.png" in result.stderr
    told = CliRunner().invoke(train_app, [str(word) for word in [*words, "--licence", "CC0-1.0", "--json"]])
    assert json.loads(told.stdout)["wanted"] == 3


def test_looks_tell_pictures_apart() -> None:
    def apart(one: Pixels, other: Pixels) -> int:
        return bin(int(look_of(one), 16) ^ int(look_of(other), 16)).count("1")

    for seed in range(5):
        assert apart(scene(seed), scene(seed, 90, 60)) <= 3
        assert apart(scene(seed), scene(seed + 1)) > 12


def test_the_list_of_the_repository() -> None:
    listed = read_list(LIST)
    assert Counter(each.part for each in listed) == {"train": 195, "val": 39, "test": 156}
    assert len({each.sha256 for each in listed}) == len({each.file for each in listed}) == 390
    assert all(each.file.startswith(each.part) and each.licence and each.source for each in listed)
    assert max(max(each.width, each.height) for each in listed) == 1400
    assert 0 < len(read_list(LIST, "CC0")) < 60
    with LIST.open(encoding="utf-8", newline="") as file:
        assert next(csv.reader(file))[:3] == ["file", "part", "original"]
