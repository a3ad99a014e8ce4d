"""A sheet of 400 megapixels in each format, prepared in a process of its own: docs/reliability.md, section "Limits".

python -m benchmarks.large [--width 23000] [--height 17391] [--only b.tif] [--folder DIR]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np

from pairingnet.types import Pixels

FILES = {"sheet.png": [], "sheet.jpg": [], "sheet.tif": [cv2.IMWRITE_TIFF_COMPRESSION, 1]}


def sheet(width: int, height: int) -> Pixels:
    """Six pieces with wavy edges on a mat, with the grain of a scanner; (height, width, 3)."""
    rng = np.random.default_rng(0)
    pixels = np.full((height, width, 3), (200, 205, 210), np.uint8)
    t = np.linspace(0, 2 * np.pi, 4000, endpoint=False)
    for row in range(2):
        for column in range(3):
            radius = 0.2 * height * (1 + 0.12 * np.sin(5 * t + row) + 0.05 * np.sin(13 * t + column))
            radius += 0.002 * height * np.sin(151 * t)
            x = (column + 0.5) * width / 3 + 0.53 * width / height * radius * np.cos(t)
            y = (row + 0.5) * height / 2 + radius * np.sin(t)
            line = np.rint(16 * np.column_stack([x, y])).astype(np.int32)
            cv2.fillPoly(pixels, [line], (150 - 20 * row, 90 + 20 * column, 60), cv2.LINE_AA, 4)
    grain = rng.integers(-4, 5, (512, 512, 3)).astype(np.int16)
    for top in range(0, height, 512):
        for left in range(0, width, 512):
            tile = pixels[top : top + 512, left : left + 512]
            moved = np.roll(grain, (top // 7 + left // 13) % 512, axis=1)[: tile.shape[0], : tile.shape[1]]
            tile[:] = np.clip(tile.astype(np.int16) + moved, 0, 255)
    return pixels


def prepare(path: Path) -> None:
    """Prepare one file here, and print how it went."""
    from pairingnet.config import PrepareSettings
    from pairingnet.prepare.collect import PrepareJob, prepare_collection

    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory(dir=path.parent) as out:
        began = time.process_time()
        found = prepare_collection(path, Path(out) / "out", PrepareJob(PrepareSettings(), (), 10**9))
        seconds = time.process_time() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    size = path.stat().st_size / 1e6
    print(f"| {path.name} | {size:.0f} MB | {len(found.collection)} | {memory:.2f} GB | {seconds:.0f} s |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=23_000)
    parser.add_argument("--height", type=int, default=17_391)
    parser.add_argument("--only", choices=FILES)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.prepare:
        prepare(given.prepare)
        return
    print("| file | size | pieces | peak memory | seconds of a core |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for name in [given.only] if given.only else FILES:
            path = Path(folder) / name
            assert cv2.imwrite(str(path), sheet(given.width, given.height), FILES[name])
            subprocess.run([sys.executable, "-m", "benchmarks.large", "--prepare", str(path)], check=True, timeout=1800)
            path.unlink()


if __name__ == "__main__":
    main()
