"""Very large pictures: refused by numbers, or read, searched at a reduced size and cut out in full."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Pillow
from scipy.spatial import cKDTree

from pairingnet.config import PrepareSettings
from pairingnet.errors import ImageError
from pairingnet.io import images, png
from pairingnet.io.images import MAX_PAGES, MAX_SIDE, read_image, read_pages, write_fragment
from pairingnet.prepare import contour, large, scan
from pairingnet.prepare.contour import trace_contour
from pairingnet.prepare.scan import prepare_image
from pairingnet.types import Image, Pixels
from tests.conftest import blob


@pytest.fixture
def picture(rng: np.random.Generator) -> Pixels:
    coarse = rng.integers(0, 255, (24, 32, 3)).astype(np.uint8)
    return np.asarray(cv2.resize(coarse, (320, 240), interpolation=cv2.INTER_CUBIC), dtype=np.uint8)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large."""
    monkeypatch.setattr(images, "LARGE", 100)
    monkeypatch.setattr(images, "_STRIP_PX", 5000)


def _saved(path: Path, picture: Pixels, mode: str, **options: Any) -> None:
    file = Pillow.fromarray(picture).convert(mode)
    if "A" in mode:
        file.putalpha(Pillow.fromarray(picture[..., 1]))
    file.save(path, **options)


LAYOUTS = [
    *((f"a.{kind}", mode, {}) for kind in ("png", "tif", "bmp") for mode in ("1", "L", "P", "RGB")),
    *((f"a.{kind}", "CMYK", {}) for kind in ("jpg", "tif")),
    *((f"a.{kind}", mode, {}) for kind in ("png", "tif") for mode in ("LA", "RGBA")),
    *((name, "RGB", {}) for name in ("a.jpg", "a.webp")),
    ("a.webp", "RGBA", {"lossless": True}),
    ("a.jpg", "L", {}),
    ("a.webp", "L", {}),
    ("a.jpg", "RGB", {"progressive": True}),
    *(("a.tif", "RGB", {"compression": kind}) for kind in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")),
    ("a.tif", "1", {"compression": "group4"}),
]


@pytest.mark.parametrize(("name", "mode", "options"), LAYOUTS)
def test_large_and_small_pictures_are_read_alike(
    tmp_path: Path, picture: Pixels, monkeypatch: pytest.MonkeyPatch, name: str, mode: str, options: dict[str, Any]
) -> None:
    _saved(tmp_path / name, picture, mode, **options)
    wanted = read_image(tmp_path / name)
    monkeypatch.setattr(images, "LARGE", 100)
    monkeypatch.setattr(images, "_STRIP_PX", 5000)
    read = read_image(tmp_path / name)
    assert np.abs(read.pixels.astype(int) - wanted.pixels).max() <= (1 if mode == "CMYK" else 0)
    assert (read.alpha is None) == (wanted.alpha is None)
    if read.alpha is not None and wanted.alpha is not None:
        assert (read.alpha == wanted.alpha).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["png", "jpg", "tif"])
def test_large_pictures_are_upright(
    tmp_path: Path, picture: Pixels, monkeypatch: pytest.MonkeyPatch, orientation: int, kind: str
) -> None:
    exif = Pillow.Exif()
    exif[274] = orientation
    options: dict[str, Any] = {"tiffinfo": {274: orientation}} if kind == "tif" else {"exif": exif}
    _saved(tmp_path / f"a.{kind}", picture, "RGB", **options)
    wanted = read_image(tmp_path / f"a.{kind}").pixels
    monkeypatch.setattr(images, "LARGE", 100)
    assert (read_image(tmp_path / f"a.{kind}").pixels == wanted).all()


