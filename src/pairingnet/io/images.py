"""Every picture format in, upright eight-bit RGB out; and PNG and JPEG back.

Pillow reads (it knows palettes, CMYK, EXIF and DPI and notices truncated files); OpenCV reads what is very large, in
half the memory, and TIFF of more than eight bits, which Pillow gets wrong in some layouts, and writes. Sixteen bits
become eight by dividing by 257, the only reduction there is. Nothing is guessed: what cannot be read is an ImageError
that says why. A file's size, pages and layout are known before its first pixel is read; docs/reliability.md lists the
limits.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from struct import pack
from typing import IO, Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageCms, ImageOps, UnidentifiedImageError

from pairingnet.errors import ImageError, printable
from pairingnet.io.png import read_rows
from pairingnet.io.walk import walk_pictures
from pairingnet.types import Image, Pixels

# Pillow would try all it knows on any file, whatever its ending: EPS even starts another program.
FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP")
# A4 at 1200 dpi has 140 megapixels; far above that a file is broken, hostile or needs cutting up.
MAX_PIXELS = 400_000_000  # of all pages together
MAX_SIDE = 65_535  # px
MAX_PAGES = 1000
MEMORY = 2_820_000_000  # bytes that a file and the pixels of one of its pages may take together
LARGE = 50_000_000  # pixels from which on a page is read by OpenCV

# TIFF tags
_NEW_SUBFILE_TYPE, _BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLES, _ROWS_PER_STRIP = 254, 258, 262, 277, 278
_PLANAR, _TILE_WIDTH, _TILE_HEIGHT, _SAMPLE_FORMAT = 284, 322, 323, 339
_ORIENTATION = 274  # EXIF

_PLAIN_PX = 30_000_000  # pixels from which on a fragment is stored without compression
_STRIP_PX = 4_000_000  # pixels that are worked on at a time, where a whole page would take too much memory


def image_files(path: Path, leave_out: Path | None = None) -> list[Path]:
    """The picture files below a folder (`walk_pictures`), or the one file named."""
    return list(walk_pictures(path, leave_out).pictures)


def read_image(path: str | Path, page: int = 0, max_pixels: int = MAX_PIXELS) -> Image:
    """One page of a picture file. Raises ImageError with the file's name and what to do."""
    pages = list(read_pages(path, max_pixels, only=page))
    if not pages:
        raise ImageError(f"{path} has no page {page}.", "Pages count from 0.")
    return pages[0]


def read_pages(path: str | Path, max_pixels: int = MAX_PIXELS, only: int | None = None) -> Iterator[Image]:
    """All pages of a picture file in order (most formats have one), one at a time."""
    path = Path(path)
    with _regular_file(path) as opened:
        with _as_image_errors(path):
            file = _identified(opened, path)
            pages = _pages_of(file, path, max_pixels)
        for page in pages:
            if only is None or page == only:
                with _as_image_errors(path):
                    file.seek(page)
                    image = _decode_page(file, path, page)
                yield image


def count_pages(path: str | Path, max_pixels: int = MAX_PIXELS) -> int:
    """How many pages `read_pages` gives."""
    path = Path(path)
    with _regular_file(path) as opened, _as_image_errors(path):
        return len(_pages_of(_identified(opened, path), path, max_pixels))


def write_png(path: Path, pixels: Pixels, dpi: float | None = None) -> None:
    """Store (H, W), (H, W, 3) RGB or (H, W, 4) RGBA without loss; the same pixels give the same bytes."""
    # One fixed filter: half the time of trying them all, for 2 % more bytes.
    options = [cv2.IMWRITE_PNG_COMPRESSION, 1, cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_UP]
    data = _encode(".png", pixels, options)
    path.write_bytes(data if dpi is None else _with_png_density(data, dpi))


