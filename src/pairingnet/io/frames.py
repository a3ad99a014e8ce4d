"""Pixels of the pieces and pixels of the scans.

Inside, a fragment is the image that was cut out of its scan. What is told to others (matches, poses, decisions) is in
pixels of the files that they gave. The two differ by where the piece lies in the scan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pairingnet.geometry import Rigid2D
from pairingnet.io.collection import Collection
from pairingnet.types import Assembly, PairMatch

Offsets = Mapping[str, tuple[float, float]]


def scan_offsets(collection: Collection) -> Offsets:
    """Where each fragment's upper left pixel lies in its scan."""
    return {record.id: record.offset_px for record in collection.fragments}


def piece_offsets(collection: Collection) -> Offsets:
    """The way back: where the scan's upper left pixel lies, seen from each fragment."""
    return {record.id: (-record.offset_px[0], -record.offset_px[1]) for record in collection.fragments}


def moved_match(match: PairMatch, offsets: Offsets) -> PairMatch:
    """The same join, its pieces' coordinates counted from another corner."""
    source, target = offsets[match.source], offsets[match.target]
    pose = match.target_from_source
    return replace(
        match,
        target_from_source=None if pose is None else _shift(target) @ pose @ _shift(source).inverse(),
        points=match.points + np.array([source, target], dtype=np.float64) if len(match.points) else match.points,
        others=tuple(moved_match(other, offsets) for other in match.others),
    )


def moved_assembly(assembly: Assembly, offsets: Offsets) -> Assembly:
    """The same groups, their pieces' coordinates counted from another corner."""

    def moved(joins: tuple[PairMatch, ...]) -> tuple[PairMatch, ...]:
        return tuple(moved_match(join, offsets) for join in joins)

    groups = tuple(
        replace(
            group,
            poses={name: pose @ _shift(offsets[name]).inverse() for name, pose in group.poses.items()},
            joins=moved(tuple(group.joins)),
        )
        for group in assembly.groups
    )
    return replace(
        assembly, groups=groups, confirmed=moved(assembly.confirmed), contradicted=moved(assembly.contradicted)
    )


def _shift(offset: tuple[float, float]) -> Rigid2D:
    return Rigid2D(0.0, float(offset[0]), float(offset[1]))
