"""How every command speaks: results on stdout, progress and notes on stderr."""

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object on stdout; everything else goes to stderr."),
]
"""The `--json` switch that every command has."""

results = Console(highlight=False, soft_wrap=False)
"""For what the user asked for."""

notes = Console(stderr=True, highlight=False)
"""For progress, warnings and errors."""


def print_json(answer: Mapping[str, Any]) -> None:
    """Print the one JSON object of a command run with `--json`."""
    sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
