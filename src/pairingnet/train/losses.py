"""The two losses of the paper: focal loss on the similarity matrix, InfoNCE on the search vectors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def focal_loss(log_similarity: Tensor, rows: Tensor, columns: Tensor, beta1: float, gamma: float) -> Tensor:
    """Eq. (5), summed over the matrix (N, M); true correspondences are at (rows, columns).

    -sum( b1 (1-S)^g log S  where true  +  b2 S^g log(1-S)  elsewhere ),  b2 = 1 - b1
    """
    s = log_similarity.exp().clamp(max=1 - 1e-6)
    elsewhere = s.pow(gamma) * torch.log1p(-s)
    true_log, true_s = log_similarity[rows, columns], s[rows, columns]
    at_true = (1 - true_s).pow(gamma) * true_log
    return -(beta1 * at_true.sum() + (1 - beta1) * (elsewhere.sum() - elsewhere[rows, columns].sum()))


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
