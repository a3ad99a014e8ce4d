"""The paper's network, top to bottom. (Sections and equations are those of PairingNet, ECCV 2024.)

    patches of a contour                 prepare/patches.py                  3.2, supplement 3
      -> contour / texture encoding      ContourEncoding, TextureEncoding    3.2 "Feature Extraction"
      -> graph network on the ring       ResGCN (or GraphUNet)               3.2, supplement 4.1, 4.3
      -> fusion                          Fusion                              eq. (1), (2)
      -> similarity of two fragments     similarity                          eq. (3), (4)
      -> one vector for search           SearchEncoder                       3.2 "Pair-searching Module"

What differs from the published code, and why:
- Batches are packed, not padded: batch statistics and centring see real points only, contours have any length,
  and outside of training a fragment's features do not depend on its batch.
- The gate's w weighs texture, 1 - w contour, as in eq. (2); the published code has it the other way round, which
  is the same network.
- The search encoder sees the whole contour; the paper cuts it at 1408 points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pairingnet.config import PaperSettings
from pairingnet.models.fused import graph_network
from pairingnet.models.pooled import LARGEST, pooled_shape, pooled_texture
from pairingnet.models.rings import PointNorm, Rings, dropout, kept_by_dropout, quick_on, window_sum
from pairingnet.prepare.patches import EDGE, INSIDE, PatchInput


@dataclass(frozen=True, eq=False)
class PatchBatch:
    """Fragments of a batch, one after the other: shape (T, k, k) uint8 bits, texture (T, k, k, 3) uint8,
    coordinates (T, 2) float32."""

    rings: Rings
    shape: Tensor
    texture: Tensor
    coordinates: Tensor


def pack(inputs: Sequence[PatchInput], device: torch.device | None = None) -> PatchBatch:
    """Fragments one after the other, as tensors."""
    device = device or torch.device("cpu")
    return PatchBatch(
        Rings(tuple(len(each) for each in inputs), device),
        torch.from_numpy(np.concatenate([each.shape for each in inputs])).to(device),
        torch.from_numpy(np.concatenate([each.texture for each in inputs])).to(device),
        torch.from_numpy(np.concatenate([each.coordinates for each in inputs])).to(device),
    )


@dataclass(frozen=True, eq=False)
class LocalFeatures:
    """Per contour point: contour and texture features (T, D) each, fused ones (T, D or 2D), gate (T, D) or None."""

    rings: Rings
    contour: Tensor | None
    texture: Tensor | None
    fused: Tensor
    gate: Tensor | None


class PairingNet(nn.Module):
    """Matching network and search encoder together; step 1 trains the first, step 2 the second."""

    def __init__(self, settings: PaperSettings) -> None:
        super().__init__()
        self.settings = settings
        self.matching = MatchingNetwork(settings)
        self.searching = SearchEncoder(settings)

    def local(self, batch: PatchBatch) -> LocalFeatures:
        """Features of every contour point."""
        features = self.matching(batch)
        assert isinstance(features, LocalFeatures)
        return features

    def vectors(self, features: LocalFeatures) -> Tensor:
        """One vector of length 1 for every fragment, (F, G)."""
        return functional.normalize(self.searching(features), dim=1)


class MatchingNetwork(nn.Module):
    """Fig. 2 (a), (b): two branches from patches to local features, fused."""

    def __init__(self, settings: PaperSettings) -> None:
        super().__init__()
        width = settings.width
        self.settings = settings
        self.contour_encoding = ContourEncoding(settings.encoding, width) if settings.branches != "texture" else None
        self.texture_encoding = TextureEncoding(width) if settings.branches != "contour" else None
        early = settings.fusion == "early" and settings.branches == "both"
        # Early fusion: one graph network on both encodings, instead of one on each.
        self.merge = nn.Linear(2 * width, width) if early else None
        self.contour_graph = None if self.contour_encoding is None or early else _graph(settings)
        self.texture_graph = None if self.texture_encoding is None or early else _graph(settings)
        self.early_graph = _graph(settings) if early else None
        self.fusion = Fusion(settings.fusion, width) if settings.branches == "both" and not early else None

    def forward(self, batch: PatchBatch) -> LocalFeatures:
        contour = texture = None
        if self.contour_encoding is not None:
            contour = self.contour_encoding(batch.shape, batch.coordinates)
        if self.texture_encoding is not None:
            texture = self.texture_encoding(batch.texture)
        if self.early_graph is not None and self.merge is not None:
            assert contour is not None and texture is not None
            fused = self.early_graph(self.merge(torch.cat([contour, texture], dim=1)), batch.rings)
            return LocalFeatures(batch.rings, fused, fused, fused, None)
        if self.contour_graph is not None:
            contour = self.contour_graph(contour, batch.rings)
        if self.texture_graph is not None:
            texture = self.texture_graph(texture, batch.rings)
        if self.fusion is None:
            only = contour if contour is not None else texture
            assert only is not None
            return LocalFeatures(batch.rings, contour, texture, only, None)
        fused, gate = self.fusion(contour, texture)
        return LocalFeatures(batch.rings, contour, texture, fused, gate)


# Encodings -----------------------------------------------------------------------------------------------------------


class ContourEncoding(nn.Module):
    """Binary patches -> conv, average, with the point's place in the fragment -> D. Supplement, fig. "Contour
    encodings": "edge" (1) shows where the contour runs, "inside" (2) what is fragment, "both" (3) adds them."""

    def __init__(self, encoding: str, width: int) -> None:
        super().__init__()
        self.encoding = encoding
        self.conv = _ConvNormReLU(1, width, padding=0)
        self.linear = nn.Linear(width + 2, width)

    def forward(self, shape: Tensor, coordinates: Tensor) -> Tensor:
        edge, inside = (shape & EDGE) > 0, (shape & INSIDE) > 0
        if self.encoding == "edge":
            values = edge.float()
        elif self.encoding == "inside":
            values = (inside | edge).float()
        else:  # outside 0, the line 1, inside 2
            values = torch.where(edge, 1.0, 2.0 * inside.float())
        values = values.to(self.linear.weight.dtype)
        if self.training and quick_on(values):
            pooled = pooled_shape(values, self.conv)
        else:
            pooled = self.conv(values[:, None]).mean(dim=(2, 3))
        return torch.as_tensor(self.linear(torch.cat([pooled, coordinates], dim=1)))


