"""Candidate poses: everything that pair matching proposes, as arrays.

A pose is a pair of complex numbers here, turn and shift: a point z of the source lies at `turn * z + shift` in the
target. E candidates, S points along the seam of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pairingnet.geometry import Points, Rigid2D
from pairingnet.types import PairMatch

Complex = NDArray[np.complex128]
Numbers = NDArray[np.intp]

SEAM_POINTS = 6  # of each candidate: enough to measure how far apart two poses lay a seam
# Beyond this the verifier has no examples, and its log-odds are only "sure".
_LOG_ODDS = (-10.0, 8.0)


@dataclass(frozen=True, eq=False)
class Candidates:
    """matches: one of each candidate pose; source, target (E,): numbers of fragments; turn, shift (E,):
    target_from_source; log_odds (E,); seam (E, S): points of the source that touch the target; pair (E,): the same
    number for all poses of one pair; of_fragment: numbers of the candidates of each fragment."""

    matches: tuple[PairMatch, ...]
    source: Numbers
    target: Numbers
    turn: Complex
    shift: Complex
    log_odds: NDArray[np.float64]
    seam: Complex
    pair: Numbers
    of_fragment: tuple[Numbers, ...]

    def __len__(self) -> int:
        return len(self.matches)


def gather(names: Sequence[str], matches: Iterable[PairMatch]) -> Candidates:
    """Candidates in an order that does not depend on that of the matches: by names, then the likeliest first."""
    number = {name: i for i, name in enumerate(names)}
    poses = sorted(matches, key=lambda match: (*sorted((match.source, match.target)), -match.score, _place(match)))
    source, target = (
        np.array([number[getattr(match, end)] for match in poses], dtype=np.intp) for end in ("source", "target")
    )
    turn, shift = as_complex([match.target_from_source or Rigid2D() for match in poses])
    pairs: dict[frozenset[str], int] = {}
    return Candidates(
        tuple(poses),
        source,
        target,
        turn,
        shift,
        np.array([match.score for match in poses], dtype=np.float64).clip(*_LOG_ODDS),
        np.array([_seam_points(match.points) for match in poses], dtype=np.complex128).reshape(-1, SEAM_POINTS),
        np.array([pairs.setdefault(match.pair, len(pairs)) for match in poses], dtype=np.intp),
        _of_fragment(len(names), source, target),
    )


def all_poses(matches: Iterable[PairMatch], least: float) -> Iterator[PairMatch]:
    """Each match and its alternatives, as far as they are likely enough."""
    for match in matches:
        for pose in (match, *match.others):
            if pose.target_from_source is not None and pose.probability >= least:
                yield pose


def as_complex(poses: Sequence[Rigid2D]) -> tuple[Complex, Complex]:
    """(N,), (N,): turns and shifts."""
    turn = np.exp(1j * np.array([pose.angle_rad for pose in poses], dtype=np.float64))
    return turn, np.array([complex(pose.x_px, pose.y_px) for pose in poses], dtype=np.complex128)


def as_rigid(turn: complex, shift: complex) -> Rigid2D:
    """The same pose, on the grid of all poses."""
    return Rigid2D(float(np.angle(turn)), float(shift.real), float(shift.imag)).rounded()


def on_plane(points: Points) -> Complex:
    """(N,): points (N, 2) as complex numbers."""
    return np.asarray(points[:, 0] + 1j * points[:, 1])


def by_pair(matches: Iterable[PairMatch]) -> Mapping[frozenset[str], list[PairMatch]]:
    """The poses of each pair, in the order in which they come."""
    poses: dict[frozenset[str], list[PairMatch]] = {}
    for match in matches:
        poses.setdefault(match.pair, []).append(match)
    return poses


def _seam_points(points: NDArray[np.float64]) -> Complex:
    seam = points[:, 0] if len(points) else np.zeros((1, 2))
    return on_plane(seam[np.linspace(0, len(seam) - 1, SEAM_POINTS).astype(int)])


def _place(match: PairMatch) -> tuple[float, float, float]:
    pose = match.target_from_source or Rigid2D()
    return pose.angle_rad, pose.x_px, pose.y_px


def _of_fragment(count: int, source: Numbers, target: Numbers) -> tuple[Numbers, ...]:
    numbers: list[list[int]] = [[] for _ in range(count)]
    for candidate, ends in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        for fragment in set(ends):
            numbers[fragment].append(candidate)
    return tuple(np.array(own, dtype=np.intp) for own in numbers)
