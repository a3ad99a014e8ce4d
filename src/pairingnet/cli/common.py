"""What all commands share: options, how settings are read, and how a command ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pairingnet.errors import printable

MaxMegapixels = Annotated[int, typer.Option(help="Refuse larger files.", min=1)]
Jobs = Annotated[int, typer.Option("--jobs", "-j", help="Processes; 0 is one per core.", min=0)]
Engine = Annotated[str, typer.Option(help="Where it runs: local, ray, or ray://host:port.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: name=value. May be repeated.")]
Config = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Threads = Annotated[int, typer.Option(help="Threads; 0 is one per core.", min=0)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]


def from_file(config: Path | None) -> dict[str, Any]:
    from pairingnet.settings import read_toml

    return {} if config is None else read_toml(config)


def from_options(assignments: list[str] | None) -> dict[str, str]:
    from pairingnet.settings import parse_assignments

    return parse_assignments(assignments or [])


def names_in(text: str) -> tuple[str, ...]:
    """`a, b,a` is a and b."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def seconds_in(text: str | None) -> float:
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


def waits(told: str) -> None:
    """Say on stderr who else is writing."""
    print(f"pairingnet: {told}", file=sys.stderr, flush=True)


def finish(summary: dict[str, Any], lines: list[str], problems: tuple[str, ...], as_json: bool) -> None:
    """Print the result; what was left out goes to stderr, and makes the exit code 1."""
    print(json.dumps(summary, indent=1) if as_json else "\n".join(map(printable, lines)))
    if problems:
        print(f"{len(problems)} left out:", file=sys.stderr)
        for problem in problems:
            print(f"  {printable(problem)}", file=sys.stderr)
        raise typer.Exit(1)
