"""Commands that make and count collections: tear, prepare, annotate, stats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pairingnet.cli.common import Config, Engine, Jobs, Json, MaxMegapixels, Set, finish, from_file, from_options
from pairingnet.review.words import counted


def tear(
    pictures: Annotated[Path, typer.Argument(help="A picture, or a folder of pictures.")],
    out: Annotated[Path, typer.Argument(help="The collection folder to make, or to continue.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.", min=0)] = 0,
    rotate: Annotated[
        bool | None, typer.Option("--rotate/--no-rotate", help="Turn each piece at random.", show_default="--rotate")
    ] = None,
    wear: Annotated[str, typer.Option(help="none, scanned, light, medium, heavy, sherds, broken or fresco.")] = "none",
    drop: Annotated[float | None, typer.Option(help="Share of the pieces that are lost.", show_default="0")] = None,
    split: Annotated[str, typer.Option(help="'picture', or 'paper' (by fragment, 5:1:4).")] = "picture",
    max_megapixels: MaxMegapixels = 400,
    jobs: Jobs = 1,
    engine: Engine = "local",
    assignments: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Tear pictures into fragments, with exact truth (the paper's Algorithm 1).

    --set reaches every setting of the algorithm (t_max, s1, rho ...), and of the wear as wear.NAME.
    """
    from pairingnet.engine.jobs import choose_engine
    from pairingnet.synth.collect import tear_collection

    given = {name: value for name, value in (("rotate", rotate), ("drop", drop)) if value is not None}
    job = _tear_job(seed, wear, {**from_file(config), **given, **from_options(assignments)})
    workers = choose_engine(engine, jobs)
    result = tear_collection(pictures, out, job, _split(split), workers, max_megapixels * 1_000_000)
    collection = result.collection
    summary = {
        "collection": str(out / "collection.json"),
        "pictures": len(collection.sources),
        "torn_now": result.torn_now,
        "fragments": len(collection),
        "pairs": len(collection.pairs),
        "left_out": list(result.bad_files),
    }
    lines = [
        f"{counted(len(collection.sources), 'picture')}, {counted(len(collection), 'fragment')}, "
        + counted(len(collection.pairs), "true pair")
        + ("" if result.torn_now else " (nothing to do)"),
        f"collection  {out / 'collection.json'}",
        f"look at     {out / 'contact_sheet.jpg'}, {out / 'truth_sheet.jpg'}",
    ]
    finish(summary, lines, result.bad_files, as_json)


