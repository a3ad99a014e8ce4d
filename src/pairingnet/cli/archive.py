"""Commands on collections that grow: `pairingnet archive NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pairingnet.cli.common import Config, Engine, Jobs, Json, MaxMegapixels, Set, finish, from_file, from_options, waits

archive_app = typer.Typer(
    help="Collections that grow: add scans any time, search one fragment, find the joins of new ones.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(help="The archive's folder.")]
Candidates = Annotated[
    int, typer.Option(help="Fragments that each is laid on.", min=0, show_default="the archive's setting")
]


@archive_app.command()
def init(
    path: Folder,
    step: Annotated[
        float | None, typer.Option(help="Pixels between contour points.", show_default="from what is added first")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Other weights than the ones that ship; a copy is kept.")] = None,
    index: Annotated[
        str, typer.Option(help="faiss, milvus (a file), or a Milvus server: http://host:19530.")
    ] = "faiss",
    assignments: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Make an empty archive.

    --set reaches candidates ..., and the stages' settings as prepare.NAME, votes.NAME and index.NAME.
    """
    from pairingnet.archive.folder import init_archive
    from pairingnet.match.weights import SHIPPED
    from pairingnet.settings import archive_settings

    settings = archive_settings({**from_file(config), **from_options(assignments)})
    init_archive(path, settings, weights or SHIPPED, step, index)
    lines = [f"archive     {path}", f"next        pairingnet archive add {path} SCANS"]
    finish({"archive": str(path)}, lines, (), as_json)


@archive_app.command()
def add(
    path: Folder,
    scans: Annotated[list[Path], typer.Argument(help="Scans, or folders of scans.")],
    each: Annotated[bool, typer.Option("--each", help="Print each fragment as soon as it is safely stored.")] = False,
    max_megapixels: MaxMegapixels = 400,
    jobs: Jobs = 1,
    engine: Engine = "local",
    as_json: Json = False,
) -> None:
    """Add the fragments in scans; what is there already is left alone, what has changed is replaced."""
    from pairingnet.archive.add import add as add_scans
    from pairingnet.archive.folder import Archive
    from pairingnet.engine.jobs import choose_engine

    def told(name: str) -> None:
        print(name, flush=True)

    with Archive(path) as archive:
        workers, most = choose_engine(engine, jobs), max_megapixels * 1_000_000
        added = add_scans(archive, scans, workers, told if each else lambda _: None, most, waits)
        count = archive.catalogue.count()
    summary = {
        "archive": str(path),
        "added": list(added.ids),
        "replaced": added.replaced,
        "known": added.known,
        "fragments": count,
        "remarks": list(added.remarks),
        "left_out": list(added.bad_files),
    }
    lines = [
        f"{len(added.ids)} fragments added" + ("" if added.ids else " (nothing to do)"),
        *([f"{added.replaced} replaced: their scans have changed"] if added.replaced else []),
        *(f"note        {remark}" for remark in added.remarks),
        f"{count} fragments in {path}",
    ]
    finish(summary, lines, added.bad_files, as_json)


@archive_app.command()
def remove(
    path: Folder,
    fragments: Annotated[list[str], typer.Argument(help="Ids, patterns such as 'sheet#*', or scans.")],
    as_json: Json = False,
) -> None:
    """Remove fragments; their scans are left alone."""
    from pairingnet.archive.add import remove as remove_fragments
    from pairingnet.archive.folder import Archive

    with Archive(path) as archive:
        gone = remove_fragments(archive, fragments, waits)
        count = archive.catalogue.count()
    lines = [f"{len(gone)} fragments removed", f"{count} fragments in {path}"]
    finish({"archive": str(path), "removed": gone, "fragments": count}, lines, (), as_json)


@archive_app.command()
def search(
    path: Folder,
    image: Annotated[Path, typer.Argument(help="A picture of a fragment, or of several.")],
    most: Annotated[int, typer.Option(help="How many joins to show.", min=1)] = 10,
    candidates: Candidates = 0,
    as_json: Json = False,
) -> None:
    """The likeliest neighbours of a fragment that is not in the archive; nothing is added."""
    from pairingnet.archive.folder import Archive
    from pairingnet.archive.joins import search as search_archive
    from pairingnet.io.run import match_as_json
    from pairingnet.prepare.files import prepared_pages

    with Archive(path) as archive:
        pages = prepared_pages(image.stem, image, archive.settings.prepare)
        fragments = [fragment for _, _, found in pages for fragment in found.fragments]
        joins = search_archive(archive, fragments, candidates)[:most]
    lines = [f"{join.probability:6.1%}  {join.source}  {join.target}" for join in joins] or ["no join found"]
    summary = {"image": str(image), "joins": [match_as_json(join) for join in joins]}
    finish(summary, lines, (), as_json)


@archive_app.command()
def joins(
    path: Folder,
    since: Annotated[
        str | None,
        typer.Option(help="Only fragments added since: 2026-05-01, or with a time.", show_default="not searched yet"),
    ] = None,
    most: Annotated[int, typer.Option(help="How many joins to show.", min=1)] = 100,
    out: Annotated[Path | None, typer.Option(help="Write all of them here, in the form of matches.json.")] = None,
    candidates: Candidates = 0,
    jobs: Jobs = 1,
    engine: Engine = "local",
    as_json: Json = False,
) -> None:
    """Find the joins of new fragments, with all others; they are stored, and shown with the likeliest first."""
    from pairingnet.archive.folder import Archive
    from pairingnet.archive.joins import find_joins
    from pairingnet.engine.jobs import choose_engine
    from pairingnet.io.run import match_as_json, write_matches

    with Archive(path) as archive:
        found = find_joins(archive, _time(since), choose_engine(engine, jobs), candidates, waits)
    if out is not None:
        write_matches(out, found.joins)
    summary = {
        "archive": str(path),
        "searched": found.searched,
        "matched": found.matched,
        "joins": [match_as_json(join) for join in found.joins[:most]],
    }
    lines = [
        *(f"{join.probability:6.1%}  {join.source}  {join.target}" for join in found.joins[:most]),
        f"{found.searched} fragments searched"
        + (f", {found.matched} pairs laid on each other" if found.searched else " (nothing to do)"),
        *([f"joins       {out}"] if out is not None else []),
    ]
    finish(summary, lines, (), as_json)


@archive_app.command()
def check(
    path: Folder,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the index anew.")] = False,
    as_json: Json = False,
) -> None:
    """Look at everything, repair what can be repaired, and say what was done."""
    from pairingnet.archive.check import check_folder

    told = check_folder(path, rebuild, waits)
    summary = {
        "archive": str(path),
        "fragments": told.fragments,
        "repaired": list(told.repaired),
        "left_out": list(told.lost),
    }
    lines = [f"{told.fragments} fragments", *(f"repaired    {what}" for what in told.repaired)]
    finish(summary, lines if told.repaired or told.lost else [*lines, "all is well"], told.lost, as_json)


def _time(given: str | None) -> str:
    """A date as the archive writes it."""
    from datetime import UTC, datetime

    from pairingnet.errors import SettingsError

    if given is None:
        return ""
    try:
        told = datetime.fromisoformat(given)
    except ValueError:
        raise SettingsError(f"'{given}' is no date.", "Write 2026-05-01 or 2026-05-01T14:30.") from None
    return told.astimezone(UTC).isoformat(timespec="milliseconds")
