"""Convolutions of small patches that end in an average, in training on a processor: the same sums as plain torch.

Their activations are hundreds of numbers a contour point. Here they are made and used block by block, while they are
in the cache, and three things save most of the work:
- What the first batch normalisation sees is linear in the pixels: its mean and variance follow from those of the
  pixels, so it becomes part of the convolution's weights.
- What the last one's gradient needs to know of all points follows from two sums a point and channel.
- A patch is one tile of a Winograd convolution: F(5 x 5, 3 x 3) has 49 products in place of 225.
- There are few patterns of 3 x 3 pixels that a contour's patches show: each is convolved once.
tests/test_paper_speed.py holds all of it against plain torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from pairingnet.models.fused import moments, quick

_BLOCK = 64  # points whose activations stay in the cache
LARGEST = 7  # patch: a larger tile would lose digits


def pooled_texture(texture: Tensor, first: nn.Sequential, second: nn.Sequential) -> Tensor:
    """relu(norm(conv(.))) twice and the average over the patch, (P, C), for texture (P, k, k, 3) uint8 with k <= 7;
    `first` pads the patch with zeros, `second` does not."""
    conv, norm = _parts(first)
    weight, bias = _with_norm(conv, norm, texture)
    conv, norm = _parts(second)
    out, mean, variance = _Texture.apply(texture, weight, bias, conv.weight, norm.weight, norm.bias, norm.eps)  # type: ignore[no-untyped-call]
    _remember(norm, mean, variance, len(texture) * (texture.shape[1] - 2) ** 2)
    return torch.as_tensor(out)


def pooled_shape(values: Tensor, layer: nn.Sequential) -> Tensor:
    """relu(norm(conv(.))), not padded, and its average over the patch, (P, C), for values (P, k, k) of 0, 1 and 2."""
    conv, norm = _parts(layer)
    codes = np.empty((len(values), (values.shape[1] - 2) ** 2), np.int64)
    _patterns(values.numpy(), codes)
    known, which, often = np.unique(codes, return_inverse=True, return_counts=True)
    pixels = torch.from_numpy(known[:, None] // 3 ** np.arange(9) % 3).float()
    share = torch.from_numpy(often / often.sum()).float()[:, None]
    shown = pixels @ conv.weight.flatten(1).T
    mean = (share * shown).sum(dim=0)
    variance = (share * (shown - mean) ** 2).sum(dim=0)
    _remember(norm, mean.detach(), variance.detach(), codes.size)
    active = functional.relu((shown - mean) * (norm.weight * torch.rsqrt(variance + norm.eps)) + norm.bias)
    return torch.as_tensor(_MeanOfRows.apply(active, which.reshape(codes.shape)))  # type: ignore[no-untyped-call]


def _parts(layer: nn.Sequential) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    conv, norm = layer[0], layer[1]
    assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
    return conv, norm


def _remember(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, count: int) -> None:
    """Let the running mean and variance follow those of a batch of `count` values."""
    assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
    with torch.no_grad():
        norm.running_mean.lerp_(mean, norm.momentum or 0.0)
        norm.running_var.lerp_(variance * (count / max(count - 1, 1)), norm.momentum or 0.0)
        norm.num_batches_tracked.add_(1)


def _with_norm(conv: nn.Conv2d, norm: nn.BatchNorm2d, texture: Tensor) -> tuple[Tensor, Tensor]:
    """One convolution's weight (C, 27) and bias (C,) that do what it and the batch normalisation after it do."""
    points, side = len(texture), texture.shape[1]
    total = torch.zeros(27, dtype=torch.float64)
    squares = torch.zeros(27, 27, dtype=torch.float64)
    for columns in _blocks_of_columns(texture):
        flat = columns.flatten(0, 1)
        total += flat.sum(dim=0)
        squares += flat.T @ flat
    count = points * side * side
    mean = total / count
    covariance = squares / count - mean[:, None] * mean
    weight = conv.weight.permute(0, 2, 3, 1).flatten(1).double()  # as the columns: rows, columns, colours
    variance = ((weight @ covariance) * weight).sum(dim=1).clamp(min=0)
    _remember(norm, (weight @ mean).detach().float(), variance.detach().float(), count)
    scale = norm.weight / torch.sqrt(variance + norm.eps)
    return (weight * scale[:, None]).float(), (norm.bias - weight @ mean * scale).float()


def _blocks_of_columns(texture: Tensor) -> Iterator[Tensor]:
    """(k * k, b, 27) of blocks of b points: the 3 x 3 pixels around each place of a patch, zero outside."""
    side = texture.shape[1]
    for start in range(0, len(texture), _BLOCK):
        block = texture[start : start + _BLOCK].numpy()
        columns = torch.empty(side * side, len(block), 27)
        _unfold(block, np.zeros((side + 2, 3 * side + 6), np.float32), columns.numpy())
        yield columns


