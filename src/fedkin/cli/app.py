"""The command line: `fedkin --help`."""

import sys
from typing import Annotated, Any

import typer

from fedkin.cli import data, federation, theory
from fedkin.cli.bench import bench
from fedkin.cli.compare import compare
from fedkin.cli.demo import demo
from fedkin.cli.fit import fit
from fedkin.cli.output import notes, results
from fedkin.cli.predict import predict
from fedkin.cli.report import report
from fedkin.cli.reproduce import reproduce
from fedkin.cli.run import run
from fedkin.compilation import keep_compiled_code
from fedkin.data.cache import user_cache_directory
from fedkin.errors import FedkinError
from fedkin.version import __version__

# Newer Typers carry a click of their own, older ones use the one installed; what they raise for a
# wrong command line descends from the same class of either.
CommandLineError: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="fedkin",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(demo)
app.command(context_settings={"allow_extra_args": True})(fit)
app.command()(predict)
app.command()(run)
app.command()(reproduce)
app.command()(bench)
app.command()(report)
app.command()(compare)
app.add_typer(data.app, name="data")
app.add_typer(federation.app, name="federation")
app.add_typer(theory.app, name="theory")


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
    keep_compiled_code(user_cache_directory() / "compiled")
    try:
        status = app(standalone_mode=False)
    except FedkinError as error:
        fail(str(error))
    except CommandLineError as error:
        fail(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        fail("interrupted", status=130)
    else:
        sys.exit(status if isinstance(status, int) else 0)


def fail(message: str, status: int = 2) -> None:
    """Print in one line what was wrong and exit; `fedkin` without a command has shown its help."""
    line = " ".join(message.split())
    if line:
        notes.print(f"error: {line}", style="red", markup=False, soft_wrap=True)
    sys.exit(status)
