"""The commands for a federation of real machines: the server's, the nodes', and their keys."""

import datetime
import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fedkin.commands.federation_options import (
    LOCAL_HOSTS,
    DaysOption,
    DirectoryArgument,
    HostOption,
)
from fedkin.commands.output import JsonOption, notes, print_json, results
from fedkin.errors import InputError
from fedkin.federation.flower import certificates, processes, trial
from fedkin.federation.flower.certificates import require_flower
from fedkin.federation.flower.launch import Server, superlink_command
from fedkin.federation.flower.layout import SUPERLINK, Layout, Running, check_name

DEFAULT_PORT = 8000
RENEW_DAYS = 30
"""A certificate that ends sooner is worth a warning."""

InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Without TLS and without authentication: everybody on the way reads and changes "
        "messages. For trials on a closed network only.",
    ),
]


def superlink(
    directory: DirectoryArgument,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Where to listen; by default as federation.toml says."
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help=f"Default: of the file, or {DEFAULT_PORT}.")
    ] = None,
    insecure: InsecureOption = False,
) -> None:
    """Run the SuperLink in the foreground, for nodes on other machines; end it with Ctrl-C.

    Nodes come in by their registered keys. Studies are started, and nodes registered, on this machine
    only.
    """
    require_flower()
    layout = Layout(directory)
    federation = layout.read()
    address = listen or federation.superlink.listen
    chosen = port or federation.superlink.port or DEFAULT_PORT
    if processes.find(federation.id):
        raise InputError(
            f"{directory} is running already: see fedkin federation status {directory}"
        )
    if processes.port_is_taken(address, chosen):
        raise InputError(
            f"port {chosen} at {address} is in use by another program, or {address} is not an address "
            "of this machine: choose others with --port and --listen"
        )
    if insecure:
        warn_insecure()
        server = Server(address, chosen, layout.database, None)
    else:
        _warn_of_expiry(layout)
        server = Server(
            address,
            chosen,
            layout.database,
            layout.server_certificate,
            layout.server_key,
            layout.authority,
        )
    layout.write_running(Running(ports={SUPERLINK: chosen}, insecure=insecure))
    notes.print(f"SuperLink at {address}:{chosen}, database {layout.database}", soft_wrap=True)
    become(superlink_command(server), processes.environment(layout, federation.id, SUPERLINK))


def warn_insecure() -> None:
    """Say what was asked for."""
    notes.print(
        "warning: --insecure: messages can be read and changed on their way, and any node may take part",
        style="yellow",
        soft_wrap=True,
    )


def become(command: list[str], variables: dict[str, str]) -> NoReturn:
    """Go on as another program: signals of a service manager reach it directly."""
    os.execvpe(command[0], command, variables)


def _warn_of_expiry(layout: Layout) -> None:
    for path in (layout.server_key, layout.authority):
        if not path.is_file():
            raise InputError(f"{path} is missing: make a federation with fedkin federation init")
    for path in (layout.server_certificate, layout.authority):
        expires = certificates.describe(path).expires
        left = expires - datetime.datetime.now(datetime.UTC)
        if left < datetime.timedelta(0):
            raise InputError(f"{path} has expired on {expires:%Y-%m-%d}: fedkin federation renew")
        if left < datetime.timedelta(days=RENEW_DAYS):
            notes.print(
                f"warning: {path} expires in {left.days} days: fedkin federation renew",
                style="yellow",
                markup=False,
                soft_wrap=True,
            )


def key(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Where the private key goes, for example node.key."),
    ],
    json: JsonOption = False,
) -> None:
    """Make a node's key pair, on the node: the private key never leaves it.

    The public half, FILE.pub, goes to whoever runs the SuperLink.
    """
    require_flower()
    certificates.make_node_key(path)
    public = certificates.public_key_path(path)
    if json:
        print_json({"private_key": str(path), "public_key": str(public)})
        return
    results.print(f"private key, stays on this machine: {path}", markup=False, soft_wrap=True)
    results.print(f"public key, for the SuperLink's owner: {public}", markup=False, soft_wrap=True)


def register(
    directory: DirectoryArgument,
    name: Annotated[str, typer.Argument(help="What to call the node.")],
    public_key: Annotated[Path, typer.Argument(metavar="KEY.pub", help="The node's public key.")],
    json: JsonOption = False,
) -> None:
    """Let a node take part, on the SuperLink's machine while it runs."""
    require_flower()
    try:
        check_name(name)
    except ValueError as error:
        raise InputError(str(error)) from error
    with trial.connect(Layout(directory)) as link:
        if name in {node.name for node in link.nodes()}:
            raise InputError(
                f"there is a node '{name}' already: choose another name, or unregister it"
            )
        node_id = link.register(name, public_key)
    if json:
        print_json({"name": name, "node_id": str(node_id)})
    else:
        results.print(f"node {name} may take part", markup=False)


def unregister(
    directory: DirectoryArgument,
    name: Annotated[str, typer.Argument(help="The node's name.")],
    json: JsonOption = False,
) -> None:
    """Refuse a node from now on, on the SuperLink's machine while it runs."""
    require_flower()
    with trial.connect(Layout(directory)) as link:
        known = {node.name: node for node in link.nodes()}
        if name not in known:
            names = ", ".join(known) or "none"
            raise InputError(f"there is no node '{name}'; registered are: {names}")
        link.unregister(known[name].node_id)
    if json:
        print_json({"name": name})
    else:
        results.print(f"node {name} is refused from now on", markup=False)


def renew(
    directory: DirectoryArgument,
    host: HostOption = None,
    days: DaysOption = certificates.SERVER_DAYS,
    json: JsonOption = False,
) -> None:
    """Make the server's certificate anew, for the same names or for others; nodes notice nothing.

    The SuperLink takes it at its next start.
    """
    require_flower()
    layout = Layout(directory)
    layout.read()
    if host:
        hosts = tuple(dict.fromkeys([*host, *LOCAL_HOSTS]))
    else:
        hosts = certificates.describe(layout.server_certificate).hosts
    certificates.make_server_certificate(
        layout.authority,
        layout.authority_key,
        hosts,
        layout.server_certificate,
        layout.server_key,
        days,
    )
    made = certificates.describe(layout.server_certificate)
    if json:
        print_json({"hosts": list(made.hosts), "expires": made.expires.isoformat()})
        return
    results.print(
        f"new certificate for {', '.join(made.hosts)}, valid until {made.expires:%Y-%m-%d}: restart the "
        "SuperLink to use it",
        markup=False,
        soft_wrap=True,
    )