class TextureEncoding(nn.Module):
    """Colour patches -> two convolutions, average -> D."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(_ConvNormReLU(3, width // 2, padding=1), _ConvNormReLU(width // 2, width, padding=0))

    def forward(self, texture: Tensor) -> Tensor:
        weight = self.convs[0][0].weight  # type: ignore[index]
        if self.training and texture.shape[1] <= LARGEST and quick_on(weight):
            return pooled_texture(texture, *self.convs)
        values = texture.permute(0, 3, 1, 2).to(weight.dtype) / 255
        return torch.as_tensor(self.convs(values.contiguous(memory_format=torch.channels_last))).mean(dim=(2, 3))


class _ConvNormReLU(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, padding: int) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, 3, padding=padding, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


# Graph networks ------------------------------------------------------------------------------------------------------


def _graph(settings: PaperSettings) -> nn.Module:
    if settings.backbone == "unet":
        return GraphUNet(settings.width, settings.neighbours, settings.dropout)
    return ResGCN(settings.width, settings.layers, settings.neighbours, settings.dropout)


class GraphAttention(nn.Module):
    """One head of graph attention on a ring: each point attends to itself and `reach` points on both sides."""

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.project = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 2, bias=False)  # of a point as the asking one, and as the neighbour
        self.bias = nn.Parameter(torch.zeros(width))
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.xavier_uniform_(self.score.weight)

    def forward(self, x: Tensor, halo: Tensor, windows: Tensor) -> Tensor:
        h = self.project(x)
        asking, neighbour = self.score(h).unbind(dim=1)
        around, beside, own = (x.index_select(0, halo) for x in (h, neighbour, asking))
        scores = beside.unfold(0, 2 * self.reach + 1, 1) + own[self.reach : -self.reach, None]
        weight = torch.softmax(functional.leaky_relu(scores, 0.2), dim=1)
        return window_sum(around, weight).index_select(0, windows) + self.bias


class ResGCN(nn.Module):
    """`layers` times x + attention(dropout(relu(norm(x)))) ("res+" of DeepGCNs)."""

    def __init__(self, width: int, layers: int, reach: int, dropout: float) -> None:
        super().__init__()
        self.reach, self.dropout = reach, dropout
        self.norms = nn.ModuleList(PointNorm(width) for _ in range(layers))
        self.attentions = nn.ModuleList(GraphAttention(width, reach) for _ in range(layers))

    def forward(self, x: Tensor, rings: Rings) -> Tensor:
        if self.training and x.requires_grad and quick_on(x):
            return self._quickly(x, rings)
        halo, windows = rings.halo(self.reach)
        for norm, attention in zip(self.norms, self.attentions, strict=True):
            h = dropout(functional.relu(norm(x)), self.dropout, self.training)
            x = x + attention(h, halo, windows)
        return x

    def _quickly(self, x: Tensor, rings: Rings) -> Tensor:
        """The same, for training on a processor."""
        norms: list[Any] = list(self.norms)
        attentions: list[Any] = list(self.attentions)
        layers = [
            (norm.weight, norm.bias, attention.project.weight, attention.score.weight, attention.bias)
            for norm, attention in zip(norms, attentions, strict=True)
        ]
        kept, scale = kept_by_dropout(x, self.dropout, len(layers))
        x, seen = graph_network(x, rings.lengths, self.reach, layers, kept, scale, norms[0].eps)
        for norm, (mean, variance) in zip(norms, seen, strict=True):
            norm.remember(mean, variance, len(x))
        return x


class GraphUNet(nn.Module):
    """Graph U-Nets on rings: three times keep the better half of the points, then put them back.

    The kept points of a ring form a smaller ring in the same order; that is what the square of the adjacency,
    which the original takes to keep neighbours connected, amounts to here.
    """

    DEPTH, KEEP = 3, 0.5

    def __init__(self, width: int, reach: int, dropout: float) -> None:
        super().__init__()
        self.reach, self.dropout = reach, dropout
        self.down = nn.ModuleList(GraphAttention(width, reach) for _ in range(self.DEPTH + 1))
        self.up = nn.ModuleList(GraphAttention(width, reach) for _ in range(self.DEPTH))
        self.choose = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in range(self.DEPTH))
        self.norms = nn.ModuleList(PointNorm(width) for _ in range(2 * self.DEPTH + 1))

    def forward(self, x: Tensor, rings: Rings) -> Tensor:
        x = self._layer(0, self.down[0], x, rings)
        kept: list[tuple[Tensor, Rings, Tensor]] = []
        for level in range(self.DEPTH):
            direction = functional.normalize(torch.as_tensor(self.choose[level].weight), dim=1)
            score = (x @ direction.T).squeeze(1)
            index, smaller = self._best_half(score, rings)
            kept.append((x, rings, index))
            x, rings = x[index] * torch.tanh(score[index])[:, None], smaller
            x = self._layer(level + 1, self.down[level + 1], x, rings)
        for level in reversed(range(self.DEPTH)):
            before, rings, index = kept[level]
            x = before.index_add(0, index, x)
            x = self._layer(2 * self.DEPTH - level, self.up[level], x, rings)
        return x

    def _layer(self, norm: int, attention: nn.Module, x: Tensor, rings: Rings) -> Tensor:
        halo, windows = rings.halo(self.reach)
        h = dropout(functional.relu(self.norms[norm](x)), self.dropout, self.training)
        return x + torch.as_tensor(attention(h, halo, windows))

    def _best_half(self, score: Tensor, rings: Rings) -> tuple[Tensor, Rings]:
        chosen, lengths, first = [], [], 0
        for part in rings.split(score):
            count = max(1, round(self.KEEP * len(part)))
            chosen.append(first + part.topk(count).indices.sort().values)
            lengths.append(count)
            first += len(part)
        return torch.cat(chosen), Rings(tuple(lengths), rings.device)


# Fusion and similarity -----------------------------------------------------------------------------------------------


class Fusion(nn.Module):
    """Eq. (1), (2): "gate" weighs texture against contour per point and channel; "concat" mixes both linearly."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "concat":
            self.mix = nn.Linear(2 * width, width)
        else:
            self.gate = nn.Sequential(nn.Linear(2 * width, width), nn.ELU(), nn.Linear(width, width))

    def forward(self, contour: Tensor, texture: Tensor) -> tuple[Tensor, Tensor | None]:
        both = torch.cat([texture, contour], dim=1)
        if self.kind == "concat":
            return self.mix(both), None
        w = torch.sigmoid(self.gate(both))
        return w * texture + (1 - w) * contour, w


