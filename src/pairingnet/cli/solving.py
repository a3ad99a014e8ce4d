"""The commands most people need: solve, pair, search, export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairingnet.cli.common import (
    Config,
    Device,
    Engine,
    Json,
    Set,
    finish,
    from_file,
    from_options,
    names_in,
    waits,
)
from pairingnet.cli.model_files import any_weights, is_of_paper, paper_model
from pairingnet.review.words import counted

if TYPE_CHECKING:
    from pairingnet.match.first_filter import FirstFilter

_UNLIKELY = 0.5  # who accepts a join below that is told so

Cores = Annotated[int, typer.Option("--threads", "--jobs", "-j", help="Cores to use; 0 is all of them.", min=0)]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        "--model",
        help="Other weights than our own that ship (.safetensors); 'paper': the paper's network that ships.",
        callback=any_weights,
    ),
]


def solve(
    scans: Annotated[Path, typer.Argument(help="A folder of scans: single pieces or sheets.")],
    out: Annotated[
        Path | None, typer.Argument(help="The run folder to make, or to continue.", show_default="SCANS-joined")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="ring (ours) or paper: its network, with the weights that ship.")
    ] = None,
    weights: Weights = None,
    jobs: Cores = 0,
    engine: Engine = "local",
    device: Device = "cpu",
    first_filter: Annotated[
        Path | None,
        typer.Option(
            help="The paper's network ('paper', or a file): lay only pairs whose vectors are alike.",
            callback=paper_model,
        ),
    ] = None,
    filter_keep: Annotated[int, typer.Option(help="Others that each fragment keeps in that filter.", min=1)] = 200,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Leave this piece out, now and later: an id or a pattern ('sheet#3').")
    ] = None,
    include: Annotated[list[str] | None, typer.Option(help="Take a piece back in that was left out.")] = None,
    assignments: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Find the fragments in a folder of scans, which of them were neighbours, and put them together.

    --set reaches candidates, all_pairs_up_to, least, restarts, and those of preparing: prepare.NAME.
    """
    from pairingnet.engine.jobs import choose_engine
    from pairingnet.io.decisions import decision_now
    from pairingnet.pipeline import solve as run_solve
    from pairingnet.review.report import sure_and_doubtful
    from pairingnet.settings import solve_settings

    run = out or Path(f"{scans.resolve().name}-joined")
    settings = solve_settings({**from_file(config), **from_options(assignments)})
    chosen = None if first_filter is None else _filter(first_filter, filter_keep, device)
    said = [
        decision_now(word, name) for word, names in (("exclude", exclude), ("include", include)) for name in names or ()
    ]
    workers = choose_engine(engine, jobs)
    solution = run_solve(scans, run, settings, _weights_of(method, weights), workers, device, chosen, said, told=waits)
    groups = solution.assembly.groups
    sure, doubtful = sure_and_doubtful(solution.matches, solution.decisions)
    summary = {
        "run": str(run),
        "fragments": len(solution.collection),
        "groups": [len(group) for group in groups],
        "alone": len(solution.assembly.singles),
        "sure_joins": sure,
        "doubtful_joins": doubtful,
        "report": str(run / "report.html"),
        "news": solution.news,
        "remarks": list(solution.remarks),
        "left_out": list(solution.left_out),
    }
    lines = [
        counted(len(solution.collection), "fragment") + ("" if solution.news else " (nothing to do)"),
        *(f"note        {remark}" for remark in solution.remarks),
        f"{sum(map(len, groups))} in {counted(len(groups), 'group')}, {len(solution.assembly.singles)} alone",
        f"{counted(sure, 'sure join')}, {doubtful} to be looked at",
        f"look at     {run / 'report.html'}",
        *([f"groups      {run / 'groups'}"] if groups else []),
        f"joins       {run / 'matches.json'}",
        f"poses       {run / 'assembly.json'}",
    ]
    finish(summary, lines, solution.left_out, as_json)


def _weights_of(method: str | None, weights: Path | None) -> Path:
    """The weights of a method: those that are given, or those that ship."""
    from pairingnet.errors import SettingsError
    from pairingnet.match.paper_weights import SHIPPED_PAPER
    from pairingnet.match.weights import SHIPPED

    shipped = {"ring": SHIPPED, "paper": SHIPPED_PAPER}
    if method is not None and method not in shipped:
        raise SettingsError(f"There is no method '{method}' to solve with.", "They are: ring, paper.")
    if method is not None and weights is not None and is_of_paper(weights) != (method == "paper"):
        raise SettingsError(
            f"{weights} holds no weights of the method '{method}'.", "Leave out one of the two options."
        )
    return weights or shipped[method or "ring"]


def _filter(weights: Path, keep: int, device: str) -> FirstFilter:
    from pairingnet.match.first_filter import FirstFilter
    from pairingnet.train.portable import load_trained

    return FirstFilter(load_trained(weights, device).method(), keep)


