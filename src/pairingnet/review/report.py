"""`report.html`: everything a person needs to judge a run, in one file that opens from disk."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import cv2

from pairingnet.errors import printable
from pairingnet.io.decisions import state_of
from pairingnet.io.files import write_whole
from pairingnet.io.images import shrunk
from pairingnet.review.pictures import GroupPicture
from pairingnet.review.words import counted
from pairingnet.types import Assembly, Decisions, Group, PairMatch, Pixels

_MOST_JOINS = 150
_LONGEST_PX = 1600  # of a group
_DOUBTFUL = (0.05, 0.9)
_NAMED = 6  # doubtful pieces of a group; more would hide the others
# Of the shorter contour. Among all pairs of the sample, asked two by two, five joins above 50 % touched along less, and
# all five were wrong; no true one did.
_SHORT = 0.05


@dataclass(frozen=True, eq=False)
class Report:
    """What goes on the page."""

    title: str
    assembly: Assembly
    matches: Sequence[PairMatch]
    left_out: Sequence[str] = ()
    remarks: Sequence[str] = ()
    decisions: Decisions = field(default_factory=Decisions)


@dataclass(frozen=True)
class Pictures:
    """What the page shows: groups as drawings (`outlined`), `shown_joins` and single pieces as images (`embedded`)."""

    groups: Sequence[str]
    joins: Sequence[str]
    singles: Sequence[str]


def shown_joins(report: Report) -> list[PairMatch]:
    """The likeliest joins: more of them would make the page too large to open."""
    return [match for match in report.matches if match.target_from_source is not None][:_MOST_JOINS]


def write_report(path: Path, report: Report, pictures: Pictures) -> None:
    """Write the page."""
    parts = [_summary(report), _groups(report.assembly, pictures.groups), _joins(report, pictures.joins)]
    parts += [_singles(report.assembly, pictures.singles)]
    parts += [_listed("Not read", report.left_out), _listed("How the pieces were found", report.remarks)]
    # Once through the page: what a name says is never a place to fill in.
    filled = {"{title}": escape(printable(report.title)), "{body}": "\n".join(parts)}
    page = re.sub("|".join(filled), lambda found: filled[found[0]], _PAGE)
    write_whole(path, lambda file: file.write_text(page, encoding="utf-8"))


def sure_and_doubtful(matches: Sequence[PairMatch], decisions: Decisions) -> tuple[int, int]:
    """How many joins are sure, and how many a person should look at; those that a person has decided on are neither
    doubtful nor, where they are rejected, sure."""
    open_ones = [match for match in matches if not state_of(match.pair, decisions)]
    sure = sum(match.probability >= _DOUBTFUL[1] for match in open_ones)
    sure += len({match.pair for match in matches if state_of(match.pair, decisions) in ("accepted", "locked")})
    return sure, sum(_DOUBTFUL[0] <= match.probability < _DOUBTFUL[1] for match in open_ones)


def proves_little(match: PairMatch, contour_px: float) -> str:
    """In words, where two pieces touch along so little of the shorter contour that it proves next to nothing."""
    contact_px = match.evidence.get("contact_px", contour_px)
    if match.target_from_source is None or contact_px >= _SHORT * contour_px:
        return ""
    share = contact_px / contour_px
    return (
        f"they touch along {contact_px:.0f} px only, {share:.0%} of the shorter edge: so little proves next to nothing"
    )


def _summary(report: Report) -> str:
    placed = sum(len(group) for group in report.assembly.groups)
    total = placed + len(report.assembly.singles)
    sure, doubtful = sure_and_doubtful(report.matches, report.decisions)
    groups = counted(len(report.assembly.groups), "group")
    return (
        f"<p class=summary>{counted(total, 'fragment')}: {placed} in {groups}, "
        f"{len(report.assembly.singles)} alone. {counted(sure, 'sure join')} (90 % and more), "
        f"{doubtful} to be looked at.</p>"
    )


def _groups(assembly: Assembly, pictures: Sequence[str]) -> str:
    if not assembly.groups:
        return "<h2>Groups</h2><p>No pieces were joined.</p>"
    rows = ["<h2>Groups</h2>"]
    for number, (group, picture) in enumerate(zip(assembly.groups, pictures, strict=True), start=1):
        weakest = min((join.probability for join in group.joins), default=float("nan"))
        note = f"{len(group)} pieces, weakest join {weakest:.0%}" if group.joins else f"{len(group)} pieces"
        note += _loosely_held(group)
        rows.append(f"<figure class=group>{picture}<figcaption>Group {number}: {note}</figcaption></figure>")
    return "\n".join(rows)


def _loosely_held(group: Group) -> str:
    """The pieces of a group that a person should look at first: they may lie elsewhere."""
    loose = sorted((chance, name) for name, chance in group.probabilities.items() if chance < _DOUBTFUL[1])
    if not loose:
        return ""
    named = ", ".join(f"{_name(name)} ({chance:.0%})" for chance, name in loose[:_NAMED])
    more = f" and {len(loose) - _NAMED} more" if len(loose) > _NAMED else ""
    return f"; in doubt whether they lie right: {named}{more}"


def outlined(picture: GroupPicture) -> str:
    """A group as a drawing whose pieces are outlined and named under the pointer."""
    height, width = picture.pixels.shape[:2]
    lines = {name: " ".join(f"{x:.0f},{y:.0f}" for x, y in points) for name, points in picture.outlines.items()}
    shapes = "".join(
        f'<polygon points="{line}"><title>{escape(printable(name))}</title></polygon>' for name, line in lines.items()
    )
    image = f'<image href="{embedded(picture.pixels, _LONGEST_PX)}" width="{width}" height="{height}"/>'
    return f'<svg viewBox="0 0 {width} {height}" style="max-width:{width}px">{image}{shapes}</svg>'


def _joins(report: Report, pictures: Sequence[str]) -> str:
    shown = shown_joins(report)
    rows = [
        f"<h2>Joins</h2><p>The likeliest first; pink is the shared stretch. {len(shown)} of {len(report.matches)}.</p>"
    ]
    for match, picture in zip(shown, pictures, strict=True):
        state = _state(report, match)
        doubt = _DOUBTFUL[0] <= match.probability < _DOUBTFUL[1] and not state_of(match.pair, report.decisions)
        rows.append(
            f'<figure class="join{" doubt" if doubt else ""}"><img loading=lazy src="{picture}" alt="">'
            f"<figcaption><b>{match.probability:.1%}</b> {_name(match.source)} and {_name(match.target)}"
            f"{' <i>look at this one</i>' if doubt else ''}<br>{_why(match)}; {state}</figcaption></figure>"
        )
    return "\n".join(rows)


def _state(report: Report, match: PairMatch) -> str:
    """What became of a join."""
    pair = match.pair

    def among(joins: Sequence[PairMatch]) -> bool:
        return any(pair == {join.source, join.target} for join in joins)

    word = state_of(pair, report.decisions)
    if word:
        return f"{word} by a person ({escape(report.decisions.words.get(pair, ''))})"
    alone = match.evidence.get("probability_alone", match.probability)
    by_itself = "" if abs(alone - match.probability) < 0.01 else f" ({alone:.0%} by itself)"
    if match.evidence.get("implied"):
        return "follows from the joins around it"
    if among(report.assembly.confirmed):
        return f"in a group{by_itself}"
    if among(report.assembly.contradicted) or match.probability < alone - 0.01:
        return f"other joins speak against it{by_itself}"
    return "not used"


def _why(match: PairMatch) -> str:
    told = match.evidence
    parts = []
    if "contact_px" in told:
        parts.append(f"touch along {told['contact_px']:.0f} px")
    if "gap_px" in told:
        parts.append(f"{told['gap_px']:.1f} px apart in the median")
        if told["overlap_px"] > 0:
            parts.append(f"{told['overlap_px']:.0f} px of edge lie on the other piece")
        parts.append(f"colours along the seam correlate by {told['colour_correlation']:.2f}")
    if match.others:
        second = max(other.probability for other in match.others)
        parts.append(f"they fit in {counted(len(match.others), 'other way')} too ({second:.0%} at most by itself)")
    return ", ".join(parts)


def _singles(assembly: Assembly, pictures: Sequence[str]) -> str:
    if not assembly.singles:
        return ""
    figures = "".join(
        f'<figure class=single><img loading=lazy src="{picture}" alt=""><figcaption>{_name(name)}</figcaption></figure>'
        for name, picture in zip(assembly.singles, pictures, strict=True)
    )
    return f"<h2>Alone</h2><p>No join of these is sure enough.</p>{figures}"


def _listed(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{_name(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>"


def _name(text: str) -> str:
    """A name that comes from outside: only shown, and turned in its own direction without turning what is around it."""
    return f"<bdi>{escape(printable(text))}</bdi>"


def embedded(pixels: Pixels, longest_px: int | None = None) -> str:
    """A picture as text for the page, at most so large."""
    pixels = pixels if longest_px is None else shrunk(pixels, longest_px)
    _, coded = cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 85])
    return "data:image/jpeg;base64," + base64.b64encode(coded.tobytes()).decode()


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
 body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1em; color: #222; }
 h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ddd; }
 figure { margin: 0 0 1.5em; } figcaption { color: #444; font-size: .9em; }
 .group svg { width: 100%; height: auto; background: #f4f4f4; }
 .group polygon { fill: transparent; stroke: none; }
 .group polygon:hover { fill: rgba(255, 255, 255, .25); stroke: #e61e78; stroke-width: 3; }
 .join { display: inline-block; width: 580px; max-width: 100%; vertical-align: top; margin-right: 8px; padding: 4px; }
 .join img { width: 100%; } .doubt { background: #fff6dd; }
 .single { display: inline-block; margin: 4px; text-align: center; vertical-align: bottom; }
 @media (prefers-color-scheme: dark) { body { background: #1c1c1c; color: #ddd; } figcaption { color: #bbb; }
  .doubt { background: #3a3218; } h2 { border-color: #444; } }
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""