def write_fragment(path: Path, pixels: Pixels, alpha: Pixels, dpi: float | None = None) -> None:
    """Store pixels (H, W, 3) and alpha (H, W) as PNG; black where alpha is 0.

    Very large ones are written row by row and not compressed: that would take most of the time of preparing them.
    """
    if alpha.size <= _PLAIN_PX:
        write_png(path, np.dstack([pixels, alpha]), dpi)
        return
    height, width = alpha.shape
    colour_and_alpha, packed = 6, zlib.compressobj(level=0)
    with path.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        file.write(_png_chunk(b"IHDR", pack(">IIBBBBB", width, height, 8, colour_and_alpha, 0, 0, 0)))
        if dpi is not None:
            file.write(_png_density(dpi))
        for rows in _strips(alpha.shape):
            samples = np.asarray(cv2.cvtColor(np.ascontiguousarray(pixels[rows]), cv2.COLOR_RGB2RGBA))
            samples[..., 3] = alpha[rows]
            # Each line begins with the number of its filter: 0, none.
            lines = np.pad(samples.reshape(-1, 4 * width), ((0, 0), (1, 0)))
            file.write(_png_chunk(b"IDAT", packed.compress(lines.tobytes())))
        file.write(_png_chunk(b"IDAT", packed.flush()))
        file.write(_png_chunk(b"IEND", b""))


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


@contextmanager
def _regular_file(path: Path) -> Iterator[IO[bytes]]:
    """A file open for reading. Pipes and devices are refused: they would wait for ever, or never end."""
    try:
        # Opening a pipe waits for its other end, unless told not to.
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise ImageError(f"There is no file {path}.", "Check the path.") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ImageError(f"{path} cannot be opened ({why}).", "Check its name and its permissions.") from error
    with os.fdopen(number, "rb") as file:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"{path} is no file (but a folder, pipe or device).", "Give a picture file.")
        if not status.st_size:
            raise ImageError(f"{path} is empty (0 bytes).", "Copy it again, or remove it.")
        if status.st_size > MEMORY:
            raise ImageError(f"{path} has {_gigabytes(status.st_size)}, {_MOST}.", _SMALLER)
        yield file


@contextmanager
def _as_image_errors(path: Path) -> Iterator[None]:
    """Decoders raise all kinds of things on broken data; and they, and Pillow's limits, have nothing to say here.

    Pillow warns of odd metadata and refuses pictures by a limit of its own; ours is `max_pixels`.
    """
    limit, loudness = Pillow.MAX_IMAGE_PIXELS, cv2.utils.logging.getLogLevel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Pillow.MAX_IMAGE_PIXELS = None
        cv2.utils.logging.setLogLevel(0)
        try:
            yield
        except ImageError:
            raise
        except MemoryError as error:
            raise ImageError(f"{path} needs more memory than there is.", "Cut it up.") from error
        except Exception as error:
            why = printable(error).replace(str(path), "").strip()
            raise ImageError(
                f"{path} is broken or cut short ({why}).", "Scan or copy it again, or remove it."
            ) from error
        finally:
            Pillow.MAX_IMAGE_PIXELS = limit
            cv2.utils.logging.setLogLevel(loudness)


