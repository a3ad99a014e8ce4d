"""The loops over contour points that run for every pair of fragments, compiled.

A pose is (4,): cosine and sine of the turn, and the shift. What pieces are laid on is a tuple, `Ground`: points (N, 2)
and tangents (N, 2) of a contour; a grid (H, W) of cells that tells the number of the nearest point, i + 1 inside of
the piece, -(i + 1) outside, 0 where the contour is far; the centre (2,) of its first cell, and the size of a cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairingnet.jit import compiled

Floats = NDArray[np.float64]
Ground = tuple[Floats, Floats, NDArray[np.int32], Floats, float]

OPPOSED = -0.6  # cosine between the tangents of contours that touch
OVERLAPS, GAPES = 3.0, 1.0  # usual distances; what overlaps, or gapes, so far counts for a quarter

# A cell's number is that of the nearest cell with a contour point, by distances that OpenCV gives within 2 %; place and
# point lie anywhere in their cells (half a diagonal each, and the same again for the cell that was the nearer one).
_STRETCH = 1.05
_CELLS = 2.9


@compiled
def nearest(pose: Floats, points: Floats, every: int, ground: Ground, beyond: float) -> Any:
    """For every n-th of the points: the number (K,) of the ground's contour point nearest to where it comes to lie, how
    far that is (K,), and on which side it lies (K,): 1 inside, -1 outside, 0 far away.

    Where it is surely farther than `beyond`, any point and distance that are so as well: most are, and nobody asks how
    far. (All points in one loop: a call for each would count references to the ground's arrays, which costs more than
    the search.)
    """
    contour, _, grid, corner, cell = ground
    n, count = len(contour), (len(points) + every - 1) // every
    number, distance, side = np.zeros(count, np.int64), np.full(count, np.inf), np.zeros(count, np.int64)
    c, s = pose[0], pose[1]
    surely = (_STRETCH * (beyond + _CELLS * cell)) ** 2
    for k in range(count):
        x = c * points[k * every, 0] - s * points[k * every, 1] + pose[2]
        y = s * points[k * every, 0] + c * points[k * every, 1] + pose[3]
        column, row = int(np.floor((x - corner[0]) / cell + 0.5)), int(np.floor((y - corner[1]) / cell + 0.5))
        if column < 0 or row < 0 or row >= grid.shape[0] or column >= grid.shape[1]:
            continue
        code = grid[row, column]
        if code == 0:
            continue
        # The grid knows the nearest point of its cell; from there it is a few points along the contour.
        i = abs(code) - 1
        best = (contour[i, 0] - x) ** 2 + (contour[i, 1] - y) ** 2
        if best <= surely:
            for direction in (1, -1):
                while True:
                    j = i + direction
                    j = j - n if j >= n else j + n if j < 0 else j
                    other = (contour[j, 0] - x) ** 2 + (contour[j, 1] - y) ** 2
                    if other >= best:
                        break
                    i, best = j, other
        number[k], distance[k], side[k] = i, np.sqrt(best), 1 if code > 0 else -1
    return number, distance, side


@compiled
def touching(pose: Floats, points: Floats, tangents: Floats, every: int, ground: Ground, reach: float) -> Any:
    """Rows and columns (K,) of points that lie within reach of the ground's contour, with opposed tangents."""
    other = ground[1]
    number, distance, side = nearest(pose, points, every, ground, reach)
    rows, columns = np.empty(len(number), np.int64), np.empty(len(number), np.int64)
    count = 0
    c, s = pose[0], pose[1]
    for k in range(len(number)):
        if side[k] == 0 or distance[k] >= reach:
            continue
        i, j = k * every, number[k]
        along_x, along_y = c * tangents[i, 0] - s * tangents[i, 1], s * tangents[i, 0] + c * tangents[i, 1]
        if along_x * other[j, 0] + along_y * other[j, 1] < OPPOSED:
            rows[count], columns[count] = i, j
            count += 1
    return rows[:count].copy(), columns[:count].copy()


