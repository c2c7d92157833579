"""Options that the commands of `fedkin federation` share."""

from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.fit import COLUMNS_PANEL, TaskName
from fedkin.errors import InputError
from fedkin.flower.layout import Option, check_listen

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

LabelOption = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The column to predict.", rich_help_panel=COLUMNS_PANEL),
]
TaskOption = Annotated[
    TaskName, typer.Option(help="What the label is.", rich_help_panel=COLUMNS_PANEL)
]
PositiveOption = Annotated[
    str | None,
    typer.Option(
        metavar="RULE",
        help="Make the label yes or no: a comparison such as '>0', or the class that is yes.",
        rich_help_panel=COLUMNS_PANEL,
    ),
]
CategoricalOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,C",
        help="Columns whose numbers are codes, not quantities.",
        rich_help_panel=COLUMNS_PANEL,
    ),
]
DropOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,C",
        help="Columns to leave out, such as patient numbers.",
        rich_help_panel=COLUMNS_PANEL,
    ),
]
MissingOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN=NUMBER,…",
        help="Numbers that stand for a missing value, such as chol=0.",
        rich_help_panel=COLUMNS_PANEL,
    ),
]


def check_listen_option(address: str) -> None:
    """Refuse an address where the SuperLink's own commands would not find it."""
    try:
        check_listen(address)
    except ValueError as error:
        raise InputError(f"--listen: {error}") from error


def table_settings(
    label: str,
    task: TaskName,
    positive: str | None,
    categorical: str | None,
    drop: str | None,
    missing: str | None,
    columns: str | None,
    no_header: bool,
    separator: str,
) -> dict[str, Option]:
    """Return how a table is read, as the settings of a node; what is not given is left out."""
    given: dict[str, Option | None] = {
        "label": label,
        "task": None if task is TaskName.classification else task.value,
        "positive": positive,
        "categorical": categorical,
        "drop": drop,
        "missing": missing,
        "columns": columns,
        "header": False if no_header else None,
        "separator": None if separator == "," else separator,
    }
    return {name: value for name, value in given.items() if value is not None}
