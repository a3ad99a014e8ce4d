"""The paper's network: formulas against slow and hand-made versions, every switch, no dependence on the batch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pairingnet.config import PaperSettings
from pairingnet.models.paper import (
    ContourEncoding,
    Fusion,
    GraphAttention,
    LocalFeatures,
    PairingNet,
    PatchBatch,
    global_linear_attention,
    log_similarity,
    pack,
    ring_window_attention,
)
from pairingnet.models.rings import PointNorm, Rings, dropout, window_sum
from pairingnet.prepare.patches import EDGE, INSIDE, patch_input, pixel_contour
from pairingnet.train.losses import focal_loss, info_nce
from pairingnet.types import Fragment
from tests.conftest import blob, fragment_of

CPU = torch.device("cpu")
SMALL = PaperSettings(width=16, layers=2, search_layers=2, search_width=12)
SWITCHES = [
    {},
    {"patch": 3},
    {"patch": 11},
    {"encoding": "inside"},
    {"encoding": "both"},
    {"texture": "grey"},
    {"texture": "canny"},
    {"branches": "contour"},
    {"branches": "texture"},
    {"fusion": "concat"},
    {"fusion": "early"},
    {"backbone": "unet"},
    {"search_fusion": "add"},
    {"search_input": "fused"},
    {"search_head": "code"},
]


def rings(*lengths: int) -> Rings:
    return Rings(lengths, CPU)


def batch_of(fragments: list[Fragment], chosen: PaperSettings = SMALL) -> PatchBatch:
    return pack([patch_input(fragment, chosen.patch, chosen.texture) for fragment in fragments])


# Rings ---------------------------------------------------------------------------------------------------------------


def test_a_halo_wraps_around_each_ring() -> None:
    halo, windows = rings(3, 4).halo(2)
    assert halo.tolist() == [1, 2, 0, 1, 2, 0, 1, 5, 6, 3, 4, 5, 6, 3, 4]
    assert windows.tolist() == [0, 1, 2, 7, 8, 9, 10]


def test_window_sum_is_the_plain_sum_and_so_is_its_gradient() -> None:
    torch.manual_seed(0)
    x = torch.randn(9, 3, dtype=torch.double, requires_grad=True)
    weight = torch.randn(5, 5, dtype=torch.double, requires_grad=True)
    plain = torch.stack([sum((weight[t, k] * x[t + k] for k in range(5)), torch.zeros(3)) for t in range(5)])
    assert torch.allclose(window_sum(x, weight), plain)
    assert torch.autograd.gradcheck(window_sum, (x, weight))


def test_dropout_zeroes_its_share_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    x = torch.ones(200, 501)
    y = dropout(x, 0.2, training=True)
    assert (y == 0).float().mean().item() == pytest.approx(0.2, abs=0.01)
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    assert dropout(x, 0.2, training=False) is x


def test_point_norm_is_batch_norm() -> None:
    torch.manual_seed(0)
    ours, theirs = PointNorm(5).double(), torch.nn.BatchNorm1d(5).double()
    with torch.no_grad():
        ours.weight.normal_()
        ours.bias.normal_()
    theirs.load_state_dict(ours.state_dict())
    for _ in range(3):
        x = (3 * torch.randn(40, 5, dtype=torch.double) + 7).requires_grad_()
        y = x.detach().clone().requires_grad_()
        (ours(x) ** 3).sum().backward()
        (theirs(y) ** 3).sum().backward()
        assert x.grad is not None and y.grad is not None
        assert torch.allclose(x.grad, y.grad)
    for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        assert torch.allclose(a, b)
    assert torch.allclose(ours.weight.grad, theirs.weight.grad)  # type: ignore[arg-type]
    assert torch.allclose(ours.eval()(x), theirs.eval()(x))


# Formulas ------------------------------------------------------------------------------------------------------------


def test_graph_attention_against_a_slow_one() -> None:
    torch.manual_seed(0)
    layer, ring = GraphAttention(4, reach=2), rings(7, 9)
    x = torch.randn(16, 4)
    h = x @ layer.project.weight.T
    slow = []
    for first, length in ((0, 7), (7, 9)):
        for i in range(length):
            around = [first + (i + d) % length for d in (-2, -1, 0, 1, 2)]
            score = torch.stack([h[first + i] @ layer.score.weight[0] + h[j] @ layer.score.weight[1] for j in around])
            alpha = torch.softmax(torch.where(score > 0, score, 0.2 * score), dim=0)
            slow.append(sum((a * h[j] for a, j in zip(alpha, around, strict=True)), torch.zeros(4)) + layer.bias)
    assert torch.allclose(layer(x, *ring.halo(2)), torch.stack(slow), atol=1e-6)


def test_dual_softmax_by_hand() -> None:
    # Scores / sqrt(D) with D = 1: [[0, log 3], [0, 0]].
    s = log_similarity(torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [math.log(3)]])).exp()
    rows, columns = [[1 / 4, 3 / 4], [1 / 2, 1 / 2]], [[1 / 2, 3 / 4], [1 / 2, 1 / 4]]
    assert torch.allclose(s, torch.tensor(rows) * torch.tensor(columns))


def test_similarity_is_scaled_by_the_width() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(5, 16), torch.randn(6, 16)
    scores = a @ b.T / 4
    assert torch.allclose(log_similarity(a, b), torch.log_softmax(scores, 0) + torch.log_softmax(scores, 1))


def test_the_gate_weighs_texture_against_contour() -> None:
    torch.manual_seed(0)
    fusion = Fusion("gate", 4)
    contour, texture = torch.randn(3, 4), torch.randn(3, 4)
    fused, w = fusion(contour, texture)
    assert w is not None
    hidden = torch.nn.functional.elu(fusion.gate[0](torch.cat([texture, contour], dim=1)))
    assert torch.allclose(w, 1 / (1 + torch.exp(-fusion.gate[2](hidden))))
    assert torch.allclose(fused, w * texture + (1 - w) * contour)


def test_focal_loss_by_hand() -> None:
    s = torch.tensor([[0.5, 0.1], [0.2, 0.25]])
    true = [(0, 0)]
    b1, g = 0.55, 2.0
    by_hand = b1 * 0.5**g * math.log(0.5) + (1 - b1) * sum(v**g * math.log(1 - v) for v in (0.1, 0.2, 0.25))
    loss = focal_loss(s.log(), torch.tensor([r for r, _ in true]), torch.tensor([c for _, c in true]), b1, g)
    assert loss.item() == pytest.approx(-by_hand, rel=1e-5)


def test_focal_loss_of_a_perfect_matrix_is_nothing() -> None:
    index = torch.arange(3)
    assert focal_loss(torch.log(torch.eye(3) * (1 - 2e-6) + 1e-6), index, index, 0.55, 8.0).item() < 1e-4


def test_info_nce_by_hand() -> None:
    q = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    a = torch.tensor([[0.8, 0.6], [0.0, 1.0]])
    t = 0.5
    e = torch.exp(q @ a.T / t)
    rows = -(math.log(e[0, 0] / e[0].sum()) + math.log(e[1, 1] / e[1].sum())) / 2
    columns = -(math.log(e[0, 0] / e[:, 0].sum()) + math.log(e[1, 1] / e[:, 1].sum())) / 2
    known = torch.eye(2, dtype=torch.bool)
    assert info_nce(q, a, known, t).item() == pytest.approx((rows + columns) / 2, rel=1e-5)
    # With the other one known as a neighbour too there is nothing to tell apart.
    assert info_nce(q, a, torch.ones(2, 2, dtype=torch.bool), t).item() == pytest.approx(0, abs=1e-6)


def test_linear_attention_against_a_slow_one() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 5, 1, 3) for _ in range(3))
    mask = torch.tensor([[True, True, True, True, False]])
    weight = torch.softmax(k[0, :4, 0], dim=0)  # over points, per channel
    context = sum((torch.outer(weight[i], v[0, i, 0]) for i in range(4)), torch.zeros(3, 3))
    slow = torch.softmax(q[0, :, 0], dim=1) / math.sqrt(3) @ context
    assert torch.allclose(global_linear_attention(q, k, v, mask)[0, :, 0], slow, atol=1e-6)


@pytest.mark.parametrize("length", [3, 8, 11, 17, 30])
def test_window_attention_against_a_slow_one(length: int) -> None:
    torch.manual_seed(0)
    window, padded = 4, 32
    q, k, v = (torch.randn(1, padded, 1, 3) for _ in range(3))
    mask = torch.arange(padded)[None] < length
    blocks = -(-length // window)
    slow = torch.zeros(length, 3)
    for i in range(length):
        near = {(i // window + d) % blocks for d in (-1, 0, 1)}
        seen = [j for j in range(length) if j // window in near]
        weight = torch.softmax(torch.stack([q[0, i, 0] @ k[0, j, 0] / math.sqrt(3) for j in seen]), dim=0)
        slow[i] = sum((w * v[0, j, 0] for w, j in zip(weight, seen, strict=True)), torch.zeros(3))
    assert torch.allclose(ring_window_attention(q, k, v, mask, window)[0, :length, 0], slow, atol=1e-5)


@pytest.mark.parametrize(("encoding", "values"), [("edge", [0, 1, 0]), ("inside", [0, 1, 1]), ("both", [0, 1, 2])])
def test_contour_encodings(encoding: str, values: list[float]) -> None:
    """Outside, on the line, inside: what the convolution is shown."""
    layer = ContourEncoding(encoding, 8).eval()
    shown: list[Tensor] = []
    layer.conv.register_forward_pre_hook(lambda _module, inputs: shown.append(inputs[0]))
    bits = torch.tensor([0, EDGE | INSIDE, INSIDE], dtype=torch.uint8).view(3, 1, 1).expand(3, 3, 3)
    layer(bits, torch.zeros(3, 2))
    assert shown[0][:, 0, 0, 0].tolist() == values


# Patches -------------------------------------------------------------------------------------------------------------


def test_patches_show_the_image_around_their_point() -> None:
    fragment = fragment_of(blob(3))
    inputs = patch_input(fragment, patch=5)
    at = inputs.points.astype(int)
    for i in range(0, len(inputs), 17):
        x, y = at[i]
        assert (inputs.texture[i] == fragment.pixels[y - 2 : y + 3, x - 2 : x + 3]).all()
        inside = (inputs.shape[i] & INSIDE) > 0
        assert (inside == (fragment.alpha[y - 2 : y + 3, x - 2 : x + 3] >= 128)).all()
        assert inputs.shape[i, 2, 2] & EDGE


def test_a_tiny_fragment_has_a_contour() -> None:
    """Of three pixels a side, smoothing leaves one."""
    mask = np.zeros((11, 11), dtype=np.uint8)
    mask[4:7, 4:7] = 255
    assert pixel_contour(fragment_of(mask)).tolist() == [[5.0, 5.0]]
    assert len(patch_input(fragment_of(mask))) == 1


def test_the_pixel_contour_runs_on_the_fragment() -> None:
    fragment = fragment_of(blob(3))
    points = pixel_contour(fragment)
    assert (points == np.rint(points)).all()
    x, y = points.astype(int).T
    assert (fragment.alpha[y, x] >= 128).mean() > 0.85
    steps = np.abs(points - np.roll(points, 1, axis=0)).max(axis=1)
    assert (steps > 0).all() and steps.max() <= 2


def test_a_piece_that_fills_its_image_has_patches() -> None:
    fragment = fragment_of(np.full((40, 60), 255, dtype=np.uint8))
    assert patch_input(fragment, patch=11).texture.shape[1:] == (11, 11, 3)


def test_canny_and_grey_have_no_colour() -> None:
    fragment = fragment_of(blob(3))
    for kind in ("grey", "canny"):
        texture = patch_input(fragment, texture=kind).texture
        assert (texture[..., 0] == texture[..., 2]).all()
    with pytest.raises(ValueError, match="texture"):
        patch_input(fragment, texture="sepia")


# The whole -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", SWITCHES, ids=str)
def test_every_switch_runs_and_learns(changes: dict[str, object], pieces: list[Fragment]) -> None:
    chosen = replace(SMALL, **changes)  # type: ignore[arg-type]
    torch.manual_seed(0)
    net = PairingNet(chosen)
    features = net.local(batch_of(pieces[:2], chosen))
    a, b = features.rings.split(features.fused)
    assert a.shape[1] == chosen.width
    vectors = net.vectors(features)
    assert vectors.shape == (2, chosen.search_width)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(2))
    index = torch.arange(5)
    loss = focal_loss(log_similarity(a, b), index, index, 0.55, 8.0) + vectors.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    unused = [name for name, p in net.named_parameters() if p.grad is None]
    assert not unused


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(5)), backbone=st.sampled_from(["resgcn", "unet"]))
def test_features_do_not_depend_on_the_batch(order: list[int], backbone: str) -> None:
    fragments = [fragment_of(blob(seed, radius=30 + 5 * seed), (40 * seed, 90, 120)) for seed in range(5)]
    torch.manual_seed(0)
    net = PairingNet(replace(SMALL, backbone=backbone)).eval()
    with torch.no_grad():
        together = net.local(batch_of([fragments[i] for i in order]))
        vectors = net.vectors(together)
        for place, i in enumerate(order):
            alone = net.local(batch_of([fragments[i]]))
            assert torch.allclose(together.rings.split(together.fused)[place], alone.fused, atol=1e-5)
            assert torch.allclose(vectors[place], net.vectors(alone)[0], atol=1e-5)


def test_moving_the_start_of_the_contour_moves_the_features() -> None:
    fragment = fragment_of(blob(3))
    torch.manual_seed(0)
    net = PairingNet(SMALL).eval()
    inputs = patch_input(fragment)
    shift = 37
    moved = replace(
        inputs,
        **{
            name: np.roll(getattr(inputs, name), shift, axis=0)
            for name in ("points", "coordinates", "shape", "texture")
        },
    )
    with torch.no_grad():
        straight, rolled = net.local(pack([inputs])).fused, net.local(pack([moved])).fused
    assert torch.allclose(torch.roll(straight, shift, dims=0), rolled, atol=1e-5)


def test_the_papers_preset_has_the_published_size() -> None:
    net = PairingNet(PaperSettings(search_head="code"))
    assert sum(p.numel() for p in net.parameters()) == pytest.approx(0.69e6, rel=0.01)


def test_the_printed_search_head_sees_every_point_before_the_average(pieces: list[Fragment]) -> None:
    torch.manual_seed(0)
    printed, published = (PairingNet(replace(SMALL, search_head=head)).eval() for head in ("paper", "code"))
    published.load_state_dict({n: x for n, x in printed.state_dict().items() if "every" not in n}, strict=True)
    features = printed.local(batch_of(pieces[:2]))
    shown: list[Tensor] = []
    assert printed.searching.every is not None
    printed.searching.every.register_forward_hook(lambda _module, _inputs, out: shown.append(out))
    vectors = printed.searching(features)
    points = [part[:length] for part, length in zip(shown[0], features.rings.lengths, strict=True)]
    by_hand = torch.stack([printed.searching.out(each.mean(dim=0)) for each in points])
    assert torch.allclose(vectors, by_hand, atol=1e-5)
    assert not torch.allclose(vectors, published.searching(features), atol=1e-2)


def test_local_features_name_their_parts(pieces: list[Fragment]) -> None:
    features = PairingNet(SMALL).local(batch_of(pieces[:1]))
    assert isinstance(features, LocalFeatures)
    assert features.contour is not None and features.texture is not None and features.gate is not None
    assert features.gate.min() >= 0 and features.gate.max() <= 1