def log_similarity(source: Tensor, target: Tensor) -> Tensor:
    """Eq. (3), (4): log of the dual softmax of source (N, D) and target (M, D), (N, M)."""
    scores = source @ target.T / source.shape[1] ** 0.5
    return torch.log_softmax(scores, dim=0) + torch.log_softmax(scores, dim=1)


# Search --------------------------------------------------------------------------------------------------------------


class SearchEncoder(nn.Module):
    """Fig. 2 (c): a linear transformer per branch, gated fusion, a layer on every contour point, the average, a layer.

    The text names no activation after the layer on every point. Without one, both layers would be a single linear
    map; ELU is that of the gates. The published code has no such layer (search_head "code").
    """

    def __init__(self, settings: PaperSettings) -> None:
        super().__init__()
        self.settings = settings
        width = settings.width
        self.contour = LinearTransformer(width, settings.search_layers)
        self.texture = LinearTransformer(width, settings.search_layers)
        self.gate = nn.Sequential(nn.Linear(2 * width, width), nn.ELU(), nn.Linear(width, width))
        fused = 2 * width if settings.search_fusion == "concat" else width
        self.every = nn.Sequential(nn.Linear(fused, fused), nn.ELU()) if settings.search_head == "paper" else None
        self.out = nn.Linear(fused, settings.search_width)

    def forward(self, features: LocalFeatures) -> Tensor:
        """(F, G), not normalised."""
        contour, texture = self._inputs(features)
        mask = _mask(features.rings)
        c, t = (
            self.contour(_padded(contour, features.rings), mask),
            self.texture(_padded(texture, features.rings), mask),
        )
        w = torch.sigmoid(self.gate(torch.cat([t, c], dim=2)))
        if self.settings.search_fusion == "concat":
            fused = torch.cat([w * t, (1 - w) * c], dim=2)
        else:
            fused = w * t + (1 - w) * c
        if self.every is not None:
            fused = self.every(fused)
        mean = (fused * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        return torch.as_tensor(self.out(mean))

    def _inputs(self, features: LocalFeatures) -> tuple[Tensor, Tensor]:
        """Both branches; the fused features twice where asked for; the only branch twice where there is one."""
        if self.settings.search_input == "fused":
            return features.fused, features.fused
        contour = features.contour if features.contour is not None else features.texture
        texture = features.texture if features.texture is not None else features.contour
        assert contour is not None and texture is not None
        return contour, texture


class LinearTransformer(nn.Module):
    """Layers of attention and feed-forward, each with normalised input and a residual.

    Half of the eight heads attend globally in linear time (softmax of queries over channels, of keys over the
    contour); the other half attend to a window of the ring around them.
    """

    def __init__(self, width: int, layers: int, heads: int = 8, local_heads: int = 4, window: int = 32) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(_MixedAttention(width, heads, local_heads, window) for _ in range(layers))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (F, L, D) padded, mask (F, L) true on real points."""
        for attention, feed in zip(self.attentions, self.feeds, strict=True):
            x = x + attention(x, mask)
            x = x + feed(x)
        return x


class _MixedAttention(nn.Module):
    def __init__(self, width: int, heads: int, local_heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.local_heads, self.window = heads, local_heads, window
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        f, length, width = x.shape
        q, k, v = self.project(self.norm(x)).view(f, length, 3, self.heads, width // self.heads).unbind(dim=2)
        far = slice(self.local_heads, None)
        mixed = [global_linear_attention(q[:, :, far], k[:, :, far], v[:, :, far], mask)]
        if self.local_heads:
            near = slice(0, self.local_heads)
            mixed.insert(0, ring_window_attention(q[:, :, near], k[:, :, near], v[:, :, near], mask, self.window))
        return torch.as_tensor(self.out(torch.cat(mixed, dim=2).reshape(f, length, width)))


def global_linear_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Linear attention of (F, L, H, d): softmax(q) over channels times sum over points of softmax(k) v."""
    hidden = ~mask[:, :, None, None]
    k = torch.softmax(k.masked_fill(hidden, float("-inf")), dim=1)
    context = torch.einsum("flhd,flhe->fhde", k, v.masked_fill(hidden, 0.0))
    return torch.einsum("flhd,fhde->flhe", torch.softmax(q, dim=3) * q.shape[3] ** -0.5, context)


def ring_window_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, window: int) -> Tensor:
    """Attention of (F, L, H, d) within blocks of `window` points and the two blocks beside, around the ring."""
    f, length, h, d = q.shape
    blocks = -(-length // window)
    pad = blocks * window - length

    def in_blocks(x: Tensor) -> Tensor:
        return functional.pad(x, (0, 0, 0, 0, 0, pad)).view(f, blocks, window, h, d)

    real = functional.pad(mask, (0, pad)).view(f, blocks, window)
    own = real.any(dim=2).sum(dim=1, keepdim=True)  # (F, 1) blocks of each ring
    here = torch.arange(blocks, device=q.device)[None]
    around = torch.stack([(here - 1) % own, here.expand(f, -1), (here + 1) % own], dim=2)  # (F, B, 3)
    around = torch.where(here[..., None] < own[..., None], around, here[..., None].expand(f, -1, 3))
    which = torch.arange(f, device=q.device)[:, None, None]
    keys, values = (in_blocks(x)[which, around].reshape(f, blocks, 3 * window, h, d) for x in (k, v))
    # A ring of one or two blocks meets a block twice; its second visit is hidden.
    twice = torch.stack(
        [torch.zeros_like(around[..., 0], dtype=torch.bool), around[..., 1] == around[..., 0],
         (around[..., 2] == around[..., 0]) | (around[..., 2] == around[..., 1])], dim=2
    )  # fmt: skip
    seen = (real[which, around] & ~twice[..., None]).reshape(f * blocks, 1, 1, 3 * window)
    seen = seen | ~seen.any(dim=3, keepdim=True)  # blocks without a real point: whatever they say is left out
    q, k, v = (x.reshape(f * blocks, -1, h, d).transpose(1, 2).contiguous() for x in (in_blocks(q), keys, values))
    mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2)
    return mixed.reshape(f, blocks * window, h, d)[:, :length]


def _padded(x: Tensor, rings: Rings) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(rings.split(x)), batch_first=True)


def _mask(rings: Rings) -> Tensor:
    lengths = torch.tensor(rings.lengths, device=rings.device)
    return torch.arange(int(lengths.max()), device=rings.device)[None] < lengths[:, None]
