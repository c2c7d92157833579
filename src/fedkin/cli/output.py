"""How every command prints: results on stdout, progress and notes on stderr."""

import json
import math
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fedkin.messages import STEERING, printable

JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object on stdout; everything else goes to stderr."),
]
"""The `--json` switch that every command has."""


class StoppedByUserError(Exception):
    """The user pressed Ctrl-C; the message says what was kept and how to continue."""


class SafeConsole(Console):
    """A terminal that names and messages cannot steer: only Rich itself writes control characters."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Escape what steers a terminal in everything that is printed."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


results = SafeConsole(highlight=False, soft_wrap=False)
"""For what the user asked for."""

notes = SafeConsole(stderr=True, highlight=False)
"""For progress, warnings and errors."""

BAR_WIDTH = 40


def print_json(answer: Mapping[str, Any], *, schema: str) -> None:
    """Print the one JSON object of a command run with `--json`.

    Args:
        answer: The content. Numbers that JSON has no form for become null.
        schema: The name and version of the content, such as `fit/1`; `docs/json.md` lists them.
    """
    content = {"schema": f"fedkin.{schema}"}
    text = json.dumps(content | _finite(answer), indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(STEERING.sub(_as_json_escape, text) + "\n")


def _as_json_escape(found: re.Match[str]) -> str:
    """Escape what JSON leaves as it is, and a terminal would not."""
    return found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_result(line: str) -> None:
    """Print a line of what the user asked for, as it is."""
    results.print(line, markup=False, soft_wrap=True)


def print_note(line: str) -> None:
    """Print a line about what is going on, as it is."""
    notes.print(line, markup=False, soft_wrap=True)


def print_warning(line: str) -> None:
    """Print a line about what may go wrong."""
    notes.print(f"warning: {line}", style="yellow", markup=False, soft_wrap=True)


def weight_bars(
    weights: Mapping[str, float],
    *,
    similar: Mapping[str, bool] | None = None,
    rows: Mapping[str, int] | None = None,
    at_cap: Collection[str] = (),
) -> Table:
    """Draw the weight of each node as a bar, with its group and its number of rows where they are known.

    Nodes at the cap are marked.
    """
    table = Table(box=None, padding=(0, 1), show_header=False)
    longest = max(max(weights.values()), 1e-12)
    for name, weight in weights.items():
        alike = None if similar is None else similar[name]
        bar = ("▒" if alike is False else "█") * round(BAR_WIDTH * weight / longest)
        color = "cyan" if alike is None else ("green" if alike else "magenta")
        known = [] if alike is None else [Text("similar" if alike else "dissimilar", style="dim")]
        if rows is not None:
            known.append(Text(f"{rows[name]} rows", style="dim", justify="right"))
        capped = " at the cap" if name in at_cap else ""
        table.add_row(Text(name), *known, f"{weight:.3f}", Text(bar + capped, style=color))
    return table
