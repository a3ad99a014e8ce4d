"""Our own network: local features of a ring that fit instead of resemble.

    strip of a contour             prepare/strip.py       local frames: turning the piece changes nothing
      -> two views                 pack_strips            query: as it is; key: as the partner across the seam sees it
      -> geometry and texture      RingNet.geometry, .texture      residual ring convolutions
      -> gate, joint layers        RingNet.gate, .joint            the paper's gate (eq. 1, 2)
      -> 64 numbers of length 1    RingNet.out

The paper asks one symmetric network for equal features of a bump and of the dent it fits, at any angle, from
patches aligned with the image's axes. Here both are built in. A neighbour sees the shared contour backwards, with
tangent and normal negated; the key view shows exactly that, so geometry agrees at true correspondences before
anything is learned. Similarity of A and B is query(A) . key(B); true matches run backwards along B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pairingnet.config import RingSettings
from pairingnet.models.rings import Rings
from pairingnet.prepare.strip import MIRRORED, SAMPLES, Strip

QUERY, KEY = 0, 1
_GRID = 2.0**11  # features are multiples of 1 / this

# What each role makes of a contour's order, of its directions, and of the places where colours are sampled.
_TURN = (slice(None), slice(None, None, -1))
_SIGN = (1.0, -1.0)
_PLACES = (slice(None), list(MIRRORED))


@dataclass(frozen=True, eq=False)
class StripBatch:
    """F views of fragments, packed: points (T, 2) in steps, tangents (T, 2), colours (T, S, 3) and inside (T, S) in
    [-0.5, 0.5]; role (T, 1) is QUERY or KEY, the same for all points of a view."""

    rings: Rings
    points: Tensor
    tangents: Tensor
    colours: Tensor
    inside: Tensor
    role: Tensor


def pack_strips(
    strips: Sequence[Strip],
    roles: int | Sequence[int],
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> StripBatch:
    """Strips one after the other, all in one role or each in its own: as they are (QUERY) or as a partner across the
    seam sees them (KEY): backwards, with tangent and normal negated."""
    device = device or torch.device("cpu")
    seen = list(zip(strips, [roles] * len(strips) if isinstance(roles, int) else roles, strict=True))

    def joined(parts: list[Any]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device, dtype)

    return StripBatch(
        Rings(tuple(len(strip) for strip in strips), device),
        joined([strip.points[_TURN[role]] / strip.step_px for strip, role in seen]),
        joined([_SIGN[role] * strip.tangents[_TURN[role]] for strip, role in seen]),
        joined([strip.colours[_TURN[role]][:, _PLACES[role]] for strip, role in seen]) / 255 - 0.5,
        joined([strip.inside[_TURN[role]][:, _PLACES[role]] for strip, role in seen]) / 255 - 0.5,
        joined([np.full((len(strip), 1), role) for strip, role in seen]),
    )


class RingNet(nn.Module):
    """Strips of any number of fragments -> one feature per contour point, in the contour's own order."""

    def __init__(self, settings: RingSettings) -> None:
        super().__init__()
        self.settings = settings
        width = settings.width
        self.geometry_in = nn.Linear(4 * len(settings.reach) + 1, width)
        self.texture_in = nn.Linear(4 * len(SAMPLES) + 1, width)
        self.geometry = RingLayers(width, settings.dilations)
        self.texture = RingLayers(width, settings.dilations)
        self.gate = nn.Sequential(nn.Linear(2 * width, width), nn.ELU(), nn.Linear(width, width))
        self.joint = RingLayers(width, settings.joint_dilations)
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, settings.features))
        self.log_scale = nn.Parameter(torch.tensor(2.7))  # similarity -> logits, about 15 at the start

    def forward(self, batch: StripBatch) -> Tensor:
        """(T, D) of length 1; keys are turned back, so that row i belongs to contour point i."""
        around = Neighbours(batch.rings)
        shape = local_geometry(batch.points, batch.tangents, around, self.settings.reach)
        colours = torch.cat([batch.colours.flatten(1), batch.inside], dim=1)
        geometry = self.geometry(self.geometry_in(torch.cat([shape, batch.role], dim=1)), around)
        texture = self.texture(self.texture_in(torch.cat([colours, batch.role], dim=1)), around)
        w = torch.sigmoid(self.gate(torch.cat([texture, geometry], dim=1)))
        fused = self.joint(w * texture + (1 - w) * geometry, around)
        features = functional.normalize(self.out(fused), dim=1)
        return features.index_select(0, around.turned(batch.role[:, 0] == KEY))


