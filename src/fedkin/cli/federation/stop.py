"""`fedkin federation stop`: the end of what the center computes."""

from pathlib import Path

from fedkin.cli.federation.options import DirectoryArgument
from fedkin.cli.federation.waiting import how_to_go_on
from fedkin.cli.output import JsonOption, print_json, print_result
from fedkin.errors import InputError
from fedkin.flower import trial
from fedkin.flower.certificates import require_flower
from fedkin.flower.layout import Layout


def stop(directory: DirectoryArgument, json: JsonOption = False) -> None:
    """Stop the study or the learning that is under way at the center; the nodes stay connected.

    Run it on the SuperLink's machine, for example after the terminal of fedkin federation run was lost.
    """
    require_flower()
    layout = Layout(directory)
    layout.read()
    with trial.connect(layout) as link:
        runs = link.runs_under_way()
        for run in runs:
            link.stop_run(run.number)
    if not runs:
        raise InputError(f"nothing is under way at the center of {layout.directory}")
    if json:
        stopped = [{"run": str(run.number), "out": run.out} for run in runs]
        print_json({"stopped": stopped}, schema="federation.stop/1")
        return
    for run in runs:
        print_result(f"stopped the run for {run.out}; {how_to_go_on(Path(run.out))}")
