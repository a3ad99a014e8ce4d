"""Groups while a layout is being made: rigid bodies of placed fragments, and the matches that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pairingnet.assembly.candidates import Complex, Numbers, as_complex, as_rigid
from pairingnet.assembly.pieces import Pieces
from pairingnet.assembly.pose_graph import settle_poses
from pairingnet.geometry import Rigid2D
from pairingnet.types import PairMatch


@dataclass(frozen=True, eq=False)
class Body:
    """members (N,): numbers of fragments; turn, shift (N,): where each lies in the body's own frame; links: the matches
    that hold them there."""

    members: Numbers
    turn: Complex
    shift: Complex
    links: tuple[PairMatch, ...] = ()

    def __len__(self) -> int:
        return len(self.members)

    def centres(self, pieces: Pieces) -> Complex:
        """(N,): where the middle of each member lies."""
        return np.asarray(self.turn * pieces.centres[self.members] + self.shift)

    def moved(self, turn: complex, shift: complex) -> Body:
        """The whole body, turned and shifted."""
        return Body(self.members, turn * self.turn, turn * self.shift + shift, self.links)

    def poses(self, pieces: Pieces) -> dict[str, Rigid2D]:
        """By name."""
        return {
            pieces.names[number]: as_rigid(turn, shift)
            for number, turn, shift in zip(self.members, self.turn, self.shift, strict=True)
        }


def single(number: int) -> Body:
    """A fragment by itself."""
    return Body(np.array([number]), np.ones(1, np.complex128), np.zeros(1, np.complex128))


def placed(pieces: Pieces, poses: Mapping[str, Rigid2D], links: Sequence[PairMatch]) -> Body:
    """A body of named poses; its members in the order of the pieces."""
    names = sorted(poses)
    number = {name: i for i, name in enumerate(pieces.names)}
    turn, shift = as_complex([poses[name] for name in names])
    return Body(np.array([number[name] for name in names], dtype=np.intp), turn, shift, tuple(links))


def united(
    pieces: Pieces, one: Body, other: Body, links: Sequence[PairMatch], locked: Mapping[str, str], exact: bool = False
) -> Body:
    """Two bodies in one frame become one. Where several matches hold them together its poses settle between them;
    locked: names of fragments that move as one, see `settle_poses`."""
    both = Body(
        np.concatenate([one.members, other.members]),
        np.concatenate([one.turn, other.turn]),
        np.concatenate([one.shift, other.shift]),
        (*one.links, *other.links, *links),
    )
    return settled(pieces, both, locked, exact) if len(links) > 1 else both


def settled(pieces: Pieces, body: Body, locked: Mapping[str, str], exact: bool = False) -> Body:
    """The same body, its poses in the middle between what its matches say (pose graph optimisation)."""
    poses = settle_poses(body.poses(pieces), body.links, pieces.step_px, locked, exact=exact)
    return placed(pieces, poses, body.links)
