"""All poses of a group at once: every join pulls its two pieces together along their seam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, identity
from scipy.sparse.linalg import spsolve

from pairingnet.geometry import Points, Rigid2D
from pairingnet.match.contact import Outline
from pairingnet.types import PairMatch

Array = NDArray[np.float64]

_ROUNDS = 6
_POINTS = 24  # of each seam
_LOOSE = (6.0, 1.0)  # steps
_DENSE = 80  # bodies up to which equations are solved as a full matrix, which is faster then
_TRUST = -0.25  # power of how far off a match usually is; where all gape, a tight one is as often tight by chance
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
    seams = [_seam(join) for join in joins]
    starts = np.cumsum([0, *(len(of_source) for of_source, _ in seams[:-1])])
    ends = np.array([(number[join.source], number[join.target]) for join in joins])
    counts = np.array([usually_off_steps(join, step_px) ** _TRUST if exact else 1.0 for join in joins])
    p, q = (
        np.concatenate([poses[name].apply(points) for name, points in placed])
        for placed in (
            [(join.source, of_source) for join, (of_source, _) in zip(joins, seams, strict=True)],
            [(join.target, of_target) for join, (_, of_target) in zip(joins, seams, strict=True)],
        )
    )
    body_at = np.repeat(ends, np.diff([*starts, len(p)]), axis=0)
    moved = [Rigid2D()] * len(order)
    for far in np.geomspace(*loose, _ROUNDS):
        change = _changes(p, q, starts, ends, counts, far * step_px)
        p, q = (_turned(points, change[body]) for points, body in zip((p, q), body_at.T, strict=True))
        moved = [Rigid2D(*by) @ before for by, before in zip(change.tolist(), moved, strict=True)]
        if np.abs(change).max() < 1e-3:
            break
    # On the grid of all poses: how a library adds up does not reach what is decided by them.
    return {name: (moved[number[name]] @ pose).rounded() for name, pose in poses.items()}


def _turned(points: Points, changes: Array) -> Points:
    """Points (K, 2), each turned about the origin and shifted by its own change (K, 3)."""
    c, s = np.cos(changes[:, 0]), np.sin(changes[:, 0])
    x, y = points.T
    return np.stack([c * x - s * y + changes[:, 1], s * x + c * y + changes[:, 2]], axis=1)


def _changes(
    p: Points, q: Points, starts: NDArray[np.intp], ends: NDArray[np.intp], counts: Array, far_px: float
) -> Array:
    """(B, 3): turn about the origin and shift of every body, none of the first, that bring points p (K, 2) of all seams
    to q (K, 2), where they belong; starts and ends: where the seam of each join begins, and its two bodies."""
    (px, py), (qx, qy), (x, y) = p.T, q.T, (q - p).T
    seen = [np.hypot(x, y), np.ones(len(p)), px * px + py * py, px * qx + py * qy, qx * qx + qy * qy]
    seen += [px, py, qx, qy, x, y, px * y - py * x, qx * y - qy * x]
    of_seam = np.add.reduceat(np.stack(seen), starts, axis=1)
    spread, points, p_p, p_q, q_q, px, py, qx, qy, x, y, p_off, q_off = of_seam
    weight = (counts / (1 + (spread / points / far_px) ** 2)) ** 2
    nothing = np.zeros(len(starts))

    def both(square: Array, one: tuple[Array, Array], other: tuple[Array, Array]) -> Array:
        """(3, 3, J): products of what a turn and a shift do at one end, (-y, 1, 0) and (x, 0, 1), and at the other."""
        of_turn = square, -one[1], one[0]
        return np.array([of_turn, (-other[1], points, nothing), (other[0], nothing, points)])

    to_itself, to_other, back = (
        both(square, one, other)
        for square, one, other in ((p_p, (px, py), (px, py)), (p_q, (px, py), (qx, qy)), (q_q, (qx, qy), (qx, qy)))
    )
    blocks = np.array([to_itself, -to_other, -to_other.swapaxes(0, 1), back]) * weight
    blocks = blocks.transpose(0, 3, 1, 2)
    source, target = ends.T
    rows, columns = np.stack([source, source, target, target]), np.stack([source, target, source, target])
    bodies = int(ends.max()) + 1
    wanted = np.zeros((bodies, 3))
    np.add.at(wanted, source, weight[:, None] * np.stack([p_off, x, y], axis=1))
    np.add.at(wanted, target, -weight[:, None] * np.stack([q_off, x, y], axis=1))
    if bodies <= _DENSE:
        full = np.zeros((bodies, bodies, 3, 3))
        np.add.at(full, (rows, columns), blocks)
        normal = full.transpose(0, 2, 1, 3).reshape(3 * bodies, 3 * bodies)[3:, 3:]
        change = np.linalg.solve(normal + 1e-6 * np.eye(len(normal)), wanted[1:].ravel())
    else:
        at = 3 * rows[..., None, None] + np.arange(3)[:, None], 3 * columns[..., None, None] + np.arange(3)
        at_row, at_column = (np.broadcast_to(each, blocks.shape).ravel() for each in at)
        sparse = coo_matrix((blocks.ravel(), (at_row, at_column))).tocsc()[3:, 3:]
        change = spsolve(sparse + 1e-6 * identity(sparse.shape[0], format="csc"), wanted[1:].ravel())
    return np.vstack([np.zeros(3), change.reshape(-1, 3)])


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
    return {name: (turn @ pose).rounded() for name, pose in poses.items()}