@quick
def _unfold(block: Any, padded: Any, columns: Any) -> None:
    points, side = block.shape[:2]
    scale = np.float32(1 / 255)
    for p in range(points):
        for y in range(side):
            for x in range(side):
                for c in range(3):
                    padded[y + 1, 3 * x + 3 + c] = np.float32(block[p, y, x, c]) * scale
        for y in range(side):
            for x in range(side):
                to = columns[y * side + x, p]
                for v in range(3):
                    row = padded[y + v]
                    for i in range(9):
                        to[9 * v + i] = row[3 * x + i]


# Normalised, cut off below zero, averaged ----------------------------------------------------------------------------


class _Average:
    """relu(norm(z)) averaged over the places of a patch, for blocks z (Q, b, C) that are seen twice."""

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        self.weight, self.bias, self.eps = weight.detach(), bias.detach(), eps
        self.mean, self.spread = (np.zeros(len(weight)) for _ in range(2))
        self.count = 0

    def see(self, z: Tensor) -> None:
        """Count a block in, by Chan's formula."""
        mean, variance = np.empty(z.shape[2], np.float32), np.empty(z.shape[2], np.float32)
        moments(z.numpy().reshape(-1, z.shape[2]), mean, variance)
        count = z.shape[0] * z.shape[1]
        apart = mean - self.mean
        self.spread += variance * float(count) + apart**2 * (self.count * count / (self.count + count))
        self.mean += apart * (count / (self.count + count))
        self.count += count

    def of(self, blocks: list[Tensor]) -> Tensor:
        """(P, C), once all blocks are seen."""
        self.variance = torch.from_numpy(self.spread / self.count).float()
        self.means = torch.from_numpy(self.mean).float()
        self.inverse = torch.rsqrt(self.variance + self.eps)
        self.scale = self.weight * self.inverse
        self.shift = self.bias - self.means * self.scale
        points = sum(z.shape[1] for z in blocks)
        self.active, self.sums = torch.zeros(points, len(self.scale)), torch.zeros(points, len(self.scale))
        first = 0
        for z in blocks:
            part = slice(first, first + z.shape[1])
            arrays = (x.numpy() for x in (z, self.scale, self.shift, self.active[part], self.sums[part]))
            _count_active(*arrays)
            first += z.shape[1]
        return (self.sums * self.scale + self.active * self.shift) / len(blocks[0])

    def back(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """From a slope (P, C) of the averages to those of weight and bias; `block` may be asked then."""
        places = self.count // len(g)
        self.g = (g / places).contiguous()
        to_bias = (self.g * self.active).sum(dim=0)
        to_weight = (self.g * (self.sums - self.active * self.means)).sum(dim=0) * self.inverse
        # The slope at z is scale times (g where z is active, less its mean, less its share along z).
        self.along = -self.scale * to_weight / self.count * self.inverse
        self.past = -self.scale * to_bias / self.count - self.along * self.means
        return to_weight, to_bias

    def block(self, z: Tensor, first: int) -> Tensor:
        """The slope at a block that begins with point `first`; it takes the block's place."""
        g = self.g[first : first + z.shape[1]]
        arrays = (x.numpy() for x in (z, self.scale, self.shift, self.along, self.past, g))
        _through_active(*arrays)
        return z


@quick
def _count_active(z: Any, scale: Any, shift: Any, active: Any, sums: Any) -> None:
    places, points, width = z.shape
    for p in range(points):
        number, total = active[p], sums[p]
        for q in range(places):
            row = z[q, p]
            for c in range(width):
                on = np.float32(1) if row[c] * scale[c] + shift[c] > np.float32(0) else np.float32(0)
                number[c] += on
                total[c] += on * row[c]


@quick
def _through_active(z: Any, scale: Any, shift: Any, along: Any, past: Any, g: Any) -> None:
    places, points, width = z.shape
    slope = np.empty(width, np.float32)
    for p in range(points):
        for c in range(width):
            slope[c] = g[p, c] * scale[c]
        for q in range(places):
            row = z[q, p]
            for c in range(width):
                on = slope[c] if row[c] * scale[c] + shift[c] > np.float32(0) else np.float32(0)
                row[c] = on + row[c] * along[c] + past[c]


# Both encodings ------------------------------------------------------------------------------------------------------


@quick
def _patterns(values: Any, codes: Any) -> None:
    """Every 3 x 3 pixels as a number with a digit (0, 1 or 2) for each."""
    points, side, _ = values.shape
    for p in range(points):
        for y in range(side - 2):
            for x in range(side - 2):
                code, digit = 0, 1
                for v in range(3):
                    for u in range(3):
                        code += digit * int(values[p, y + v, x + u])
                        digit *= 3
                codes[p, y * (side - 2) + x] = code


class _MeanOfRows(torch.autograd.Function):
    """(P, C): the mean of the rows of a table (U, C) that which (P, Q) names."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, which: NDArray[np.intp]) -> Tensor:
        ctx.which, ctx.rows = which, len(table)
        out = table.new_zeros(len(which), table.shape[1])
        _gather(table.numpy(), which, out.numpy())
        return out.div_(which.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        slope = gradients[0] / ctx.which.shape[1]
        out = slope.new_zeros(ctx.rows, slope.shape[1])
        _scatter(slope.numpy(), ctx.which, out.numpy())
        return out, None


@quick
def _gather(table: Any, which: Any, out: Any) -> None:
    for p in range(len(which)):
        to = out[p]
        for q in range(which.shape[1]):
            row = table[which[p, q]]
            for c in range(len(to)):
                to[c] += row[c]


@quick
def _scatter(rows: Any, which: Any, out: Any) -> None:
    for p in range(len(which)):
        row = rows[p]
        for q in range(which.shape[1]):
            to = out[which[p, q]]
            for c in range(len(to)):
                to[c] += row[c]


class _Texture(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, texture: Tensor, weight: Tensor, bias: Tensor, second: Tensor, scale: Tensor, shift: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        of_input, of_output, of_kernel = _winograd(texture.shape[1])
        average = _Average(scale, shift, eps)
        flat, bias = weight.detach().T.contiguous(), bias.detach()
        products = torch.einsum("qk,oik->qio", of_kernel, second.detach().flatten(2)).contiguous()
        memory, blocks = [], []
        for columns in _blocks_of_columns(texture):
            places, points, _ = columns.shape
            shown = torch.addmm(bias, columns.flatten(0, 1), flat).relu_()
            tiles = (of_input @ shown.view(places, -1)).view(places, points, -1)
            mixed = torch.bmm(tiles, products)
            blocks.append((of_output @ mixed.view(places, -1)).view(len(of_output), points, -1))
            average.see(blocks[-1])
            memory.append((shown, tiles))
        out = average.of(blocks)
        ctx.average, ctx.blocks, ctx.memory, ctx.texture, ctx.products = average, blocks, memory, texture, products
        ctx.mark_non_differentiable(average.means, average.variance)
        return out, average.means, average.variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        of_input, of_output, of_kernel = _winograd(ctx.texture.shape[1])
        to_scale, to_shift = ctx.average.back(gradients[0])
        to_products, back = torch.zeros_like(ctx.products), ctx.products.transpose(1, 2).contiguous()
        to_weight, to_bias, first = torch.zeros(back.shape[2], 27), torch.zeros(back.shape[2]), 0
        from_output, from_input = of_output.T.contiguous(), of_input.T.contiguous()
        for columns, z, (shown, tiles) in zip(_blocks_of_columns(ctx.texture), ctx.blocks, ctx.memory, strict=True):
            places, points, _ = columns.shape
            slope = ctx.average.block(z, first)
            to_mixed = (from_output @ slope.view(len(of_output), -1)).view(places, points, -1)
            to_products.baddbmm_(tiles.transpose(1, 2), to_mixed)
            to_tiles = torch.bmm(to_mixed, back)
            to_shown = (from_input @ to_tiles.view(places, -1)).view(shown.shape)
            _through_relu(shown.numpy(), to_shown.numpy())
            to_weight.addmm_(to_shown.T, columns.flatten(0, 1))
            to_bias += to_shown.sum(dim=0)
            first += points
        del ctx.blocks, ctx.memory, ctx.average
        to_second = torch.einsum("qk,qio->oik", of_kernel, to_products)
        to_second = to_second.reshape(*to_second.shape[:2], 3, 3)
        return None, to_weight, to_bias, to_second, to_scale, to_shift, None


@quick
def _through_relu(shown: Any, slope: Any) -> None:
    for i in range(len(shown)):
        for c in range(shown.shape[1]):
            slope[i, c] = slope[i, c] if shown[i, c] > np.float32(0) else np.float32(0)


@cache
def _winograd(side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of patches (side x side) under 3 x 3 kernels: pixels to factors (s*s, s*s), products of factors to outputs
    ((s-2)^2, s*s), kernels to factors (s*s, 9). Products of polynomials are products of their values at points."""
    finite = np.array([0.0, 1.0, -1.0, 2.0, -2.0, 0.5])[: side - 1]

    def at_points(degrees: int) -> Any:
        return np.vstack([finite[:, None] ** np.arange(degrees), np.eye(degrees)[-1:]])

    outputs, kernels = at_points(side - 2), at_points(3)
    apart = finite[:, None] - finite + np.eye(side - 1)
    kernels[:-1] /= apart.prod(axis=1, keepdims=True)
    # output j is the sum over kernel places k of kernel[k] pixel[j + k]: that says what the pixels' factors are.
    both = (outputs[:, :, None] * kernels[:, None, :]).reshape(side, -1)
    j, k = np.divmod(np.arange(both.shape[1]), 3)
    pixels = np.linalg.lstsq(both.T, np.eye(side)[j + k], rcond=None)[0]
    pairs = (np.kron(each, each) for each in (pixels, outputs.T, kernels))
    of_input, of_output, of_kernel = (torch.from_numpy(each).float().contiguous() for each in pairs)
    return of_input, of_output, of_kernel
