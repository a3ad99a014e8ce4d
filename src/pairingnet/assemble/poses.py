"""All poses of a group at once: every join pulls its two pieces together along their seam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cv2
import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import spsolve

from pairingnet.geometry import Rigid2D
from pairingnet.match.contact import Outline
from pairingnet.types import PairMatch

_ROUNDS = 6
_POINTS = 24  # of each seam
_LOOSE = (6.0, 1.0)  # steps
_EXACT = 0.1  # steps; nearer to the truth than that no join is known to lie


def settle_poses(
    poses: Mapping[str, Rigid2D],
    joins: Sequence[PairMatch],
    step_px: float,
    body_of: Mapping[str, str] | None = None,
    loose: tuple[float, float] = _LOOSE,
    exact: bool = False,
) -> dict[str, Rigid2D]:
    """Least squares over the seams of all joins, robust against single bad ones; the first fragment stays.

    body_of: fragments of one body move as one (each fragment is its own where nothing is said); loose: in the first
    round and in the last, how many steps off a join is that pulls half as much; exact: joins count for more that
    usually lie nearer to the truth. That is for groups that are complete: as long as they grow, a tight join that is
    wrong would do too much harm.
    """
    body = {name: (body_of or {}).get(name, name) for name in poses}
    order = {name: i for i, name in enumerate(dict.fromkeys(body.values()))}
    number = {name: order[body[name]] for name in poses}
    joins = [join for join in joins if number[join.source] != number[join.target]]
    if len(order) < 2 or len(joins) < 2:
        return dict(poses)
    placed = dict(poses)
    seams = [_seam(join) for join in joins]
    counts = [usually_off_steps(join, step_px) ** -0.5 if exact else 1.0 for join in joins]
    for far in np.geomspace(*loose, _ROUNDS):
        rows, columns, values, wanted = [], [], [], []
        first = 0
        for join, (of_source, of_target), counts_for in zip(joins, seams, counts, strict=True):
            p, q = placed[join.source].apply(of_source), placed[join.target].apply(of_target)
            off = q - p
            spread = np.linalg.norm(off, axis=1).mean()
            weight = counts_for / (1 + (spread / (far * step_px)) ** 2)
            for points, name, sign in ((p, join.source, 1.0), (q, join.target, -1.0)):
                if number[name] == 0:
                    continue
                base = 3 * (number[name] - 1)
                count = len(points)
                at = first + np.arange(count)
                for axis, spin in ((0, -points[:, 1]), (1, points[:, 0])):
                    rows += [at + axis * count, at + axis * count]
                    columns += [np.full(count, base), np.full(count, base + 1 + axis)]
                    values += [sign * weight * spin, np.full(count, sign * weight)]
            wanted += [weight * off[:, 0], weight * off[:, 1]]
            first += 2 * len(p)
        size = 3 * (len(order) - 1)
        j = coo_matrix(
            (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(first, size)
        ).tocsc()
        normal = (j.T @ j).tocsc()
        normal += coo_matrix((np.full(size, 1e-6), (np.arange(size), np.arange(size))), shape=(size, size)).tocsc()
        change = np.atleast_1d(spsolve(normal, j.T @ np.concatenate(wanted)))
        moves = [Rigid2D(), *(Rigid2D(*map(float, move)) for move in change.reshape(-1, 3))]
        placed = {name: moves[number[name]] @ pose for name, pose in placed.items()}
        if np.abs(change).max() < 1e-3:
            break
    return placed


def usually_off_steps(join: PairMatch, step_px: float) -> float:
    """How far from the truth the seam of a right join usually lies: a tenth of a step where it is tight and long,
    several steps where it gapes or is short (fitted to right joins of photos/val, docs/ring.md)."""
    told = join.evidence
    apart = 0.03 + (told.get("gap_px", 0.0) + 0.2 * told.get("worn_px", 0.0)) / step_px
    length = max(1.0, told.get("contact_px", np.inf) / step_px)
    return max(_EXACT, apart * (1 + 80 / length))


def _seam(join: PairMatch) -> tuple[np.ndarray, np.ndarray]:
    """Points of the source, and where they belong on the target: by the join's own transform."""
    assert join.target_from_source is not None
    points = join.points[:, 0] if len(join.points) else np.zeros((1, 2))
    chosen = points[np.linspace(0, len(points) - 1, min(_POINTS, len(points))).astype(int)]
    return chosen, join.target_from_source.apply(chosen)


def straightened(outlines: Mapping[str, Outline], poses: Mapping[str, Rigid2D]) -> dict[str, Rigid2D]:
    """The whole group turned by less than half a right angle, so that the smallest box around it stands straight."""
    points = np.vstack([pose.apply(outlines[name].points) for name, pose in poses.items()]).astype(np.float32)
    angle_deg = cv2.minAreaRect(cv2.convexHull(points))[2]
    turn = Rigid2D(-np.radians((angle_deg + 45) % 90 - 45))
    return {name: turn @ pose for name, pose in poses.items()}
