"""What a run found, written down: files for programs, pictures and a page for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path

from pairingnet.io.collection import Collection
from pairingnet.io.files import write_whole
from pairingnet.io.frames import moved_assembly, moved_match, scan_offsets
from pairingnet.io.images import write_png
from pairingnet.io.run import write_assembly, write_matches
from pairingnet.prepare.load import load_fragment
from pairingnet.review.pictures import group_picture
from pairingnet.review.report import Report, write_report
from pairingnet.types import Assembly, Decisions, PairMatch


def store_results(
    run: Path,
    collection: Collection,
    matches: Sequence[PairMatch],
    assembly: Assembly,
    left_out: Sequence[str],
    decisions: Decisions,
) -> None:
    """Write what was found: for programs, and to look at."""
    fragment = lru_cache(maxsize=256)(partial(load_fragment, collection))
    offsets = scan_offsets(collection)
    write_matches(run / "matches.json", [moved_match(match, offsets) for match in matches])
    scans = {record.id: record.origin for record in collection.fragments}
    write_assembly(run / "assembly.json", moved_assembly(assembly, offsets), scans)
    for old in (run / "groups").glob("group-*.png"):
        old.unlink()
    for number, group in enumerate(assembly.groups, start=1):
        picture = group_picture({name: fragment(name) for name in group.poses}, group, longest_px=10**6)
        path = run / "groups" / f"group-{number:02d}.png"
        write_whole(path, partial(write_png, pixels=picture.pixels))
    title = f"{len(collection)} fragments of {run.name}"
    write_report(run / "report.html", Report(title, assembly, matches, left_out, decisions), fragment)


def is_older(made: Path, made_of: Iterable[Path]) -> bool:
    """Whether a file is missing, or older than what it is made of."""
    if not made.is_file():
        return True
    return any(path.is_file() and path.stat().st_mtime_ns > made.stat().st_mtime_ns for path in made_of)
