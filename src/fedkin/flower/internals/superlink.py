"""Flower's SuperLink behind a gate: a program with the options of `flower-superlink`.

One port of the SuperLink serves three interfaces. At `/v1/fleet/`, nodes fetch and answer messages, and
sign with their keys. `/v1/control/` starts runs and registers nodes, and `/v1/runtime/` is for the
SuperLink's own processes; these two authenticate nobody. A run is a program that the SuperLink executes,
so anybody who reached the port could execute any code. The gate only lets requests for `/v1/fleet/` pass
from other machines.

This file is run by its path and imports nothing of fedkin (see `internals/__init__.py`).
"""

import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

NODE_PATHS = "/v1/fleet/"
HEALTH_PATH = "/health"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("fedkin.gate")


class Gate:
    """An ASGI application that passes on what the client may ask for, and refuses the rest."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or may_pass(scope.get("path", ""), scope.get("client")):
            await self._application(scope, receive, send)
            return
        client = scope.get("client") or ("unknown",)
        logger.warning("refused %s from %s", scope.get("path"), client[0])
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        body = json.dumps({"detail": "only the SuperLink's own machine may do this"}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def may_pass(path: str, client: tuple[str, int] | None) -> bool:
    """Return whether a request for this path from this address may pass."""
    if path.startswith(NODE_PATHS) or path == HEALTH_PATH:
        return True
    if client is None:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def put_gate_around_application() -> None:
    """Make Flower serve its application through the gate.

    Flower has no option for it, so the function that it serves with is replaced.
    """
    import uvicorn

    serve: Any = uvicorn.run

    def serve_behind_gate(app: Any, **options: Any) -> None:
        # The peer's own address decides: no header may change it. Nodes ask for messages many times per
        # minute, which is not worth a line in the log each time.
        serve(Gate(app), **(options | {"proxy_headers": False, "access_log": False}))

    uvicorn.run = serve_behind_gate


def main() -> None:
    """Run `flower-superlink` with the gate around its application."""
    from flwr.superlink.cli.flower_superlink import flower_superlink

    put_gate_around_application()
    flower_superlink()


if __name__ == "__main__":
    main()