def _identified(opened: IO[bytes], path: Path) -> Pillow.Image:
    try:
        return Pillow.open(opened, formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ImageError(
            f"{path} is not a picture we can read.", f"Save it as one of {', '.join(FORMATS)}, or remove it."
        ) from error


def _pages_of(file: Pillow.Image, path: Path, max_pixels: int) -> list[int]:
    """The pages that show something of their own, none of them too large.

    Phones store a second view behind a JPEG (MPO), and TIFF marks small copies of other pages.
    """
    if file.format in ("PNG", "WEBP") and getattr(file, "n_frames", 1) > 1:
        raise ImageError(f"{path} is an animation.", "Save the picture that shows the piece, as PNG or JPEG.")
    _check_size(file.size, path, max_pixels)
    if file.format != "TIFF":
        return [0]
    own, sizes = [], []
    for page in range(MAX_PAGES + 1):
        try:
            file.seek(page)  # to count them first would walk through all of them, however many
        except EOFError:
            break
        _check_size(file.size, path, max_pixels)
        sizes.append(file.size[0] * file.size[1])
        if sum(sizes) > max_pixels:
            raise ImageError(
                f"{path} has more than {max_pixels / 1e6:.0f} megapixels on its first {page + 1} pages.",
                "Save its pages as several files, or raise --max-megapixels.",
            )
        if not int(_tag(file, _NEW_SUBFILE_TYPE, 0)) & 1:
            own.append(page)
    if len(sizes) > MAX_PAGES:
        raise ImageError(f"{path} has more than {MAX_PAGES} pages.", "Save its pages as several files.")
    return own or list(range(len(sizes)))


def _check_size(size: tuple[int, int], path: Path, max_pixels: int) -> None:
    width, height = size
    if width <= 0 or height <= 0:
        raise ImageError(f"{path} has no pixels ({width} x {height}).", "Scan it again, or remove it.")
    if width * height > max_pixels:
        raise ImageError(
            f"{path} is larger than {max_pixels / 1e6:.0f} megapixels ({width} x {height} pixels).",
            "Scan at a lower resolution, cut it into several files, or raise --max-megapixels.",
        )
    if max(size) > MAX_SIDE:
        raise ImageError(
            f"{path} is longer than {MAX_SIDE} pixels ({width} x {height}).", "Scan it again, or cut it up."
        )


_SMALLER = "Scan at a lower resolution, or save it as PNG or JPEG with 8 bits a channel, not progressive."
_MOST = f"more than the {MEMORY / 1e9:.2f} GB of memory that a file may take"


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB"


@dataclass(frozen=True)
class _Layout:
    """What is known of a page before its pixels are read."""

    format: str
    mode: str
    pixels: int
    alpha: bool
    deep_tiff: bool
    in_passes: bool
    turned: bool
    strip_px: int

    @classmethod
    def of(cls, file: Pillow.Image) -> _Layout:
        width, height = file.size
        strip = width * height if file.format == "TIFF" else 0
        if file.format == "TIFF":
            tile = int(_tag(file, _TILE_WIDTH, 0)) * int(_tag(file, _TILE_HEIGHT, 0))
            strip = min(strip, tile or width * int(_tag(file, _ROWS_PER_STRIP, height)))
        return cls(
            str(file.format),
            file.mode,
            width * height,
            "A" in file.getbands() or "transparency" in file.info,
            _is_deep_tiff(file),
            bool(file.info.get("progressive") or file.info.get("interlace")),
            file.format == "TIFF" and _tag(file, _ORIENTATION, 1) != 1,
            strip,
        )

    def reader(self) -> str:
        """Who reads a very large page of this layout; "" for none."""
        if self.deep_tiff:
            return "deep tiff"
        if self.mode in ("1", "L", "P") and not self.alpha:
            return "pillow"  # one byte a pixel
        if self.format == "TIFF":  # in strips; OpenCV holds it twice
            return "pillow" if self.mode in ("RGB", "CMYK", "LA", "RGBA") else ""
        if self.format == "PNG":
            masked = self.alpha and self.mode not in ("LA", "RGBA")
            return "" if self.in_passes or masked or self.mode == "P" else "rows"
        if self.alpha:
            return "opencv" if (self.format, self.mode) == ("WEBP", "RGBA") else ""
        return "opencv" if self.mode in ("RGB", "CMYK") else ""

    def memory(self, size: int) -> int:
        """Bytes that it takes to read it from a file of `size` bytes."""
        result = 4 if self.alpha else 3
        reader = self.reader()
        if reader == "pillow":
            own = 1 if self.mode in ("1", "L", "P") else 4
            return self.pixels * (own + (max(own, result) if self.turned else result)) + own * self.strip_px
        if reader == "rows":
            return self.pixels * (result + (1 if self.mode == "LA" else 0))
        if reader == "deep tiff":
            return size + self.pixels * (2 * 2 * (1 if self.mode.startswith("I") else 4) + result)
        return size + self.pixels * (result + {"JPEG": 6 if self.in_passes else 0, "WEBP": 8}.get(self.format, 0))


def _decode_page(file: Pillow.Image, path: Path, page: int) -> Image:
    dpi = _dpi_of(file)
    if file.format == "TIFF" and not set(_numbers(file, _SAMPLE_FORMAT, 1)) <= {1, 4}:  # 4: undefined
        raise ImageError(
            f"{path} has samples of neither 8 nor 16 bits without sign.", "Save it with 8 or 16 bits a channel."
        )
    layout = _Layout.of(file)
    if layout.pixels > LARGE:
        pixels, alpha = _decode_large(file, layout, path, page)
    elif layout.deep_tiff:
        pixels, alpha = _split(_eight_bit(_decode_deep_tiff(file, path, page)))
    else:
        file.load()
        ImageOps.exif_transpose(file, in_place=True)
        pixels, alpha = _split(_rgb_of(file))
    return Image(pixels, alpha, dpi, printable(path), page)


def _decode_large(file: Pillow.Image, layout: _Layout, path: Path, page: int) -> tuple[Pixels, Pixels | None]:
    """Pixels (H, W, 3) and alpha (H, W) of a page that Pillow would need four times the memory for."""
    width, height = file.size
    reader = layout.reader()
    if not reader:
        passes = ", in several passes" if layout.in_passes else ""
        raise ImageError(
            f"{path} has more than {LARGE / 1e6:.0f} megapixels ({width} x {height}) in a layout that is read up to "
            f"there only ({layout.format}, {layout.mode}{passes}).",
            "Save it as PNG or TIFF in RGB with 8 bits a channel, not interlaced; masked ones as PNG.",
        )
    takes = layout.memory(path.stat().st_size)
    if takes > MEMORY:
        what = f"{width} x {height} pixels, {layout.format}{', progressive' if layout.in_passes else ''}"
        raise ImageError(f"{path} ({what}) takes {_gigabytes(takes)}, {_MOST}.", _SMALLER)
    if reader == "deep tiff":
        return _split(_eight_bit(_decode_deep_tiff(file, path, page)))
    if reader == "pillow":
        array = _read_by_pillow(path, page, layout.alpha)
    elif reader == "rows":
        with path.open("rb") as opened:
            array = read_rows(opened)
    else:
        array = _read_by_opencv(path, layout.alpha)
    if set(array.shape[:2]) != {width, height}:
        raise ValueError("it has another size than it says")
    # Not `file.getexif()`: that of PNG reads all pixels first, to see what comes after them. Pillow turns TIFF itself.
    orientation = 1 if layout.format == "TIFF" else int(Pillow.Image.getexif(file).get(_ORIENTATION, 1))
    array = _upright(array, orientation)
    if array.shape[2] < 3:
        return _split(array)
    return array[..., :3], array[..., 3] if layout.alpha else None


def _read_by_pillow(path: Path, page: int, alpha: bool) -> Pixels:
    """A page as (H, W, 3) or (H, W, 4)."""
    # Opened for this alone: a file keeps the pixels that it has read.
    with _regular_file(path) as opened, _identified(opened, path) as file:
        file.seek(page)
        file.load()
        width, height = file.size
        array = np.empty((height, width, 4 if alpha else 3), dtype=np.uint8)
        for rows in _strips(array.shape):
            part = file.crop((0, rows.start, width, min(rows.stop, height)))
            part.info = file.info
            array[rows] = _rgb_of(part) if part.mode == "CMYK" else np.asarray(part.convert("RGBA" if alpha else "RGB"))
    return array


def _read_by_opencv(path: Path, alpha: bool) -> Pixels:
    """A picture as (H, W, 3) or (H, W, 4)."""
    flags = cv2.IMREAD_UNCHANGED if alpha else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    decoded = cv2.imdecode(np.fromfile(path, dtype=np.uint8), flags)
    if decoded is None or decoded.dtype != np.uint8:
        raise ValueError("it cannot be decoded")
    array = np.asarray(decoded, dtype=np.uint8)
    _in_order_of_colours(array)
    return array


def _upright(array: Pixels, orientation: int) -> Pixels:
    """An array (H, W, C) as its EXIF orientation says that it is to be seen."""
    if orientation in (5, 6, 7, 8):
        array = array.swapaxes(0, 1)
    rows = slice(None, None, -1 if orientation in (3, 4, 7, 8) else 1)
    columns = slice(None, None, -1 if orientation in (2, 3, 6, 7) else 1)
    return np.ascontiguousarray(array[rows, columns])


def _strips(shape: tuple[int, ...]) -> Iterator[slice]:
    """Rows of a large array, some at a time."""
    step = max(1, _STRIP_PX // max(shape[1], 1))
    return (slice(first, first + step) for first in range(0, shape[0], step))


def _in_order_of_colours(array: NDArray[Any]) -> None:
    """Red, green, blue in place, where OpenCV gave blue, green, red: (H, W, 3 or 4)."""
    code = cv2.COLOR_BGRA2RGBA if array.shape[2] == 4 else cv2.COLOR_BGR2RGB
    for rows in _strips(array.shape):
        array[rows] = cv2.cvtColor(array[rows], code)


def _is_deep_tiff(file: Pillow.Image) -> bool:
    if file.format != "TIFF":
        return False
    return max(_numbers(file, _BITS_PER_SAMPLE, 8)) > 8


def _decode_deep_tiff(file: Pillow.Image, path: Path, page: int) -> NDArray[np.generic]:
    """A page with sixteen bits a sample, upright. Rare layouts are refused rather than guessed."""
    white_is_zero, grey, rgb, separate = 0, 1, 2, 2
    photometric = int(_tag(file, _PHOTOMETRIC, grey))
    if set(_numbers(file, _BITS_PER_SAMPLE, 8)) != {16} or set(_numbers(file, _SAMPLE_FORMAT, 1)) != {1}:
        raise ImageError(f"{path} has samples of neither 8 nor 16 bits.", "Save it with 8 or 16 bits a channel.")
    if photometric not in (white_is_zero, grey, rgb) or int(_tag(file, _PLANAR, 1)) == separate:
        raise ImageError(
            f"{path} has a rare 16-bit layout.", "Save it as interleaved RGB or grey, or with 8 bits a channel."
        )
    found, pages = cv2.imdecodemulti(np.fromfile(path, dtype=np.uint8), cv2.IMREAD_UNCHANGED, range=(page, page + 1))
    if not found or not pages:
        raise ValueError("its TIFF layout is not supported")
    array = np.asarray(pages[0])
    if array.ndim == 3:
        _in_order_of_colours(array)
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
    if np.issubdtype(array.dtype, np.floating) or int(array.max(initial=0)) > 65535:
        raise ValueError("its samples have neither 8 nor 16 bits; save it with 8 or 16 bits a channel")
    reduced = np.empty(array.shape, dtype=np.uint8)
    for rows in _strips(array.shape):
        reduced[rows] = np.rint(array[rows].clip(0, 65535) / 257.0)
    return reduced


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
    at = data.index(b"IDAT") - 4
    return data[:at] + _png_density(dpi) + data[at:]


def _png_density(dpi: float) -> bytes:
    per_metre = round(dpi / 0.0254)
    return _png_chunk(b"pHYs", pack(">IIB", per_metre, per_metre, 1))


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return pack(">I", len(body)) + kind + body + pack(">I", zlib.crc32(body, zlib.crc32(kind)))
