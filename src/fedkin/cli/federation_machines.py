"""The commands for a federation of real machines: the server's, the nodes', and their keys."""

import datetime
import os
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fedkin.cli.federation_options import (
    LOCAL_HOSTS,
    CategoricalOption,
    DaysOption,
    DirectoryArgument,
    DropOption,
    HostOption,
    MissingOption,
    PositiveOption,
    TaskOption,
    check_listen_option,
    table_settings,
)
from fedkin.cli.fit import TaskName
from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.cli.table_options import ColumnsOption, NoHeaderOption, SeparatorOption
from fedkin.errors import InputError
from fedkin.flower import certificates, processes, trial
from fedkin.flower.certificates import require_flower
from fedkin.flower.launch import (
    Node,
    Server,
    check_address,
    superlink_command,
    supernode_command,
)
from fedkin.flower.layout import (
    SUPERLINK,
    Layout,
    Option,
    Running,
    check_name,
    write_configuration,
)

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
            metavar="ADDRESS",
            help="Where to listen: 0.0.0.0 or 127.0.0.1; by default as federation.toml says.",
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


def node(
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the federation's SuperLink listens.")
    ],
    data: Annotated[
        Path, typer.Option(metavar="FILE", help="Your table, CSV or Parquet; it stays here.")
    ],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")],
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The authority's certificate, ca.pem, from the SuperLink's owner."
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your private key, made by fedkin federation key."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="What results call you; by default the file's name without its ending."),
    ] = None,
    minimum_points: Annotated[
        int, typer.Option(min=1, help="Take part only with at least so many rows.")
    ] = 10,
    minimum_batch: Annotated[
        int, typer.Option(min=1, help="Take part only where mini-batches have so many rows.")
    ] = 5,
    allow: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C", help="Answer these requests only; by default all (docs/federation.md)."
        ),
    ] = None,
    state: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="For the node's own files: compiled code, what it remembers."
        ),
    ] = Path("fedkin-node"),
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="For the node's own processes, on this machine only; default: a free one.",
        ),
    ] = None,
    insecure: InsecureOption = False,
    task: TaskOption = TaskName.classification,
    positive: PositiveOption = None,
    categorical: CategoricalOption = None,
    drop: DropOption = None,
    missing: MissingOption = None,
    columns: ColumnsOption = None,
    no_header: NoHeaderOption = False,
    separator: SeparatorOption = ",",
) -> None:
    """Take part in a federation with your own table, in the foreground; end it with Ctrl-C.

    Example: fedkin federation node --superlink link.example.org:8000 --ca ca.pem --key node.key
    --data my.csv --label outcome
    """
    require_flower()
    address = check_address(superlink, "--superlink")
    name = name or data.stem
    try:
        check_name(name)
    except ValueError as error:
        raise InputError(f"{error} (--name)") from error
    authority, private = _credentials(ca, key, insecure)
    settings = table_settings(
        label, task, positive, categorical, drop, missing, columns, no_header, separator
    )
    settings |= {
        "name": name,
        "data": str(data.absolute()),
        "minimum-points": minimum_points,
        "minimum-batch": minimum_batch,
        "state": str(state.absolute() / "memory"),
    }
    if allow is not None:
        settings["allow"] = allow
    _introduce(settings)
    if port is not None and processes.port_is_taken("127.0.0.1", port):
        raise InputError(f"port {port} is in use by another program: choose another --port")
    configuration = state.absolute() / "node.toml"
    write_configuration(configuration, settings)
    if insecure:
        warn_insecure()
    command = supernode_command(
        Node(address, port or processes.free_ports(1)[0], configuration, authority, private)
    )
    home = {"FLWR_HOME": str(state.absolute() / "flower")}
    become(command, processes.quiet_environment() | home)


def _credentials(
    ca: Path | None, key: Path | None, insecure: bool
) -> tuple[Path | None, Path | None]:
    """Return the authority's certificate and the node's key, which only --insecure does without."""
    if insecure:
        if ca is not None or key is not None:
            raise InputError("--insecure uses neither --ca nor --key: leave it out to be secure")
        return None, None
    if ca is None:
        raise InputError(
            "--ca is missing: the ca.pem of the SuperLink's owner, to know the server by"
        )
    if key is None:
        raise InputError("--key is missing: your private key; make one with fedkin federation key")
    certificates.describe(ca)
    certificates.check_private_key(key)
    return ca.absolute(), key.absolute()


def _introduce(configuration: dict[str, Option]) -> None:
    """Read the table as messages will have it read, so that its owner sees what is wrong with it."""
    from fedkin.flower.node_data import read_own_table
    from fedkin.flower.node_settings import node_settings

    settings = node_settings(configuration)
    table = read_own_table(settings)
    if table.rows < settings.minimum_points:
        raise InputError(
            f"{settings.data} has {table.rows} rows with a label, but --minimum-points is "
            f"{settings.minimum_points}: the node would refuse to take part"
        )
    notes.print(
        f"node {settings.name}: {table.rows} rows with a label, {len(table.columns) - 1} columns",
        markup=False,
        soft_wrap=True,
    )


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
        node_id = link.register(name, certificates.read_public_key(public_key))
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
