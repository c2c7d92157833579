"""Commands to a SuperLink: which nodes may take part, and what to run.

Every request carries the token of the SuperLink's present start, which its gate asks for (`superlink.py`).
Flower is imported by the functions that need it: a command that starts must not wait for it.
"""

import hashlib
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedkin.errors import InputError

if TYPE_CHECKING:
    from flwr.supercore.control import ControlHttpClient

TOKEN_HEADER = "fedkin-token"

Response = TypeVar("Response")


@dataclass(frozen=True)
class RegisteredNode:
    """A node as the SuperLink knows it."""

    node_id: int
    name: str
    status: str
    """`registered` until it first connects, then `online` or `offline`."""
    public_key: bytes


class LostError(InputError):
    """The SuperLink does not answer, or it was started again and has another token.

    Attributes:
        gone: Whether nobody listens at its port any more, or a later start of it does.
    """

    def __init__(self, message: str, *, gone: bool) -> None:
        super().__init__(message)
        self.gone = gone


@dataclass(frozen=True)
class RunStatus:
    """The status of a run."""

    number: int
    out: str
    """The directory for its results; empty if the run was not started by fedkin."""
    ended: bool
    outcome: str
    """`completed`, `failed` or `stopped`, once it has ended."""
    details: str
    exchanged: int
    """Bytes sent to nodes and received from them."""


class Control:
    """A connection to a SuperLink's control interface, which only answers its own user and machine."""

    def __init__(self, client: "ControlHttpClient", address: str) -> None:
        self._client = client
        self._address = address

    def nodes(self) -> list[RegisteredNode]:
        """List the nodes that may take part."""
        from flwr.proto.control_pb2 import ListNodesRequest

        response = self._ask(lambda: self._client.ListNodes(ListNodesRequest()))
        return [
            RegisteredNode(node.node_id, node.name, node.status, bytes(node.public_key))
            for node in response.nodes_info
            if node.status != "unregistered"
        ]

    def register(self, name: str, public_key: bytes) -> int:
        """Let the node with this key (`certificates.read_public_key`) take part; return its number."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        request = RegisterNodeRequest(public_key=public_key, name=name)
        return self._ask(lambda: self._client.RegisterNode(request)).node_id

    def unregister(self, node_id: int) -> None:
        """Refuse a node from now on."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self._ask(lambda: self._client.UnregisterNode(UnregisterNodeRequest(node_id=node_id)))

    def start_run(
        self, application: Path, configuration: Mapping[str, str | int | float | bool]
    ) -> int:
        """Start a run; return its number.

        Args:
            application: The directory of the Flower app to run.
            configuration: The run configuration, in place of the app's own.
        """
        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        content = build_fab_from_disk(application)
        bundle = Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = StartRunRequest(
            fab=fab_to_proto(bundle), override_config=user_config_to_proto(dict(configuration))
        )
        response = self._ask(lambda: self._client.StartRun(request))
        if not response.HasField("run_id"):
            raise InputError(
                f"the SuperLink at {self._address} did not start the run: see its log with "
                "fedkin federation logs"
            )
        return response.run_id

    def run_status(self, run_id: int) -> RunStatus:
        """Return the status of a run."""
        from flwr.proto.control_pb2 import ListRunsRequest

        response = self._ask(lambda: self._client.ListRuns(ListRunsRequest(run_id=run_id)))
        return _status(response.run_dict[run_id])

    def runs_under_way(self) -> list[RunStatus]:
        """Return the runs that have not ended, the oldest first."""
        from flwr.proto.control_pb2 import ListRunsRequest

        response = self._ask(lambda: self._client.ListRuns(ListRunsRequest()))
        runs = sorted(response.run_dict.values(), key=lambda run: run.pending_at)
        return [status for run in runs if not (status := _status(run)).ended]

    def stop_run(self, run_id: int) -> None:
        """Stop a run."""
        from flwr.proto.control_pb2 import StopRunRequest

        self._ask(lambda: self._client.StopRun(StopRunRequest(run_id=run_id)))

    def _ask(self, question: Callable[[], Response]) -> Response:
        import httpx

        try:
            return question()
        except httpx.HTTPStatusError as error:
            message = f"the SuperLink at {self._address} refuses: {_reason(error)}"
            if error.response.status_code == httpx.codes.FORBIDDEN:
                raise LostError(message, gone=True) from error
            raise InputError(message) from error
        except (httpx.HTTPError, ssl.SSLError, OSError) as error:
            raise LostError(
                f"the SuperLink at {self._address} cannot be reached ({error}): is it running? "
                "Check with fedkin federation status",
                gone=isinstance(error, httpx.ConnectError),
            ) from error


class _TokenInterceptor:
    """Adds the token to requests."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Add the token to a request, and pass it on."""
        context.request.headers[TOKEN_HEADER] = self._token
        return call_next(context)


def _status(run: Any) -> RunStatus:
    return RunStatus(
        number=run.run_id,
        out=run.override_config["out"].string if "out" in run.override_config else "",
        ended=run.status.status == "finished",
        outcome=run.status.sub_status,
        details=run.status.details,
        exchanged=run.bytes_sent + run.bytes_recv,
    )


def _reason(error: Any) -> str:
    try:
        content = error.response.json()
        return " ".join(
            str(content[key]) for key in ("detail", "public_details") if content.get(key)
        )
    except (ValueError, AttributeError, TypeError):
        return f"status {error.response.status_code}"


@contextmanager
def connect(address: str, authority: Path | None, token: Path) -> Iterator[Control]:
    """Connect to the SuperLink of this machine.

    Args:
        address: `host:port`.
        authority: The certificate of the authority that must have signed the SuperLink's. None for a
            SuperLink that was started as insecure: the connection is then not encrypted.
        token: The file with the token of the SuperLink's present start.
    """
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    try:
        certificate = None if authority is None else authority.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {authority}: {error.strerror}") from error
    try:
        secret = token.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read the SuperLink's token {token}: give commands as the user that started it, while it "
            "is running"
        ) from error
    client = ControlHttpClient.from_server_address(
        address,
        insecure=authority is None,
        root_certificates=certificate,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="fedkin"),
            _TokenInterceptor(secret),
        ],
    )
    try:
        yield Control(client, address)
    finally:
        client.close()
