"""What the owner of a SuperLink tells it: which nodes may come, and what to run."""

import hashlib
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedkin.errors import InputError
from fedkin.flower.certificates import read_public_key
from fedkin.flower.layout import Option

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


@dataclass(frozen=True)
class RunState:
    """How the program of a study is doing."""

    ended: bool
    outcome: str
    """`completed`, `failed` or `stopped`, once it has ended."""
    details: str
    exchanged: int
    """Bytes that have gone to nodes and come from them."""


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

    def start_run(self, application: Path, configuration: Mapping[str, Option]) -> int:
        """Start the program of a study; return its number."""
        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        content = build_fab_from_disk(application)
        bundle = Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = StartRunRequest(
            fab=fab_to_proto(bundle), override_config=user_config_to_proto(dict(configuration))
        )
        answer = self._ask(lambda: self._client.StartRun(request))
        if not answer.HasField("run_id"):
            raise InputError(f"the SuperLink at {self._address} has not started the study")
        return answer.run_id

    def run_state(self, run_id: int) -> "RunState":
        """Tell how the program of a study is doing."""
        from flwr.proto.control_pb2 import ListRunsRequest

        answer = self._ask(lambda: self._client.ListRuns(ListRunsRequest(run_id=run_id)))
        status = answer.run_dict[run_id].status
        exchanged = answer.run_dict[run_id].bytes_sent + answer.run_dict[run_id].bytes_recv
        ended = status.status == "finished"
        return RunState(ended, status.sub_status, status.details, exchanged)

    def stop_run(self, run_id: int) -> None:
        """End the program of a study."""
        from flwr.proto.control_pb2 import StopRunRequest

        self._ask(lambda: self._client.StopRun(StopRunRequest(run_id=run_id)))

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
