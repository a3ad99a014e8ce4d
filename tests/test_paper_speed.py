"""What makes the paper's training fast changes nothing: losses, gradients and running statistics of plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pairingnet.models.fused import exponential
from pairingnet.models.paper import ContourEncoding, ResGCN, TextureEncoding
from pairingnet.models.rings import Rings
from pairingnet.train.losses import pair_loss

LENGTHS = (40, 3, 300, 17)  # a ring shorter than its window, too


def gradients(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def close(found: Tensor, exact: Tensor, tolerance: float = 2e-5) -> bool:
    """Within a small share of the largest."""
    return bool(
        (found.double() - exact.double()).abs().max() <= tolerance * exact.double().abs().max().clamp(min=1e-12)
    )


def test_the_exponential() -> None:
    x = np.linspace(-86, 20, 10001, dtype=np.float32)
    found = np.array([exponential(each) for each in x])
    assert np.abs(found / np.exp(x.astype(float)) - 1).max() < 3e-7


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_the_graph_network(share: float) -> None:
    torch.manual_seed(0)
    rings = Rings(LENGTHS, torch.device("cpu"))
    start = torch.randn(rings.total, 16) + 3
    slope = torch.randn(rings.total, 16)
    told = {}
    for kind in (torch.float64, torch.float32):
        torch.manual_seed(1)
        net = ResGCN(16, 3, 4, share)
        with torch.no_grad():
            for p in net.parameters():
                p.add_(0.1 * torch.randn_like(p))
        net.to(kind)
        torch.manual_seed(2)
        x = start.to(kind).requires_grad_()
        out = net(x, rings)
        (out * slope.to(kind)).sum().backward()
        assert x.grad is not None
        told[kind] = {"out": out.detach(), "x": x.grad, **gradients(net), **dict(net.named_buffers())}
    assert "Network" in type(out.grad_fn).__name__
    assert told[torch.float32].keys() == told[torch.float64].keys()
    for name, exact in told[torch.float64].items():
        assert close(told[torch.float32][name], exact), name


@pytest.mark.parametrize("sharp", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("gamma", [2.0, 8.0])
def test_the_loss_of_a_pair(sharp: float, gamma: float) -> None:
    """At the beginning of a training, in between, and where nearly everything is told apart."""
    torch.manual_seed(0)
    source, target = sharp * torch.randn(90, 16), sharp * torch.randn(120, 16)
    rows, columns = torch.randperm(90)[:30], torch.randperm(120)[:30]
    target[columns[:20]] = source[rows[:20]]
    target[50] = target[60]
    told = []
    for kind in (torch.float64, torch.float32):
        a, b = source.to(kind).requires_grad_(), target.to(kind).requires_grad_()
        loss = pair_loss(a, b, rows, columns, 0.55, gamma)
        (3 * loss).backward()  # type: ignore[no-untyped-call]
        assert a.grad is not None and b.grad is not None
        told.append((loss.detach(), a.grad, b.grad, type(loss.grad_fn).__name__))
    assert "PairLoss" in told[1][3] and "PairLoss" not in told[0][3]
    for exact, found in zip(told[0][:3], told[1][:3], strict=True):
        assert close(found, exact, 1e-4)


@pytest.mark.parametrize("side", [3, 5, 7])
@pytest.mark.parametrize("kind", ["texture", "shape"])
def test_the_encodings(side: int, kind: str) -> None:
    """More points than a block has, and no multiple of it."""
    torch.manual_seed(0)
    points = 150
    light = torch.randint(256, (points, 1, 1, 3))
    texture = (light + torch.randint(-20, 20, (points, side, side, 3))).clamp(0, 255).to(torch.uint8)
    shape = torch.randint(4, (points, side, side), dtype=torch.uint8)
    coordinates, slope = torch.randn(points, 2), torch.randn(points, 16)
    told = {}
    for number in (torch.float64, torch.float32):
        torch.manual_seed(1)
        net: nn.Module = TextureEncoding(16) if kind == "texture" else ContourEncoding("edge", 16)
        with torch.no_grad():
            for p in net.parameters():
                p.add_(0.1 * torch.randn_like(p))
        net.to(number)
        out = net(texture) if kind == "texture" else net(shape, coordinates.to(number))
        (out * slope.to(number)).sum().backward()
        told[number] = {"out": out.detach(), **gradients(net), **dict(net.named_buffers())}
    assert told[torch.float32].keys() == told[torch.float64].keys()
    for name, exact in told[torch.float64].items():
        assert close(told[torch.float32][name], exact, 1e-4), name
