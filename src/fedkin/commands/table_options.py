"""The options that say how tables are written, shared by `fedkin fit` and `fedkin predict`."""

import csv
from typing import Annotated

import typer

from fedkin.data.tables import TableFormat
from fedkin.errors import InputError

PANEL = "How the files are written"

ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="A,B,C",
        help="Column names, for CSV files without a header line.",
        rich_help_panel=PANEL,
    ),
]
NoHeaderOption = Annotated[
    bool,
    typer.Option(
        "--no-header",
        help="CSV files have no header line; columns become column1, …",
        rich_help_panel=PANEL,
    ),
]
SeparatorOption = Annotated[
    str,
    typer.Option(
        "--separator",
        help="What separates the cells of CSV files; 'tab' for a tab.",
        rich_help_panel=PANEL,
    ),
]


def table_format(
    columns: str | None, no_header: bool, separator: str, drop: str | None = None
) -> TableFormat:
    """Put the options together."""
    return TableFormat(
        separator="\t" if separator in {"tab", "\\t"} else separator,
        header=not no_header,
        names=name_list(columns) if columns is not None else None,
        drop=name_list(drop),
    )


def name_list(written: str | None) -> tuple[str, ...]:
    """Split a list of names at its commas; a name with a comma is put in quotation marks."""
    if written is None:
        return ()
    return tuple(name.strip() for name in next(csv.reader([written], skipinitialspace=True), []))


def missing_codes(written: str | None) -> dict[str, float]:
    """Split a list such as `chol=0,trestbps=0`."""
    codes = {}
    for item in name_list(written):
        name, _, code = item.rpartition("=")
        try:
            codes[name.strip()] = float(code)
        except ValueError:
            name = ""
        if not name:
            raise InputError(f"--missing takes COLUMN=NUMBER, for example chol=0, not '{item}'")
    return codes