def test_large_sixteen_bits(tmp_path: Path, picture: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = picture.astype(np.uint16) * 257
    for name in ("a.tif", "a.png"):
        assert cv2.imwrite(str(tmp_path / name), deep[..., ::-1])
        monkeypatch.setattr(images, "LARGE", 100)
        assert np.array_equal(read_image(tmp_path / name).pixels, picture)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("kind", ["png", "jpg", "tif", "webp", "bmp"])
def test_large_files_that_are_cut_short_are_noticed(tmp_path: Path, picture: Pixels, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    _saved(path, picture, "RGB")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    with pytest.raises(ImageError, match=rf"a\.{kind}"):
        read_image(path)


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_every_filter_of_png(picture: Pixels, monkeypatch: pytest.MonkeyPatch, mode: str, kind: int) -> None:
    """Rows filtered by hand, with all filters, in blocks of a few rows."""
    samples = np.asarray(Pillow.fromarray(picture).convert(mode)).reshape(240, 320, -1).astype(int)
    step = samples.shape[2]
    rows = samples.reshape(240, -1)
    up = np.vstack([np.zeros_like(rows[:1]), rows[:-1]])
    left, corner = (np.pad(array, ((0, 0), (step, 0)))[:, :-step] for array in (rows, up))
    paeth = left + up - corner
    near = np.stack([abs(paeth - left), abs(paeth - up), abs(paeth - corner)]).argmin(axis=0)
    guesses = [np.zeros_like(rows), left, up, (left + up) // 2, np.choose(near, [left, up, corner])]
    kinds = (np.arange(240) + kind) % 5
    filtered = np.stack([(rows - guess) & 255 for guess in guesses])[kinds, np.arange(240)].astype(np.uint8)
    lines = np.hstack([kinds[:, None].astype(np.uint8), filtered]).tobytes()
    header = struct.pack(">IIBBBBB", 320, 240, 8, {1: 0, 2: 4, 3: 2, 4: 6}[step], 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    data = b"".join(struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in parts)
    monkeypatch.setattr(png, "_BLOCK", 5000)
    assert np.array_equal(png.read_rows(io.BytesIO(b"\x89PNG\r\n\x1a\n" + data)), samples)


@pytest.mark.usefixtures("small_limits")
def test_rare_layouts_are_read_up_to_a_size(tmp_path: Path, picture: Pixels) -> None:
    Pillow.fromarray(picture).convert("LAB").save(tmp_path / "a.tif")
    with pytest.raises(ImageError, match="read up to there only") as caught:
        read_image(tmp_path / "a.tif")
    assert "320 x 240" in str(caught.value)


def test_a_fragment_written_in_rows_is_the_same(
    tmp_path: Path, picture: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = np.ascontiguousarray(picture[..., 2])
    write_fragment(tmp_path / "at_once.png", picture, alpha, 300)
    monkeypatch.setattr(images, "_PLAIN_PX", 100)
    monkeypatch.setattr(images, "_STRIP_PX", 5000)
    write_fragment(tmp_path / "in_rows.png", picture, alpha, 300)
    assert (tmp_path / "in_rows.png").read_bytes() != (tmp_path / "at_once.png").read_bytes()
    for name in ("at_once.png", "in_rows.png"):
        read = read_image(tmp_path / name)
        assert np.array_equal(read.pixels, picture) and read.alpha is not None and np.array_equal(read.alpha, alpha)
        assert read.dpi == pytest.approx(300, abs=0.1)
    with Pillow.open(tmp_path / "in_rows.png") as file:
        file.verify()  # checksums


# Refused by numbers --------------------------------------------------------------------------------------------


def _png_that_says(width: int, height: int) -> bytes:
    data = bytearray(cv2.imencode(".png", np.zeros((4, 4, 3), np.uint8))[1].tobytes())
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    return bytes(data)


@pytest.mark.parametrize(
    ("width", "height", "says"),
    [
        (1, MAX_SIDE + 1, f"longer than {MAX_SIDE} pixels"),
        (400_000_000, 1, f"longer than {MAX_SIDE} pixels"),
        (20_001, 20_000, "larger than 400 megapixels"),
    ],
)
def test_sizes_are_refused_by_numbers(tmp_path: Path, width: int, height: int, says: str) -> None:
    (tmp_path / "a.png").write_bytes(_png_that_says(width, height))
    with pytest.raises(ImageError, match=says):
        read_image(tmp_path / "a.png")


def test_memory_is_refused_by_a_number(tmp_path: Path, picture: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    _saved(tmp_path / "a.jpg", picture, "RGB", progressive=True)
    monkeypatch.setattr(images, "LARGE", 100)
    monkeypatch.setattr(images, "MEMORY", 9 * picture.size // 3)
    with pytest.raises(ImageError, match="GB of memory"):
        read_image(tmp_path / "a.jpg")
    _saved(tmp_path / "b.jpg", picture, "RGB")
    assert read_image(tmp_path / "b.jpg").size == (320, 240)


def test_a_file_larger_than_the_memory_is_not_opened(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(ImageError, match=r"1000\.00 GB"):
        read_image(tmp_path / "a.png")


def _tiff_of_pages(pages: int, width: int = 1, height: int = 1) -> bytes:
    """A TIFF of many small pages, all with the same pixel."""
    tags = [(256, 3, width), (257, 3, height), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (278, 3, height)]
    tags += [(279, 4, 1)]
    parts, at = [b"II*\0" + struct.pack("<I", 16) + bytes(8)], 16
    for page in range(pages):
        entry = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", t, kind, 1, v) for t, kind, v in tags)
        at += len(entry) + 4
        parts.append(entry + struct.pack("<I", at if page + 1 < pages else 0))
    return b"".join(parts)


def test_pages_are_refused_by_a_number(tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_bytes(_tiff_of_pages(200_000))
    with pytest.raises(ImageError, match=f"more than {MAX_PAGES} pages"):
        next(read_pages(tmp_path / "a.tif"))
    (tmp_path / "a.tif").write_bytes(_tiff_of_pages(30))
    assert len(list(read_pages(tmp_path / "a.tif"))) == 30


def test_pages_that_are_large_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_bytes(_tiff_of_pages(5, 10_000, 10_000))
    with pytest.raises(ImageError, match="400 megapixels on its first 5 pages"):
        next(read_pages(tmp_path / "a.tif"))


@pytest.mark.parametrize("kind", ["webp", "png"])
def test_animations_are_refused(tmp_path: Path, kind: str) -> None:
    frames = [Pillow.new("RGB", (20, 20), (60 * i, 0, 0)) for i in range(3)]
    frames[0].save(tmp_path / f"a.{kind}", save_all=True, append_images=frames[1:])
    with pytest.raises(ImageError, match="is an animation"):
        read_image(tmp_path / f"a.{kind}")


def test_signed_samples_are_refused(tmp_path: Path) -> None:
    data = io.BytesIO()
    Pillow.fromarray(np.full((4, 4), 100, np.uint8)).save(data, "TIFF", tiffinfo={339: 2})
    (tmp_path / "a.tif").write_bytes(data.getvalue())
    with pytest.raises(ImageError, match="without sign"):
        read_image(tmp_path / "a.tif")


# Found at a reduced size, cut out in full ----------------------------------------------------------------------


def sheet(rng: np.random.Generator, blur: float = 2.0) -> tuple[Pixels, Pixels]:
    """Pixels (H, W, 3) and mask (H, W) of two pieces with sharp grain on a mat, at an odd size."""
    mask = np.zeros((803, 1205), np.uint8)
    for seed, left in ((1, 40), (2, 640)):
        mask[100:660, left : left + 560] = cv2.resize(blob(seed), (560, 560), interpolation=cv2.INTER_CUBIC)
    mask = np.where(mask >= 128, 255, 0).astype(np.uint8)
    soft = cv2.GaussianBlur(mask.astype(np.float32) / 255, (0, 0), blur)[..., None]
    grain = rng.integers(-20, 20, (803, 1205, 1))
    pixels = (np.array((150, 70, 60)) + grain) * soft + np.array((235, 235, 230)) * (1 - soft)
    return pixels.clip(0, 255).astype(np.uint8), mask


@pytest.mark.parametrize("step", [2, 3, 5])
def test_pieces_found_small_lie_where_they_lie_in_the_picture(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    pixels, mask = sheet(rng)
    monkeypatch.setattr(large, "_STRIP_PX", 20_000)
    monkeypatch.setattr(scan, "step_of", lambda *_: step)
    found = prepare_image(Image(pixels, path="sheet.png"), "sheet").fragments
    assert [fragment.id for fragment in found] == ["sheet#1", "sheet#2"]
    count, labels = cv2.connectedComponents(mask)
    assert count == 3
    for fragment in found:
        x, y = (fragment.contour.mean(axis=0) + fragment.offset_px).astype(int)
        number = labels[y, x]
        truth = trace_contour(np.where(labels == number, 255, 0).astype(np.uint8))
        distance, _ = cKDTree(truth).query(fragment.contour + fragment.offset_px)
        assert np.mean(distance) < 0.25 * step
        assert _centre(fragment.alpha) + fragment.offset_px == pytest.approx(_centre(labels == number), abs=0.15)
        left, top = fragment.offset_px
        height, width = fragment.alpha.shape
        deep = cv2.erode(fragment.alpha, np.ones((4 * step + 1, 4 * step + 1), np.uint8)) == 255
        assert (fragment.pixels[deep] == pixels[top : top + height, left : left + width][deep]).all()
        assert (fragment.pixels[fragment.alpha == 0] == 0).all()
        edge = fragment.pixels[(fragment.alpha > 0) & ~deep].astype(int).sum(axis=1)
        darkest, lightest = np.percentile(edge, [1, 99])
        assert darkest > 200  # nothing of the black beyond the edge: the piece has 220 and more
        assert lightest < 480  # and little of the mat, which has 700


def _centre(mask: NDArray[Any]) -> NDArray[Any]:
    y, x = np.nonzero(mask >= 128 if mask.dtype == np.uint8 else mask)
    return np.array([x.mean(), y.mean()])


def test_a_mask_by_hand_is_kept_to_the_pixel(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, mask = sheet(rng)
    mask[300:320, 300:330] = 0
    monkeypatch.setattr(scan, "step_of", lambda *_: 3)
    for holes in ("keep", "fill"):
        settings = replace(PrepareSettings(), holes=holes)
        for fragment in prepare_image(Image(pixels, mask, path="sheet.png"), "sheet", settings).fragments:
            left, top = fragment.offset_px
            there = mask[top : top + fragment.alpha.shape[0], left : left + fragment.alpha.shape[1]].copy()
            hole = fragment.alpha[300 - top : 320 - top, 300 - left : 330 - left] if fragment.id == "sheet#1" else None
            if hole is not None:
                assert (hole == (255 if holes == "fill" else 0)).mean() > 0.9
                there[300 - top : 320 - top, 300 - left : 330 - left] = hole
            assert (fragment.alpha == there).mean() > 0.999


def test_what_does_not_fit_into_the_memory_is_refused(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels, _ = sheet(rng)
    monkeypatch.setattr(scan, "step_of", lambda *_: 3)
    monkeypatch.setattr(large, "MEMORY", pixels.size + 1_000_000)
    with pytest.raises(ImageError, match="megapixels together"):
        prepare_image(Image(pixels, path="sheet.png"), "sheet")


def test_large_masks_are_traced_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    alpha = np.asarray(cv2.resize(blob(3), None, fx=6, fy=6, interpolation=cv2.INTER_CUBIC), dtype=np.uint8)
    wanted = trace_contour(alpha)
    monkeypatch.setattr(contour, "_MOST_PX", 100_000)
    monkeypatch.setattr(contour, "_REDUCED_PX", 50_000)
    traced = trace_contour(alpha)
    distance, _ = cKDTree(wanted).query(traced)
    assert np.max(distance) < 3
    assert np.mean(distance) < 0.5
    assert len(traced) == pytest.approx(len(wanted), rel=0.05)


def test_a_contour_has_steps_of_a_pixel_at_any_size() -> None:
    assert large.step_of(4000, 3000) == 1
    assert large.step_of(4961, 7016) == 2
    assert large.step_of(20_000, 20_000) == 6
