"""Losses: the paper's focal loss on the similarity matrix and InfoNCE on the search vectors, and our own network's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pairingnet.models.fused import similar, sums_of_exponentials
from pairingnet.models.paper import log_similarity
from pairingnet.models.rings import quick_on


def focal_loss(log_similarity: Tensor, rows: Tensor, columns: Tensor, beta1: float, gamma: float) -> Tensor:
    """Eq. (5), summed over the matrix (N, M); true correspondences are at (rows, columns).

    -sum( b1 (1-S)^g log S  where true  +  b2 S^g log(1-S)  elsewhere ),  b2 = 1 - b1
    """
    s = log_similarity.exp().clamp(max=1 - 1e-6)
    elsewhere = s.pow(gamma) * torch.log1p(-s)
    true_log, true_s = log_similarity[rows, columns], s[rows, columns]
    at_true = (1 - true_s).pow(gamma) * true_log
    return -(beta1 * at_true.sum() + (1 - beta1) * (elsewhere.sum() - elsewhere[rows, columns].sum()))


def pair_loss(source: Tensor, target: Tensor, rows: Tensor, columns: Tensor, beta1: float, gamma: float) -> Tensor:
    """`focal_loss` of the similarity of source (N, D) and target (M, D); on a processor in few passes over it."""
    if quick_on(source) and quick_on(target):
        return torch.as_tensor(_PairLoss.apply(source, target, rows, columns, beta1, gamma))  # type: ignore[no-untyped-call]
    return focal_loss(log_similarity(source, target), rows, columns, beta1, gamma)


class _PairLoss(torch.autograd.Function):
    """What is not true and has a small similarity S adds S ** gamma to the loss: where that is less than its last
    digit, even of all entries together, it is left out. So the slope of the loss at the matrix is known at few
    entries, and those of its rows and columns are all that the softmaxes carry back."""

    NOTHING = 1e-18  # of S ** (gamma + 1)

    @staticmethod
    def forward(
        ctx: Any, source: Tensor, target: Tensor, rows: Tensor, columns: Tensor, beta1: float, gamma: float
    ) -> Tensor:
        factor = source.shape[1] ** -0.5
        scores = (source @ target.T).mul_(factor)
        of_rows, of_columns = scores.new_empty(len(source)), scores.new_empty(len(target))
        sums_of_exponentials(scores.numpy(), of_rows.numpy(), of_columns.numpy())
        least = float(np.log(_PairLoss.NOTHING)) / (gamma + 1)
        i, j = (torch.from_numpy(x) for x in similar(scores.numpy(), of_rows.numpy(), of_columns.numpy(), least))
        true = torch.zeros(scores.shape, dtype=torch.bool)
        true[rows, columns] = True
        elsewhere = ~true[i, j]
        i, j = torch.cat([rows, i[elsewhere]]), torch.cat([columns, j[elsewhere]])
        with torch.enable_grad():
            known = (2 * scores[i, j] - of_rows[i] - of_columns[j]).requires_grad_()
            s = known.exp().clamp(max=1 - 1e-6)
            k = len(rows)
            at_true = ((1 - s[:k]).pow(gamma) * known[:k]).sum()
            loss = -(beta1 * at_true + (1 - beta1) * (s[k:].pow(gamma) * torch.log1p(-s[k:])).sum())
            (slope,) = torch.autograd.grad(loss, known)
        slope *= factor
        to_source, to_target = torch.zeros_like(source), torch.zeros_like(target)
        to_source.index_add_(0, i, 2 * slope[:, None] * target[j])
        to_target.index_add_(0, j, 2 * slope[:, None] * source[i])
        which, weight = _summed(i, slope)
        shares = (scores[which] - of_rows[which, None]).exp_().mul_(weight[:, None])
        to_source[which] -= shares @ target
        to_target -= shares.T @ source[which]
        which, weight = _summed(j, slope)
        shares = (scores[:, which] - of_columns[which]).exp_().mul_(weight)
        to_source -= shares @ target[which]
        to_target[which] -= shares.T @ source
        ctx.save_for_backward(to_source, to_target)
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        to_source, to_target = ctx.saved_tensors
        return gradients[0] * to_source, gradients[0] * to_target, None, None, None, None


def _summed(index: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The different numbers in index, and the sum of the values at each."""
    which, place = np.unique(index.numpy(), return_inverse=True)
    return torch.from_numpy(which), values.new_zeros(len(which)).index_add_(0, torch.from_numpy(place), values)


