"""`fedkin federation logs`: what the processes of a federation have written."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedkin.cli.federation.options import DirectoryArgument
from fedkin.cli.output import JsonOption, print_json, print_result, results
from fedkin.errors import InputError
from fedkin.flower import processes
from fedkin.flower.layout import SUPERLINK, Layout

POLL_SECONDS = 0.3


def logs(
    directory: DirectoryArgument,
    name: Annotated[
        str, typer.Argument(help="A node, or superlink, which also runs studies.")
    ] = SUPERLINK,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many lines.")] = 40,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines; end with Ctrl-C.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show the end of the log of the SuperLink or of a node."""
    layout = Layout(directory)
    known = [SUPERLINK, *(node.name for node in layout.read().node)]
    if name not in known:
        raise InputError(f"there is no log of '{name}': choose one of {', '.join(known)}")
    if follow and json:
        raise InputError("--follow never ends, so it has no JSON: leave one of them out")
    log = layout.log(name)
    if not log.exists():
        raise InputError(f"{name} has not written a log yet: start it with fedkin federation up")
    shown = processes.last_lines(log, lines)
    if json:
        print_json({"name": name, "log": str(log), "lines": shown}, schema="federation.logs/1")
        return
    for line in shown:
        print_result(line)
    if follow:
        _print_new_lines(log)


def _print_new_lines(log: Path) -> None:
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(0, 2)
        while True:
            line = file.readline()
            if line:
                results.print(Text.from_ansi(line.rstrip("\n")), soft_wrap=True)
            else:
                time.sleep(POLL_SECONDS)
