"""`fedkin data`: the list of data sets."""

from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from fedkin.cli.options import DataOption
from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.data.sources import DATA_SETS, data_directory, find
from fedkin.errors import InputError

TABLES = "heart-disease"
"""The one data set of tables, for `fedkin fit`."""


def list_data_sets(
    context: typer.Context, data: DataOption = None, json: JsonOption = False
) -> None:
    """List the data sets and whether they are available."""
    if context.invoked_subcommand is not None:
        if data is not None or json:
            raise InputError(
                f"write options after the command: fedkin data {context.invoked_subcommand} …"
            )
        return
    root = data_directory(data)
    rows = [_availability(name, data) for name in DATA_SETS]
    rows.append(_tables_availability(root))
    if json:
        answer = {"data_directory": str(root) if root else None, "data_sets": rows}
        print_json(answer, schema="data/1")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("data set", "available", "description"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["status"], row["summary"])
    results.print(table)
    unset = "FEDKIN_DATA is not set: set it to the directory that has mnist/, fashion-mnist/, …"
    notes.print(f"\nData directory: {root}" if root else f"\n{unset}", soft_wrap=True, markup=False)
    notes.print("Look at one: fedkin data show digits --setting 2", soft_wrap=True)


def _availability(name: str, directory: Path | None) -> dict[str, Any]:
    known = DATA_SETS[name]
    path = find(name, directory)
    if not known.directories:
        status = "yes"
    elif path is not None:
        status = "yes" if path.name == name else f"yes, as {path.name}"
    else:
        status = "from the hub" if known.hub_id else "no"
    return {
        "name": name,
        "available": status.startswith("yes"),
        "status": status,
        "path": str(path) if path else None,
        "hub_id": known.hub_id,
        "summary": known.summary,
    }


def _tables_availability(root: Path | None) -> dict[str, Any]:
    path = root / TABLES if root else None
    available = path is not None and any(path.glob("processed.*.data"))
    return {
        "name": TABLES,
        "available": available,
        "status": "yes" if available else "no",
        "path": str(path) if available else None,
        "hub_id": None,
        "summary": "tables of four hospitals, for fedkin fit",
    }
