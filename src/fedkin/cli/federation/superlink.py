"""`fedkin federation superlink`: the server, for nodes on other machines."""

import datetime
from typing import Annotated

import typer

from fedkin.cli.federation import foreground
from fedkin.cli.federation.options import DirectoryArgument, InsecureOption, check_listen_option
from fedkin.cli.output import print_note, print_warning
from fedkin.errors import InputError
from fedkin.flower import certificates, processes
from fedkin.flower.certificates import require_flower
from fedkin.flower.launch import Server, superlink_command
from fedkin.flower.layout import SUPERLINK, Layout, Running

DEFAULT_PORT = 8000
RENEW_DAYS = 30
"""A certificate that expires sooner causes a warning."""


def superlink(
    directory: DirectoryArgument,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="ADDRESS",
            help="Where to listen: 0.0.0.0 or 127.0.0.1; default: as federation.toml says.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            help=f"The port; default: as federation.toml says, or {DEFAULT_PORT}.",
        ),
    ] = None,
    insecure: InsecureOption = False,
) -> None:
    """Run the SuperLink in the foreground, for nodes on other machines; end it with Ctrl-C.

    Nodes are admitted by their registered keys. Studies are started, and nodes registered, only on this
    machine and by the user who runs the SuperLink.
    """
    require_flower()
    layout = Layout(directory)
    federation = layout.read()
    address = listen or federation.superlink.listen
    check_listen_option(address)
    chosen = port or federation.superlink.port or DEFAULT_PORT
    if processes.find(federation.id):
        raise InputError(
            f"{directory} is running already: see fedkin federation status {directory}"
        )
    if processes.port_is_taken(address, chosen):
        raise InputError(
            f"port {chosen} at {address} is in use by another program: choose another with --port"
        )
    if insecure:
        foreground.warn_insecure()
        server = Server(address, chosen, layout.database, layout.token, None)
    else:
        _check_expiry(layout)
        server = Server(
            address,
            chosen,
            layout.database,
            layout.token,
            layout.server_certificate,
            layout.server_key,
            layout.authority,
        )
    certificates.make_token(layout.token)
    layout.write_running(Running(ports={SUPERLINK: chosen}, insecure=insecure))
    print_note(f"SuperLink at {address}:{chosen}, database {layout.database}")
    foreground.become(
        superlink_command(server), processes.environment(layout, federation.id, SUPERLINK)
    )


def _check_expiry(layout: Layout) -> None:
    """Refuse certificates that are missing or expired; warn about those that expire soon."""
    for path in (layout.server_key, layout.authority):
        if not path.is_file():
            raise InputError(f"{path} is missing: make a federation with fedkin federation init")
    for path in (layout.server_certificate, layout.authority):
        expires = certificates.describe(path).expires
        left = expires - datetime.datetime.now(datetime.UTC)
        if left < datetime.timedelta(0):
            raise InputError(f"{path} has expired on {expires:%Y-%m-%d}: fedkin federation renew")
        if left < datetime.timedelta(days=RENEW_DAYS):
            print_warning(f"{path} expires in {left.days} days: fedkin federation renew")
