"""A real federation over Flower: nodes are processes, on this machine or on others."""

import typer

from fedkin.cli.federation import (
    audit,
    down,
    init,
    key,
    logs,
    node,
    register,
    renew,
    run,
    status,
    stop,
    superlink,
    unregister,
    up,
)

app = typer.Typer(
    no_args_is_help=True,
    help=__doc__,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TRIAL = "A trial on this machine"
MACHINES = "Real machines (docs/deploy.md)"

for command in (
    init.init,
    up.up,
    run.run,
    stop.stop,
    down.down,
    status.status,
    logs.logs,
):
    app.command(rich_help_panel=TRIAL)(command)
for command in (
    superlink.superlink,
    node.node,
    audit.audit,
    key.key,
    register.register,
    unregister.unregister,
    renew.renew,
):
    app.command(rich_help_panel=MACHINES)(command)
