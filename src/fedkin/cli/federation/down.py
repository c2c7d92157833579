"""`fedkin federation down`: the end of a trial."""

from fedkin.cli.federation.options import DirectoryArgument
from fedkin.cli.output import JsonOption, notes, print_json, print_result
from fedkin.flower import trial
from fedkin.flower.certificates import require_flower
from fedkin.flower.layout import Layout


def down(directory: DirectoryArgument, json: JsonOption = False) -> None:
    """Stop every process of a trial, even after a start that was killed halfway."""
    require_flower()
    with notes.status("stopping …"):
        names = trial.down(Layout(directory))
    if json:
        print_json({"stopped_processes": names}, schema="federation.down/1")
    elif names:
        print_result(f"stopped {', '.join(names)}; nothing is left running")
    else:
        print_result("nothing was running")
