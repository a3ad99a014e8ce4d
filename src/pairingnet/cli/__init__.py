"""The command line: thin. Results go to stdout, progress and complaints to stderr; `--json` for programs.

Exit codes: 0 done, 1 done but some inputs were left out, 2 not done (the message says what to do).
Heavy imports are inside the commands: `pairingnet --help` answers at once.
"""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from pairingnet import __version__
from pairingnet.cli import archive, benchmarking, collections, figures, solving, training
from pairingnet.errors import PairingNetError, printable

app = typer.Typer(
    help="Puts torn pictures back together.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    solving.solve,
    solving.pair,
    solving.search,
    solving.decide,
    solving.export,
    collections.tear,
    collections.paint,
    collections.prepare,
    collections.annotate,
    collections.stats,
):
    app.command()(command)
app.add_typer(archive.archive_app, name="archive")
app.add_typer(training.train_app, name="train")
app.command()(training.evaluate)
app.command()(benchmarking.benchmark)
app.command()(benchmarking.score)
app.command()(training.ablate)
app.add_typer(figures.figure_app, name="figure")


def main() -> None:
    """Run the command line; errors a user can mend become one line and exit code 2."""
    signal.signal(signal.SIGINT, _stopped)
    try:
        app()
    except PairingNetError as error:
        print(f"pairingnet: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        what = printable(f"{error.filename}: {error.strerror}")
        print(f"pairingnet: {what}. Check the path and its permissions.", file=sys.stderr)
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
