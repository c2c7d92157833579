"""Flower's SuperLink behind a gate: a program with the options of `flower-superlink`.

One port of the SuperLink serves three interfaces: nodes fetch and answer messages at `/v1/fleet/`,
with a signature by their key; `/v1/control/` starts runs and registers nodes, and `/v1/runtime/` is for
the SuperLink's own processes, and these two ask nobody who he is. A run is a program that the SuperLink
executes. So whoever reaches the port could execute what he likes. The gate lets requests for anything
but `/v1/fleet/` pass only from this machine itself.
"""

import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

FOR_NODES = "/v1/fleet/"
FOR_EVERYBODY = "/health"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

refusals = logging.getLogger("fedkin.gate")


class Gate:
    """An ASGI application that refuses what is not for the asker."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or may_pass(scope.get("path", ""), scope.get("client")):
            await self._application(scope, receive, send)
            return
        client = scope.get("client") or ("unknown",)
        refusals.warning("refused %s from %s", scope.get("path"), client[0])
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
    """Tell whether a request for this path from this address is let through."""
    if path.startswith(FOR_NODES) or path == FOR_EVERYBODY:
        return True
    if client is None:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def main() -> None:
    """Run `flower-superlink` with the gate around its application."""
    import uvicorn
    from flwr.superlink.cli.flower_superlink import flower_superlink

    serve: Any = uvicorn.run

    def serve_behind_gate(app: Any, **options: Any) -> None:
        # The peer's own address decides: a header must not be able to change it. The requests of nodes
        # that ask for messages, many a minute, are not worth a line in the log each.
        serve(Gate(app), **(options | {"proxy_headers": False, "access_log": False}))

    uvicorn.run = serve_behind_gate
    flower_superlink()


if __name__ == "__main__":
    main()
