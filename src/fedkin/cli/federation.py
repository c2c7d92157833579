"""`fedkin federation`: a real federation over Flower, for trial on one machine or on many."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedkin.cli import federation_init, federation_machines, federation_run
from fedkin.cli.federation_options import DirectoryArgument
from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.errors import InputError
from fedkin.flower import processes, trial
from fedkin.flower.certificates import require_flower
from fedkin.flower.layout import SUPERLINK, Layout

app = typer.Typer(
    no_args_is_help=True,
    help="A real federation over Flower: nodes are processes, on this machine or on others.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

TRIAL = "A trial on this machine"
MACHINES = "Real machines (docs/deploy.md)"

app.command(rich_help_panel=TRIAL)(federation_init.init)


@app.command(rich_help_panel=TRIAL)
def up(directory: DirectoryArgument, json: JsonOption = False) -> None:
    """Start the SuperLink and all nodes of a trial; returns when all nodes are online."""
    require_flower()
    layout = Layout(directory)
    begin = time.monotonic()
    ports = trial.up(layout, lambda line: notes.print(line, markup=False, soft_wrap=True))
    if json:
        print_json({"directory": str(layout.directory), "ports": ports})
        return
    seconds = time.monotonic() - begin
    results.print(f"up in {seconds:.0f} s; logs in {layout.logs}", markup=False, soft_wrap=True)
    results.print(f"stop it with: fedkin federation down {directory}", markup=False, soft_wrap=True)


app.command(rich_help_panel=TRIAL)(federation_run.run)


@app.command(rich_help_panel=TRIAL)
def down(directory: DirectoryArgument, json: JsonOption = False) -> None:
    """Stop every process of a trial, also after a start that was killed half-way."""
    require_flower()
    stopped = trial.down(Layout(directory))
    if json:
        print_json({"stopped": stopped})
    elif stopped:
        results.print(f"stopped {', '.join(stopped)}; nothing is left running", markup=False)
    else:
        results.print("nothing was running")


@app.command(rich_help_panel=TRIAL)
def status(directory: DirectoryArgument, json: JsonOption = False) -> None:
    """Show the SuperLink and the nodes: which run, which are online."""
    require_flower()
    layout = Layout(directory)
    members = trial.status(layout)
    running = layout.read_running()
    port = None if running is None or members[0].process is None else running.ports[SUPERLINK]
    if json:
        print_json(
            {
                "superlink": {
                    "state": members[0].state,
                    "process": members[0].process,
                    "port": port,
                },
                "nodes": {
                    member.name: {"state": member.state, "process": member.process}
                    for member in members[1:]
                },
            }
        )
        return
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for title in ("", "state", "process", "log"):
        table.add_column(title, no_wrap=True)
    for member in members:
        good = member.state in {"running", "online"}
        table.add_row(
            Text(member.name),
            Text(member.state, style="green" if good else "red"),
            "–" if member.process is None else str(member.process),
            Text(str(layout.log(member.name)) if layout.log(member.name).exists() else "–"),
        )
    results.print(table)
    if members[0].state == "silent":
        notes.print("note: the SuperLink does not answer: it is starting, or see its log")
    elif port is not None:
        results.print(f"\nthe SuperLink listens at port {port}")


@app.command(rich_help_panel=TRIAL)
def logs(
    directory: DirectoryArgument,
    name: Annotated[
        str, typer.Argument(help="A node, or superlink, where studies are computed too.")
    ] = SUPERLINK,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many lines.")] = 40,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is written; end with Ctrl-C.")
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
        print_json({"name": name, "log": str(log), "lines": shown})
        return
    for line in shown:
        results.print(line, markup=False, soft_wrap=True)
    if follow:
        _follow(log)


def _follow(log: Path) -> None:
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(0, 2)
        while True:
            line = file.readline()
            if line:
                results.print(Text.from_ansi(line.rstrip("\n")), soft_wrap=True)
            else:
                time.sleep(0.3)


app.command(rich_help_panel=MACHINES)(federation_machines.superlink)
app.command(rich_help_panel=MACHINES)(federation_machines.node)
app.command(rich_help_panel=MACHINES)(federation_machines.key)
app.command(rich_help_panel=MACHINES)(federation_machines.register)
app.command(rich_help_panel=MACHINES)(federation_machines.unregister)
app.command(rich_help_panel=MACHINES)(federation_machines.renew)
