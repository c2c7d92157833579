"""Flower's SuperNode, more attentive: `python -m fedkin.federation.flower.supernode`, its own options.

A SuperNode that finds no message sleeps for three seconds. While a study runs that would be paid by
every synchronization, so here it asks again soon, and less often when nothing has come for a while.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

ATTENTIVE_SECONDS = 0.3
"""How long to wait for the next question while a study runs."""
CALM_SECONDS = 3.0
"""The same when nothing has come for `CALM_AFTER_SECONDS`."""
CALM_AFTER_SECONDS = 120.0

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


def main() -> None:
    """Run `flower-supernode` over a connection that waits for messages."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    # Flower offers no option for it, so its connection is wrapped: pyproject.toml holds its version.
    supernode: Any = import_module("flwr.supernode.start_client_internal")
    connect = supernode.http_request_response

    @contextmanager
    def connect_attentively(*arguments: Any, **options: Any) -> Iterator[tuple[Any, ...]]:
        with connect(*arguments, **options) as (node, receive, *others):
            yield (node, attentively(receive), *others)

    supernode.http_request_response = connect_attentively
    flower_supernode()


if __name__ == "__main__":
    main()
