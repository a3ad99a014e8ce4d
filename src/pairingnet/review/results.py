"""What a run found, written down: files for programs, pictures and a page for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pairingnet.engine.jobs import Workers, run_jobs
from pairingnet.io.collection import Collection
from pairingnet.io.files import write_whole
from pairingnet.io.frames import moved_assembly, moved_match, scan_offsets
from pairingnet.io.images import write_png
from pairingnet.io.run import write_assembly, write_matches
from pairingnet.prepare.collect import left_out_of, remarks_of
from pairingnet.prepare.load import load_fragment, load_fragments
from pairingnet.review.pictures import group_picture, join_picture
from pairingnet.review.report import Pictures, Report, embedded, outlined, shown_joins, write_report
from pairingnet.review.words import counted
from pairingnet.types import Assembly, Decisions, Group, PairMatch

_FEW = 200  # pictures of fewer fragments are made sooner than processes start


def store_results(
    run: Path,
    collection: Collection,
    matches: Sequence[PairMatch],
    assembly: Assembly,
    decisions: Decisions,
    jobs: Workers = 0,
) -> list[Path]:
    """Write what was found: for programs, and to look at; the files."""
    offsets = scan_offsets(collection)
    write_matches(run / "matches.json", [moved_match(match, offsets) for match in matches])
    scans = {record.id: record.origin for record in collection.fragments}
    write_assembly(run / "assembly.json", moved_assembly(assembly, offsets), scans)
    for old in (run / "groups").glob("group-*.png"):
        old.unlink()
    notes = left_out_of(collection), remarks_of(collection)
    report = Report(title_of(collection), assembly, matches, *notes, decisions)
    pictures = make_pictures(collection, report, run / "groups", jobs if len(collection) > _FEW else 1)
    write_report(run / "report.html", report, pictures)
    made = [run / name for name in ("matches.json", "assembly.json", "report.html")]
    return [*made, *sorted((run / "groups").glob("group-*.png"))]


def title_of(collection: Collection) -> str:
    """How many fragments of which scans."""
    scans = sorted({record.origin for record in collection.fragments})
    if not scans:
        return "No fragments"
    named = " and ".join(scans) if len(scans) < 3 else f"{counted(len(scans), 'scan')} ({scans[0]} to {scans[-1]})"
    return f"{counted(len(collection), 'fragment')} of {named}"


def make_pictures(collection: Collection, report: Report, folder: Path, jobs: Workers = 1) -> Pictures:
    """Everything that the page shows; groups also as files, in full size."""
    groups, singles, joins = report.assembly.groups, report.assembly.singles, shown_joins(report)
    tasks: list[Callable[[], str]] = [
        *(
            partial(_store_group, folder / f"group-{number:02d}.png", collection.only(group.poses), group)
            for number, group in enumerate(groups, start=1)
        ),
        *(partial(_show_join, collection.only((match.source, match.target)), match) for match in joins),
        *(partial(_show_alone, collection.only((name,))) for name in singles),
    ]
    made = run_jobs(_done, tasks, jobs, "pictures")
    first_join, first_single = len(groups), len(groups) + len(joins)
    return Pictures(made[:first_join], made[first_join:first_single], made[first_single:])


def _done(task: Callable[[], str]) -> str:
    return task()


def _store_group(path: Path, pieces: Collection, group: Group) -> str:
    """Write the picture of a group, and give it for the page."""
    picture = group_picture({fragment.id: fragment for fragment in load_fragments(pieces)}, group)
    write_whole(path, partial(write_png, pixels=picture.pixels))
    return outlined(picture)


def _show_join(pieces: Collection, match: PairMatch) -> str:
    return embedded(join_picture(load_fragment(pieces, match.source), load_fragment(pieces, match.target), match, 260))


def _show_alone(piece: Collection) -> str:
    return embedded(next(load_fragments(piece)).on_paper(), 140)
