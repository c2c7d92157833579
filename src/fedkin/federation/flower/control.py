"""What the owner of a SuperLink tells it: which nodes may come, and what to run."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedkin.errors import InputError
from fedkin.federation.flower.certificates import read_public_key

if TYPE_CHECKING:
    from flwr.supercore.control import ControlHttpClient

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class RegisteredNode:
    """A node as the SuperLink knows it."""

    node_id: int
    name: str
    status: str
    """`registered` before it first came, then `online` or `offline`."""
    public_key: bytes


class Control:
    """A connection to a SuperLink's control interface, which answers on its own machine only."""

    def __init__(self, client: "ControlHttpClient", address: str) -> None:
        self._client = client
        self._address = address

    def nodes(self) -> list[RegisteredNode]:
        """List the nodes that may take part."""
        from flwr.proto.control_pb2 import ListNodesRequest

        answer = self._ask(lambda: self._client.ListNodes(ListNodesRequest()))
        return [
            RegisteredNode(node.node_id, node.name, node.status, bytes(node.public_key))
            for node in answer.nodes_info
            if node.status != "unregistered"
        ]

    def register(self, name: str, public_key: Path) -> int:
        """Let the node with this key take part; return its number."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        request = RegisterNodeRequest(public_key=read_public_key(public_key), name=name)
        return self._ask(lambda: self._client.RegisterNode(request)).node_id

    def unregister(self, node_id: int) -> None:
        """Refuse a node from now on."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self._ask(lambda: self._client.UnregisterNode(UnregisterNodeRequest(node_id=node_id)))

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        import httpx

        try:
            return question()
        except httpx.HTTPStatusError as error:
            raise InputError(
                f"the SuperLink at {self._address} refuses: {_reason(error)}"
            ) from error
        except (httpx.HTTPError, ssl.SSLError, OSError) as error:
            raise InputError(
                f"the SuperLink at {self._address} cannot be reached ({error}): is it running? "
                "fedkin federation status tells"
            ) from error


def _reason(error: Any) -> str:
    try:
        answer = error.response.json()
        return " ".join(str(answer[key]) for key in ("detail", "public_details") if answer.get(key))
    except (ValueError, AttributeError, TypeError):
        return f"status {error.response.status_code}"


@contextmanager
def connect(address: str, authority: Path | None) -> Iterator[Control]:
    """Connect to the SuperLink of this machine, whose certificate the authority must have signed.

    Without an authority the connection is not encrypted: for a SuperLink that was asked to be insecure.
    """
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    try:
        certificate = None if authority is None else authority.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {authority}: {error.strerror}") from error
    client = ControlHttpClient.from_server_address(
        address,
        insecure=authority is None,
        root_certificates=certificate,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="fedkin")],
    )
    try:
        yield Control(client, address)
    finally:
        client.close()
