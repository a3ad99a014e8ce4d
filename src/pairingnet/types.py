"""What flows between the stages. Frozen; shapes in the docstrings; arrays are not to be written to."""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pairingnet.geometry import Points, Rigid2D

Pixels = NDArray[np.uint8]


def _check_picture(what: str, pixels: object, alpha: object) -> None:
    """Refuse what is no picture of ours, before it ends deep inside of a library."""
    shapes = {"pixels": ("(H, W, 3)", 3), "alpha": ("(H, W)", 2)}
    for (name, (wanted, dimensions)), array in zip(shapes.items(), (pixels, alpha), strict=True):
        if array is None:
            continue
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{what}: {name} is a numpy array {wanted}, not {type(array).__name__}.")
        if array.dtype != np.uint8:
            raise TypeError(
                f"{what}: {name} has uint8 values from 0 to 255, not {array.dtype}; scale and round it first."
            )
        if array.ndim != dimensions or (dimensions == 3 and array.shape[2] != 3):
            hint = "; repeat the grey channel three times" if name == "pixels" and array.ndim == 2 else ""
            raise ValueError(f"{what}: {name} has the shape {wanted}, not {array.shape}{hint}.")
    if isinstance(pixels, np.ndarray) and isinstance(alpha, np.ndarray) and pixels.shape[:2] != alpha.shape:
        raise ValueError(f"{what}: alpha {alpha.shape} is not as large as pixels {pixels.shape[:2]}.")


@dataclass(frozen=True, eq=False)
class Image:
    """A picture as it lies on disk, upright, eight bits.

    pixels (H, W, 3) RGB; alpha (H, W), or None where the file has none; dpi, or None where it says nothing;
    page counts from 0 in files with several.
    """

    pixels: Pixels = field(repr=False)
    alpha: Pixels | None = field(default=None, repr=False)
    dpi: float | None = None
    path: str = ""
    page: int = 0

    def __post_init__(self) -> None:
        _check_picture(f"Image {self.path}".rstrip(), self.pixels, self.alpha)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)."""
        return self.pixels.shape[1], self.pixels.shape[0]


@dataclass(frozen=True, eq=False)
class Fragment:
    """One piece.

    pixels (H, W, 3) RGB, black where alpha is 0; alpha (H, W), 255 inside, in between on a soft edge;
    contour (N, 2) outer boundary where alpha is one half, closed, signed area positive, about 1 px steps;
    offset_px: where the upper left pixel lies in the image it was found in.
    """

    id: str
    pixels: Pixels = field(repr=False)
    alpha: Pixels = field(repr=False)
    contour: Points = field(repr=False)
    dpi: float | None = None
    origin: str = ""
    offset_px: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_picture(f"Fragment '{self.id}'", self.pixels, self.alpha)

    @property
    def area_px(self) -> float:
        """Area in square pixels."""
        return float(self.alpha.sum(dtype=np.float64) / 255)

    @property
    def rgba(self) -> Pixels:
        """(H, W, 4)."""
        return np.dstack([self.pixels, self.alpha])

    def on_paper(self, rgb: tuple[int, int, int] = (255, 255, 255)) -> Pixels:
        """(H, W, 3): as it looks on a plain ground."""
        alpha = self.alpha[..., None].astype(np.float32) / 255
        return np.asarray(np.rint(self.pixels * alpha + np.array(rgb) * (1 - alpha)), dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class TruePair:
    """Two neighbours of one picture.

    seam (K, 2): the shared stretch of contour in canvas pixels, in the order of the source's contour;
    points of the source and the target that coincide there are `fragment_from_canvas.apply(seam)`.
    """

    source: str
    target: str
    overlap_px: float
    overlap_ratio: float
    difficulty: str
    seam: Points = field(default_factory=lambda: np.zeros((0, 2)))


@dataclass(frozen=True, eq=False)
class PairMatch:
    """How two fragments fit, in a method's opinion.

    target_from_source: None where it found no way, and `reason` says why; points (K, 2, 2): corresponding points of
    the source (K, 0) and the target (K, 1) that support it; score: higher is more certain, comparable within a method;
    probability that the join is right, NaN where a method does not say; evidence: what was measured, by name; others:
    different ways to join the same two, each likely if none before it is right, the likeliest first.
    """

    source: str
    target: str
    target_from_source: Rigid2D | None
    score: float = 0.0
    points: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2, 2)), repr=False)
    reason: str = ""
    probability: float = float("nan")
    evidence: Mapping[str, float] = field(default_factory=dict)
    others: tuple[PairMatch, ...] = ()

    @property
    def pair(self) -> frozenset[str]:
        """Whom it joins, in no order."""
        return frozenset((self.source, self.target))


@dataclass(frozen=True, eq=False)
class Group:
    """Fragments that belong together: canvas_from_fragment of each, the joins that hold them, and the probability of
    each that it lies right, beside the piece that is held best."""

    poses: Mapping[str, Rigid2D]
    joins: Sequence[PairMatch] = ()
    probabilities: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.poses)


@dataclass(frozen=True, eq=False)
class Assembly:
    """groups of two and more, the largest first; singles: ids of the others; confirmed and contradicted: joins
    that other joins of their group speak for and against."""

    groups: tuple[Group, ...] = ()
    singles: tuple[str, ...] = ()
    confirmed: tuple[PairMatch, ...] = ()
    contradicted: tuple[PairMatch, ...] = ()


@dataclass(frozen=True, eq=False)
class Decisions:
    """What a person has said of joins: accepted and rejected ones, as unordered pairs of ids; locked ones keep their
    transform to the last digit; seen are the accepted ones as the person saw them; words: who said it of a pair, and
    when."""

    accepted: Ids[frozenset[str]] = frozenset()
    rejected: Ids[frozenset[str]] = frozenset()
    locked: Sequence[PairMatch] = ()
    seen: Sequence[PairMatch] = ()
    words: Mapping[frozenset[str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class FragmentRecord:
    """A fragment's line in `collection.json`: where its image is, and its true pose where that is known; fingerprint:
    of its image, where that was made here."""

    id: str
    image: str
    source: str = ""
    canvas_from_fragment: Rigid2D | None = None
    part: str = ""
    dpi: float | None = None
    area_px: float = 0.0
    perimeter_px: float = 0.0
    origin: str = ""
    offset_px: tuple[int, int] = (0, 0)
    fingerprint: str = ""
