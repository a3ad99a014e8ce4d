"""The bundled sample and its truth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from pairingnet.geometry import Rigid2D
from pairingnet.types import PairMatch
from tests.conftest import ROOT

SAMPLE = ROOT / "examples" / "sample"
TRUTH = json.loads((SAMPLE / "truth.json").read_text(encoding="utf-8"))
PICTURE_OF = {Path(entry["file"]).stem: entry["picture"] for entry in TRUTH["fragments"]}
POSES = {Path(e["file"]).stem: Rigid2D.from_matrix(e["canvas_from_fragment"]) for e in TRUTH["fragments"]}
PAIRS = {frozenset((Path(pair["source"]).stem, Path(pair["target"]).stem)) for pair in TRUTH["pairs"]}


def pieces_of(picture: str) -> list[str]:
    return [name for name, own in PICTURE_OF.items() if own == picture]


def seam_off_px(match: PairMatch) -> float:
    """How far from where it belongs a join lays the source's side of the seam, on average."""
    if match.target_from_source is None or PICTURE_OF[match.source] != PICTURE_OF[match.target]:
        return float("inf")
    seam = match.points[:, 0]
    belongs = (POSES[match.target].inverse() @ POSES[match.source]).apply(seam)
    return float(np.linalg.norm(match.target_from_source.apply(seam) - belongs, axis=1).mean())
