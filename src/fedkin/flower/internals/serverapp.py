"""The program of a run at the center: Flower's `flwr-serverapp`, with its tokens read from standard input.

`flwr-serverapp` takes the token of its task as an argument, and every account of a machine can read
arguments. And its requests carry the token of the gate (`superlink.py`), which Flower does not know.

This file is run by its path and imports nothing of fedkin but `bundling_clients.py` (see
`internals/__init__.py`).
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from queue import Queue
from typing import Any

TOKEN_HEADER = "fedkin-token"


def carry_token(token: str) -> None:
    """Let all requests to the SuperLink carry the token of the gate.

    Flower has no option for it, so what adds the token of the task to a request is replaced.
    """
    grid: Any = import_module("flwr.superlink.grid.http_grid")

    class TokenInterceptor(grid.RuntimeTokenHttpInterceptor):
        def intercept(self, context: Any, call_next: Any) -> Any:
            context.request.headers[TOKEN_HEADER] = token
            return super().intercept(context, call_next)

    grid.RuntimeTokenHttpInterceptor = TokenInterceptor


def move_whole_messages() -> None:
    """Make Flower's grid send messages with their objects in one request, and fetch answers likewise.

    Flower has no option for it, so its client and its way to send are replaced.
    """
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    from fedkin.flower.internals.bundles import LARGEST_BUNDLE
    from fedkin.flower.internals.bundling_clients import BundlingClient

    grid: Any = import_module("flwr.superlink.grid.http_grid")
    grid.RuntimeHttpClient = BundlingClient
    push = grid.HttpGrid._try_push_messages

    def push_whole(self: Any, run_id: int, messages: Iterable[Any]) -> list[str]:
        numbers: list[str] = []
        for together, objects in groups(messages):
            self._runtime_client.outgoing = objects
            numbers += push(self, run_id, together)
        return numbers

    def groups(messages: Iterable[Any]) -> Iterator[tuple[list[Any], list[bytes]]]:
        together: list[Any] = []
        objects: dict[str, bytes] = {}
        for message in messages:
            parts = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
            if together and sum(map(len, (objects | parts).values())) > LARGEST_BUNDLE:
                yield together, list(objects.values())
                together, objects = [], {}
            together.append(message)
            objects |= parts
        yield together, list(objects.values())

    grid.HttpGrid._try_push_messages = push_whole


def main() -> None:
    """Carry out a run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime-api-address", required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--root-certificates", type=Path)
    arguments = parser.parse_args()
    task_token, gate_token = sys.stdin.read().split()

    from flwr.superlink.runtime import run_serverapp

    carry_token(gate_token)
    move_whole_messages()
    authority: Path | None = arguments.root_certificates
    try:
        run_serverapp(
            runtime_api_address=arguments.runtime_api_address,
            log_queue=Queue(),  # what is printed goes to the SuperLink's log, and nowhere else
            token=task_token,
            insecure=authority is None,
            certificates=None if authority is None else authority.read_bytes(),
            parent_pid=arguments.parent_pid,
            runtime_dependency_install=False,
        )
    except KeyboardInterrupt:  # so Flower ends a run whose token is not valid any more
        sys.exit("the run was stopped")


if __name__ == "__main__":
    main()
