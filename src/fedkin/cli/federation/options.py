"""The options that several commands of `fedkin federation` share, beyond those of `fedkin.cli.options`."""

from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.options import TaskName
from fedkin.errors import InputError
from fedkin.flower.layout import Option, check_listen

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The directory that fedkin federation init made.")
]
HostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="NAME",
        help="A name or address by which nodes reach this machine, for its certificate; may be "
        "repeated. localhost and 127.0.0.1 are always included.",
    ),
]
DaysOption = Annotated[
    int,
    typer.Option("--days", min=1, max=3650, help="How long the server's certificate is valid."),
]
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Without TLS and authentication: anyone on the network can read and change messages. For "
        "trials on a closed network only.",
    ),
]
LOCAL_HOSTS = ("localhost", "127.0.0.1")
"""The SuperLink's own processes reach it by these."""


def check_listen_option(address: str) -> None:
    """Refuse an address where the SuperLink's own commands would not find it."""
    try:
        check_listen(address)
    except ValueError as error:
        raise InputError(f"--listen: {error}") from error


def table_settings(context: typer.Context) -> dict[str, Option]:
    """Return how a command's tables are read, as the settings of a node; what is not given is left out."""
    given = context.params
    task = TaskName(given["task"])
    names = ("label", "positive", "categorical", "drop", "missing", "columns")
    settings: dict[str, Option | None] = {name: given[name] for name in names} | {
        "task": None if task is TaskName.classification else task.value,
        "strict": given["strict"] or None,
        "header": False if given["no_header"] else None,
        "separator": None if given["separator"] == "," else given["separator"],
    }
    return {name: value for name, value in settings.items() if value is not None}
