"""The command line: `fedkin --help`."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import typer

from fedkin.cli.lazy import LazyGroup
from fedkin.cli.output import results
from fedkin.cli.program import keep_code, run_program
from fedkin.version import __version__

EXTRA_ARGUMENTS = {"allow_extra_args": True}
"""For commands that explain themselves what is wrong with further arguments."""


class Commands(LazyGroup):
    """The commands of fedkin."""

    places: ClassVar[Mapping[str, str]] = {
        "demo": "fedkin.cli.demo:demo",
        "fit": "fedkin.cli.fit:fit",
        "advise": "fedkin.cli.advise:advise",
        "map": "fedkin.cli.map:map_command",
        "predict": "fedkin.cli.predict:predict",
        "run": "fedkin.cli.run:run",
        "reproduce": "fedkin.cli.reproduce:reproduce",
        "report": "fedkin.cli.report:report",
        "watch": "fedkin.cli.watch:watch",
        "data": "fedkin.cli.data:app",
        "federation": "fedkin.cli.federation:app",
    }
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = dict.fromkeys(
        ["fit", "advise", "map"], EXTRA_ARGUMENTS
    )


app = typer.Typer(
    name="fedkin",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    keep_code()


def main() -> None:
    """Run the command line; bad input ends with one line `error: …` and exit status 2."""
    run_program(app)
