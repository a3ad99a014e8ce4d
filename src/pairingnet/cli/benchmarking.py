"""Commands that compare methods: benchmark, score."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairingnet.cli.common import Json, Set, Threads, from_options, names_in, seconds_in
from pairingnet.cli.model_files import paper_model, ring_weights
from pairingnet.review.words import counted

if TYPE_CHECKING:
    from pairingnet.benchmark.run import Bench
    from pairingnet.match.paper_weights import PaperModel

_METHODS = "ring,rule_based,mean_colour,same_picture,chance"


def benchmark(
    collection: Annotated[Path, typer.Argument(help="A collection with truth; with --slices, pictures.")],
    out: Annotated[Path, typer.Argument(help="The folder for answers and tables; continued if it exists.")],
    methods: Annotated[
        str, typer.Option(help="Of: ring, paper, rule_based, jigsawnet, mean_colour, same_picture, chance.")
    ] = _METHODS,
    ring_weights: Annotated[
        Path | None,
        typer.Option(help="Of our own network.", show_default="those that ship", callback=ring_weights),
    ] = None,
    paper_weights: Annotated[
        Path | None,
        typer.Option(
            "--paper-weights",
            "--model",
            help="Of the paper's network: weights, a checkpoint, or 'paper'.",
            show_default="those that ship",
            callback=paper_model,
        ),
    ] = None,
    jigsaw_weights: Annotated[Path | None, typer.Option(help="Weights of JigsawNet.")] = None,
    part: Annotated[str | None, typer.Option(help="Only train, val or test.")] = None,
    sample_pairs: Annotated[int, typer.Option(help="So many true pairs at random; 0: all.", min=0)] = 0,
    sample_queries: Annotated[int, typer.Option(help="So many queries at random; 0: all.", min=0)] = 0,
    pool: Annotated[int, typer.Option(help="Each query among so many fragments; 0: all others.", min=0)] = 0,
    sample_only: Annotated[str | None, typer.Option(help="Methods that are sampled; others are asked all.")] = None,
    limit: Annotated[
        str, typer.Option(help="A method that would take longer is sampled: 90m, 2h, 300s, or 'none'.")
    ] = "2h",
    candidates: Annotated[int, typer.Option(help="Of each fragment, that ring lays on each other.", min=1)] = 20,
    slices: Annotated[
        str | None, typer.Option(help="A TOML file, or names: turned,upright,grey,worn-medium,first-10 ...")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Of samples and of torn slices; several are averaged: 1,2,3.")] = "0",
    threads: Threads = 1,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processes of ring; 0 is one per core.", min=0)] = 1,
    assignments: Set = None,
    as_json: Json = False,
) -> None:
    """Ask several methods the same, and compare them in one table.

    With --slices, pictures are torn into one collection a slice; --set reaches the tearing.
    """
    from pairingnet.benchmark.entrants import Given
    from pairingnet.benchmark.run import Bench
    from pairingnet.config import BenchmarkSettings

    numbers = _numbers(seeds)
    limit_s = 0.0 if limit == "none" else seconds_in(limit)
    settings = BenchmarkSettings(sample_pairs, sample_queries, pool, limit_s, candidates, numbers[0])
    given = Given(ring_weights, jigsaw_weights, None if paper_weights is None else _Paper(paper_weights))
    bench = Bench(names_in(methods), given, settings, names_in(sample_only or ""), True, threads, jobs)
    if slices is None:
        _on_collection(collection, out, bench, part, numbers, assignments, as_json)
    else:
        _on_slices(collection, out, bench, slices, numbers, from_options(assignments), as_json)


def _on_collection(
    folder: Path, out: Path, bench: Bench, part: str | None, seeds: list[int], assignments: Any, as_json: bool
) -> None:
    from pairingnet.benchmark import run, table
    from pairingnet.errors import SettingsError
    from pairingnet.io.collection import read_collection

    if len(seeds) > 1 or assignments:
        raise SettingsError("Several seeds and --set are for torn slices.", "Give --slices as well, or one seed.")
    chosen = read_collection(folder)
    chosen = chosen if part is None else chosen.part(part)
    data = f"{folder.name}{'' if part is None else f', part {part}'}: {counted(len(chosen), 'fragment')} of "
    data += f"{counted(len({record.source for record in chosen.fragments}), 'picture')}, "
    data += counted(len(chosen.pairs), "true pair")
    told = run.benchmark(chosen, out, bench, data)
    print(
        table.as_json(told) if as_json else f"{table.as_markdown(told)}\n\ntable   {out / 'benchmark.md'}, .csv, .json"
    )


def _on_slices(
    pictures: Path, out: Path, bench: Bench, named: str, seeds: list[int], tearing: dict[str, str], as_json: bool
) -> None:
    from pairingnet.benchmark import slices

    told = slices.benchmark_slices(pictures, out, bench, slices.read_slices(named), seeds, tearing)
    if as_json:
        print(slices.as_json(told))
    else:
        print(f"{slices.as_markdown(told)}\n\ntable    {out / 'slices.md'}, .csv, .json\nlook at  {out / 'slices.png'}")


def score(
    truth: Annotated[
        Path, typer.Argument(help="A collection with truth; with ANSWER also poses of others: rpf,x,y,rot, truth.json.")
    ],
    answer: Annotated[
        Path | None, typer.Argument(help="Whole puzzles: a run folder, assembly.json, or a file 'rpf,x,y,rot'.")
    ] = None,
    matches: Annotated[Path | None, typer.Option(help="matches.json of any method (docs/benchmark.md).")] = None,
    search: Annotated[Path | None, typer.Option(help="A ranking of candidates: .json, .csv or .npz.")] = None,
    assembly: Annotated[Path | None, typer.Option(help="assembly.json, where the method makes groups.")] = None,
    name: Annotated[str | None, typer.Option(help="What the method is called.", show_default="the folder")] = None,
    part: Annotated[str | None, typer.Option(help="Only train, val or test.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the table (.md, .csv, .json).")] = None,
    px_per_mm: Annotated[float, typer.Option(help="Of the images; RePAIR's have 7.369.", min=1e-6)] = 7.369,
    reach: Annotated[
        float | None, typer.Option(help="Pixels between neighbours.", min=0, show_default="as in the truth; RePAIR 60")
    ] = None,
    rpf: Annotated[Path | None, typer.Option(help="Write the answer as 'rpf,x,y,rot': a file a puzzle, here.")] = None,
    as_json: Json = False,
) -> None:
    """Score the answers of any method, in any language, from the files it wrote.

    With ANSWER: how whole puzzles are laid out, by the metrics of the RePAIR benchmark. With --matches: pairs, and what
    else is given.
    """
    from pairingnet.errors import SettingsError

    if (answer is None) == (matches is None):
        raise SettingsError("Either pairs are scored, or whole puzzles.", "Give --matches FILE, or a second argument.")
    if answer is not None:
        _score_puzzles(truth, answer, px_per_mm, reach, out, rpf, as_json)
    elif matches is not None:
        _score_pairs(truth, matches, search, assembly, name, part, out, as_json)


def _score_pairs(
    collection: Path,
    matches: Path,
    search: Path | None,
    assembly: Path | None,
    name: str | None,
    part: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    import sys

    from pairingnet.benchmark import table
    from pairingnet.evaluate.submitted import read_submission
    from pairingnet.io.collection import read_collection

    chosen = read_collection(collection)
    chosen = chosen if part is None else chosen.part(part)
    told = read_submission(chosen, matches, search, assembly, name or matches.absolute().parent.name)
    for remark in told.remarks:
        print(f"note    {remark}", file=sys.stderr)
    data = f"{collection.name}: {counted(len(chosen), 'fragment')}, {counted(len(chosen.pairs), 'true pair')}"
    made = table.table_of(data, chosen, [told.predictions])
    if out is not None:
        table.write_table(out, "scores", made)
    print(table.as_json(made) if as_json else table.as_markdown(made))


def _score_puzzles(
    truth: Path, answer: Path, px_per_mm: float, reach: float | None, out: Path | None, rpf: Path | None, as_json: bool
) -> None:
    import sys

    from pairingnet.evaluate import puzzle_files
    from pairingnet.evaluate.puzzle_table import score_puzzles, write_table

    puzzles = puzzle_files.with_reach(puzzle_files.read_puzzles(truth), reach)
    layouts, silent = puzzle_files.read_layouts(answer, puzzles)
    for name in silent:
        print(f"note    there is no answer to {name}; nothing of it counts as placed", file=sys.stderr)
    made = score_puzzles(puzzles, layouts, px_per_mm)
    if rpf is not None:
        for puzzle, groups in zip(puzzles, layouts, strict=True):
            puzzle_files.write_layout(rpf / f"{puzzle.name}.csv", puzzle, groups)
    if out is not None:
        write_table(out, "puzzles", made)
    print(made.as_json() if as_json else made.as_markdown())


class _Paper:
    """Loads the network where it is needed, which may be in another process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> PaperModel:
        from pairingnet.train.portable import load_trained

        return load_trained(self.path)


def _numbers(text: str) -> list[int]:
    from pairingnet.errors import SettingsError

    try:
        numbers = [int(number) for number in names_in(text)]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise SettingsError(f"'{text}' are no seeds.", "Write whole numbers, such as --seeds 1,2,3.")
    return numbers
