"""What speaks for and against a join: a few numbers per pose, the same for every collection and scale.

They are measured along the contact, at the strips' points. What a true join shows: its features agree wherever the
contours touch, not only where they proposed it; nothing overlaps; colours go on across the seam, and better here than
a little further along. A straight contact alone says nothing: straight edges and outer borders touch everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pairingnet.geometry import Rigid2D
from pairingnet.match import loops
from pairingnet.match.contact import Outline, as_pose, contact
from pairingnet.prepare.strip import SAMPLES, Strip

_CHANCE = 2.0  # how much better than the usual the best of a contour is by chance
LEAST_CONTACT = 3  # points that touch; fewer tell nothing
_REACH = 2.5  # steps; points nearer than that touch
_FAR = 6.0  # steps; so far across a gap the network that looks along the seam sees
_EVERY = 2  # of its points
_DEEP = (1, 7, 10, 12)  # of SAMPLES, right inwards: what it compares of both pieces
CHANNELS = 12 + len(_DEEP)
_ALONG = 3  # samples side by side at each point, see SAMPLES
LogitsAt = Callable[[NDArray[np.intp], NDArray[np.intp]], NDArray[np.float32]]
_SHIFTS = np.arange(-12, 13, 2)  # thirds of a step: up to four steps both ways


@dataclass(frozen=True)
class Evidence:
    """One pose, measured. Lengths are in steps of the contour, colours in shares of the full range."""

    support: float = 0.0  # sum of the roots of the probabilities of correspondences that agree
    agreement: float = 0.0  # sum over the contact of log-odds that features belong together
    agreement_mean: float = 0.0  # the same per point of the contact
    contact: float = 0.0  # steps along which the contours touch
    tight: float = 0.0  # steps along which they touch within a tenth of a step
    loose: float = 0.0  # median gap or overlap along the contact
    overlap: float = 0.0  # contour points deep inside the other piece
    bend: float = 0.0  # how far the contact leaves a straight line, at most
    colour: float = 0.0  # mean difference of colours across the seam
    colour_typical: float = 0.0  # how much colours vary along the seam
    colour_shifted: float = 0.0  # least difference when one piece is moved along the seam
    correlation: float = 0.0  # of the colours on both sides, along the seam
    share: float = 0.0  # of the shorter contour that is contact
    crowd: float = 0.0  # logarithm of the number of fragments: among many, more fit by chance
    usual: float = 0.0  # what `loose` is in the surest joins of the collection: worn pieces never lie tightly

    def in_pixels(self, step_px: float) -> dict[str, float]:
        """What a person wants to know of it."""
        return {
            "contact_px": round(self.contact * step_px, 1),
            "gap_px": round(self.loose * step_px, 2),
            "overlap_px": round(self.overlap * step_px, 1),
            "colour_difference": round(self.colour, 4),
            "colour_correlation": round(self.correlation, 3),
            "agreement": round(self.agreement_mean, 2),
        }


@dataclass(frozen=True, eq=False)
class Side:
    """One piece as features: strip, queries and keys (N, D); prior (N,): what each point reaches with the points that
    ship, whatever collection it is in. What the collection adds, empty until it is known: background levels (N,) of
    queries and keys, the logarithm of how well a point goes with anything there; crowd: how many fragments it has;
    usual_loose: how loosely its surest joins lie."""

    strip: Strip
    queries: NDArray[np.float32]
    keys: NDArray[np.float32]
    query_level: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    key_level: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    crowd: int = 1
    usual_loose: float = float("nan")
    prior: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))

    @cached_property
    def ring(self) -> Outline:
        return Outline(self.strip.points, self.strip.tangents)

    @cached_property
    def edge(self) -> NDArray[np.float32]:
        """(3 N, 3) in [0, 1]: colours just at the contour."""
        return _edge_colours(self.strip)

    @cached_property
    def look(self) -> NDArray[np.float32]:
        """(N, D, 3) in [0, 1]: colours at some depths."""
        return np.ascontiguousarray(self.strip.colours[:, list(_DEEP)].astype(np.float32) / 255)

    @cached_property
    def grey(self) -> NDArray[np.float32]:
        """(N, 3): brightness at the edge, how it changes inwards, and from one point to the next but one."""
        bright = self.look.mean(axis=2)
        edge = bright[:, 0]
        return np.stack([edge, bright[:, 1] - edge, np.roll(edge, -1) - np.roll(edge, 1)], axis=1)

    @cached_property
    def usual(self) -> NDArray[np.float32]:
        """(N,): what each point reaches with anything in the collection."""
        return usual_level(self.query_level, self.key_level)

    @property
    def before(self) -> NDArray[np.float32]:
        """(N,): what each point reaches with anything before the collection is known; else in the collection."""
        return self.prior if len(self.prior) else self.usual


def usual_level(of_query: NDArray[np.float32], of_key: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N,): what points reach with anything, asking (N,) and asked (N,); half of it, for there are two of a pair."""
    return np.float32(0.25) * (of_query + of_key) + np.float32(0.5 * _CHANCE)


