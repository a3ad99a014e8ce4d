"""Training of our own network: every contour point on a seam has to find its partner among all points of all pieces
in the batch. Pieces of the same picture are the hard wrong answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pairingnet.config import RingTrainSettings
from pairingnet.models.device import mixed_precision, of_products, widened
from pairingnet.models.ring import KEY, QUERY, RingNet, pack_strips
from pairingnet.prepare.strip import Strip
from pairingnet.train.losses import contrast
from pairingnet.train.scenes import Scene, mirrored, recoloured

_CHUNK = 8  # pieces whose activations stay in the cache


class RingTask:
    """InfoNCE of queries against keys, over all points of the batch."""

    name = "ring"

    def __init__(
        self,
        network: RingNet,
        scenes: Sequence[Scene],
        settings: RingTrainSettings,
        validation: Mapping[str, Sequence[Scene]] | None = None,
    ) -> None:
        """validation: scenes of other pictures, by the name of their collection: clean ones, worn ones ..."""
        self.network, self.scenes, self.settings, self.validation = network, scenes, settings, validation or {}
        self.device = next(network.parameters()).device

    def trained(self) -> nn.Module:
        return self.network

    def steps(self, rng: np.random.Generator) -> list[list[list[int]]]:
        order = rng.permutation(len(self.scenes)).tolist()
        count = self.settings.batch
        return [[order[i : i + count]] for i in range(0, len(order) - count + 1, count)]

    def share(self, batch: list[list[int]], rank: int, processes: int) -> list[list[int]]:
        """With several processes each has pictures of its own; the batch is as many times larger."""
        return [group[rank::processes] for group in batch]

    def pieces(self, groups: Sequence[Sequence[int]]) -> Iterator[list[Scene]]:
        return ([self.scenes[number] for number in group] for group in groups)

    def backward(self, piece: list[Scene]) -> tuple[float, float]:
        rng = np.random.default_rng(int(torch.randint(2**62, (1,))))
        scenes = [self._changed(scene, rng) for scene in piece]
        strips = [strip for scene in scenes for strip in scene.strips]
        starts = np.concatenate([[0], np.cumsum([len(strip) for strip in strips])])
        asked = _questions(scenes, starts)
        if len(asked) > self.settings.most_points:
            asked = asked[np.sort(rng.choice(len(asked), self.settings.most_points, replace=False))]
        chunks = _chunks(strips)
        made = [[self._features(chunk, role) for chunk in chunks] for role in (QUERY, KEY)]
        queries, keys = (torch.cat(parts).detach().requires_grad_() for parts in made)
        answers = torch.cat([keys, self._strangers(rng)])
        dtype = of_products(self.settings.precision, self.device)
        loss = contrast(queries, answers, self.network.log_scale, asked, starts, self.settings.near, dtype)
        (loss * len(asked)).backward()  # type: ignore[no-untyped-call]
        for parts, joined in zip(made, (queries, keys), strict=True):
            assert joined.grad is not None
            torch.autograd.backward(parts, list(torch.split(joined.grad, [len(part) for part in parts])))
        return float(loss.detach()) * len(asked), float(len(asked))

    def validate(self, pictures: int = 8) -> dict[str, float]:
        """How good it is on some pictures of each collection, and the mean over the collections."""
        each = {name: self._validated(scenes[:pictures]) for name, scenes in self.validation.items() if scenes}
        if not each:
            return {}
        told = {key: float(np.mean([values[key] for values in each.values()])) for key in next(iter(each.values()))}
        if len(each) > 1:
            told |= {f"{key} {name}": value for name, values in each.items() for key, value in values.items()}
        return {key: round(value, 4) for key, value in told.items()}

    def _validated(self, scenes: Sequence[Scene]) -> dict[str, float]:
        """The loss, and the share of the points whose best key, of the true neighbour and of all pieces, is the right
        one within two steps."""
        strips = [strip for scene in scenes for strip in scene.strips]
        starts = np.concatenate([[0], np.cumsum([len(strip) for strip in strips])])
        asked = _questions(scenes, starts)
        asked = asked[np.linspace(0, len(asked) - 1, min(6000, len(asked))).astype(int)]
        with torch.no_grad():
            queries, keys = (
                torch.cat([self.network(pack_strips([strip], role, self.device)) for strip in strips])
                for role in (QUERY, KEY)
            )
            loss = float(contrast(queries, keys, self.network.log_scale, asked, starts, self.settings.near))
        with_pair, with_all = _found(queries, keys, asked, starts)
        return {"validation_loss": loss, "validation_pair": with_pair, "validation_all": with_all}

    def _strangers(self, rng: np.random.Generator) -> Tensor:
        """(K, D): keys of other pictures: wrong answers of which nothing is learned, so that they cost little."""
        chosen = rng.choice(len(self.scenes), min(self.settings.strangers, len(self.scenes)), replace=False)
        strips = [strip for number in chosen for strip in self._changed(self.scenes[number], rng).strips]
        with torch.no_grad():
            made = [self._features(chunk, KEY) for chunk in _chunks(strips)]
        return torch.cat([torch.zeros(0, self.network.settings.features, device=self.device), *made])

    def _features(self, strips: list[Strip], role: int) -> Tensor:
        with mixed_precision(self.settings.precision, self.device):
            made = self.network(pack_strips(strips, role, self.device))
        return widened(made)

    def _changed(self, scene: Scene, rng: np.random.Generator) -> Scene:
        if rng.random() < 0.5:
            scene = mirrored(scene)
        return recoloured(scene, rng, self.settings.grey, self.settings.colour)


def _chunks(strips: list[Strip]) -> list[list[Strip]]:
    return [strips[first : first + _CHUNK] for first in range(0, len(strips), _CHUNK)]


def _questions(scenes: Sequence[Scene], starts: NDArray[np.intp]) -> NDArray[np.intp]:
    """(Q, 3): row of the asking point, row of its partner, number of the asking piece; sorted by piece."""
    asked, first = [], 0
    for scene in scenes:
        for a, b, rows, columns in scene.pairs:
            at_a, at_b = starts[first + a] + rows, starts[first + b] + columns
            asked.append(np.stack([at_a, at_b, np.full(len(rows), first + a)], axis=1))
            asked.append(np.stack([at_b, at_a, np.full(len(rows), first + b)], axis=1))
        first += len(scene.strips)
    joined = np.concatenate(asked) if asked else np.zeros((0, 3), np.intp)
    return np.asarray(joined[np.argsort(joined[:, 2], kind="stable")])


def _found(
    queries: Tensor, keys: Tensor, asked: NDArray[np.intp], starts: NDArray[np.intp], near: int = 2
) -> tuple[float, float]:
    """Shares of the questions whose best answer, within the true neighbour and among all other pieces, is right."""
    in_pair = in_all = 0
    piece_of = np.searchsorted(starts, asked[:, 1], side="right") - 1
    for own in np.unique(asked[:, 2]):
        mine = asked[:, 2] == own
        similarity = queries[torch.from_numpy(asked[mine, 0]).to(queries.device)] @ keys.T
        similarity[:, starts[own] : starts[own + 1]] = -2
        best = similarity.argmax(dim=1).cpu().numpy()
        in_all += int(_near(best, asked[mine, 1], piece_of[mine], starts, near).sum())
        for other in np.unique(piece_of[mine]):
            there = np.flatnonzero(piece_of[mine] == other)
            part = similarity[torch.from_numpy(there).to(similarity.device), starts[other] : starts[other + 1]]
            best = starts[other] + part.argmax(dim=1).cpu().numpy()
            in_pair += int(_near(best, asked[mine, 1][there], piece_of[mine][there], starts, near).sum())
    return in_pair / max(1, len(asked)), in_all / max(1, len(asked))


def _near(
    found: NDArray[np.intp],
    wanted: NDArray[np.intp],
    piece: NDArray[np.intp],
    starts: NDArray[np.intp],
    near: int,
) -> NDArray[np.bool_]:
    apart = np.abs(found - wanted)
    length = starts[piece + 1] - starts[piece]
    same = (found >= starts[piece]) & (found < starts[piece + 1])
    return np.asarray(same & (np.minimum(apart, length - apart) <= near))
