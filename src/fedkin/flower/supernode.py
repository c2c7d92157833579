"""Flower's SuperNode with fedkin's own worker: a program with the options of `flower-supernode`.

Two things are other than in `flower-supernode`. The work is done by `worker.py`, which runs fedkin's own
code and nothing that the SuperLink sends along; it is started here, again if it ends, and it is
known by a secret that is new at each start. And a SuperNode that finds no message sleeps for three
seconds, which every synchronization would pay: here it asks again soon, and less often when nothing has
come for a while.
"""

import argparse
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeVar

ATTENTIVE_SECONDS = 0.2
"""How long to wait for the next question while a study runs."""
CALM_SECONDS = 3.0
"""The same when nothing has come for `CALM_AFTER_SECONDS`."""
CALM_AFTER_SECONDS = 120.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a worker that has ended is started again; each time twice as long."""

SECRET_BYTES = 32

REFUSED = (
    "the SuperLink does not take this node: is its public key registered there, and is ca.pem the "
    "SuperLink's own? After a crash, or while another process uses the same key, it takes a node again "
    "when it has not heard from it for a minute."
)

logger = logging.getLogger("fedkin.node")

Received = TypeVar("Received")


def attentively(
    receive: Callable[[], Received | None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[], Received]:
    """Return a `receive` that asks until there is a message."""

    def wait() -> Received:
        begin = clock()
        while True:
            message = receive()
            if message is not None:
                return message
            calm = clock() - begin > CALM_AFTER_SECONDS
            sleep(CALM_SECONDS if calm else ATTENTIVE_SECONDS)

    return wait


def write_secret(path: Path) -> None:
    """Write a new secret that only this user can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(SECRET_BYTES))


def keep_working(command: list[str]) -> NoReturn:
    """Start the worker, and start it again whenever it ends: soon once, later if it ends at once."""
    pause = FIRST_PAUSE
    while True:
        begin = time.monotonic()
        status = subprocess.run(command, check=False).returncode
        if time.monotonic() - begin > LONGEST_PAUSE:
            pause = FIRST_PAUSE
        logger.warning("the worker has ended with status %s: again in %g s", status, pause)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def main() -> None:
    """Run `flower-supernode` over a connection that waits for messages, with a worker beside it."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--port", required=True)
    parser.add_argument("--superexec-auth-secret-file", type=Path, required=True)
    own, _ = parser.parse_known_args()
    write_secret(own.superexec_auth_secret_file)
    worker = [sys.executable, "-m", "fedkin.flower.worker"]
    worker += ["--runtime-api-address", f"127.0.0.1:{own.port}"]
    worker += ["--secret-file", str(own.superexec_auth_secret_file)]
    worker += ["--parent-pid", str(os.getpid())]
    threading.Thread(target=keep_working, args=(worker,), daemon=True).start()

    # Flower offers no option for it, so its connection is wrapped: pyproject.toml holds its version.
    supernode: Any = import_module("flwr.supernode.start_client_internal")
    connect = supernode.http_request_response

    connected = False

    @contextmanager
    def connect_attentively(*arguments: Any, **options: Any) -> Iterator[tuple[Any, ...]]:
        nonlocal connected
        with connect(*arguments, **options) as (node, receive, *others):
            connected = True
            yield (node, attentively(receive), *others)

    supernode.http_request_response = connect_attentively
    try:
        flower_supernode()
    except SystemExit as ended:
        if ended.code and not connected:
            logger.error(REFUSED)
        raise


if __name__ == "__main__":
    main()
