"""Every format in, clear words for what cannot be read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Pillow

from pairingnet.errors import ImageError
from pairingnet.io.images import image_files, read_image, read_pages, write_png

# Corners tell mirrored and turned pictures apart; even values survive 16 bits unchanged.
RED, GREEN, BLUE, GREY = (200, 10, 10), (10, 200, 10), (10, 10, 200), (120, 120, 120)


def sample(width: int = 32, height: int = 24) -> NDArray[Any]:
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    pixels[: height // 2, : width // 2], pixels[: height // 2, width // 2 :] = RED, GREEN
    pixels[height // 2 :, : width // 2], pixels[height // 2 :, width // 2 :] = BLUE, GREY
    return pixels


@pytest.mark.parametrize(("suffix", "slack"), [("png", 0), ("bmp", 0), ("tif", 0), ("jpg", 40), ("webp", 40)])
def test_rgb_in_every_format(tmp_path: Path, suffix: str, slack: int) -> None:
    path = tmp_path / f"a.{suffix}"
    Pillow.fromarray(sample()).save(path)
    image = read_image(path)
    assert image.pixels.dtype == np.uint8
    assert image.alpha is None
    centres = image.pixels[[6, 6, 18, 18], [8, 24, 8, 24]].astype(int)
    assert np.abs(centres - [RED, GREEN, BLUE, GREY]).max() <= slack


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.tif" if mode == "CMYK" else tmp_path / "a.png"
    Pillow.fromarray(sample()).convert(mode).save(path)
    image = read_image(path)
    assert image.pixels.shape == (24, 32, 3)
    assert (image.alpha is not None) == ("A" in mode)
    if mode in ("RGBA", "CMYK"):
        assert np.abs(image.pixels.astype(int) - sample()).max() <= 2


def test_palette_with_a_transparent_colour_has_alpha(tmp_path: Path) -> None:
    file = Pillow.fromarray(np.array([[0, 1], [1, 0]], dtype=np.uint8)).convert("P")
    file.putpalette([255, 0, 0, 0, 0, 255] + [0] * 762)
    file.save(tmp_path / "a.png", transparency=0)
    image = read_image(tmp_path / "a.png")
    assert image.alpha is not None
    assert image.alpha.tolist() == [[0, 255], [255, 0]]


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_become_eight(tmp_path: Path, suffix: str, channels: int) -> None:
    eight = np.dstack([sample(), sample()[..., :1]])[..., :channels]
    deep = (eight.astype(np.uint16) * 257).squeeze()
    bgr = deep if channels == 1 else deep[..., [2, 1, 0, 3][:channels]]
    assert cv2.imwrite(str(tmp_path / f"a.{suffix}"), bgr)
    image = read_image(tmp_path / f"a.{suffix}")
    assert np.abs(image.pixels.astype(int) - eight[..., : min(channels, 3)]).max() <= 1


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    upright = sample()
    lying = {1: upright, 3: np.rot90(upright, 2), 6: np.rot90(upright, 1), 8: np.rot90(upright, -1)}
    for orientation, stored in lying.items():
        exif = Pillow.Exif()
        exif[274] = orientation
        Pillow.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "a.png", exif=exif)
        assert (read_image(tmp_path / "a.png").pixels == upright).all(), orientation


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_deep_tiff_is_that_of_a_flat_one(tmp_path: Path, orientation: int) -> None:
    flat = Pillow.fromarray(sample())
    flat.save(tmp_path / "flat.tif", tiffinfo={274: orientation})
    deep = Pillow.fromarray(sample()[..., 0].astype(np.uint16) * 257)
    deep.save(tmp_path / "deep.tif", tiffinfo={274: orientation})
    wanted = read_image(tmp_path / "flat.tif").pixels[..., 0]
    assert (read_image(tmp_path / "deep.tif").pixels[..., 0] == wanted).all()


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
def test_density_is_read(tmp_path: Path, suffix: str) -> None:
    Pillow.fromarray(sample()).save(tmp_path / f"a.{suffix}", dpi=(600, 600))
    assert read_image(tmp_path / f"a.{suffix}").dpi == pytest.approx(600, abs=0.1)


def test_density_is_kept_when_written(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png", sample(), dpi=300)
    image = read_image(tmp_path / "a.png")
    assert image.dpi == pytest.approx(300, abs=0.1)
    assert (image.pixels == sample()).all()


def test_no_density_is_none(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png", sample())
    assert read_image(tmp_path / "a.png").dpi is None


def test_pages_come_in_order(tmp_path: Path) -> None:
    pages = [Pillow.new("RGB", (20 + i, 10), (60 * i, 0, 0)) for i in range(3)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    read = list(read_pages(tmp_path / "a.tif"))
    assert [(p.page, p.size[0], int(p.pixels[0, 0, 0])) for p in read] == [(0, 20, 0), (1, 21, 60), (2, 22, 120)]
    assert read_image(tmp_path / "a.tif", page=2).size == (22, 10)
    with pytest.raises(ImageError, match="no page 3"):
        read_image(tmp_path / "a.tif", page=3)


def _jpeg() -> bytes:
    data = io.BytesIO()
    Pillow.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(data, "JPEG")
    return data.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.png", b"", "empty"),
        ("text.png", b"this is not a picture", "not a picture"),
        ("cut.jpg", _jpeg()[: len(_jpeg()) // 2], "cut short"),
        ("zero.bmp", b"BM" + bytes(60), "not a picture|broken|no pixels"),
    ],
)
def test_bad_files_are_named_with_a_next_step(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ImageError, match=says) as caught:
        read_image(tmp_path / name)
    assert name in str(caught.value)
    assert caught.value.next_step


def test_white_may_be_zero_in_sixteen_bits(tmp_path: Path) -> None:
    deep = Pillow.fromarray(65535 - sample()[..., 0].astype(np.uint16) * 257)
    deep.save(tmp_path / "a.tif", tiffinfo={262: 0})
    assert (read_image(tmp_path / "a.tif").pixels == sample()[..., :1]).all()


def test_rare_deep_layouts_are_refused_not_guessed(tmp_path: Path) -> None:
    Pillow.fromarray(np.full((4, 4), -5, dtype=np.int32)).save(tmp_path / "a.tif")
    with pytest.raises(ImageError, match="8 or 16 bits"):
        read_image(tmp_path / "a.tif")


def test_pillows_own_limit_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_png(tmp_path / "a.png", sample())
    monkeypatch.setattr(Pillow, "MAX_IMAGE_PIXELS", 10)
    assert read_image(tmp_path / "a.png").size == (32, 24)
    assert Pillow.MAX_IMAGE_PIXELS == 10


def test_thumbnails_are_no_pages(tmp_path: Path) -> None:
    page, thumbnail = Pillow.fromarray(sample()), Pillow.fromarray(sample(8, 6))
    thumbnail.encoderinfo = {"tiffinfo": {254: 1}}
    page.save(tmp_path / "a.tif", save_all=True, append_images=[thumbnail])
    assert [p.size for p in read_pages(tmp_path / "a.tif")] == [(32, 24)]


@pytest.mark.parametrize("seed", range(30))
def test_damaged_files_are_image_errors_or_pictures(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = io.BytesIO()
    Pillow.fromarray(sample()).save(data, ["TIFF", "PNG", "BMP", "WEBP"][seed % 4])
    damaged = bytearray(data.getvalue())
    for at in rng.integers(0, min(len(damaged), 200), 6):
        damaged[at] = rng.integers(256)
    (tmp_path / "a.tif").write_bytes(bytes(damaged))
    try:
        assert read_image(tmp_path / "a.tif").pixels.ndim == 3
    except ImageError as error:
        assert "a.tif" in str(error)


def test_float_samples_are_refused(tmp_path: Path) -> None:
    Pillow.fromarray(np.zeros((4, 4), dtype=np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(ImageError, match="8 or 16 bits"):
        read_image(tmp_path / "a.tif")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="no file"):
        read_image(tmp_path / "nowhere.png")


def test_absurd_sizes_are_refused_before_decoding(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png", sample())
    with pytest.raises(ImageError, match="megapixels") as caught:
        read_image(tmp_path / "a.png", max_pixels=100)
    assert "--max-megapixels" in caught.value.next_step


def test_a_bomb_is_an_error_not_a_crash(tmp_path: Path) -> None:
    # A header that promises 60000 x 60000 pixels in a file of a few bytes.
    data = bytearray(cv2.imencode(".png", sample())[1].tobytes())
    import struct
    import zlib

    data[16:24] = struct.pack(">II", 60000, 60000)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    (tmp_path / "bomb.png").write_bytes(bytes(data))
    with pytest.raises(ImageError, match="megapixels"):
        read_image(tmp_path / "bomb.png")


def test_folders_list_pictures_only(tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpg", ".hidden.png", "notes.txt", "sub/c.tif"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in image_files(tmp_path)] == ["a.jpg", "b.PNG", "c.tif"]


def test_an_empty_folder_and_no_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="no picture in"):
        image_files(tmp_path)
    with pytest.raises(ImageError, match="no file or folder"):
        image_files(tmp_path / "nowhere")
