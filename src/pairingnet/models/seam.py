"""A network that looks along a seam, point by point, and says whether two pieces belong together there, and how far
apart they should lie. Several of them at once: one alone is now and then sure of what the others doubt.

Beyond the paper, which judges a pair by how many correspondences agree. Its inputs are made in match/evidence.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_SPACINGS = (1, 4)  # points between those that a layer sees side by side
APART = max(_SPACINGS)  # empty rows behind each seam, so that no layer sees its neighbour in the list


class SeamNet(nn.Module):
    """Numbers about a fit, and its contact as a sequence of points -> a logit and a gap, by each of K networks."""

    def __init__(self, numbers: int, channels: int, networks: int = 4, width: int = 24, hidden: int = 64) -> None:
        super().__init__()
        self.look = Several(networks, channels, width)
        self.along = nn.ModuleList(Several(networks, 3 * width, width) for _ in _SPACINGS)
        self.first = Several(networks, numbers + 3 * width, hidden)
        self.second = Several(networks, hidden, hidden)
        self.last = Several(networks, hidden, 2)

    def forward(self, numbers: Tensor, points: Tensor, lengths: Tensor) -> Tensor:
        """(K, P, 2) from numbers (P, E) of P fits and points (T, C) of their contacts, one after the other, each
        followed by APART rows that do not count; lengths (P,) tells how many do, at least one."""
        rows = lengths + APART
        counts = _counting(lengths)[:, None]
        h = functional.relu(self.look(points.expand(len(self.look.bias), -1, -1))) * counts
        for spacing, layer in zip(_SPACINGS, self.along, strict=True):
            around = functional.pad(h, (0, 0, spacing, spacing))
            beside = torch.cat([around[:, : -2 * spacing], h, around[:, 2 * spacing :]], dim=2)
            h = h + functional.relu(layer(beside)) * counts
        seen = _pooled(h, rows, lengths)
        x = torch.cat([numbers.expand(len(seen), -1, -1), seen], dim=2)
        x = functional.relu(self.second(functional.relu(self.first(x))))
        return torch.as_tensor(self.last(x))


class Several(nn.Module):
    """K linear layers side by side: (K, N, in) -> (K, N, out)."""

    def __init__(self, networks: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(networks, inputs, outputs) * (2 / inputs) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(networks, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


def _counting(lengths: Tensor) -> Tensor:
    """(T,): 1 for points of a seam, 0 for the rows behind it."""
    rows = lengths + APART
    first = torch.repeat_interleave(torch.cumsum(rows, 0) - rows, rows)
    return (torch.arange(len(first)) - first < torch.repeat_interleave(lengths, rows)).float()


def _pooled(h: Tensor, rows: Tensor, lengths: Tensor) -> Tensor:
    """(K, P, 3 H) from (K, T, H), nowhere negative and 0 where nothing counts: of each contact the mean, the largest,
    and the sum over the root of its length."""
    packed = h.transpose(0, 1).contiguous()
    total = torch.segment_reduce(packed, "sum", lengths=rows, unsafe=True)
    largest = torch.segment_reduce(packed, "max", lengths=rows, unsafe=True)
    count = lengths.to(h.dtype)[:, None, None]
    return torch.cat([total / count, largest, total / (8 * count.sqrt())], dim=2).transpose(0, 1)
