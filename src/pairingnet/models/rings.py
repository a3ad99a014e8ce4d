"""Contours of different lengths in one batch, without padding.

The points of all fragments stand one after the other in one long list; `Rings` knows where each begins. A ring's
neighbours are found by gathering each ring with a halo of its own points on both sides; after that, "the k-th
neighbour of every point" is a plain slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pairingnet.models.device import full_precision, widened


@dataclass(frozen=True, eq=False)
class Rings:
    """lengths (F,): how many points each fragment has; T is their sum."""

    lengths: tuple[int, ...]
    device: torch.device

    @property
    def total(self) -> int:
        return sum(self.lengths)

    def halo(self, reach: int) -> tuple[Tensor, Tensor]:
        """Indices (T + 2 * reach * F,) of every ring with `reach` of its own points before and after it, and
        (T,) where each point's window of 2 * reach + 1 begins in that list."""
        rows, windows = [], []
        first = written = 0
        for length in self.lengths:
            around = torch.arange(-reach, length + reach, device=self.device) % length
            rows.append(first + around)
            windows.append(torch.arange(written, written + length, device=self.device))
            first += length
            written += length + 2 * reach
        return torch.cat(rows), torch.cat(windows)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """(T, C) as one tensor per fragment."""
        return torch.split(x, list(self.lengths))


class _WindowSum(torch.autograd.Function):
    """out[t] = sum over k of weight[t, k] * x[t + k], for x (T + K - 1, C) and weight (T, K).

    Row blocks that fit the cache, and no copy of x for every k: the plain gather needs K times the memory.
    """

    BLOCK = 2048

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        total, width = weight.shape
        out = x.new_zeros((total, x.shape[1]))
        columns = weight.t().contiguous()
        for first in range(0, total, _WindowSum.BLOCK):
            last = min(first + _WindowSum.BLOCK, total)
            block = out[first:last]
            for k in range(width):
                block.addcmul_(x[first + k : last + k], columns[k, first:last, None])
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        total, width = weight.shape
        to_x, to_columns = torch.zeros_like(x), weight.new_empty((width, total))
        columns = weight.t().contiguous()
        for first in range(0, total, _WindowSum.BLOCK):
            last = min(first + _WindowSum.BLOCK, total)
            block = gradient[first:last]
            for k in range(width):
                to_x[first + k : last + k].addcmul_(block, columns[k, first:last, None])
                torch.sum(block * x[first + k : last + k], dim=1, out=to_columns[k, first:last])
        return to_x, to_columns.t()


def window_sum(x: Tensor, weight: Tensor) -> Tensor:
    """(T, C): weighted sums over the windows of x (T + K - 1, C) with weight (T, K)."""
    with full_precision(x):
        return torch.as_tensor(_WindowSum.apply(widened(x), widened(weight)))  # type: ignore[no-untyped-call]


def quick_on(x: Tensor) -> bool:
    """Whether the loops of `fused` may be used: numbers of 32 bits, on a processor."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def dropout(x: Tensor, share: float, training: bool) -> Tensor:
    """Zero a share of the values (rounded to 1/256) and scale up the rest."""
    if not training:
        return x
    (kept,), scale = kept_by_dropout(x, share, 1)
    return x if kept is None else x * kept * scale


def kept_by_dropout(x: Tensor, share: float, times: int) -> tuple[list[Tensor | None], float]:
    """So many times the values that dropout keeps, None where all; and what they are scaled with.

    Eight decisions per random number: torch's own dropout draws one number per value, which costs a tenth of a
    training step on a processor.
    """
    dropped = round(256 * share)
    if dropped == 0:
        return [None] * times, 1.0
    limits = torch.iinfo(torch.int64)
    kept: list[Tensor | None] = []
    for _ in range(times):
        numbers = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device)
        numbers.random_(limits.min, limits.max)
        kept.append((numbers.view(torch.uint8)[: x.numel()] >= dropped).view(x.shape))
    return kept, 256 / (256 - dropped)


class PointNorm(nn.BatchNorm1d):
    """Batch normalisation of points (T, C), the same numbers as torch's, with sums as matrix products.

    Torch's sums over the long axis of a (T, C) array take a fifth of a training step on a CPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        if not self.training:
            scale = self.weight * torch.rsqrt(self.running_var + self.eps)
            return x * scale + (self.bias - self.running_mean * scale)
        with full_precision(x):
            out, mean, variance = _Normalised.apply(widened(x), self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        self.remember(mean, variance, len(x))
        return torch.as_tensor(out)

    def remember(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Let the running mean and variance follow those of a batch of `count` points."""
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum or 0.0)
            self.running_var.lerp_(variance * (count / max(count - 1, 1)), self.momentum or 0.0)
            self.num_batches_tracked.add_(1)


class _Normalised(torch.autograd.Function):
    """(x - mean) / deviation * weight + bias over the rows of x; also the mean and the variance."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        mean = _row_mean(x)
        centred = x - mean
        variance = _row_mean(centred * centred)
        inverse = torch.rsqrt(variance + eps)
        hat = centred.mul_(inverse)
        ctx.save_for_backward(hat, inverse, weight)
        ctx.mark_non_differentiable(mean, variance)
        return torch.addcmul(bias, hat, weight), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        gradient = gradients[0]
        hat, inverse, weight = ctx.saved_tensors
        to_bias, to_weight = _row_mean(gradient), _row_mean(gradient * hat)
        to_x = torch.addcmul(gradient - to_bias, hat, to_weight, value=-1).mul_(weight * inverse)
        return to_x, to_weight * len(hat), to_bias * len(hat), None


def _row_mean(x: Tensor) -> Tensor:
    """(C,) mean over the rows of (T, C)."""
    return (x.new_ones((1, len(x))) @ x)[0] / len(x)
