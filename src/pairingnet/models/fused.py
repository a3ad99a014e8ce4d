"""The residual graph network in training, on a processor: the same sums as plain torch, in few passes over memory.

A layer of plain torch writes two dozen arrays of all points; memory, not arithmetic, sets its pace. Here a layer reads
its input, a product of matrices and the weights of attention, and writes the next layer's input; what the way back
needs is kept, nothing else. tests/test_paper_speed.py holds both against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]


def quick(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled with sums in any order: only for training, whose last digits differ from machine to machine anyway."""
    flags = {"contract", "reassoc", "nsz", "arcp"}
    return cast(Callable[..., Any], njit(cache=True, nogil=True, error_model="numpy", fastmath=flags)(function))


@quick
def exponential(x: Any) -> Any:
    """exp of a float32 that is not above 88, to its last digit but one; unlike the library's, many at a time."""
    x = max(x, np.float32(-87.0))
    n = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    r = x - n * np.float32(0.693145751953125) - n * np.float32(1.42860677e-6)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    return p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


def graph_network(
    x: Tensor,
    lengths: Sequence[int],
    reach: int,
    layers: Sequence[Sequence[Tensor]],
    kept: Sequence[Tensor | None],
    scale_kept: float,
    eps: float,
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Layers of x + attention(dropout(relu(norm(x)))) on rings, for x (T, C).

    layers: of each, the norm's weight and bias, and the attention's projection (C, C), scores (2, C) and bias;
    kept: of each, what dropout keeps (T, C) bool, or None; scale_kept: what it is multiplied with. Also the mean and
    the variance that each norm has seen.
    """
    flat = [tensor for layer in layers for tensor in layer]
    out, *seen = _Network.apply(x, lengths, reach, kept, scale_kept, eps, *flat)  # type: ignore[no-untyped-call]
    return out, [(seen[2 * i], seen[2 * i + 1]) for i in range(len(layers))]


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        lengths: Sequence[int],
        reach: int,
        kept: Sequence[Tensor | None],
        scale_kept: float,
        eps: float,
        *flat: Tensor,
    ) -> tuple[Tensor, ...]:
        starts = np.concatenate([[0], np.cumsum(lengths)])
        memory, seen = [], []
        mean, variance = torch.empty(x.shape[1]), torch.empty(x.shape[1])
        x = x.contiguous()
        moments(x.numpy(), mean.numpy(), variance.numpy())
        for number in range(len(flat) // 5):
            weight, bias, project, score, shift = (tensor.detach() for tensor in flat[5 * number : 5 * number + 5])
            inverse = torch.rsqrt(variance + eps)
            scale = weight * inverse
            h = torch.empty_like(x)
            mask = kept[number]
            _activate(x.numpy(), scale.numpy(), (bias - mean * scale).numpy(), _bytes(mask), scale_kept, h.numpy())
            projected = h @ project.T
            attention = torch.empty(len(x), 2 * reach + 1)
            scores = torch.empty(len(x), 2)
            after = torch.empty_like(x)
            memory.append((x, h, projected, scores, attention, mean, inverse))
            seen += [mean, variance]
            mean, variance = torch.empty_like(mean), torch.empty_like(variance)
            _attend(
                x.numpy(), projected.numpy(), score.contiguous().numpy(), shift.numpy(), starts,
                scores.numpy(), attention.numpy(), after.numpy(),
            )  # fmt: skip
            moments(after.numpy(), mean.numpy(), variance.numpy())
            x = after
        ctx.memory, ctx.flat, ctx.starts, ctx.kept, ctx.scale_kept = memory, flat, starts, kept, scale_kept
        ctx.mark_non_differentiable(*seen)
        return (x, *seen)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        g = gradients[0].contiguous()
        found: list[Tensor] = []
        for number in reversed(range(len(ctx.memory))):
            weight, _, project, score, _ = (tensor.detach() for tensor in ctx.flat[5 * number : 5 * number + 5])
            x, h, projected, scores, attention, mean, inverse = ctx.memory.pop()
            to_projected, to_score = torch.empty_like(x), torch.empty_like(score)
            _attend_back(
                g.numpy(), projected.numpy(), score.contiguous().numpy(), scores.numpy(), attention.numpy(),
                ctx.starts, to_projected.numpy(), to_score.numpy(),
            )  # fmt: skip
            to_project, to_h = to_projected.T @ h, to_projected @ project
            to_shift, to_weight, to_bias = (torch.empty_like(weight) for _ in range(3))
            before = torch.empty_like(x)
            _activate_back(
                x.numpy(), h.numpy(), g.numpy(), to_h.numpy(), mean.numpy(), inverse.numpy(), weight.numpy(),
                ctx.scale_kept if ctx.kept[number] is not None else 1.0,
                before.numpy(), to_weight.numpy(), to_bias.numpy(), to_shift.numpy(),
            )  # fmt: skip
            g = before
            found = [to_weight, to_bias, to_project, to_score, to_shift, *found]
        return (g, None, None, None, None, None, *found)


def _bytes(mask: Tensor | None) -> NDArray[np.bool_]:
    return np.empty((0, 0), dtype=np.bool_) if mask is None else np.asarray(mask.numpy())


_ROWS = 256  # that stay in the cache


@quick
def moments(x: Any, mean: Any, variance: Any) -> None:
    """Mean and variance of the rows of x (T, C); blocks of rows are put together as in Chan's formula."""
    total, width = x.shape
    at, spread = np.zeros(width, np.float64), np.zeros(width, np.float64)
    for first in range(0, total, _ROWS):
        last = min(first + _ROWS, total)
        count = last - first
        sums, squares = np.zeros(width, np.float32), np.zeros(width, np.float32)
        for t in range(first, last):
            for c in range(width):
                sums[c] += x[t, c]
        for c in range(width):
            sums[c] /= np.float32(count)
        for t in range(first, last):
            for c in range(width):
                d = x[t, c] - sums[c]
                squares[c] += d * d
        for c in range(width):
            apart = sums[c] - at[c]
            spread[c] += squares[c] + apart * apart * first * count / last
            at[c] += apart * count / last
    for c in range(width):
        mean[c] = at[c]
        variance[c] = spread[c] / total


@quick
def _activate(x: Any, scale: Any, shift: Any, kept: Any, scale_kept: float, h: Any) -> None:
    """h = relu(scale x + shift), and dropout."""
    total, width = x.shape
    nothing, more = np.float32(0), np.float32(scale_kept)
    for t in range(total):
        for c in range(width):
            h[t, c] = max(x[t, c] * scale[c] + shift[c], nothing)
        if len(kept):
            for c in range(width):
                h[t, c] = h[t, c] * more if kept[t, c] else nothing


_AT_ONCE = 6  # neighbours a loop over channels adds up


@quick
def _attend(x: Any, h: Any, score: Any, shift: Any, starts: Any, scores: Any, attention: Any, after: Any) -> None:
    """after = x + attention + shift; scores (T, 2) as asking and as neighbour, attention (T, K)."""
    total, width = x.shape
    span = attention.shape[1]
    asking, neighbour = score[0], score[1]
    for t in range(total):
        row = h[t]
        a, b = np.float32(0), np.float32(0)
        for c in range(width):
            a += row[c] * asking[c]
            b += row[c] * neighbour[c]
        scores[t, 0] = a
        scores[t, 1] = b
    around = np.zeros(-(-span // _AT_ONCE) * _AT_ONCE, np.int64)
    for ring in range(len(starts) - 1):
        first, length = starts[ring], starts[ring + 1] - starts[ring]
        for t in range(first, first + length):
            _around(first, length, t, span, 1, around)
            e, own = attention[t], scores[t, 0]
            top = np.float32(-np.inf)
            for k in range(span):
                v = scores[around[k], 1] + own
                v = max(v, np.float32(0.2) * v)
                e[k] = v
                top = max(top, v)
            for k in range(span):
                e[k] -= top
    flat = attention.reshape(total * span)
    for i in range(total * span):
        flat[i] = exponential(flat[i])
    w = np.zeros(len(around), np.float32)
    for ring in range(len(starts) - 1):
        first, length = starts[ring], starts[ring + 1] - starts[ring]
        for t in range(first, first + length):
            _around(first, length, t, span, 1, around)
            e = attention[t]
            mass = np.float32(0)
            for k in range(span):
                mass += e[k]
            for k in range(span):
                e[k] /= mass
                w[k] = e[k]
            out, before = after[t], x[t]
            for c in range(width):
                out[c] = before[c] + shift[c]
            _weighted_sum(w, h, around, out)


@quick
def _weighted_sum(weights: Any, rows: Any, which: Any, out: Any) -> None:
    """out += the sum of weights[k] rows[which[k]]."""
    for k in range(0, len(weights), _AT_ONCE):
        w0, w1, w2 = weights[k], weights[k + 1], weights[k + 2]
        w3, w4, w5 = weights[k + 3], weights[k + 4], weights[k + 5]
        r0, r1, r2 = rows[which[k]], rows[which[k + 1]], rows[which[k + 2]]
        r3, r4, r5 = rows[which[k + 3]], rows[which[k + 4]], rows[which[k + 5]]
        for c in range(len(out)):
            out[c] += w0 * r0[c] + w1 * r1[c] + w2 * r2[c] + w3 * r3[c] + w4 * r4[c] + w5 * r5[c]


@quick
def _products(row: Any, rows: Any, which: Any, out: Any) -> None:
    """out[k] = the inner product of row and rows[which[k]]."""
    for k in range(0, len(out), _AT_ONCE):
        r0, r1, r2 = rows[which[k]], rows[which[k + 1]], rows[which[k + 2]]
        r3, r4, r5 = rows[which[k + 3]], rows[which[k + 4]], rows[which[k + 5]]
        v0, v1, v2 = np.float32(0), np.float32(0), np.float32(0)
        v3, v4, v5 = np.float32(0), np.float32(0), np.float32(0)
        for c in range(len(row)):
            g = row[c]
            v0 += g * r0[c]
            v1 += g * r1[c]
            v2 += g * r2[c]
            v3 += g * r3[c]
            v4 += g * r4[c]
            v5 += g * r5[c]
        out[k], out[k + 1], out[k + 2] = v0, v1, v2
        out[k + 3], out[k + 4], out[k + 5] = v3, v4, v5


@quick
def _around(first: Any, length: Any, t: Any, span: int, sign: int, around: Any) -> None:
    """The rows of the span of points around t on its ring; sign -1: in the other direction."""
    reach = span // 2
    if first + reach <= t < first + length - reach:
        for k in range(span):
            around[k] = t + sign * (k - reach)
        return
    for k in range(span):
        around[k] = first + (t - first + sign * (k - reach)) % length


@quick
def _attend_back(
    g: Any, h: Any, score: Any, scores: Any, attention: Any, starts: Any, to_h: Any, to_score: Any
) -> None:
    """The way back through `_attend`: g (T, C) to its h and its score."""
    total, width = g.shape
    span = attention.shape[1]
    padded = -(-span // _AT_ONCE) * _AT_ONCE
    asking, neighbour = score[0], score[1]
    to_scores = np.zeros((total, 2), np.float32)
    pull, w, around = np.zeros(padded, np.float32), np.zeros(padded, np.float32), np.zeros(padded, np.int64)
    for ring in range(len(starts) - 1):
        first, length = starts[ring], starts[ring + 1] - starts[ring]
        for t in range(first, first + length):
            _around(first, length, t, span, 1, around)
            _products(g[t], h, around, pull)
            inner = np.float32(0)
            for k in range(span):
                inner += pull[k] * attention[t, k]
            own = np.float32(0)
            for k in range(span):
                u = around[k]
                v = attention[t, k] * (pull[k] - inner)
                if scores[t, 0] + scores[u, 1] < np.float32(0):
                    v *= np.float32(0.2)
                own += v
                to_scores[u, 1] += v
            to_scores[t, 0] = own
        for t in range(first, first + length):  # gathers from those that have t as their neighbour k
            _around(first, length, t, span, -1, around)
            for k in range(span):
                w[k] = attention[around[k], k]
            a, b = to_scores[t, 0], to_scores[t, 1]
            out = to_h[t]
            for c in range(width):
                out[c] = a * asking[c] + b * neighbour[c]
            _weighted_sum(w, g, around, out)
    to_asking, to_neighbour = np.zeros(width, np.float32), np.zeros(width, np.float32)
    for t in range(total):
        a, b, row = to_scores[t, 0], to_scores[t, 1], h[t]
        for c in range(width):
            to_asking[c] += a * row[c]
            to_neighbour[c] += b * row[c]
    to_score[0] = to_asking
    to_score[1] = to_neighbour


@quick
def _activate_back(
    x: Any, h: Any, g: Any, to_h: Any, mean: Any, inverse: Any, weight: Any, scale_kept: float,
    before: Any, to_weight: Any, to_bias: Any, to_shift: Any,
) -> None:  # fmt: skip
    """The way back through norm, ReLU and dropout, with g that went past the layer added; sums of g for the bias.

    Loops over channels touch few arrays each: a compiler has to make sure that they do not overlap.
    """
    total, width = x.shape
    more = np.float32(scale_kept)
    sums = np.zeros((3, width), np.float64)
    plain, along, past = np.zeros(width, np.float32), np.zeros(width, np.float32), np.zeros(width, np.float32)
    for first in range(0, total, _ROWS):
        plain[:], along[:], past[:] = np.float32(0), np.float32(0), np.float32(0)
        for t in range(first, min(first + _ROWS, total)):
            y, shown, row, slope = to_h[t], h[t], x[t], g[t]
            for c in range(width):
                y[c] = y[c] * more if shown[c] > np.float32(0) else np.float32(0)
            for c in range(width):
                plain[c] += y[c]
            for c in range(width):
                along[c] += y[c] * (row[c] - mean[c])
            for c in range(width):
                past[c] += slope[c]
        sums[0] += plain
        sums[1] += along
        sums[2] += past
    for c in range(width):
        to_bias[c], to_weight[c], to_shift[c] = sums[0, c], sums[1, c] * inverse[c], sums[2, c]
        # before = g + y factor + x tilt + plain
        factor = weight[c] * inverse[c]
        along[c] = -factor * sums[1, c] / total * inverse[c] * inverse[c]
        plain[c] = -factor * sums[0, c] / total - along[c] * mean[c]
        past[c] = factor
    for t in range(total):
        y, row, slope, out = to_h[t], x[t], g[t], before[t]
        for c in range(width):
            out[c] = y[c] * past[c] + plain[c]
        for c in range(width):
            out[c] += slope[c] + row[c] * along[c]


# The similarity matrix -----------------------------------------------------------------------------------------------


@quick
def sums_of_exponentials(scores: Any, of_rows: Any, of_columns: Any) -> None:
    """The logarithms of the sums of the exponentials of each row and each column of scores (N, M)."""
    n, m = scores.shape
    top, mass = np.empty(m, np.float32), np.zeros(m, np.float32)
    top[:] = np.float32(-np.inf)
    for i in range(n):
        row = scores[i]
        for j in range(m):
            top[j] = max(top[j], row[j])
    for i in range(n):
        row = scores[i]
        highest, total = np.float32(-np.inf), np.float32(0)
        for j in range(m):
            highest = max(highest, row[j])
        for j in range(m):
            total += exponential(row[j] - highest)
        for j in range(m):
            mass[j] += exponential(row[j] - top[j])
        of_rows[i] = highest + np.log(total)
    for j in range(m):
        of_columns[j] = top[j] + np.log(mass[j])


@quick
def similar(scores: Any, of_rows: Any, of_columns: Any, least: float) -> Any:
    """Rows and columns of the entries whose similarity's logarithm is at least `least`."""
    n, m = scores.shape
    rows: Any = [np.int64(0) for _ in range(0)]
    columns: Any = [np.int64(0) for _ in range(0)]
    for i in range(n):
        row, limit = scores[i], np.float32(least) + of_rows[i]
        best = np.float32(-np.inf)
        for j in range(m):
            best = max(best, np.float32(2) * row[j] - of_columns[j])
        if best >= limit:
            for j in range(m):
                if np.float32(2) * row[j] - of_columns[j] >= limit:
                    rows.append(i)
                    columns.append(j)
    return np.array(rows, np.int64), np.array(columns, np.int64)
