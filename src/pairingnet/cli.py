"""The command line: thin. Results go to stdout, progress and complaints to stderr; `--json` for programs.

Exit codes: 0 done, 1 done but some inputs were left out, 2 not done (the message says what to do).
Heavy imports are inside the commands: `pairingnet --help` answers at once.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pairingnet import __version__
from pairingnet.errors import PairingNetError

app = typer.Typer(
    help="Puts torn pictures back together.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

MaxMegapixels = Annotated[int, typer.Option(help="Refuse larger files.", min=1)]
Jobs = Annotated[int, typer.Option("--jobs", "-j", help="Processes; 0 is one per core.", min=0)]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: name=value. May be repeated.")]
Config = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def main() -> None:
    """Run the command line; errors a user can mend become one line and exit code 2."""
    signal.signal(signal.SIGINT, _stopped)
    try:
        app()
    except PairingNetError as error:
        print(f"pairingnet: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"pairingnet: {error.filename}: {error.strerror}. Check the path and its permissions.", file=sys.stderr)
        sys.exit(2)


def _stopped(*_: object) -> None:
    print("\npairingnet: stopped. Run the same command again to continue.", file=sys.stderr, flush=True)
    raise KeyboardInterrupt


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pairingnet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Puts torn pictures back together."""


@app.command()
def tear(
    pictures: Annotated[Path, typer.Argument(help="A picture, or a folder of pictures.")],
    out: Annotated[Path, typer.Argument(help="The collection folder to make, or to continue.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.", min=0)] = 0,
    rotate: Annotated[
        bool | None, typer.Option("--rotate/--no-rotate", help="Turn each piece at random.", show_default="--rotate")
    ] = None,
    wear: Annotated[str, typer.Option(help="none, light, medium or heavy.")] = "none",
    drop: Annotated[float | None, typer.Option(help="Share of the pieces that are lost.", show_default="0")] = None,
    split: Annotated[str, typer.Option(help="'picture', or 'paper' (by fragment, 5:1:4).")] = "picture",
    max_megapixels: MaxMegapixels = 400,
    jobs: Jobs = 1,
    assignments: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Tear pictures into fragments, with exact truth (the paper's Algorithm 1).

    --set reaches every setting of the algorithm (t_max, s1, rho ...), and of the wear as wear.NAME.
    """
    from pairingnet.synth.collect import tear_collection

    given = {name: value for name, value in (("rotate", rotate), ("drop", drop)) if value is not None}
    job = _tear_job(seed, wear, {**_from_file(config), **given, **_from_options(assignments)})
    result = tear_collection(pictures, out, job, _split(split), jobs, max_megapixels * 1_000_000)
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
        f"{summary['pictures']} pictures, {summary['fragments']} fragments, {summary['pairs']} true pairs"
        + ("" if result.torn_now else " (nothing to do)"),
        f"collection  {out / 'collection.json'}",
        f"look at     {out / 'contact_sheet.jpg'}, {out / 'truth_sheet.jpg'}",
    ]
    _finish(summary, lines, result.bad_files, as_json)


@app.command()
def prepare(
    scans: Annotated[Path, typer.Argument(help="A scan, or a folder of scans.")],
    out: Annotated[Path, typer.Argument(help="The collection folder to make, or to continue.")],
    exclude: Annotated[
        list[str] | None, typer.Option(help="Leave this out: an id or a pattern, such as 'sheet#3'.")
    ] = None,
    max_megapixels: MaxMegapixels = 400,
    jobs: Jobs = 1,
    assignments: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Find the fragments in scans: single pieces or whole sheets, on a plain mat or with alpha.

    Look at OUT/overlays afterwards: red is the contour that was found.
    """
    from pairingnet.prepare.collect import prepare_collection

    job = _prepare_job(exclude, max_megapixels, {**_from_file(config), **_from_options(assignments)})
    result = prepare_collection(scans, out, job, jobs)
    summary = {
        "collection": str(out / "collection.json"),
        "fragments": len(result.collection),
        "prepared_now": result.prepared_now,
        "remarks": list(result.remarks),
        "left_out": list(result.bad_files),
    }
    lines = [
        f"{len(result.collection)} fragments" + ("" if result.prepared_now else " (nothing to do)"),
        *(f"note        {remark}" for remark in result.remarks),
        f"collection  {out / 'collection.json'}",
        f"look at     {out / 'overlays'}, {out / 'contact_sheet.jpg'}",
    ]
    _finish(summary, lines, result.bad_files, as_json)


def _prepare_job(exclude: list[str] | None, max_megapixels: int, values: dict[str, Any]) -> Any:
    from pairingnet.config import PrepareSettings, with_values
    from pairingnet.prepare.collect import PrepareJob

    settings = with_values(PrepareSettings(), values, "prepare")
    return PrepareJob(settings, tuple(exclude or ()), max_megapixels * 1_000_000)


@app.command()
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
    job = _prepare_job(None, max_megapixels, _from_options(assignments))
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
        f"{placed} of {len(result.collection)} fragments placed, {summary['pairs']} true pairs",
        f"collection  {out / 'collection.json'}",
        f"look at     {out / 'truth_sheet.jpg'}",
    ]
    _finish(summary, lines, (*prepared.bad_files, *result.not_placed), as_json)


@app.command()
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
    _finish({**statistics.as_dict(), "figure": str(figure)}, lines, (), as_json)


@app.command()
def evaluate(
    collection: Annotated[Path, typer.Argument(help="A collection with truth.")],
    model: Annotated[Path, typer.Option(help="A checkpoint.")],
    out: Annotated[Path, typer.Option(help="Where the answers and the tables go.")],
    part: Annotated[str | None, typer.Option(help="Only train, val or test.")] = None,
    threads: Annotated[int, typer.Option(help="Threads; 0 is one per core.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Ask a model about a collection, and score its answers as the paper does."""
    import torch

    from pairingnet.evaluate import scores
    from pairingnet.evaluate.predictions import predict
    from pairingnet.io.collection import read_collection
    from pairingnet.io.resume import content_mark
    from pairingnet.match.paper import PaperMethod
    from pairingnet.train.checkpoints import network_of, read_checkpoint

    if threads:
        torch.set_num_threads(threads)
    chosen = read_collection(collection)
    chosen = chosen if part is None else chosen.part(part)
    method = PaperMethod(network_of(read_checkpoint(model)), weights=content_mark(model))
    rows = scores.score(chosen, predict(chosen, method, out))
    for name, text in (("md", scores.as_markdown), ("csv", scores.as_csv), ("json", scores.as_json)):
        (out / f"scores.{name}").write_text(text(rows) + "\n", encoding="utf-8")
    print(scores.as_json(rows) if as_json else scores.as_markdown(rows))


train_app = typer.Typer(help="Train the paper's network, in its two steps.", no_args_is_help=True)
app.add_typer(train_app, name="train")


TrainOut = Annotated[Path, typer.Argument(help="The folder for checkpoint and log; continued if it exists.")]
Validation = Annotated[Path | None, typer.Option(help="A collection to validate on after each epoch.")]
Budget = Annotated[str | None, typer.Option(help="Stop after this time: 90m, 2h, 300s.")]
Threads = Annotated[int, typer.Option(help="Threads; 0 is one per core.", min=0)]


@train_app.command("matching")
def train_matching(
    collection: Annotated[Path, typer.Argument(help="A collection with truth.")],
    out: TrainOut,
    validation: Validation = None,
    budget: Budget = None,
    threads: Threads = 0,
    assignments: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Step 1: learn which contour points of two neighbours correspond.

    --set reaches the network's settings (layers, fusion ...) and the training's (batch, epochs, gamma ...).
    """
    import torch

    from pairingnet.models.paper import PairingNet
    from pairingnet.train.matching import MatchingTask

    network_settings, settings = _network_settings({**_from_file(config), **_from_options(assignments)})
    torch.manual_seed(settings.seed)
    network = PairingNet(network_settings)
    _train(MatchingTask, network, settings, (collection, validation), out, budget, threads, as_json)


@train_app.command("searching")
def train_searching(
    collection: Annotated[Path, typer.Argument(help="A collection with truth.")],
    out: TrainOut,
    start: Annotated[Path, typer.Option("--from", help="The checkpoint of step 1.")],
    validation: Validation = None,
    budget: Budget = None,
    threads: Threads = 0,
    assignments: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Step 2: learn one vector per fragment, close for neighbours; the network of step 1 is frozen.

    --set reaches the training's settings; batch is 175 and decay 1e-3 where not set otherwise.
    """
    from pairingnet.train.checkpoints import network_of, read_checkpoint
    from pairingnet.train.searching import SearchingTask

    values = {"batch": 175, "decay": 1e-3, **_from_file(config), **_from_options(assignments)}
    _, settings = _network_settings(values)
    network = network_of(read_checkpoint(start))
    _train(SearchingTask, network, settings, (collection, validation), out, budget, threads, as_json)


def _train(
    task: Any,
    network: Any,
    settings: Any,
    folders: tuple[Path, Path | None],
    out: Path,
    budget: str | None,
    threads: int,
    as_json: bool,
) -> None:
    import torch

    from pairingnet.io.collection import read_collection
    from pairingnet.train.data import PairData
    from pairingnet.train.loop import train

    if threads:
        torch.set_num_threads(threads)
    seconds = _seconds(budget)
    data, checked = (
        None if folder is None else PairData(read_collection(folder), network.settings, settings.correspond)
        for folder in folders
    )
    result = train(task(network, data, settings, checked), settings, out, seconds)
    summary = {
        "checkpoint": str(result.checkpoint),
        "steps": result.step,
        "seconds": round(result.seconds),
        "loss": result.loss,
        "finished": result.finished,
    }
    lines = [
        f"{result.step} steps in {result.seconds / 60:.0f} minutes, loss {result.loss:.3f}"
        + ("" if result.finished else "; run it again to go on"),
        f"checkpoint  {result.checkpoint}",
        f"log         {out / 'log.jsonl'}",
    ]
    _finish(summary, lines, (), as_json)


def _network_settings(values: dict[str, Any]) -> tuple[Any, Any]:
    """Settings of the network and of the training, from one list of names."""
    from dataclasses import fields

    from pairingnet.config import PaperSettings, TrainSettings, with_values

    of_network = {field.name for field in fields(PaperSettings)}
    network = with_values(PaperSettings(), {n: v for n, v in values.items() if n in of_network}, "train")
    training = with_values(TrainSettings(), {n: v for n, v in values.items() if n not in of_network}, "train")
    return network, training


def _seconds(text: str | None) -> float:
    """`90m`, `2h` or `300s` in seconds; no text is for ever."""
    from pairingnet.errors import SettingsError

    if text is None:
        return float("inf")
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    try:
        value = float(text[:-1]) * unit
    except ValueError:
        value = 0.0
    if value <= 0:
        raise SettingsError(f"'{text}' is not a time.", "Write a number and s, m or h, such as 90m.")
    return value


def _tear_job(seed: int, wear: str, values: dict[str, Any]) -> Any:
    from pairingnet.config import WEAR_LEVELS, TearSettings, with_values
    from pairingnet.errors import SettingsError
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


def _from_file(config: Path | None) -> dict[str, Any]:
    from pairingnet.config import read_toml

    return {} if config is None else read_toml(config)


def _from_options(assignments: list[str] | None) -> dict[str, str]:
    from pairingnet.config import parse_assignments

    return parse_assignments(assignments or [])


def _finish(summary: dict[str, Any], lines: list[str], problems: tuple[str, ...], as_json: bool) -> None:
    """Print the result; what was left out goes to stderr, and makes the exit code 1."""
    print(json.dumps(summary, indent=1) if as_json else "\n".join(lines))
    if problems:
        print(f"{len(problems)} left out:", file=sys.stderr)
        for problem in problems:
            print(f"  {problem}", file=sys.stderr)
        raise typer.Exit(1)
