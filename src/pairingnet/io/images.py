"""Every picture format in, upright eight-bit RGB out; and PNG and JPEG back.

Pillow reads (it knows palettes, CMYK, EXIF and DPI and notices truncated files); OpenCV reads TIFF with more
than eight bits, which Pillow gets wrong in some layouts, and writes. Sixteen bits become eight by dividing by
257, the only reduction there is. Nothing is guessed: what cannot be read is an ImageError that says why.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageCms, ImageOps, UnidentifiedImageError

from pairingnet.errors import ImageError
from pairingnet.types import Image, Pixels

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp")
# A4 at 1200 dpi has 140 megapixels; far above that a file is broken, hostile or needs cutting up.
MAX_PIXELS = 400_000_000

# TIFF tags
_NEW_SUBFILE_TYPE, _BITS_PER_SAMPLE, _PHOTOMETRIC, _PLANAR, _SAMPLE_FORMAT = 254, 258, 262, 284, 339


def image_files(path: Path, leave_out: Path | None = None) -> list[Path]:
    """The picture files below a folder (by their ending, hidden ones left out), or the one file named.

    What lies below `leave_out` does not count: a result that is written into its own input's folder.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ImageError(f"There is no file or folder {path}.", "Check the path.")
    files = [
        file
        for file in sorted(path.rglob("*"))
        if file.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
        and (leave_out is None or not file.resolve().is_relative_to(leave_out.resolve()))
    ]
    if leave_out is not None and path.resolve().is_relative_to(leave_out.resolve()):
        raise ImageError(f"The input {path} lies in the output {leave_out}.", "Choose another output folder.")
    if not files:
        raise ImageError(f"There is no picture in {path}.", f"Put files there that end in {', '.join(SUFFIXES)}.")
    return files


def read_image(path: str | Path, page: int = 0, max_pixels: int = MAX_PIXELS) -> Image:
    """One page of a picture file. Raises ImageError with the file's name and what to do."""
    pages = list(read_pages(path, max_pixels, only=page))
    if not pages:
        raise ImageError(f"{path} has no page {page}.", "Pages count from 0.")
    return pages[0]


def read_pages(path: str | Path, max_pixels: int = MAX_PIXELS, only: int | None = None) -> Iterator[Image]:
    """All pages of a picture file in order (most formats have one)."""
    path = Path(path)
    data = _bytes_of(path)
    try:
        with _pillow_without_opinions(), _opened(data, path) as file:
            for page in _pages_of(file):
                if only is None or page == only:
                    file.seek(page)
                    _check_size(file.size, path, max_pixels)
                    yield _decode_page(file, data, path, page)
    except ImageError:
        raise
    except Exception as error:  # decoders raise all kinds of things on broken data
        raise ImageError(f"{path} is broken or cut short ({error}).", "Scan or copy it again, or remove it.") from error


def write_png(path: Path, pixels: Pixels, dpi: float | None = None) -> None:
    """Store (H, W), (H, W, 3) RGB or (H, W, 4) RGBA without loss; the same pixels give the same bytes."""
    # One fixed filter: half the time of trying them all, for 2 % more bytes.
    options = [cv2.IMWRITE_PNG_COMPRESSION, 1, cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_UP]
    data = _encode(".png", pixels, options)
    path.write_bytes(data if dpi is None else _with_png_density(data, dpi))


def write_jpeg(path: Path, pixels: Pixels, quality: int = 88) -> None:
    """Store (H, W, 3) RGB for looking at."""
    path.write_bytes(_encode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality]))


def jpeg_round_trip(pixels: Pixels, quality: int) -> Pixels:
    """What is left of (H, W, 3) RGB after storing it as JPEG."""
    data = np.frombuffer(_encode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality]), dtype=np.uint8)
    decoded = cv2.imdecode(data, cv2.IMREAD_COLOR)
    assert decoded is not None
    return np.asarray(decoded[..., ::-1], dtype=np.uint8)


