"""Shared small data: one bundled picture, and the pieces torn from it."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from pairingnet.config import WEAR_LEVELS, TearSettings
from pairingnet.io.collection import Collection, write_collection
from pairingnet.io.images import read_image
from pairingnet.prepare.contour import trace_contour
from pairingnet.prepare.load import load_fragments
from pairingnet.synth.collect import TearJob, tear_one_picture
from pairingnet.types import Fragment, Pixels

# A slow or busy machine is no reason to fail, and a check that guards every change tries the same examples each time.
hypothesis_settings.register_profile(
    "any machine",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
hypothesis_settings.load_profile("any machine")

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "examples" / "pictures"
PICTURE = PICTURES / "roman-colosseum.jpg"

# Pieces of 60 px instead of 150 make the tests quick.
SMALL_PIECES = TearSettings(h_min=60, w_min=60, d_min=40)


def small_job(seed: int = 1) -> TearJob:
    return TearJob(SMALL_PIECES, WEAR_LEVELS["none"], seed)


@pytest.fixture(scope="session")
def picture() -> Pixels:
    """The bundled picture at 600 px."""
    pixels = read_image(PICTURE).pixels
    return np.asarray(cv2.resize(pixels, (600, 400), interpolation=cv2.INTER_AREA), dtype=np.uint8)


@pytest.fixture(scope="session")
def torn(picture: Pixels, tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """The small picture torn with seed 1, turned, stored as a collection."""
    folder = tmp_path_factory.mktemp("torn")
    collection = tear_one_picture(picture, "colosseum", small_job(), folder, "fragments")
    write_collection(collection)
    return collection


@pytest.fixture(scope="session")
def pieces(torn: Collection) -> list[Fragment]:
    return list(load_fragments(torn))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def blob(seed: int = 0, size: int = 160, radius: float = 50.0) -> Pixels:
    """A smooth irregular mask (size, size), 255 inside."""
    generator = np.random.default_rng(seed)
    angles = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    reach = radius * (1 + sum(generator.uniform(-0.12, 0.12) * np.cos(k * angles + k) for k in range(2, 6)))
    outline = size / 2 + np.stack([reach * np.cos(angles), reach * np.sin(angles)], axis=1)
    mask = np.zeros((size, size), dtype=np.uint8)
    cv2.fillPoly(mask, [np.rint(outline * 16).astype(np.int32)], 255, shift=4)
    return mask


def fragment_of(mask: Pixels, colour: tuple[int, int, int] = (150, 60, 40), name: str = "blob") -> Fragment:
    """A fragment of one colour."""
    pixels = np.where(mask[..., None] > 0, np.array(colour, dtype=np.uint8), np.uint8(0))
    return Fragment(name, pixels, mask, trace_contour(mask))
