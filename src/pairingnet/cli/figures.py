"""Commands that draw the paper's figures: `pairingnet figure NAME`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairingnet.cli.common import Device, names_in
from pairingnet.cli.model_files import PAPER, paper_model

if TYPE_CHECKING:
    from pairingnet.evaluate.predictions import Predictions
    from pairingnet.io.collection import Collection
    from pairingnet.match.paper import PaperMethod
    from pairingnet.types import TruePair

figure_app = typer.Typer(help="Draw the paper's figures.", no_args_is_help=True)

Judged = Annotated[Path, typer.Argument(help="The collection with truth.")]
Answers = Annotated[list[Path], typer.Argument(help="Folders of 'pairingnet evaluate', one per method.")]
Figure = Annotated[Path, typer.Option(help="The file to draw: .png, .pdf or .svg.")]
Model = Annotated[
    Path,
    typer.Option(help="The paper's network: 'paper' (what ships), weights, or a checkpoint.", callback=paper_model),
]
Part = Annotated[str | None, typer.Option(help="Only train, val or test.")]


@figure_app.command("all")
def all_figures(
    run: Annotated[Path, typer.Argument(help="The folder for answers and figures; continued if it exists.")],
    collection: Annotated[Path, typer.Option(help="The collection with truth that networks are asked about.")],
    model: Model = PAPER,
    methods: Annotated[str, typer.Option(help="Beside it: rule_based, ring, mean_colour ...; several: a,b.")] = "",
    real: Annotated[Path | None, typer.Option(help="A collection of real fragments with truth, for figure 8.")] = None,
    part: Part = None,
    ending: Annotated[str, typer.Option("--format", help="png, jpg, pdf or svg.")] = "png",
    device: Device = "auto",
) -> None:
    """Draw all figures of the paper that show results, from given weights: docs/figures.md maps them.

    The answers are kept in RUN/answers, so that only the drawing is done again.
    """
    from pairingnet.evaluate.plots import statistics_figure
    from pairingnet.evaluate.statistics import collection_statistics

    model = paper_model(model) or model
    chosen = _collection(collection, part)
    asked = [_asked(chosen, model, name, run / "answers" / name, device) for name in ("paper", *names_in(methods))]
    paper = asked[0]

    def file(name: str) -> Path:
        return run / f"{name}.{ending}"

    statistics_figure(collection_statistics(chosen), file("fig-04-statistics"))
    violins(collection, asked, file("fig-05-violins"), part)
    if paper.joinpath("search.npz").is_file() and _answers([paper])["paper"].ranked.size:
        search(collection, paper, file("fig-06-search"), None, 6, 8, part)
        _sphere_if_possible(collection, model, file("supplement-sphere"), part, device)
    pairs(collection, asked, file("fig-07-pairs"), 3, part)
    if real is not None:
        answers = _asked(_collection(real, None), model, "paper", run / "answers" / "real", device)
        pairs(real, [answers], file("fig-08-real-pairs"), 2, None)
    gate(collection, model, file("fig-09a-gate"), 8, part, device)
    inputs(collection, file("supplement-inputs"), 3, part)
    correspondences(collection, model, file("supplement-correspondences"), 2, 10.0, part, device)
    time_chart(asked, file("supplement-time"))
    sheet = chosen.folder / "truth_sheet.jpg"
    if sheet.is_file():
        shutil.copyfile(sheet, run / "supplement-cutting.jpg")


@figure_app.command()
def violins(collection: Judged, answers: Answers, out: Figure, part: Part = None) -> None:
    """Distributions of the errors RE, NTE and HD, and of HD in each difficulty."""
    from pairingnet.evaluate import figures
    from pairingnet.evaluate.scores import pair_errors

    chosen = _collection(collection, part)
    errors = {name: pair_errors(chosen, each) for name, each in _answers(answers).items()}
    figures.violins(errors, [pair.difficulty for pair in chosen.pairs], out)
    print(f"look at  {out}")


@figure_app.command("time")
def time_chart(answers: Answers, out: Figure) -> None:
    """Seconds that each method took, stage by stage."""
    from pairingnet.evaluate import figures

    told = _answers(answers)
    counts = {f"{len(each.ids)} fragments, {len(each.transforms)} pairs" for each in told.values()}
    figures.time_chart({name: each.seconds for name, each in told.items()}, "; ".join(sorted(counts)), out)
    print(f"look at  {out}")


@figure_app.command()
def search(
    collection: Judged,
    answers: Annotated[Path, typer.Argument(help="A folder of 'pairingnet evaluate'.")],
    out: Figure,
    fragment: Annotated[list[str] | None, typer.Option(help="Show this query. May be repeated.")] = None,
    count: Annotated[int, typer.Option(help="How many queries, where none is named.", min=1)] = 6,
    most: Annotated[int, typer.Option(help="How many candidates of each.", min=1, max=50)] = 8,
    part: Part = None,
) -> None:
    """Queries and their best candidates; true neighbours have a green box."""
    from pairingnet.errors import CollectionError
    from pairingnet.evaluate import figures
    from pairingnet.evaluate.predictions import read_predictions

    chosen = _collection(collection, part)
    told = read_predictions(answers)
    if not told.ranked.size:
        raise CollectionError(f"{answers} ranks no candidates.", "Ask a method with a trained search head.")
    missing = [name for name in fragment or () if name not in told.ids]
    if missing:
        raise CollectionError(f"{answers} has no fragment {', '.join(missing)}.", "Ids are in collection.json.")
    figures.search_sheet(chosen, told, fragment or figures.spread_queries(chosen, count), out, most)
    print(f"look at  {out}")


@figure_app.command()
def pairs(
    collection: Judged,
    answers: Answers,
    out: Figure,
    each: Annotated[int, typer.Option(help="Pairs of each difficulty.", min=1)] = 3,
    part: Part = None,
) -> None:
    """Pairs of three difficulties as each method joined them, beside the truth."""
    from pairingnet.evaluate import figures

    chosen = _collection(collection, part)
    figures.pair_sheet(chosen, _answers(answers), figures.spread_pairs(chosen, each), out)
    print(f"look at  {out}")


@figure_app.command()
def correspondences(
    collection: Judged,
    model: Model,
    out: Figure,
    each: Annotated[int, typer.Option(help="Pairs of each difficulty.", min=1)] = 2,
    within: Annotated[float, typer.Option(help="Pixels from the truth that count as right.", min=0)] = 10.0,
    part: Part = None,
    device: Device = "auto",
) -> None:
    """Which contour points a network takes for the same: green lines are right, red ones wrong."""
    from pairingnet.evaluate import figures

    chosen = _collection(collection, part)
    method = _paper_method(model, device)
    shown = [_corresponding(chosen, method, pair, within) for pair in figures.spread_pairs(chosen, each)]
    figures.correspondence_sheet(shown, out)
    print(f"look at  {out}")


@figure_app.command()
def gate(
    collection: Judged,
    model: Model,
    out: Figure,
    count: Annotated[int, typer.Option(help="How many fragments.", min=1)] = 8,
    part: Part = None,
    device: Device = "auto",
) -> None:
    """The gate's weights on the contours: red where texture counts more, green where the contour's shape does."""
    from pairingnet.errors import SettingsError
    from pairingnet.evaluate import figures
    from pairingnet.prepare.load import load_fragment

    chosen = _collection(collection, part)
    fragments = [load_fragment(chosen, name) for name in figures.spread_queries(chosen, count)]
    shown = []
    for fragment, known in zip(fragments, _paper_method(model, device).features(fragments), strict=True):
        if known.gate is None:
            raise SettingsError(f"The network of {model} has no gate.", "Use one with fusion=gate and both branches.")
        shown.append((fragment, known.points, known.gate.mean(axis=1)))
    figures.gate_sheet(shown, out)
    print(f"look at  {out}")


@figure_app.command()
def sphere(
    collection: Judged,
    model: Model,
    out: Figure,
    count: Annotated[int, typer.Option(help="Pairs in colour.", min=1)] = 40,
    seed: Annotated[int, typer.Option(help="Of the choice and of the embedding.", min=0)] = 0,
    part: Part = None,
    device: Device = "auto",
) -> None:
    """Search vectors on a sphere by PaCMAP; the two fragments of a pair have one colour. Needs pairingnet\\[sphere]."""
    import numpy as np

    from pairingnet.engine.local import progress_bar
    from pairingnet.evaluate import figures
    from pairingnet.evaluate.embedding import on_a_sphere
    from pairingnet.prepare.load import load_fragments

    chosen = _collection(collection, part)
    method = _paper_method(model, device)
    with progress_bar() as bar:
        shown = bar.track(load_fragments(chosen), total=len(chosen), description="features")
        vectors = np.stack([known.vector for known in method.features(shown)])
    positions = on_a_sphere(vectors, seed)
    figures.sphere(positions, figures.disjoint_pairs(chosen, count, np.random.default_rng(seed)), out)
    print(f"look at  {out}")


@figure_app.command()
def inputs(
    collection: Judged,
    out: Figure,
    count: Annotated[int, typer.Option(help="How many fragments.", min=1)] = 3,
    part: Part = None,
) -> None:
    """What the network sees of a fragment: RGB, grey and binarised, and the three contour encodings."""
    from pairingnet.evaluate import figures
    from pairingnet.prepare.load import load_fragment
    from pairingnet.prepare.patches import shown_inputs

    chosen = _collection(collection, part)
    names = figures.spread_queries(chosen, count)
    figures.input_sheet([(name, shown_inputs(load_fragment(chosen, name))) for name in names], out)
    print(f"look at  {out}")


def _collection(folder: Path, part: str | None) -> Collection:
    from pairingnet.io.collection import read_collection

    collection = read_collection(folder)
    return collection if part is None else collection.part(part)


def _answers(folders: list[Path]) -> dict[str, Predictions]:
    """Predictions by the name of their method, or of their folder where two methods have one name."""
    from pairingnet.evaluate.predictions import read_predictions

    told = [read_predictions(folder) for folder in folders]
    names = [each.method for each in told]
    unique = names if len(set(names)) == len(names) else [folder.name for folder in folders]
    return dict(zip(unique, told, strict=True))


def _asked(collection: Collection, model: Path, name: str, out: Path, device: str) -> Path:
    """The folder with a method's answers about a collection, asked what it was not asked before."""
    from pairingnet.benchmark.ask import EVERYTHING, ask
    from pairingnet.benchmark.entrants import Given, check_names, check_weights, make_entrant
    from pairingnet.train.portable import load_trained

    given = Given(paper=lambda: load_trained(model, device))
    check_names([name])
    check_weights([name], given)
    ask(collection, make_entrant(name, collection, out, given, EVERYTHING), out)
    return out


def _sphere_if_possible(collection: Path, model: Path, out: Path, part: str | None, device: str) -> None:
    """Needs an extra, and more than a handful of fragments; says so and goes on."""
    from pairingnet.errors import SettingsError

    try:
        sphere(collection, model, out, 40, 0, part, device)
    except SettingsError as error:
        print(f"left out  {out}: {error}")


def _paper_method(model: Path, device: str) -> PaperMethod:
    from pairingnet.train.portable import load_trained

    return load_trained(model, device).method()


def _corresponding(collection: Collection, method: PaperMethod, pair: TruePair, within_px: float):  # type: ignore[no-untyped-def]
    """Both fragments, the points the network takes for the same (K, 2, 2), and which of them are (K,)."""
    import numpy as np

    from pairingnet.prepare.load import load_fragment

    fragments = [load_fragment(collection, name) for name in (pair.source, pair.target)]
    points = method.correspondences(*method.features(fragments))
    landed = collection.target_from_source(pair).apply(points[:, 0])
    return (*fragments, points, np.linalg.norm(landed - points[:, 1], axis=1) <= within_px)