def info_nce(queries: Tensor, answers: Tensor, known: Tensor, temperature: float) -> Tensor:
    """Mean over pairs of -log( exp(q.a/t) / sum over answers of exp(q.a'/t) ), both ways.

    queries and answers (P, G), of length 1, answer i belongs to query i; known (P, P) is true where query i and
    answer j are neighbours too (or the same fragment): those are no negatives.
    """
    scores = queries @ answers.T / temperature
    own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    scores = scores.masked_fill(known & ~own, float("-inf"))
    target = torch.arange(len(scores), device=scores.device)
    return (functional.cross_entropy(scores, target) + functional.cross_entropy(scores.T, target)) / 2


def contrast(
    queries: Tensor,
    keys: Tensor,
    log_scale: Tensor,
    asked: NDArray[np.intp],
    starts: NDArray[np.intp],
    near: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Mean InfoNCE of contour points: each asked query has one right key among the keys of all other pieces.

    queries and keys (T, D); asked (Q, 3): query row, key row, number of the query's piece, sorted by piece;
    starts (F + 1,): where pieces begin. Keys of the query's own piece, and those up to `near` steps beside the right
    one, are no wrong answers. dtype: of the products that gradients are added up from.
    """
    return torch.as_tensor(_Contrast.apply(queries, keys, log_scale, asked, starts, near, dtype))  # type: ignore[no-untyped-call]


class _Contrast(torch.autograd.Function):
    """The matrix of all similarities would be gigabytes: it is made block by block, together with its gradient."""

    BLOCK = 256

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        log_scale: Tensor,
        asked: NDArray[np.intp],
        starts: NDArray[np.intp],
        near: int,
        dtype: torch.dtype,
    ) -> Tensor:
        scale = float(log_scale.exp())
        # Similarities need all digits, what follows from them does not.
        short_keys = keys.to(dtype)
        to_queries, to_keys = torch.zeros_like(queries), torch.zeros_like(keys)
        to_scale = total = 0.0
        ends = np.flatnonzero(np.diff(asked[:, 2])) + 1
        for group in np.split(asked, ends):
            own = slice(int(starts[group[0, 2]]), int(starts[group[0, 2] + 1])) if len(group) else slice(0)
            for first in range(0, len(group), _Contrast.BLOCK):
                block = group[first : first + _Contrast.BLOCK]
                rows, right = (torch.from_numpy(block[:, i].copy()).to(keys.device) for i in (0, 1))
                q = queries.index_select(0, rows)
                logits = (q @ keys.T).mul_(scale)
                place = torch.arange(len(rows), device=keys.device)
                reached = logits[place, right]
                logits[:, own] = _HIDDEN
                logits.scatter_(1, _beside(block[:, 1], starts, near).to(keys.device), _HIDDEN)
                logits[place, right] = reached
                top = logits.amax(dim=1, keepdim=True)
                weights = logits.sub_(top).exp_()
                mass = weights.sum(dim=1, keepdim=True)
                short_weights = weights.to(dtype)
                total += float((top + mass.log()).sum() - reached.sum())
                # Where the answer would have to move: from what was answered to what is right.
                answered = (short_weights @ short_keys).to(keys.dtype).div_(mass)
                pull = answered.sub_(keys.index_select(0, right)).mul_(scale)
                to_scale += float((q * pull).sum())
                to_queries.index_add_(0, rows, pull)
                to_keys.add_(short_weights.T @ (q / mass).to(dtype), alpha=scale)
                to_keys.index_add_(0, right, q, alpha=-scale)
        count = max(1, len(asked))
        ctx.save_for_backward(to_queries.div_(count), to_keys.div_(count), log_scale.new_tensor(to_scale / count))
        return queries.new_tensor(total / count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None, None]:
        to_queries, to_keys, to_scale = ctx.saved_tensors
        g = gradients[0]
        return g * to_queries, g * to_keys, g * to_scale, None, None, None, None


_HIDDEN = -1e4


def _beside(right: NDArray[np.intp], starts: NDArray[np.intp], near: int) -> Tensor:
    """(Q, 2 near + 1): the rows up to `near` steps from the right ones, around their rings."""
    piece = np.searchsorted(starts, right, side="right") - 1
    start, length = starts[piece], starts[piece + 1] - starts[piece]
    around = (right - start)[:, None] + np.arange(-near, near + 1)
    return torch.from_numpy(start[:, None] + around % length[:, None])
