"""The commands most people need: solve, pair."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pairingnet.cli.common import Config, Jobs, Json, Set, finish, from_file, from_options

Weights = Annotated[Path | None, typer.Option(help="Other weights than the ones that come with the program.")]


def solve(
    scans: Annotated[Path, typer.Argument(help="A folder of scans: single pieces or sheets.")],
    out: Annotated[
        Path | None, typer.Argument(help="The run folder to make, or to continue.", show_default="SCANS-joined")
    ] = None,
    weights: Weights = None,
    jobs: Jobs = 0,
    assignments: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Find the fragments in a folder of scans, which of them were neighbours, and put them together.

    --set reaches candidates, all_pairs_up_to, least, and the stages' settings as prepare.NAME and assemble.NAME.
    """
    from pairingnet.match.weights import SHIPPED
    from pairingnet.pipeline import solve as run_solve

    run = out or Path(f"{scans.resolve().name}-joined")
    settings = _solve_settings({**from_file(config), **from_options(assignments)})
    solution = run_solve(scans, run, settings, weights or SHIPPED, jobs)
    groups = solution.assembly.groups
    sure = sum(match.probability >= 0.9 for match in solution.matches)
    summary = {
        "run": str(run),
        "fragments": len(solution.collection),
        "groups": [len(group) for group in groups],
        "alone": len(solution.assembly.singles),
        "sure_joins": sure,
        "doubtful_joins": len(solution.matches) - sure,
        "report": str(run / "report.html"),
        "news": solution.news,
        "left_out": list(solution.left_out),
    }
    lines = [
        f"{len(solution.collection)} fragments" + ("" if solution.news else " (nothing to do)"),
        f"{sum(map(len, groups))} in {len(groups)} groups, {len(solution.assembly.singles)} alone",
        f"{sure} sure joins, {len(solution.matches) - sure} to be looked at",
        f"look at     {run / 'report.html'}",
        f"groups      {run / 'groups'}",
        f"joins       {run / 'matches.json'}",
        f"poses       {run / 'assembly.json'}",
    ]
    finish(summary, lines, solution.left_out, as_json)


def pair(
    source: Annotated[Path, typer.Argument(help="A picture of one fragment.")],
    target: Annotated[Path, typer.Argument(help="A picture of another fragment.")],
    out: Annotated[Path | None, typer.Option(help="Draw both, and how they fit (.png, .jpg).")] = None,
    weights: Weights = None,
    as_json: Json = False,
) -> None:
    """How two fragments fit, and how likely they were neighbours."""
    import json

    import numpy as np

    from pairingnet.io.images import write_jpeg, write_png
    from pairingnet.io.run import match_as_json
    from pairingnet.match.pair import match_pair
    from pairingnet.match.weights import SHIPPED
    from pairingnet.prepare.single import read_fragment
    from pairingnet.review.pictures import join_picture

    a, b = read_fragment(source), read_fragment(target)
    found = match_pair(a, b, weights or SHIPPED)
    if out is not None:
        write = write_png if out.suffix.lower() == ".png" else write_jpeg
        write(out, join_picture(a, b, found))
    if as_json:
        print(json.dumps(match_as_json(found), indent=1))
        return
    if found.target_from_source is None:
        print(f"no join found: {found.reason}")
        return
    pose = found.target_from_source
    print(f"probability {found.probability:.1%}")
    print(f"turn {np.degrees(pose.angle_rad):.2f} degrees, then shift by ({pose.x_px:.2f}, {pose.y_px:.2f}) px")
    print("\n".join(f"{name.replace('_', ' ')} {value}" for name, value in found.evidence.items()))
    if out is not None:
        print(f"look at {out}")


def _solve_settings(values: dict[str, Any]) -> Any:
    from dataclasses import replace

    from pairingnet.config import SolveSettings, with_values

    settings = SolveSettings()
    for stage in ("prepare", "assemble"):
        own = {n.removeprefix(f"{stage}."): v for n, v in values.items() if n.startswith(f"{stage}.")}
        settings = replace(settings, **{stage: with_values(getattr(settings, stage), own, stage)})
    return with_values(settings, {n: v for n, v in values.items() if "." not in n}, "solve")
