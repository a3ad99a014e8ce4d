"""Very large PNG, some rows at a time: libraries hold the picture two to four times while they read it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pairingnet.jit import compiled
from pairingnet.types import Pixels

_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # of the colour types that are no palette
_PIECE = 1 << 16  # bytes that are unpacked at a time
_BLOCK = 1 << 23  # bytes of rows that are worked on at a time


def read_rows(file: IO[bytes]) -> Pixels:
    """Pixels (H, W, C) of a PNG with 8 or 16 bits a sample, not interlaced, without palette; 16 bits become eight."""
    file.seek(8)
    _, kind, header = file.read(4), file.read(4), file.read(13)
    if kind != b"IHDR" or len(header) < 13:
        raise ValueError("it has no header")
    width, height, depth, colours, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if colours not in _CHANNELS or depth not in (8, 16) or interlaced:
        raise ValueError("its layout is not supported")
    channels = _CHANNELS[colours]
    file.seek(8)
    step = channels * depth // 8
    length = 1 + width * step
    picture = np.empty((height, width, channels), dtype=np.uint8)
    before, row = np.zeros(length, dtype=np.uint8), 0
    for block in _blocks(file, length, height):
        lines = np.frombuffer(block, dtype=np.uint8).reshape(-1, length)
        if not _unfilter(lines, before, step):
            raise ValueError("a row has no filter that there is")
        before = lines[-1].copy()
        picture[row : row + len(lines)] = _eight_bit(lines[:, 1:], depth).reshape(-1, width, channels)
        row += len(lines)
    if row < height:
        raise ValueError(f"it ends after {row} of {height} rows")
    return picture


def _blocks(file: IO[bytes], length: int, height: int) -> Iterator[bytearray]:
    """Whole rows, each with its filter's number, many at a time."""
    most = max(1, _BLOCK // length) * length
    left, pending = height * length, bytearray()
    for part in _unpacked(file):
        pending += part
        while len(pending) >= most and left > 0:
            taken = min(most, left)
            yield pending[:taken]
            del pending[:taken]
            left -= taken
    rest = min(left, len(pending)) // length * length
    if rest:
        yield pending[:rest]


def _unpacked(file: IO[bytes]) -> Iterator[bytes]:
    packed = zlib.decompressobj()
    while True:
        head = file.read(8)
        if len(head) < 8:
            raise ValueError("it ends early")
        size, kind = struct.unpack(">I4s", head)
        if kind == b"IEND":
            break
        if kind != b"IDAT":
            file.seek(size, 1)
        while kind == b"IDAT" and size:
            piece = file.read(min(size, _PIECE))
            if not piece:
                raise ValueError("it ends early")
            size -= len(piece)
            yield packed.decompress(piece)
        file.seek(4, 1)  # the checksum of the chunk; the stream has one of its own
    if not packed.eof:
        raise ValueError("its data end early")


def _eight_bit(samples: NDArray[np.uint8], depth: int) -> NDArray[np.uint8]:
    if depth == 8:
        return samples
    values = np.ascontiguousarray(samples).view(">u2").astype(np.uint32)
    return np.asarray((values + 128) // 257, dtype=np.uint8)


@compiled
def _nearest(left: int, up: int, corner: int) -> int:
    """The one of three neighbours that is nearest to their slope (Paeth)."""
    to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    if to_left <= to_up and to_left <= to_corner:
        return left
    return up if to_up <= to_corner else corner


@compiled
def _unfilter(lines: Any, before: Any, step: int) -> bool:
    """Undo the filters of rows (N, 1 + bytes), each with its filter's number first, in place; `before` is the row
    above; a pixel has `step` bytes. False: there is no such filter."""
    above = before
    for row in range(len(lines)):
        line, kind = lines[row], lines[row, 0]
        if kind > 4:
            return False
        if kind == 2:
            for x in range(1, len(line)):
                line[x] += above[x]
        elif kind == 1:
            for x in range(1 + step, len(line)):
                line[x] += line[x - step]
        elif kind > 0:
            for x in range(1, len(line)):
                left = np.int32(line[x - step]) if x > step else np.int32(0)
                up = np.int32(above[x])
                corner = np.int32(above[x - step]) if x > step else np.int32(0)
                guess = (left + up) // 2 if kind == 3 else _nearest(left, up, corner)
                line[x] = np.uint8((np.int32(line[x]) + guess) & 255)
        above = line
    return True
