"""`fedkin federation audit`: what a node was asked for, and what it answered."""

from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedkin.cli.output import JsonOption, print_json, print_result, results
from fedkin.errors import InputError
from fedkin.flower.audit import ANSWERED, ENDED, OUTCOMES, REFUSED, audit_logs, read_entries
from fedkin.flower.certificates import require_flower
from fedkin.messages import suggestion

NUMBERS = ("rows", "ε spent", "s")


class Outcome(StrEnum):
    """What became of a request."""

    answered = ANSWERED
    refused = REFUSED
    ended = ENDED


def audit(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="The directory of a trial on this machine, or on a node what its --state names.",
        ),
    ],
    node: Annotated[
        str | None, typer.Option("--only", metavar="NODE", help="Only this node's requests.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", help="Only runs whose name begins like this."),
    ] = None,
    outcome: Annotated[
        Outcome | None,
        typer.Option("--outcome", help="Only requests with this outcome."),
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, help="How many requests, the newest.")
    ] = 40,
    json: JsonOption = False,
) -> None:
    """Show what a node was asked for: each request, how many rows it touched, and what became of it.

    Example: fedkin federation audit fedkin-node --outcome refused
    """
    require_flower()
    every = [entry for log in audit_logs(directory) for entry in read_entries(log)]
    names = sorted({entry["node"] for entry in every})
    if node is not None and node not in names:
        raise InputError(
            f"--only: the log has no node '{node}'{suggestion(node, names)}; it has {', '.join(names)}"
        )
    entries = [
        entry
        for entry in every
        if node in (None, entry["node"])
        and (run is None or entry["run"].startswith(run))
        and (outcome is None or entry["outcome"] == outcome.value)
    ]
    entries.sort(key=lambda entry: entry["time"])
    counts = Counter(entry["outcome"] for entry in entries)
    shown = entries[-lines:]
    if json:
        answer = {"requests": len(entries), "outcomes": dict(counts), "entries": shown}
        print_json(answer, schema="federation.audit/1")
        return
    if not entries:
        print_result("no such request is in the log")
        return
    _print(shown, several=len(names) > 1)
    each = ", ".join(f"{counts[name]:,} {name}" for name in OUTCOMES if counts[name])
    rest = f"; the newest {len(shown)} are shown (--lines)" if len(shown) < len(entries) else ""
    print_result(f"\n{len(entries):,} requests: {each}{rest}")


def _print(entries: list[dict[str, Any]], *, several: bool) -> None:
    protected = any(entry["epsilon"] for entry in entries)
    spent = ["ε spent"] if protected else []
    titles = [
        "time",
        *(["node"] if several else []),
        "run",
        "request",
        "rows",
        *spent,
        "s",
        "outcome",
    ]
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for title in titles:
        table.add_column(title, justify="right" if title in NUMBERS else "left")
    for entry in entries:
        good = entry["outcome"] == ANSWERED
        outcome = entry["outcome"] + (f": {entry['cause']}" if entry["cause"] else "")
        cells = [
            entry["time"][:19].replace("T", " "),
            *([entry["node"]] if several else []),
            entry["run"][:20],
            ", ".join(entry["tasks"]) or entry["request"],
            f"{entry['rows']:,}",
            *([f"{entry['epsilon']:.4g}"] if protected else []),
            f"{entry['seconds']:.3f}",
        ]
        table.add_row(*map(Text, cells), Text(outcome, style="" if good else "red"))
    results.print(table)