def shrunk(picture: Pixels, longest_px: int) -> Pixels:
    """The same picture (H, W, C), at most so large."""
    scale = longest_px / max(picture.shape[:2])
    if scale >= 1:
        return picture
    size = (max(1, round(picture.shape[1] * scale)), max(1, round(picture.shape[0] * scale)))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _bytes_of(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ImageError(f"There is no file {path}.", "Check the path.") from None
    except OSError as error:
        raise ImageError(f"{path} cannot be opened ({error.strerror}).", "Check its permissions.") from error
    if not data:
        raise ImageError(f"{path} is empty (0 bytes).", "Copy it again, or remove it.")
    return data


@contextmanager
def _pillow_without_opinions() -> Iterator[None]:
    """Pillow warns of odd metadata and refuses pictures by a limit of its own; ours is `max_pixels`."""
    limit = Pillow.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Pillow.MAX_IMAGE_PIXELS = None
        try:
            yield
        finally:
            Pillow.MAX_IMAGE_PIXELS = limit


def _opened(data: bytes, path: Path) -> Pillow.Image:
    try:
        return Pillow.open(io.BytesIO(data))
    except UnidentifiedImageError as error:
        raise ImageError(
            f"{path} is not a picture we can read.", f"Save it as one of {', '.join(SUFFIXES)}, or remove it."
        ) from error


def _pages_of(file: Pillow.Image) -> list[int]:
    """The pages that show something of their own.

    Phones store a second view behind a JPEG (MPO), and TIFF marks small copies of other pages.
    """
    count = 1 if file.format == "MPO" else getattr(file, "n_frames", 1)
    if file.format != "TIFF":
        return list(range(count))
    own = []
    for page in range(count):
        file.seek(page)
        if not int(_tag(file, _NEW_SUBFILE_TYPE, 0)) & 1:
            own.append(page)
    return own or list(range(count))


def _check_size(size: tuple[int, int], path: Path, max_pixels: int) -> None:
    width, height = size
    if width <= 0 or height <= 0:
        raise ImageError(f"{path} has no pixels ({width} x {height}).", "Scan it again, or remove it.")
    if width * height > max_pixels:
        raise ImageError(
            f"{path} is larger than {max_pixels / 1e6:.0f} megapixels ({width} x {height} pixels).",
            "Scan at a lower resolution, cut it into several files, or raise --max-megapixels.",
        )


def _decode_page(file: Pillow.Image, data: bytes, path: Path, page: int) -> Image:
    dpi = _dpi_of(file)
    if _is_deep_tiff(file):
        pixels, alpha = _split(_eight_bit(_decode_deep_tiff(file, data, path, page)))
    else:
        file.load()
        pixels, alpha = _split(_rgb_of(ImageOps.exif_transpose(file)))
    return Image(pixels, alpha, dpi, str(path), page)


def _is_deep_tiff(file: Pillow.Image) -> bool:
    if file.format != "TIFF":
        return False
    return max(_numbers(file, _BITS_PER_SAMPLE, 8)) > 8


def _decode_deep_tiff(file: Pillow.Image, data: bytes, path: Path, page: int) -> NDArray[np.generic]:
    """A page with sixteen bits a sample, upright. Rare layouts are refused rather than guessed."""
    white_is_zero, grey, rgb, separate = 0, 1, 2, 2
    photometric = int(_tag(file, _PHOTOMETRIC, grey))
    if set(_numbers(file, _BITS_PER_SAMPLE, 8)) != {16} or set(_numbers(file, _SAMPLE_FORMAT, 1)) != {1}:
        raise ImageError(f"{path} has samples of neither 8 nor 16 bits.", "Save it with 8 or 16 bits a channel.")
    if photometric not in (white_is_zero, grey, rgb) or int(_tag(file, _PLANAR, 1)) == separate:
        raise ImageError(
            f"{path} has a rare 16-bit layout.", "Save it as interleaved RGB or grey, or with 8 bits a channel."
        )
    found, pages = cv2.imdecodemulti(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_UNCHANGED, range=(page, page + 1))
    if not found or not pages:
        raise ValueError("its TIFF layout is not supported")
    array = np.asarray(pages[0])
    if array.ndim == 3:  # OpenCV's order is blue, green, red
        array = array[..., [2, 1, 0, *range(3, array.shape[2])]]
    return np.asarray(65535 - array) if photometric == white_is_zero else array


def _tag(file: Pillow.Image, number: int, otherwise: int) -> Any:
    return file.tag_v2.get(number, otherwise)  # type: ignore[attr-defined]


def _numbers(file: Pillow.Image, number: int, otherwise: int) -> tuple[int, ...]:
    value = _tag(file, number, otherwise)
    return tuple(value) if isinstance(value, tuple) else (int(value),)


def _rgb_of(file: Pillow.Image) -> NDArray[np.uint8]:
    """Any Pillow mode as (H, W, 3) or (H, W, 4)."""
    if file.mode in ("I;16", "I;16B", "I;16L", "I;16N", "I", "F"):
        return np.repeat(_eight_bit(np.asarray(file))[..., None], 3, axis=2)
    if file.mode == "CMYK":
        return np.asarray(_from_cmyk(file))
    has_alpha = "A" in file.getbands() or "transparency" in file.info
    return np.asarray(file.convert("RGBA" if has_alpha else "RGB"))


def _from_cmyk(file: Pillow.Image) -> Pillow.Image:
    profile = file.info.get("icc_profile")
    if profile:
        try:
            converted = ImageCms.profileToProfile(
                file,
                ImageCms.ImageCmsProfile(io.BytesIO(profile)),
                ImageCms.createProfile("sRGB"),
                outputMode="RGB",
            )
            if converted is not None:
                return converted
        except ImageCms.PyCMSError:
            pass  # a broken profile: the plain formula below is what viewers show then
    return file.convert("RGB")


def _eight_bit(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Sixteen-bit samples as eight-bit ones; Pillow holds some sixteen-bit PNG in wider numbers."""
    if array.dtype == np.uint8:
        return np.asarray(array, dtype=np.uint8)
    values = array.astype(np.float64)
    if np.issubdtype(array.dtype, np.floating) or values.max(initial=0.0) > 65535:
        raise ValueError("its samples have neither 8 nor 16 bits; save it with 8 or 16 bits a channel")
    return np.clip(np.rint(values / 257), 0, 255).astype(np.uint8)


def _split(array: NDArray[np.uint8]) -> tuple[Pixels, Pixels | None]:
    """(H, W), (H, W, 2), (H, W, 3) or (H, W, 4) into RGB and alpha."""
    if array.ndim == 2:
        array = array[..., None]
    channels = array.shape[2]
    colour = array[..., :3] if channels >= 3 else np.repeat(array[..., :1], 3, axis=2)
    alpha = np.ascontiguousarray(array[..., -1]) if channels in (2, 4) else None
    return np.ascontiguousarray(colour), alpha


def _dpi_of(file: Pillow.Image) -> float | None:
    dpi = file.info.get("dpi")
    if not dpi:
        return None
    try:
        value = float(dpi[0] if isinstance(dpi, tuple) else dpi)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    # A density of 1 is how a file says that it knows only the shape of its pixels.
    return round(value, 2) if np.isfinite(value) and value > 1 else None


def _encode(suffix: str, pixels: Pixels, options: list[int]) -> bytes:
    if pixels.ndim == 3:
        code = cv2.COLOR_RGBA2BGRA if pixels.shape[2] == 4 else cv2.COLOR_RGB2BGR
        pixels = np.asarray(cv2.cvtColor(pixels, code), dtype=np.uint8)
    done, data = cv2.imencode(suffix, pixels, options)
    assert done, "OpenCV always encodes eight-bit pixels"
    return data.tobytes()


def _with_png_density(data: bytes, dpi: float) -> bytes:
    """Insert the pHYs chunk, which OpenCV does not write, before the first data chunk."""
    import struct
    import zlib

    per_metre = round(dpi / 0.0254)
    body = b"pHYs" + struct.pack(">IIB", per_metre, per_metre, 1)
    chunk = struct.pack(">I", 9) + body + struct.pack(">I", zlib.crc32(body))
    at = data.index(b"IDAT") - 4
    return data[:at] + chunk + data[at:]