@compiled
def apart(pose: Floats, points: Floats, ground: Ground, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Any:
    """(K,), (K,): how far points that touch are from each other across the ground's contour (positive: outside of its
    piece) and along it."""
    across, along = np.empty(len(rows)), np.empty(len(rows))
    for k in range(len(rows)):
        i, j = rows[k], columns[k]
        x = pose[0] * points[i, 0] - pose[1] * points[i, 1] + pose[2] - ground[0][j, 0]
        y = pose[1] * points[i, 0] + pose[0] * points[i, 1] + pose[3] - ground[0][j, 1]
        tangent_x, tangent_y = ground[1][j]
        across[k], along[k] = x * tangent_y - y * tangent_x, x * tangent_x + y * tangent_y
    return across, along


@compiled
def bend(points: Floats, rows: NDArray[np.intp]) -> float:
    """Largest distance of some of the points (N, 2) from the line that lies nearest to all of those."""
    centre_x, centre_y = points[rows, 0].mean(), points[rows, 1].mean()
    xx = xy = yy = 0.0
    for i in rows:
        x, y = points[i, 0] - centre_x, points[i, 1] - centre_y
        xx, xy, yy = xx + x * x, xy + x * y, yy + y * y
    angle = 0.5 * np.arctan2(2 * xy, xx - yy)
    normal_x, normal_y = -np.sin(angle), np.cos(angle)
    farthest = 0.0
    for i in rows:
        off = (points[i, 0] - centre_x) * normal_x + (points[i, 1] - centre_y) * normal_y
        farthest = max(farthest, abs(off))
    return farthest


@compiled
def colours_across(
    mine: NDArray[np.float32],
    other: NDArray[np.float32],
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
    shifts: NDArray[np.intp],
) -> Any:
    """Colours (N, 3) and (M, 3) along two contours, compared at rows (K,) and columns (K,): (S,) the mean difference
    with the columns moved by each shift; then, in place, how much both vary along the seam, and their correlation."""
    difference = np.zeros(len(shifts))
    for number in range(len(shifts)):
        for k in range(len(rows)):
            j = (columns[k] + shifts[number]) % len(other)
            for channel in range(3):
                difference[number] += abs(mine[rows[k], channel] - other[j, channel])
    difference /= 3 * len(rows)
    mean_a, mean_b = np.zeros(3), np.zeros(3)
    for k in range(len(rows)):
        for channel in range(3):
            mean_a[channel] += mine[rows[k], channel] / len(rows)
            mean_b[channel] += other[columns[k] % len(other), channel] / len(rows)
    varies = aa = ab = bb = 0.0
    for k in range(len(rows)):
        for channel in range(3):
            a = mine[rows[k], channel] - mean_a[channel]
            b = other[columns[k] % len(other), channel] - mean_b[channel]
            varies += abs(a) + abs(b)
            aa, ab, bb = aa + a * a, ab + a * b, bb + b * b
    norm = np.sqrt(aa * bb)
    return difference, varies / (6 * len(rows)), ab / norm if norm > 1e-6 else 0.0


@compiled
def along_seam(
    pose: Floats,
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
    across: Floats,
    along: Floats,
    odds: NDArray[np.float32],
    tangents: tuple[Floats, Floats],
    looks: tuple[NDArray[np.float32], NDArray[np.float32]],
    greys: tuple[NDArray[np.float32], NDArray[np.float32]],
    every: int,
) -> Any:
    """(K, 12 + D) float32: what every n-th point of a contact shows. odds (K,); of both contours tangents (N, 2),
    colours looks (N, D, 3) in [0, 1] at D depths, and greys (N, 3): at the edge, how it changes inwards and along."""
    depths = looks[0].shape[1]
    seen = np.zeros((len(rows), 12 + depths), np.float32)
    mean_a = mean_b = 0.0
    for k in range(len(rows)):
        mean_a += greys[0][rows[k], 0] / len(rows)
        mean_b += greys[1][columns[k], 0] / len(rows)
    for k in range(len(rows)):
        i, j = rows[k], columns[k]
        x, y = tangents[0][i]
        u, v = tangents[1][j]
        opposed = (pose[0] * x - pose[1] * y) * u + (pose[1] * x + pose[0] * y) * v
        seen[k, 0], seen[k, 1], seen[k, 2], seen[k, 3] = odds[k], across[k], along[k], 1 + opposed
        seen[k, 4], seen[k, 5] = greys[0][i, 0] - mean_a, greys[1][j, 0] - mean_b
        seen[k, 6], seen[k, 7] = greys[0][i, 1], greys[1][j, 1]
        seen[k, 8], seen[k, 9] = greys[0][i, 2], greys[1][j, 2]
        seen[k, 10] = k > 0 and i - rows[k - 1] > every
        seen[k, 11] = np.log(len(rows))
        for depth in range(depths):
            for channel in range(3):
                seen[k, 12 + depth] += abs(looks[0][i, depth, channel] - looks[1][j, depth, channel]) / 3
    return seen


@compiled
def count_inside(pose: Floats, points: Floats, every: int, ground: Ground, allowed: float) -> int:
    """How many points lie deeper than allowed inside of the ground's piece."""
    _, distance, side = nearest(pose, points, every, ground, allowed)
    count = 0
    for k in range(len(side)):
        count += side[k] > 0 and distance[k] > allowed
    return count


@compiled
def slide(
    start: Floats,
    points: Floats,
    tangents: Floats,
    ground: Ground,
    held: Floats,
    holders: Floats,
    weight: Floats,
    reach: float,
    rounds: int,
    gap: float,
) -> Any:
    """Turn and shift until the contours meet, or are `gap` apart: point to line along the contact, held by anchors.

    held (K, 2) of the piece that moves belong at holders (K, 2) of the ground, by weight (K,).
    Pieces may have lost something of their edge, and gape there; they cannot lie on each other. So what overlaps pushes
    them apart, and what gapes pulls less.
    """
    target, target_tangents = ground[0], ground[1]
    pose = start.copy()
    mean_weight = max(1e-9, weight.sum())
    for number in range(rounds):
        near = reach * max(0.35, 1 - number / rounds)
        every = 3 if number < rounds // 2 else 1
        rows, columns = touching(pose, points, tangents, every, ground, near)
        count = len(rows)
        if count < 10:
            break
        c, s = pose[0], pose[1]
        move, spin = np.empty(count), np.empty(count)
        for k in range(count):
            i, j = rows[k], columns[k]
            x, y = c * points[i, 0] - s * points[i, 1] + pose[2], s * points[i, 0] + c * points[i, 1] + pose[3]
            normal_x, normal_y = -target_tangents[j, 1], target_tangents[j, 0]
            move[k] = (target[j, 0] - x) * normal_x + (target[j, 1] - y) * normal_y - gap
            spin[k] = normal_y * x - normal_x * y
        usual = move.mean()
        sigma = max(0.5, np.abs(move - usual).mean())
        left, right = 1e-9 * np.eye(3), np.zeros(3)
        for k in range(count):
            bears = GAPES if move[k] > 0 else OVERLAPS
            trust = 1 / (1 + (move[k] / (bears * sigma)) ** 2) ** 2
            j = columns[k]
            _add(left, right, spin[k], -target_tangents[j, 1], target_tangents[j, 0], move[k], trust)
        for k in range(len(held)):
            x, y = c * held[k, 0] - s * held[k, 1] + pose[2], s * held[k, 0] + c * held[k, 1] + pose[3]
            off_x, off_y = holders[k, 0] - x, holders[k, 1] - y
            hold = 0.0375 * weight[k] * count / mean_weight
            hold /= (1 + (off_x * off_x + off_y * off_y) / reach**2) ** 2
            _add(left, right, -y, 1.0, 0.0, off_x, hold)
            _add(left, right, x, 0.0, 1.0, off_y, hold)
        turn, x, y = np.linalg.solve(left, right)
        c, s = np.cos(turn), np.sin(turn)
        pose = np.array(
            [
                c * pose[0] - s * pose[1],
                s * pose[0] + c * pose[1],
                c * pose[2] - s * pose[3] + x,
                s * pose[2] + c * pose[3] + y,
            ]
        )
        if number >= rounds // 2 and abs(turn) < 2e-5 and abs(x) + abs(y) < 2e-2:
            break
    return pose


@compiled
def _add(
    left: Floats, right: Floats, spin: float, normal_x: float, normal_y: float, distance: float, weight: float
) -> None:
    """One line of the normal equations of small motions (turn, x, y) that move a point by a distance."""
    line = (spin, normal_x, normal_y)
    for a in range(3):
        right[a] += weight * line[a] * distance
        for b in range(3):
            left[a, b] += weight * line[a] * line[b]


@compiled
def agreeing(
    poses: Floats,
    points: Floats,
    tangents: Floats,
    every: int,
    ground: Ground,
    reach: float,
    logits: NDArray[np.float32],
    own_level: NDArray[np.float32],
    other_level: NDArray[np.float32],
) -> Any:
    """(H,), (H,): for each pose the sum of log-odds along its contact, and how many points touch.

    logits (N, M) of all points; own_level (N,) and other_level (M,) are what each point reaches with anything.
    """
    total, counts = np.zeros(len(poses)), np.zeros(len(poses), np.int64)
    for h in range(len(poses)):
        rows, columns = touching(poses[h], points, tangents, every, ground, reach)
        for k in range(len(rows)):
            i, j = rows[k], columns[k]
            total[h] += logits[i, j] - own_level[i] - other_level[j]
        counts[h] = len(rows)
    return total, counts


@compiled
def votes_for(
    turn: NDArray[np.complex128],
    shift: NDArray[np.complex128],
    source: NDArray[np.complex128],
    target: NDArray[np.complex128],
    weight: Floats,
    threshold: float,
) -> Any:
    """(H, K): which correspondences each motion z -> turn z + shift carries onto each other; (H,): their weight."""
    agrees = np.empty((len(turn), len(source)), np.bool_)
    support = np.zeros(len(turn))
    limit = threshold * threshold
    for h in range(len(turn)):
        for k in range(len(source)):
            off = turn[h] * source[k] + shift[h] - target[k]
            near = off.real * off.real + off.imag * off.imag < limit
            agrees[h, k] = near
            if near:
                support[h] += weight[k]
    return agrees, support


@compiled
def best_partners(
    exponential: NDArray[np.float32], of_row: NDArray[np.float32], of_column: NDArray[np.float32], least: float
) -> Any:
    """Rows, columns and probabilities (K,) of the best partner of every row and every column, each pair once; -1 where
    none is as likely as `least`.

    exponential (N, M) of logits; of_row (N,) and of_column (M,) are one over its sums.
    """
    n, m = exponential.shape
    by_row, by_column = np.zeros(n, np.int64), np.zeros(m, np.int64)
    value, above = np.full(n, np.float32(-1)), np.full(m, np.float32(-1))
    for i in range(n):
        enough = np.float32(least / of_row[i])
        for j in range(m):
            e = exponential[i, j]
            if e < enough:  # nearly all: neither factor is above 1, so their product is not above this one
                continue
            probability = (e * of_row[i]) * (e * of_column[j])
            if probability > value[i]:
                value[i], by_row[i] = probability, j
            if probability > above[j]:
                above[j], by_column[j] = probability, i
    new = np.array([by_row[by_column[j]] != j for j in range(m)])
    extra = np.flatnonzero(new)
    rows = np.concatenate((np.arange(n), by_column[extra]))
    columns = np.concatenate((by_row, extra))
    return rows, columns, np.concatenate((value, above[extra]))


@compiled
def proposers(
    support: Floats,
    agrees: NDArray[np.bool_],
    turn: NDArray[np.complex128],
    most: int,
    least: float,
    same_turn: float,
) -> Any:
    """Up to `most` motions of (H,), the best supported first, that no better one of about the same turn speaks for."""
    told = np.zeros(len(support), np.bool_)
    chosen = np.empty(most, np.int64)
    count = 0
    for h in np.argsort(-support, kind="mergesort"):
        if count >= most or support[h] < least:
            break
        if not told[h]:
            for k in range(len(support)):
                told[k] |= agrees[h, k] and (turn[k] * turn[h].conjugate()).real > same_turn
            chosen[count] = h
            count += 1
    return chosen[:count].copy()


@compiled
def different(
    support: Floats,
    turn: NDArray[np.complex128],
    shift: NDArray[np.complex128],
    points: NDArray[np.complex128],
    threshold: float,
    same_turn: float,
) -> Any:
    """Motions of (H,), the best supported first, that carry none of the points nearly where a better one does."""
    kept = np.empty(len(support), np.int64)
    count = 0
    for h in np.argsort(-support, kind="mergesort"):
        new = True
        for other in kept[:count]:
            if not new or (turn[other] * turn[h].conjugate()).real <= same_turn:
                continue
            for point in points:
                off = (turn[h] - turn[other]) * point + shift[h] - shift[other]
                if off.real * off.real + off.imag * off.imag < threshold * threshold:
                    new = False
                    break
        if new:
            kept[count] = h
            count += 1
    return kept[:count].copy()


@compiled
def settle(
    turn: NDArray[np.complex128],
    shift: NDArray[np.complex128],
    source: NDArray[np.complex128],
    target: NDArray[np.complex128],
    weight: Floats,
    threshold: float,
) -> Any:
    """Fit each motion (H,) to the correspondences that agree with it, a few times, stricter each time; the fitted
    turns and shifts (H,), and the distances (H, K) that are left."""
    turn, shift = turn.copy(), shift.copy()
    apart = np.empty((len(turn), len(source)))
    for h in range(len(turn)):
        for factor in (1.5, 1.0, 0.7, 0.7):
            limit = (factor * threshold) ** 2
            total, a, b, ab = 0.0, 0j, 0j, 0j
            for k in range(len(source)):
                off = turn[h] * source[k] + shift[h] - target[k]
                if off.real * off.real + off.imag * off.imag < limit:
                    total += weight[k]
                    a += weight[k] * source[k]
                    b += weight[k] * target[k]
                    ab += weight[k] * source[k].conjugate() * target[k]
            if total <= 0:
                break
            best = ab / total - (a / total).conjugate() * (b / total)
            if abs(best) > 1e-6:  # one point alone says nothing about the turn
                turn[h] = best / abs(best)
                shift[h] = b / total - turn[h] * (a / total)
        for k in range(len(source)):
            apart[h, k] = abs(turn[h] * source[k] + shift[h] - target[k])
    return turn, shift, apart
