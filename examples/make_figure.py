"""Makes docs/images/solved.jpg: what went into a run, and the groups that came out.

make demo; python examples/make_figure.py demo
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np

from pairingnet.io.images import read_image, write_jpeg
from pairingnet.types import Pixels

OUT = Path(__file__).parent.parent / "docs" / "images" / "solved.jpg"
HEIGHT_PX = 320
GAP_PX = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    files = [run / "pieces" / "contact_sheet.jpg", *sorted((run / "groups").glob("group-*.png"))]
    space = np.full((HEIGHT_PX, GAP_PX, 3), 255, dtype=np.uint8)
    parts = [part for path in files for part in (_at_height(read_image(path).pixels), space)]
    write_jpeg(OUT, np.hstack(parts[:-1]))
    print(OUT)


def _at_height(picture: Pixels) -> Pixels:
    width = round(picture.shape[1] * HEIGHT_PX / picture.shape[0])
    return np.asarray(cv2.resize(picture, (width, HEIGHT_PX), interpolation=cv2.INTER_AREA), dtype=np.uint8)


if __name__ == "__main__":
    main()
