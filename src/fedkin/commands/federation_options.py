"""Options that the commands of `fedkin federation` share."""

from pathlib import Path
from typing import Annotated

import typer

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The directory that fedkin federation init made.")
]
HostOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A name or address that nodes reach this machine by, for its certificate; may be given "
        "several times. localhost and 127.0.0.1 are always on it.",
    ),
]
DaysOption = Annotated[
    int, typer.Option(min=1, max=3650, help="How long the server's certificate is valid.")
]
LOCAL_HOSTS = ("localhost", "127.0.0.1")
"""The SuperLink's own processes reach it by these."""
