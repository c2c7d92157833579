"""`fedkin watch`: the page of a run that is still under way."""

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.output import JsonOption, print_json, print_note, print_result
from fedkin.watch.directory import open_directory
from fedkin.watch.server import LivePage, PageServer

PORT = 8042


def watch(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="The --out of fedkin run, fit, map, advise or federation run, under way or ended.",
        ),
    ],
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, help="The port of the page; 0 for any free one."),
    ] = PORT,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Serve the progress of a run on a page for browsers on this machine, until Ctrl-C.

    When the run ends, the page becomes its report.
    """
    watched = open_directory(directory)
    with PageServer(LivePage(watched), port) as server:
        if json:
            print_json(
                {"url": server.url, "directory": str(directory), "kind": watched.kind},
                schema="watch/1",
            )
        else:
            print_result(f"{watched.title}: {server.url}")
            print_note("for browsers on this machine only; Ctrl-C ends the page, not the run")
        sys.stdout.flush()  # a program that has started this one waits for the address
        if open_browser and not webbrowser.open(server.url):
            print_note("note: no browser could be opened: open the address yourself")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print_note("the page has ended; the run is not affected")