def on_grid(features: Tensor) -> Tensor:
    """Features of length 1 as multiples of 2^-11, in 32 bits.

    Products of two such numbers are multiples of 2^-22, and sums of 64 of them stay below 2: 32 bits hold them
    exactly. So similarities are the same in any order of adding up: with any number of threads, any vector
    instructions, any library. (Half of what is rounded away is 0.1 % of a usual entry.)
    """
    return torch.round(features * _GRID).div_(_GRID).float()


class Neighbours:
    """Which rows of packed rings lie some steps ahead and behind; each distance is worked out once."""

    def __init__(self, rings: Rings) -> None:
        self.rings = rings
        lengths = torch.tensor(rings.lengths, device=rings.device)
        starts = torch.cumsum(lengths, 0) - lengths
        self._length = torch.repeat_interleave(lengths, lengths)
        self._start = torch.repeat_interleave(starts, lengths)
        self._place = torch.arange(rings.total, device=rings.device) - self._start
        self._known: dict[int, Tensor] = {}
        self._beside: dict[int, Tensor] = {}

    def at(self, steps: int) -> Tensor:
        """(T,) the row that many steps ahead on the same ring."""
        if steps not in self._known:
            self._known[steps] = self._start + (self._place + steps) % self._length
        return self._known[steps]

    def beside(self, steps: int) -> Tensor:
        """(3 T,) for each point in turn the row that many steps behind, its own, and the one ahead."""
        if steps not in self._beside:
            self._beside[steps] = torch.stack([self.at(-steps), self.at(0), self.at(steps)], dim=1).flatten()
        return self._beside[steps]

    def turned(self, which: Tensor) -> Tensor:
        """(T,) the rows in the opposite order of their ring, where `which` (T,) says so."""
        return self._start + torch.where(which, self._length - 1 - self._place, self._place)


def local_geometry(points: Tensor, tangents: Tensor, around: Neighbours, reach: Sequence[int]) -> Tensor:
    """(T, 4 R): where the contour is, some steps ahead and behind, seen from each point's own frame.

    Divided by the distance along the contour, and without what a straight line would give.
    """
    normals = torch.stack([-tangents[:, 1], tangents[:, 0]], dim=1)
    seen = []
    for steps in (s * r for r in reach for s in (1, -1)):
        offset = (points.index_select(0, around.at(steps)) - points) / abs(steps)
        straight = 1.0 if steps > 0 else -1.0
        seen += [(offset * tangents).sum(1) - straight, (offset * normals).sum(1)]
    return torch.stack(seen, dim=1)


class RingLayers(nn.Module):
    """Residual ring convolutions, one for each dilation: x + linear(relu(conv(norm(x))))."""

    def __init__(self, width: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.dilations = tuple(dilations)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in dilations)
        self.convs = nn.ModuleList(nn.Linear(3 * width, width) for _ in dilations)
        self.mixes = nn.ModuleList(nn.Linear(width, width) for _ in dilations)
        for mix in self.mixes:  # each layer starts as a small change of what comes in
            nn.init.normal_(mix.weight, std=0.3 / (width * len(dilations)) ** 0.5)  # type: ignore[arg-type]
            nn.init.zeros_(mix.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, around: Neighbours) -> Tensor:
        for dilation, norm, conv, mix in zip(self.dilations, self.norms, self.convs, self.mixes, strict=True):
            x = x + mix(functional.relu(conv(with_neighbours(norm(x), around, dilation))))
        return x


class _WithNeighbours(torch.autograd.Function):
    """[x behind, x, x ahead] side by side. Its gradient is a gather as well, because a ring's steps can be undone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, behind: Tensor, ahead: Tensor, all_three: Tensor) -> Tensor:
        ctx.save_for_backward(behind, ahead)
        # One gather of three rows each, for joining three arrays takes twice as long.
        return x.index_select(0, all_three).view(len(x), -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        behind, ahead = ctx.saved_tensors
        to_behind, to_x, to_ahead = gradients[0].chunk(3, dim=1)
        return to_x + to_behind.index_select(0, ahead) + to_ahead.index_select(0, behind), None, None, None


def with_neighbours(x: Tensor, around: Neighbours, steps: int) -> Tensor:
    """(T, 3 C) from x (T, C): each point's neighbours so many steps behind and ahead, and itself between them."""
    chosen = around.at(-steps), around.at(steps), around.beside(steps)
    return torch.as_tensor(_WithNeighbours.apply(x, *chosen))  # type: ignore[no-untyped-call]