def pair(
    source: Annotated[Path, typer.Argument(help="A picture of one fragment.")],
    target: Annotated[Path, typer.Argument(help="A picture of another fragment.")],
    out: Annotated[Path | None, typer.Option(help="Draw both, and how they fit (.png, .jpg).")] = None,
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """How two fragments fit, and how likely they were neighbours."""
    import json
    from dataclasses import replace

    import numpy as np

    from pairingnet.api import are_copies, load_model, match_pair
    from pairingnet.errors import ImageError
    from pairingnet.geometry import perimeter
    from pairingnet.io.frames import moved_match
    from pairingnet.io.images import write_jpeg, write_png
    from pairingnet.io.run import match_as_json
    from pairingnet.prepare.files import read_fragment
    from pairingnet.review.pictures import join_picture
    from pairingnet.review.report import proves_little

    a, b = replace(read_fragment(source), id=str(source)), replace(read_fragment(target), id=str(target))
    if are_copies(a, b):
        raise ImageError(f"{source} and {target} are the same picture.", "Give pictures of two pieces.")
    fit = match_pair(a, b, None if weights is None else load_model(weights))
    found = moved_match(fit, {a.id: a.offset_px, b.id: b.offset_px})
    if out is not None:
        write = write_png if out.suffix.lower() == ".png" else write_jpeg
        write(out, join_picture(a, b, fit))
    short = proves_little(found, min(perimeter(a.contour), perimeter(b.contour)))
    if as_json:
        print(json.dumps({**match_as_json(found), **({"note": short} if short else {})}, indent=1))
        return
    if found.target_from_source is None:
        print(f"no join found: {found.reason}")
        return
    pose = found.target_from_source
    likely = "not known" if np.isnan(found.probability) else f"{found.probability:.1%}"
    print(f"probability {likely}" + (f", but {short}" if short else ""))
    print(f"turn {np.degrees(pose.angle_rad):.2f} degrees, then shift by ({pose.x_px:.2f}, {pose.y_px:.2f}) px")
    print("\n".join(f"{name.replace('_', ' ')} {value}" for name, value in found.evidence.items()))
    if out is not None:
        print(f"look at {out}")


def search(
    run: Annotated[Path, typer.Argument(help="A run folder of 'pairingnet solve'.")],
    fragment: Annotated[str, typer.Argument(help="A fragment's id.")],
    most: Annotated[int, typer.Option(help="How many candidates.", min=1)] = 10,
    as_json: Json = False,
) -> None:
    """The likeliest neighbours of one fragment of a run."""
    from pairingnet.io.decisions import state_of
    from pairingnet.io.run import match_as_json
    from pairingnet.pipeline import joins_of, read_run

    found = read_run(run)
    joins = [join for join in joins_of(run, found.collection, fragment).values() if join.target_from_source]
    best = sorted(joins, key=lambda join: (-join.score, join.source, join.target))[:most]
    lines, told = [], []
    for join in best:
        state = state_of(join.pair, found.decisions)
        by = f"   {state} by {found.decisions.words.get(join.pair, 'a person')}" if state else ""
        lines.append(f"{join.probability:6.1%}  {join.target if join.source == fragment else join.source}{by}")
        told.append({**match_as_json(join), **({"decided": state} if state else {})})
    finish({"fragment": fragment, "joins": told}, lines or ["no joins"], (), as_json)


def decide(
    run: Annotated[Path, typer.Argument(help="A run folder of 'pairingnet solve'.")],
    what: Annotated[str, typer.Argument(help="accept, reject, lock (keep exactly this place) or clear.")],
    source: Annotated[str, typer.Argument(help="A fragment's id.")],
    target: Annotated[str, typer.Argument(help="Another fragment's id.")],
    who: Annotated[str | None, typer.Option(help="Whose word it is.", show_default="the user's name")] = None,
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """Say that two fragments join, or that they do not; the groups are made anew around it.

    Decisions are kept in RUN/decisions.jsonl and hold in every later run.
    """
    from pairingnet.match.weights import SHIPPED
    from pairingnet.pipeline import decide as note_decision
    from pairingnet.pipeline import joins_of, read_run
    from pairingnet.review.changes import changes

    before = read_run(run)
    join = joins_of(run, before.collection, source).get(frozenset((source, target)))
    solution = note_decision(run, what, source, target, who, weights or SHIPPED, told=waits)
    changed = changes(before.assembly, solution.assembly)
    groups = [len(group) for group in solution.assembly.groups]
    summary = {"run": str(run), "what": what, "source": source, "target": target, "groups": groups, "changed": changed}
    lines = [f"{what}: {source} and {target}" + ("" if solution.news else " (nothing had been said of them)")]
    if join is not None and what in ("accept", "lock") and join.probability < _UNLIKELY:
        lines.append(f"note        by itself this join is unlikely ({join.probability:.1%})")
    lines += [f"changed     {line}" for line in changed or (["nothing"] if solution.news else [])]
    finish(summary, [*lines, f"look at     {run / 'report.html'}"], (), as_json)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder of 'pairingnet solve'.")],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            "-f",
            help="png, ora, svg, csv, json, alignments; several: png,ora, or the option again.",
            show_default="png",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to.", show_default="RUN/export")] = None,
    link: Annotated[bool, typer.Option("--link", help="SVG: link the pieces instead of embedding them.")] = False,
    as_json: Json = False,
) -> None:
    """Groups for other programs: transparent PNG, layers for GIMP and Krita (ora), SVG, tables of poses."""
    from pairingnet.io.frames import moved_assembly, moved_match, scan_offsets
    from pairingnet.pipeline import read_run
    from pairingnet.review.export import export as write_export

    found = read_run(run)
    offsets = scan_offsets(found.collection)
    in_scans = moved_assembly(found.assembly, offsets)
    matches = [moved_match(match, offsets) for match in found.matches]
    made = []
    for each in names_in(",".join(kind or ["png"])):
        made += write_export(each, in_scans, matches, found.collection, out or run / "export", link)
    said = [str(path) for path in made] or ["no groups, so there is no picture to export"]
    finish({"files": [str(path) for path in made]}, said, (), as_json)
