"""`fedkin federation up`: the start of a trial."""

import time

from fedkin.cli.federation.options import DirectoryArgument
from fedkin.cli.output import JsonOption, notes, print_json, print_note, print_result
from fedkin.flower import trial
from fedkin.flower.certificates import require_flower
from fedkin.flower.layout import Layout


def up(directory: DirectoryArgument, json: JsonOption = False) -> None:
    """Start the SuperLink and all nodes of a trial, and return when all nodes are online."""
    require_flower()
    layout = Layout(directory)
    begin = time.monotonic()
    with notes.status("starting …"):
        ports = trial.up(layout, print_note)
    if json:
        print_json({"directory": str(layout.directory), "ports": ports}, schema="federation.up/1")
        return
    print_result(f"up in {time.monotonic() - begin:.0f} s; logs in {layout.logs}")
    print_result(f"stop it with: fedkin federation down {directory}")
