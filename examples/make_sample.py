"""Makes examples/sample: pieces of three CC0 pictures, mixed, some lost, each photographed on a green mat.

python examples/make_sample.py FOLDER      (FOLDER has the three pictures named below)
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import cv2
import numpy as np

from pairingnet.config import WEAR_LEVELS, TearSettings
from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.io.images import read_image, write_jpeg
from pairingnet.prepare.load import load_fragment
from pairingnet.synth.collect import TearJob, tear_one_picture
from pairingnet.types import Fragment, Pixels

OUT = Path(__file__).parent / "sample"
PICTURES = {"spices": "val/val_015.jpg", "casa-mila": "test/test_089.jpg", "manuscript": "test/test_009.jpg"}
LONGEST_PX = 900
MAT = (72, 152, 92)
MARGIN_PX = 24
LOST = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    photos = parser.parse_args().photos
    rng = np.random.default_rng(11)
    OUT.mkdir(exist_ok=True)
    entries, pairs, names = [], [], {}
    with tempfile.TemporaryDirectory() as scratch:
        torn = {name: _torn(photos / path, name, Path(scratch)) for name, path in PICTURES.items()}
        ids = [(name, record.id) for name, collection in torn.items() for record in collection.fragments]
        kept = [ids[i] for i in rng.permutation(len(ids))[: round((1 - LOST) * len(ids))]]
        for number, (name, fragment_id) in enumerate(kept, start=1):
            file = f"piece-{number:02d}.jpg"
            names[fragment_id] = file
            write_jpeg(OUT / file, _on_mat(load_fragment(torn[name], fragment_id), rng), quality=90)
            pose = torn[name].by_id[fragment_id].canvas_from_fragment
            assert pose is not None
            scan_from_piece = Rigid2D(0.0, MARGIN_PX, MARGIN_PX)
            matrix = (pose @ scan_from_piece.inverse()).matrix
            entries.append({"file": file, "picture": name, "canvas_from_fragment": np.round(matrix, 4).tolist()})
        for collection in torn.values():
            for pair in collection.pairs:
                if pair.source in names and pair.target in names:
                    told = {"source": names[pair.source], "target": names[pair.target]}
                    pairs.append({**told, "contact_px": round(pair.overlap_px, 1)})
    text = json.dumps({"fragments": entries, "pairs": pairs}, indent=1)
    (OUT / "truth.json").write_text(text + "\n", encoding="utf-8")


def _torn(path: Path, name: str, scratch: Path) -> Collection:
    pixels = read_image(path).pixels
    scale = LONGEST_PX / max(pixels.shape[:2])
    size = (round(pixels.shape[1] * scale), round(pixels.shape[0] * scale))
    small = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
    job = TearJob(TearSettings(h_min=130, w_min=130, d_min=80), WEAR_LEVELS["none"], seed=3)
    return tear_one_picture(small, name, job, scratch / name, "fragments")


def _on_mat(fragment: Fragment, rng: np.random.Generator) -> Pixels:
    """The piece on the mat, with a scanner's noise."""
    pixels = np.pad(fragment.pixels, [(MARGIN_PX, MARGIN_PX), (MARGIN_PX, MARGIN_PX), (0, 0)])
    alpha = np.pad(fragment.alpha, MARGIN_PX)[..., None].astype(np.float64) / 255
    scan = pixels * alpha + np.array(MAT) * (1 - alpha) + rng.normal(0, 2.0, pixels.shape)
    return np.asarray(np.rint(scan.clip(0, 255)), dtype=np.uint8)


if __name__ == "__main__":
    main()