def agreements(
    source: Side, target: Side, logits: NDArray[np.float32], poses: Sequence[Rigid2D], every: int = 2
) -> NDArray[np.float64]:
    """(H,): only how well features agree along the contact of each pose, for its length; enough to tell which poses
    are worth more work. logits (N, M): how well each point of the source goes with each of the target."""
    if not poses:
        return np.zeros(0)
    reach_px = _REACH * max(source.strip.step_px, target.strip.step_px)
    total, count = loops.agreeing(
        np.stack([as_pose(pose) for pose in poses]),
        source.ring.points,
        source.ring.tangents,
        every,
        target.ring.ground,
        reach_px,
        logits,
        source.before,
        target.before,
    )
    # By the root: a long contact may not win by length alone, nor a short one by a few lucky points.
    return np.asarray(total * np.sqrt(every / (count + 3)))


def measure(
    source: Side,
    target: Side,
    logits_at: LogitsAt,
    target_from_source: Rigid2D,
    support: float,
    overlap_steps: float,
) -> tuple[NDArray[np.intp], NDArray[np.intp], Evidence, NDArray[np.float32]]:
    """Measure a pose: the points (K,), (K,) of both strips that touch, what they say, and what the seam shows point by
    point (T, C), also where it gapes."""
    step = max(source.strip.step_px, target.strip.step_px)
    crowd = float(np.log(max(source.crowd, target.crowd)))
    near = contact(source.ring, target.ring, target_from_source, _FAR * step)
    # Log-odds: how much better these points go together than each goes with anything.
    odds = logits_at(near.rows, near.columns) - source.usual[near.rows] - target.usual[near.columns]
    seam = loops.along_seam(
        as_pose(target_from_source),
        near.rows[::_EVERY],
        near.columns[::_EVERY],
        near.gap_px[::_EVERY] / step,
        near.along_px[::_EVERY] / step,
        odds[::_EVERY],
        (source.strip.tangents, target.strip.tangents),
        (source.look, target.look),
        (source.grey, target.grey),
        _EVERY,
    )
    touches = np.hypot(near.gap_px, near.along_px) < _REACH * step
    rows, columns, odds = near.rows[touches], near.columns[touches], odds[touches]
    if len(rows) < LEAST_CONTACT:
        return rows, columns, Evidence(support=support, overlap=overlap_steps, crowd=crowd), seam
    apart = np.abs(near.gap_px[touches])
    loose = float(np.partition(apart, len(apart) // 2)[len(apart) // 2] / step)  # np.median is ten times slower
    evidence = Evidence(
        support=support,
        agreement=float(odds.sum()),
        agreement_mean=float(odds.mean()),
        contact=float(len(rows)),
        tight=float((apart < 0.1 * step).sum()),
        loose=loose,
        overlap=overlap_steps,
        bend=loops.bend(source.ring.points, rows) / step,
        share=len(rows) / min(len(source.strip), len(target.strip)),
        crowd=crowd,
        usual=_first_known(source.usual_loose, target.usual_loose, loose),
        **_across(source, target, rows, columns, near.along_px[touches]),
    )
    return rows, columns, evidence, seam


def _first_known(*values: float) -> float:
    return next(value for value in values if not np.isnan(value))


def _across(
    source: Side, target: Side, rows: NDArray[np.intp], columns: NDArray[np.intp], along_px: NDArray[np.float64]
) -> dict[str, float]:
    """Colours on both sides of the seam, compared in place and shifted along it."""
    there = _ALONG * columns + 1 + np.rint(_ALONG * along_px / target.strip.step_px).astype(np.intp)
    difference, typical, correlation = loops.colours_across(source.edge, target.edge, _ALONG * rows + 1, there, _SHIFTS)
    return {
        "colour": float(difference[_SHIFTS == 0][0]),
        "colour_typical": float(typical),
        "colour_shifted": float(difference[np.abs(_SHIFTS) >= 4].min()),
        "correlation": float(correlation),
    }


def _edge_colours(strip: Strip) -> NDArray[np.float32]:
    """Three colours a step, continued from what lies a little inside."""
    values = strip.colours[:, : 3 * _ALONG].astype(np.float32).reshape(len(strip), 3, _ALONG, 3) / 255
    depths = [SAMPLES[_ALONG * row][1] for row in range(3)]
    slope = (values[:, 0] - values[:, 2]) / (depths[2] - depths[0])
    return (values[:, 0] + 0.5 * depths[0] * slope).clip(0, 1).reshape(-1, 3)
