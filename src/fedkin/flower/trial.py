"""A whole federation on one machine: up, status, down."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedkin.data.scenarios import has_paper_scenario
from fedkin.errors import InputError
from fedkin.flower import certificates, processes
from fedkin.flower.internals import control
from fedkin.flower.launch import Node, Server, superlink_command, supernode_command
from fedkin.flower.layout import (
    SUPERLINK,
    FederationFile,
    Layout,
    NodeEntry,
    Option,
    Running,
    write_configuration,
)

if TYPE_CHECKING:
    import psutil

START_SECONDS = 120.0
"""How long a start may take; on a busy machine every process needs several seconds to load."""
POLL_SECONDS = 0.3

LOOPBACK = "127.0.0.1"
"""Where the SuperLink of a trial listens: only this machine reaches it."""

Progress = Callable[[str], None]
"""Shows a line of progress."""


@dataclass(frozen=True)
class MemberStatus:
    """The status of the SuperLink or of a node."""

    name: str
    process: int | None
    """Its process id, if it runs on this machine."""
    state: str
    """`running`, `silent` or `down` for the SuperLink; `online`, `offline`, … or `unknown` for a node."""


def up(layout: Layout, show: Progress) -> dict[str, int]:
    """Start the SuperLink and all nodes, and return when all of them are online.

    Returns:
        The ports taken, by name.
    """
    federation = layout.read()
    if not federation.node:
        raise InputError(
            f"{layout.file} has no nodes to start on this machine; start the server alone with "
            "fedkin federation superlink"
        )
    _check_files(layout, federation)
    with processes.locked(layout):
        running = processes.find(federation.id)
        if running:
            raise InputError(
                f"{layout.directory} is running already ({len(running)} processes): "
                "see fedkin federation status, or stop it with fedkin federation down"
            )
        ports = _choose_ports(federation)
        layout.write_running(Running(ports=ports))
        try:
            _start(layout, federation, ports, show)
        except BaseException:
            processes.stop(federation.id)
            raise
    return ports


def down(layout: Layout) -> list[str]:
    """Stop everything; return the names of what was running."""
    federation = layout.read()
    with processes.locked(layout):
        return sorted(processes.stop(federation.id))


def status(layout: Layout) -> list[MemberStatus]:
    """Return the status of the SuperLink and of the nodes."""
    federation = layout.read()
    mains: dict[str, int] = {}
    for pid, role in sorted(processes.find(federation.id).items()):
        mains.setdefault(role, pid)  # the lowest, which has started the others
    states: dict[str, str] = {}
    server, otherwise = "down", "down"
    if SUPERLINK in mains:
        server, otherwise = "running", "unknown"
        try:
            with connect(layout) as link:
                states = {node.name: node.status for node in link.nodes()}
        except InputError:
            server = "silent"  # it is starting, or too busy to answer
    names = dict.fromkeys([*(node.name for node in federation.node), *states])
    return [
        MemberStatus(SUPERLINK, mains.get(SUPERLINK), server),
        *(MemberStatus(name, mains.get(name), states.get(name, otherwise)) for name in names),
    ]


def connect(layout: Layout) -> AbstractContextManager[control.Control]:
    """Connect to the SuperLink of this directory, on this machine."""
    running = layout.read_running()
    if running is None:
        layout.read()  # a directory that is no federation cannot be started
        raise InputError(
            f"{layout.directory} is down: start it with fedkin federation up {layout.directory}"
        )
    address = f"127.0.0.1:{running.ports[SUPERLINK]}"
    authority = None if running.insecure else layout.authority
    return control.connect(address, authority, layout.token)


def _check_files(layout: Layout, federation: FederationFile) -> None:
    """Report what is missing before anything is started."""
    from fedkin.flower.node_settings import node_settings

    for path in (layout.authority, layout.server_certificate, layout.server_key):
        if not path.is_file():
            raise InputError(f"{path} is missing: make a new one with fedkin federation renew")
    for node in federation.node:
        if node.reproducible and federation.superlink.listen != LOOPBACK:
            raise InputError(
                f"{layout.file}: node '{node.name}' is reproducible, and its rows are then safe from this "
                f"machine's center only: let the SuperLink listen at {LOOPBACK}, or remove the line "
                "reproducible = true"
            )
        certificates.check_private_key(layout.node_key(node.name))
        data = layout.data(node.data)
        if not has_paper_scenario(node.data) and not Path(data).is_file():
            raise InputError(f"{layout.file}: node '{node.name}' has no data at {data}")
        try:
            node_settings(_node_configuration(layout, federation, node))
        except InputError as error:
            raise InputError(f"{layout.file}: node '{node.name}': {error}") from error


def _choose_ports(federation: FederationFile) -> dict[str, int]:
    """Use the ports that the file names, and free ones for the rest."""
    wanted = {SUPERLINK: federation.superlink.port}
    wanted |= {node.name: node.port for node in federation.node}
    for name, port in wanted.items():
        address = federation.superlink.listen if name == SUPERLINK else "127.0.0.1"
        if port is not None and processes.port_is_taken(address, port):
            raise InputError(
                f"port {port} of {name} is in use by another program: choose another in "
                "federation.toml, or remove it to use any free port"
            )
    open_names = [name for name, port in wanted.items() if port is None]
    free = dict(zip(open_names, processes.free_ports(len(open_names)), strict=True))
    return {name: free[name] if port is None else port for name, port in wanted.items()}


def _start(
    layout: Layout, federation: FederationFile, ports: dict[str, int], show: Progress
) -> None:
    certificates.make_token(layout.token)
    server = Server(
        federation.superlink.listen,
        ports[SUPERLINK],
        None,
        layout.token,
        layout.server_certificate,
        layout.server_key,
        layout.authority,
    )
    show(f"starting the SuperLink on port {server.port}")
    superlink = _launch(layout, federation, SUPERLINK, superlink_command(server))
    started = {SUPERLINK: superlink}
    with connect(layout) as link:
        _wait(layout, started, lambda: _answers(link), "the SuperLink does not answer")
        for node in federation.node:
            public_key = certificates.public_key_path(layout.node_key(node.name))
            link.register(node.name, certificates.read_public_key(public_key))
            show(f"starting node {node.name}")
            command = supernode_command(_node(layout, federation, node, ports))
            started[node.name] = _launch(layout, federation, node.name, command)
        names = {node.name for node in federation.node}
        _wait(
            layout,
            started,
            lambda: names <= {node.name for node in link.nodes() if node.status == "online"},
            "not all nodes are online",
        )
    show(f"{len(federation.node)} nodes are online")


def _launch(
    layout: Layout, federation: FederationFile, name: str, command: list[str]
) -> "psutil.Process":
    variables = processes.environment(layout, federation.id, name)
    return processes.start(command, variables, layout.log(name))


def _node(
    layout: Layout, federation: FederationFile, node: NodeEntry, ports: dict[str, int]
) -> Node:
    configuration = layout.node(node.name) / "node.toml"
    write_configuration(configuration, _node_configuration(layout, federation, node))
    return Node(
        f"127.0.0.1:{ports[SUPERLINK]}",
        ports[node.name],
        configuration,
        layout.authority,
        layout.node_key(node.name),
    )


def _node_configuration(
    layout: Layout, federation: FederationFile, node: NodeEntry
) -> dict[str, Option]:
    """Return the settings of a node."""
    fixed: dict[str, Option] = {
        "name": node.name,
        "data": layout.data(node.data),
        "state": str(layout.node(node.name) / "state"),
        "key": str(layout.node_key(node.name)),
        "reproducible": node.reproducible,
    }
    return federation.data | node.further | fixed


def _answers(link: control.Control) -> bool:
    try:
        link.nodes()
    except InputError:
        return False
    return True


def _wait(
    layout: Layout,
    started: dict[str, "psutil.Process"],
    condition: Callable[[], bool],
    complaint: str,
) -> None:
    """Wait until a condition holds, or until a process ends, because then it never will."""
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        for name, process in started.items():
            if not processes.is_alive(process):
                raise InputError(
                    f"{name} has ended: {_last_error(layout, name)} (the whole log: {layout.log(name)})"
                )
        if time.monotonic() > deadline:
            raise InputError(
                f"{complaint} after {START_SECONDS:.0f} s: see the logs in {layout.logs}"
            )
        time.sleep(POLL_SECONDS)


def _last_error(layout: Layout, name: str) -> str:
    lines = [line.strip() for line in processes.last_lines(layout.log(name), 40) if line.strip()]
    for line in reversed(lines):
        if "error" in line.lower():
            return line
    return lines[-1] if lines else "its log is empty"
