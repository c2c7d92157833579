"""Flower's SuperNode with fedkin's own worker: a program with the options of `flower-supernode`.

It differs from `flower-supernode` in four ways. It says why it cannot talk to the SuperLink, where
`flower-supernode` tries again forever without a reason. The work is done by `worker.py`, which runs
fedkin's own code and nothing that the SuperLink sends along; the worker is started here, started again if
it ends, and known by a secret that is new at each start. Where Flower's SuperNode sleeps for three seconds
when there is no message, and for half a second while there is no answer, which would slow down every
synchronization, this one leaves a request waiting at the SuperLink and its main thread at a mailbox. And
messages go whole (`bundles.py`, `node_bundles.py`).

This file is run by its path and imports nothing else of fedkin (see `internals/__init__.py`).
"""

import argparse
import logging
import os
import secrets
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeVar

SHORTEST_SECONDS = 0.2
"""A SuperLink lets a request for a message wait; if one answers sooner that there is none, it is asked no
more often than this."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a worker that has ended is started again; the pause doubles each time."""

ANSWER_SECONDS = 10.0
"""How long a SuperLink may take to say that it is there."""
LONGEST_WAIT = 3.0
"""Seconds between two times that a SuperLink is asked that is not there yet."""

SECRET_BYTES = 32

WORKER = "fedkin.flower.worker"
"""The module that does the node's work."""

REFUSED = (
    "the SuperLink does not accept this node: is its public key registered there, and is ca.pem the "
    "SuperLink's own? After a crash, or while another process uses the same key, it accepts the node "
    "again when it has not heard from it for a minute."
)

logger = logging.getLogger("fedkin.node")

Received = TypeVar("Received")


def wait_for_superlink(
    address: str,
    authority: Path | None,
    log: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Wait until the SuperLink answers; return why it never will answer this node, or None."""
    pause, last = 0.1, ""
    while True:
        problem = find_problem(address, authority)
        if problem is None or problem.lasting:
            return None if problem is None else problem.text
        if problem.text != last:
            log(f"{problem.text}: trying again until it answers")
            last = problem.text
        sleep(pause)
        pause = min(2 * pause, LONGEST_WAIT)


@dataclass(frozen=True)
class Problem:
    """Why a SuperLink does not answer."""

    text: str
    lasting: bool
    """Whether it stays so until the owner of the node or of the SuperLink changes something."""


def find_problem(address: str, authority: Path | None) -> Problem | None:
    """Ask a SuperLink whether it is there; return what is wrong, or None.

    Args:
        address: `HOST:PORT`.
        authority: The certificate of the authority that must have signed the SuperLink's; None for a node
            without TLS.
    """
    import httpx

    secure = authority is not None
    try:
        _ask_health(address, secure, False if authority is None else _trusting(authority))
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
    else:
        return None
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return Problem(
            f"the certificate of the SuperLink at {address} is not accepted ({reason}): is ca.pem that of "
            "its owner, and is this a name or address that the certificate is for (fedkin federation renew "
            "--host)?",
            lasting=True,
        )
    try:
        _ask_health(address, not secure, check=False)
    except httpx.HTTPError:
        return Problem(f"the SuperLink at {address} does not answer ({reason})", lasting=False)
    if secure:
        return Problem(
            f"the SuperLink at {address} was started with --insecure, and this node talks with TLS only: ask "
            "its owner to start it without --insecure",
            lasting=True,
        )
    return Problem(
        f"the SuperLink at {address} talks with TLS only, and this node was started with --insecure: leave "
        "it out, and give --ca and --key",
        lasting=True,
    )


def _trusting(authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    return context


def _ask_health(address: str, secure: bool, check: ssl.SSLContext | bool) -> None:
    import httpx

    scheme = "https" if secure else "http"
    with httpx.Client(verify=check, timeout=ANSWER_SECONDS) as client:
        client.get(f"{scheme}://{address}/health")


def until_received(
    receive: Callable[[], Received | None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[], Received]:
    """Return a `receive` that asks until there is a message."""

    def wait() -> Received:
        while True:
            begin = clock()
            message = receive()
            if message is not None:
                return message
            sleep(max(0.0, SHORTEST_SECONDS - (clock() - begin)))

    return wait


def write_secret(path: Path) -> None:
    """Write a new secret that only this user can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(SECRET_BYTES))


def keep_running(command: list[str]) -> NoReturn:
    """Start the worker, and start it again whenever it ends, with growing pauses if it keeps ending."""
    pause = FIRST_PAUSE
    while True:
        begin = time.monotonic()
        status = subprocess.run(command, check=False).returncode
        if time.monotonic() - begin > LONGEST_PAUSE:
            pause = FIRST_PAUSE
        logger.warning("the worker has ended with status %s: starting it in %g s", status, pause)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def start_worker(port: str, secret_file: Path) -> None:
    """Keep a worker running for the SuperNode of this process."""
    write_secret(secret_file)
    command = [sys.executable, "-P", "-m", WORKER]
    command += ["--runtime-api-address", f"127.0.0.1:{port}"]
    command += ["--secret-file", str(secret_file)]
    command += ["--parent-pid", str(os.getpid())]
    threading.Thread(target=keep_running, args=(command,), daemon=True).start()


def ask_until_received() -> Callable[[], bool]:
    """Make Flower's SuperNode ask for messages until there is one.

    Flower has no option for it, so its connection to the SuperLink is wrapped.

    Returns:
        A function that returns whether the SuperNode has been connected.
    """
    supernode: Any = import_module("flwr.supernode.start_client_internal")
    connect = supernode.http_request_response
    connected = threading.Event()

    @contextmanager
    def connect_and_wait(*arguments: Any, **options: Any) -> Iterator[tuple[Any, ...]]:
        with connect(*arguments, **options) as (node, receive, *others):
            connected.set()
            yield (node, until_received(receive), *others)

    supernode.http_request_response = connect_and_wait
    return connected.is_set


def move_whole_messages() -> None:
    """Make Flower's SuperNode move messages whole, between the SuperLink and the worker.

    Flower has no option for it, so the application that it serves, its client, and how it starts are wrapped.
    """
    from fedkin.flower.internals.bundling_clients import bundling_fleet_client
    from fedkin.flower.internals.node_bundles import Mailbox, NodeBundles

    mailbox = Mailbox()
    connection: Any = import_module("flwr.supernode.fleet_http_connection")
    connection.FleetHttpClient = bundling_fleet_client(mailbox.contents, mailbox.arrived)
    server: Any = import_module("flwr.supernode.main")
    create = server.create_app

    def create_app(state_factory: Any, **options: Any) -> NodeBundles:
        mailbox.watch(state_factory.state())
        return NodeBundles(create(state_factory=state_factory, **options), mailbox)

    server.create_app = create_app


def main() -> None:
    """Run `flower-supernode`, together with a worker."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--port", required=True)
    parser.add_argument("--superexec-auth-secret-file", type=Path, required=True)
    parser.add_argument("--superlink", required=True)
    parser.add_argument("--root-certificates", type=Path)
    own, _ = parser.parse_known_args()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    problem = wait_for_superlink(own.superlink, own.root_certificates, logger.warning)
    if problem is not None:
        sys.exit(f"error: {problem}")
    os.umask(0o077)  # the node's memory of runs is its owner's alone
    start_worker(own.port, own.superexec_auth_secret_file)
    move_whole_messages()
    was_connected = ask_until_received()
    try:
        flower_supernode()
    except SystemExit as ended:
        if ended.code and not was_connected():
            logger.error(REFUSED)
        raise


if __name__ == "__main__":
    main()
