"""The command line: `fedkin --help`."""

from typing import Annotated

import typer

from fedkin.cli import data, federation
from fedkin.cli.advise import advise
from fedkin.cli.demo import demo
from fedkin.cli.fit import fit
from fedkin.cli.map import map_command
from fedkin.cli.output import results
from fedkin.cli.predict import predict
from fedkin.cli.program import run_program
from fedkin.cli.report import report
from fedkin.cli.reproduce import reproduce
from fedkin.cli.run import run
from fedkin.version import __version__

app = typer.Typer(
    name="fedkin",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(demo)
app.command(context_settings={"allow_extra_args": True})(fit)
app.command(context_settings={"allow_extra_args": True})(advise)
app.command("map", context_settings={"allow_extra_args": True})(map_command)
app.command()(predict)
app.command()(run)
app.command()(reproduce)
app.command()(report)
app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation")


def _show_version(wanted: bool) -> None:
    if wanted:
        results.print(f"fedkin {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Whom should I learn with, and how much? Federated learning with learned node weights."""


def main() -> None:
    """Run the command line; bad input ends with one line `error: …` and exit status 2."""
    run_program(app)
