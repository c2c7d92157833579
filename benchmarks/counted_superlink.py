"""fedkin's SuperLink, which writes down every HTTP request: a program with the options of `superlink.py`.

It adds nothing to what the SuperLink does: each line of the file is a request's path, when it came, when it
was answered, and its bytes. The objects that are stored are counted too.
"""

import importlib.util
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from fedkin.flower import internals

TRAFFIC = "FEDKIN_BENCHMARK_TRAFFIC"
"""The environment variable that names the file."""


class Counted:
    """An ASGI application that writes down what is asked of another."""

    def __init__(self, application: Callable[..., Awaitable[None]], file: Path) -> None:
        self._application = application
        self._file = file.open("a", encoding="ascii", buffering=1)
        self.objects = 0
        """How many objects were stored so far."""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass a request on, and write it down when it has been answered."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        sizes = {"up": 0, "down": 0}
        begin = time.time()

        async def counted_receive() -> Any:
            message = await receive()
            sizes["up"] += len(message.get("body", b""))
            return message

        async def counted_send(message: Any) -> None:
            sizes["down"] += len(message.get("body", b""))
            await send(message)

        await self._application(scope, counted_receive, counted_send)
        line = {"path": scope["path"], "begin": begin, "end": time.time(), "objects": self.objects}
        self._file.write(json.dumps(line | sizes) + "\n")


def load_superlink() -> ModuleType:
    """Load the program, which is no module of a package for itself."""
    path = Path(internals.__file__).with_name("superlink.py")
    found = importlib.util.spec_from_file_location("fedkin_superlink", path)
    assert found is not None
    assert found.loader is not None
    program = importlib.util.module_from_spec(found)
    found.loader.exec_module(program)
    return program


def main() -> None:
    """Serve the SuperLink, and count."""
    from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState

    program: Any = load_superlink()
    make_gate = program.Gate

    def counted_gate(*arguments: Any) -> Counted:
        counted = Counted(make_gate(*arguments), Path(os.environ[TRAFFIC]))
        store = InMemoryLinkState.store_object

        def store_object(*given: Any, **named: Any) -> Any:
            counted.objects += 1
            return store(*given, **named)

        InMemoryLinkState.store_object = store_object
        return counted

    program.Gate = counted_gate
    program.main()


if __name__ == "__main__":
    main()
