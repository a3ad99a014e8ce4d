"""Makes examples/scans: pieces of the bundled picture on a scanner's glass, as two JPEG sheets with a ruler.

python examples/make_scans.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import cv2
import numpy as np

from pairingnet.config import WEAR_LEVELS, TearSettings
from pairingnet.io.images import read_image, write_jpeg
from pairingnet.prepare.load import load_fragments
from pairingnet.synth.collect import TearJob, tear_one_picture
from pairingnet.synth.sheet import lay_out

HERE = Path(__file__).parent


def main() -> None:
    pixels = read_image(HERE / "pictures" / "roman-colosseum.jpg").pixels
    small = np.asarray(cv2.resize(pixels, (900, 506), interpolation=cv2.INTER_AREA), dtype=np.uint8)
    job = TearJob(TearSettings(h_min=100, w_min=100, d_min=60), WEAR_LEVELS["none"], seed=7)
    with tempfile.TemporaryDirectory() as folder:
        pieces = list(load_fragments(tear_one_picture(small, "colosseum", job, Path(folder), "fragments")))
    rng = np.random.default_rng(7)
    half = (len(pieces) + 1) // 2
    for name, mat, chosen in (("grey", (186, 186, 184), pieces[:half]), ("green", (70, 150, 90), pieces[half:])):
        sheet = lay_out(chosen, rng, mat, columns=4, noise=2.5, shadow=0.2, ruler=True)
        (HERE / "scans").mkdir(exist_ok=True)
        write_jpeg(HERE / "scans" / f"sheet-{name}.jpg", sheet, quality=85)


if __name__ == "__main__":
    main()