def paint(
    out: Annotated[Path, typer.Argument(help="The folder for the pictures.")],
    kind: Annotated[str, typer.Option(help="fresco (painted walls) or pottery.")] = "fresco",
    count: Annotated[int, typer.Option(help="How many.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Make pictures of painted walls or pots, to be torn: where no photographs of such are at hand."""
    from pairingnet.errors import SettingsError
    from pairingnet.synth.paint import PAINTERS, paint_pictures

    if kind not in PAINTERS:
        raise SettingsError(f"There are no pictures of the kind '{kind}'.", f"Choose one of {', '.join(PAINTERS)}.")
    paths = paint_pictures(out, kind, count, seed)
    lines = [f"{counted(len(paths), 'picture')} of the kind {kind}", f"look at  {out}"]
    finish({"pictures": [str(path) for path in paths]}, lines, (), as_json)


def prepare(
    scans: Annotated[Path, typer.Argument(help="A scan, or a folder of scans.")],
    out: Annotated[Path, typer.Argument(help="The collection folder to make, or to continue.")],
    exclude: Annotated[
        list[str] | None, typer.Option(help="Leave this out: an id or a pattern, such as 'sheet#3'.")
    ] = None,
    max_megapixels: MaxMegapixels = 400,
    jobs: Jobs = 1,
    engine: Engine = "local",
    assignments: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Find the fragments in scans: single pieces or whole sheets, on a plain mat or with alpha.

    Look at OUT/overlays afterwards: red is the contour that was found.
    """
    from pairingnet.engine.jobs import choose_engine
    from pairingnet.prepare.collect import prepare_collection

    job = _prepare_job(exclude, max_megapixels, {**from_file(config), **from_options(assignments)})
    result = prepare_collection(scans, out, job, choose_engine(engine, jobs))
    summary = {
        "collection": str(out / "collection.json"),
        "fragments": len(result.collection),
        "prepared_now": result.prepared_now,
        "remarks": list(result.remarks),
        "left_out": list(result.bad_files),
    }
    lines = [
        counted(len(result.collection), "fragment") + ("" if result.prepared_now else " (nothing to do)"),
        *(f"note        {remark}" for remark in result.remarks),
        f"collection  {out / 'collection.json'}",
        f"look at     {out / 'overlays'}, {out / 'contact_sheet.jpg'}",
    ]
    finish(summary, lines, result.bad_files, as_json)


def annotate(
    reference: Annotated[Path, typer.Argument(help="The complete picture, or a file with poses (.json, .txt).")],
    fragments: Annotated[Path, typer.Argument(help="Scans of the fragments.")],
    out: Annotated[Path, typer.Argument(help="The collection folder to make.")],
    max_gap: Annotated[float, typer.Option(help="Pixels between edges that still count as touching.")] = 6.0,
    min_overlap: Annotated[float, typer.Option(help="Pixels of shared edge that make a true pair.")] = 50.0,
    max_megapixels: MaxMegapixels = 400,
    jobs: Jobs = 1,
    assignments: Set = None,
    as_json: Json = False,
) -> None:
    """Find out where real fragments belong, and make a collection with truth from them.

    The reference is the complete picture (SIFT places the fragments in it), truth.json, or poses in
    JigsawNet's text form. --set reaches the settings of 'prepare', which runs first.
    """
    from pairingnet.io.images import image_files
    from pairingnet.io.truth import is_truth_file, read_truth
    from pairingnet.prepare.collect import prepare_collection
    from pairingnet.synth.annotate import annotate_from_picture, annotate_from_poses

    known = read_truth(reference) if is_truth_file(reference) else None
    job = _prepare_job(None, max_megapixels, from_options(assignments))
    prepared = prepare_collection(fragments, out, job, jobs, store=False)
    if known is None:
        result = annotate_from_picture(prepared.collection, reference, max_gap, min_overlap, job.max_pixels)
    else:
        files = [path.name for path in image_files(fragments, leave_out=out)]
        result = annotate_from_poses(prepared.collection, known, reference.stem, files, max_gap, min_overlap)
    placed = len(result.collection) - len(result.not_placed)
    summary = {
        "collection": str(out / "collection.json"),
        "fragments": len(result.collection),
        "placed": placed,
        "pairs": len(result.collection.pairs),
        "left_out": [*prepared.bad_files, *result.not_placed],
    }
    lines = [
        f"{placed} of {counted(len(result.collection), 'fragment')} placed, "
        + counted(len(result.collection.pairs), "true pair"),
        f"collection  {out / 'collection.json'}",
        f"look at     {out / 'truth_sheet.jpg'}",
    ]
    finish(summary, lines, (*prepared.bad_files, *result.not_placed), as_json)


def stats(
    collection: Annotated[Path, typer.Argument(help="A collection folder.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to draw the figures (.png, .pdf, .svg).", show_default="COLLECTION/statistics.png"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Count a collection and draw its distributions of areas and overlaps."""
    from pairingnet.evaluate.plots import statistics_figure
    from pairingnet.evaluate.statistics import collection_statistics
    from pairingnet.io.collection import read_collection

    statistics = collection_statistics(read_collection(collection))
    figure = out or collection / "statistics.png"
    statistics_figure(statistics, figure)
    rows = statistics.counts()
    width = max(map(len, rows))
    lines = [f"{name:<{width}}  {value}" for name, value in rows.items()] + [f"{'look at':<{width}}  {figure}"]
    finish({**statistics.as_dict(), "figure": str(figure)}, lines, (), as_json)


def _prepare_job(exclude: list[str] | None, max_megapixels: int, values: dict[str, Any]) -> Any:
    from pairingnet.config import PrepareSettings
    from pairingnet.prepare.collect import PrepareJob
    from pairingnet.settings import with_values

    settings = with_values(PrepareSettings(), values, "prepare")
    return PrepareJob(settings, tuple(exclude or ()), max_megapixels * 1_000_000)


def _tear_job(seed: int, wear: str, values: dict[str, Any]) -> Any:
    from pairingnet.config import WEAR_LEVELS, TearSettings
    from pairingnet.errors import SettingsError
    from pairingnet.settings import with_values
    from pairingnet.synth.collect import TearJob

    if wear not in WEAR_LEVELS:
        raise SettingsError(f"There is no wear '{wear}'.", f"Choose one of {', '.join(WEAR_LEVELS)}.")
    of_wear = {name.removeprefix("wear."): v for name, v in values.items() if name.startswith("wear.")}
    of_tear = {name: v for name, v in values.items() if not name.startswith("wear.")}
    settings = with_values(TearSettings(), of_tear, "tear")
    return TearJob(settings, with_values(WEAR_LEVELS[wear], of_wear, "wear"), seed)


def _split(name: str) -> str:
    from pairingnet.errors import SettingsError
    from pairingnet.synth.splits import SPLITS

    if name not in SPLITS:
        raise SettingsError(f"There is no split '{name}'.", f"Choose one of {', '.join(SPLITS)}.")
    return name
