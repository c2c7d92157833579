"""The processes of a federation on this machine: started detached, found again, reliably stopped.

Every process has the federation's id in its environment and passes it on to those that it starts. So no
file has to keep track of them, and none is missed if the process that started them was killed.
"""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

import fedkin
from fedkin.errors import InputError
from fedkin.flower.certificates import make_private_directory
from fedkin.flower.internals.environment import (
    CLOSED_VARIABLES,
    HOME_VARIABLE,
    QUIET_VARIABLES,
)
from fedkin.flower.layout import Layout

if TYPE_CHECKING:
    import psutil

IDENTITY = "FEDKIN_FEDERATION"
ROLE = "FEDKIN_FEDERATION_ROLE"
"""The environment variables that mark a process: its federation, and its role in it."""

STOP_SECONDS = 10.0
"""How long a process may take to end before it is killed."""


def environment(layout: Layout, identity: str, role: str) -> dict[str, str]:
    """Return the environment of a process of this federation."""
    own = {
        IDENTITY: identity,
        ROLE: role,
        HOME_VARIABLE: str(layout.flower_home(role)),
    }
    return quiet_environment() | own


def quiet_environment() -> dict[str, str]:
    """Return this process's environment, with Flower's tools on the path, telemetry and downloads off."""
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {
        **os.environ,
        "PATH": search,
        # Children import the fedkin that runs here, installed or not.
        "PYTHONPATH": os.pathsep.join(
            dict.fromkeys([str(Path(fedkin.__file__).resolve().parents[1]), *_given_python_path()])
        ),
        "PYTHONSAFEPATH": "1",  # no module is imported from the directory that a command is given in
        "PYTHONUNBUFFERED": "1",
        **QUIET_VARIABLES,
        **CLOSED_VARIABLES,
    }


def _given_python_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def start(command: Sequence[str], variables: Mapping[str, str], log: Path) -> "psutil.Process":
    """Start a process in its own session, which outlives this one and writes to a log."""
    import psutil

    make_private_directory(log.parent)
    # `subprocess` warns when a process outlives the one that started it, which is the purpose here.
    pid = os.posix_spawn(
        command[0],
        tuple(command),
        variables,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    return psutil.Process(pid)


def find(identity: str) -> dict[int, str]:
    """Return the roles of all living processes of a federation, by process id."""
    import psutil

    found: dict[int, str] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # gone, or another user's
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            variables = process.environ()
            if variables.get(IDENTITY) == identity:
                found[process.pid] = variables.get(ROLE, "")
    return found


def is_alive(process: "psutil.Process") -> bool:
    """Return whether a process is still running."""
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop(identity: str, seconds: float = STOP_SECONDS) -> list[str]:
    """Stop every process of a federation; return the roles that were running.

    All are asked to end, including those that start in the meantime. After `seconds` the rest are killed.
    """
    import psutil

    roles: dict[str, None] = {}
    known: dict[int, psutil.Process] = {}
    asked: set[int] = set()
    deadline = time.monotonic() + seconds
    while True:
        for pid, role in find(identity).items():
            roles.setdefault(role)
            with contextlib.suppress(psutil.NoSuchProcess):
                known.setdefault(pid, psutil.Process(pid))
        alive = {pid: process for pid, process in known.items() if is_alive(process)}
        if not alive:
            return list(roles)
        late = time.monotonic() > deadline
        for pid, process in alive.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                if late:
                    process.kill()
                elif pid not in asked:
                    process.terminate()
                    asked.add(pid)
        if time.monotonic() > deadline + seconds:
            numbers = ", ".join(str(pid) for pid in alive)
            raise InputError(f"these processes do not end, even when killed: {numbers}")
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Return this many different ports of this machine that are not in use."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def port_is_taken(address: str, port: int) -> bool:
    """Return whether a program already listens at a port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as attempt:
        # As servers do: a port that was just closed can be used again.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((address, port))
        except OSError:
            return True
    return False


@contextlib.contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Let only one command at a time start or stop a federation."""
    import fcntl

    with layout.lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"another command is starting or stopping {layout.directory}: wait until it has ended"
            ) from error
        yield


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log, without Flower's color codes."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [Text.from_ansi(line).plain for line in lines[-count:]]
