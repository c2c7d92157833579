"""How a command-line program of this project starts and ends."""

import os
import re
import sys
from typing import Any

import typer

from fedkin.cli.output import StoppedByUserError, notes
from fedkin.errors import FedkinError
from fedkin.messages import in_plain_words

# Newer Typers carry a click of their own, older ones use the one installed; what they raise for a
# wrong command line descends from the same class of either.
CommandLineError: Any = typer.BadParameter.__mro__[2]


def run_program(app: typer.Typer) -> None:
    """Run a command line; bad input ends with one line `error: …` and exit status 2."""
    # Python's own workers would import from the directory that the command is given in.
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        status = app(standalone_mode=False)
    except FedkinError as error:
        fail(str(error))
    except CommandLineError as error:
        fail(explain(error))
    except MemoryError:
        fail(
            "the memory of this machine is exhausted: use fewer rows or columns, or end other programs"
        )
    except StoppedByUserError as stop:
        fail(f"interrupted: {stop}", status=INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        fail("interrupted: nothing was written", status=INTERRUPTED)
    else:
        if status == INTERRUPTED:  # what Typer makes of Ctrl-C
            fail("interrupted: nothing was written", status=INTERRUPTED)
        sys.exit(status if isinstance(status, int) else 0)


def keep_code() -> None:
    """Keep compiled code in the user's cache directory, from now on."""
    from fedkin.compilation import keep_compiled_code  # JAX: not for those who only want help
    from fedkin.data.cache import user_cache_directory

    keep_compiled_code(user_cache_directory() / "compiled")


INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended, as shells expect it."""


def explain(error: Any) -> str:
    """Say what is wrong with a command line, and what is asked for where something is missing."""
    message = in_plain_words(without_repetition(error.format_message()))
    if message.startswith("Missing") and (wanted := getattr(error.param, "help", None)):
        return f"{message.rstrip('.')}: {wanted[0].lower()}{wanted[1:]}"
    if message.startswith("Got unexpected extra argument"):
        return f"{message}: leave it out, or see --help"
    return message


def without_repetition(message: str) -> str:
    """Leave out a hint that the parser and the program of commands both give.

    >>> without_repetition("No such command 'fitt'. Did you mean 'fit'? Did you mean 'fit'?")
    "No such command 'fitt'. Did you mean 'fit'?"
    """
    return re.sub(r"(Did you mean [^?]*\?)(\s+\1)+", r"\1", message)


def fail(message: str, status: int = 2) -> None:
    """Say in one line what was wrong and exit; a program called without a command has shown its help."""
    line = " ".join(message.split())
    if line:
        notes.print(f"error: {line}", style="red", markup=False, soft_wrap=True)
    sys.exit(status)
