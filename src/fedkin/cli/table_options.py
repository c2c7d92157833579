"""The options that say how tables are written, shared by `fedkin fit` and `fedkin predict`."""

from typing import Annotated

import typer

from fedkin.data import option_text
from fedkin.data.tables import TableFormat

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
        separator=option_text.parse_separator(separator),
        header=not no_header,
        names=option_text.parse_names(columns) if columns is not None else None,
        drop=option_text.parse_names(drop),
    )
