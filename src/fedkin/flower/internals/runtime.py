"""A worker's connection to its SuperNode: tasks come in, answers go out.

This is what Flower's own `flwr-clientapp` does for one message. Here it serves a process that stays, and a
message comes and goes whole (`node_bundles.py`).
"""

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
from flwr.app import Context, Message
from flwr.common.constant import SubStatus
from flwr.common.serde import context_from_proto, message_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import BytesList
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    PullAppMessagesResponse,
    PullTaskInputResponse,
)
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

from fedkin.flower.internals.bundles import object_ids
from fedkin.flower.internals.bundling_clients import BundlingClient
from fedkin.flower.internals.node_bundles import LAST_TASK, TAKE, WORKER

ACQUIRE_TASK = "/flwr.proto.Runtime/AcquireTask"
"""The only call that needs the secret; all others need the token of their task."""

HEARTBEAT_SECONDS = 5.0
"""How long a message is answered before the first heartbeat: Flower would send one for every message, and
gives a task up when it has not heard from it for much longer."""
FETCH_SECONDS = 600.0
"""How long the parts of a message may take to arrive that have not come with it."""
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.05, 1.0
"""When a part that has not arrived yet is asked for again. Flower's own first wait is a whole second."""


@dataclass(frozen=True)
class WorkItem:
    """A message that the SuperNode has assigned to this worker."""

    number: int
    token: str
    """Proves to the SuperNode that the message was assigned to this worker."""
    memory: PullTaskInputResponse
    """The node's memory of the run, and its owner's configuration."""
    pulled: PullAppMessagesResponse
    """The message without its content."""
    parts: tuple[bytes, ...]
    """The objects that the message is made of; none if not all were there."""


class Delivery:
    """An assigned message on its way: fetched, answered, and reported as done.

    Attributes:
        context: The node's memory of the run, and its owner's configuration.
        envelope: The message without its content; an error can be sent in reply to it.
    """

    def __init__(self, client: BundlingClient, item: WorkItem) -> None:
        self._client = client
        self._item = item
        self.context: Context = context_from_proto(item.memory.context)
        self._tree: ObjectTree = item.pulled.message_object_trees[0]
        self.envelope = _with_id(
            message_from_proto(item.pulled.messages_list[0]), self._tree.object_id
        )

    def fetch(self) -> Message:
        """Put the parts of the message together; the app that comes with it is left where it is.

        If they were not all there when the message was assigned, they are fetched singly, as Flower's
        `pull_task_input` does, with shorter waits and without the app.
        """
        contents = {get_object_id(part): part for part in self._item.parts}
        if not contents.keys() >= set(object_ids([self._tree])):
            contents = self._fetch_singly()
        message = cast(Message, inflate_object_from_contents(self._tree.object_id, contents))
        return _with_id(message, self._tree.object_id)

    def _fetch_singly(self) -> dict[str, bytes]:
        node, run = Node(node_id=self.context.node_id), self.context.run_id
        contents = pull_objects(
            [part.object_id for part in iterate_object_tree(self._tree)],
            make_pull_object_fn_protobuf(self._client.PullObject, node, run),
            max_time=FETCH_SECONDS,
            initial_backoff=FIRST_RETRY_SECONDS,
            backoff_cap=LONGEST_RETRY_SECONDS,
        )
        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=node, run_id=run, message_object_id=self._tree.object_id
            )
        )
        return contents

    def take_identity(self) -> None:
        """Let this process make messages in the name of this task.

        Flower keeps the identity once per process: only one delivery may use it at a time.
        """
        TaskIdentity.task_id, TaskIdentity.run_id = self._item.number, self.context.run_id
        TaskIdentity.node_id = self.context.node_id

    def send(self, reply: Message) -> None:
        """Send an answer, together with the objects that it is made of."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = get_all_nested_objects(reply).values()
        self._client.outgoing = [each.deflate() for each in objects]
        push_message(self._client, reply, self.context)

    def finish(self, failure: str | None = None) -> None:
        """Hand the node's memory back and report the task as completed, or why it failed."""
        status = SubStatus.COMPLETED if failure is None else SubStatus.FAILED
        push_task_output(self._client, self.context, status, failure or "")


class LastTask:
    """Tells the SuperNode with each request for work which task this process has got last.

    The SuperNode gives the worker again what was lost: a connection may have broken on the way.
    """

    def __init__(self) -> None:
        self._worker = uuid.uuid4().hex
        self.number: int | None = None

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        """Add the headers to a request for work; leave others alone."""
        if context.rpc_method == ACQUIRE_TASK:
            headers = context.request.headers
            headers[WORKER.decode()] = self._worker
            headers[LAST_TASK.decode()] = "" if self.number is None else str(self.number)
        return call_next(context)


class WorkerClient(BundlingClient):
    """Flower's client of a worker, with whole messages."""

    def take(self, request: AcquireTaskRequest) -> list[bytes]:
        """Wait for work; return Flower's answers to the requests for it, and the objects of the message."""
        found = self._unary_unary(
            path=TAKE, rpc_method=ACQUIRE_TASK, request=request, response_type=BytesList
        )
        return list(found.vals)


Interceptor = (
    LastTask
    | RuntimeTokenHttpInterceptor
    | RuntimeVersionHttpInterceptor
    | SuperExecAuthHttpInterceptor
)


class SuperNodeConnection:
    """A worker's connection to the SuperNode on its own machine.

    Args:
        address: The SuperNode's Runtime API, `host:port`.
        secret_file: The file with the secret that the SuperNode knows this worker by, or None.
    """

    def __init__(self, address: str, secret_file: Path | None) -> None:
        self._address = address
        secret = None
        if secret_file is not None:
            secret = load_superexec_auth_secret(secret_file=str(secret_file))
        self._last_task = LastTask()
        interceptors: list[Interceptor] = [self._last_task]
        if secret is not None:
            interceptors.append(
                SuperExecAuthHttpInterceptor(
                    master_secret=secret, protected_methods=frozenset({ACQUIRE_TASK})
                )
            )
        self._client = self._connect(*interceptors)

    def next_work_item(self) -> WorkItem | None:
        """Wait for a message; return None if there is none after a while."""
        found = self._client.take(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        acquired = AcquireTaskResponse.FromString(found[0])
        if not (acquired.HasField("task") and acquired.token):
            return None
        self._last_task.number = acquired.task.task_id
        return WorkItem(
            acquired.task.task_id,
            acquired.token,
            PullTaskInputResponse.FromString(found[1]),
            PullAppMessagesResponse.FromString(found[2]),
            tuple(found[3:]),
        )

    @contextlib.contextmanager
    def deliver(self, item: WorkItem) -> Iterator[Delivery]:
        """Open a delivery, with a heartbeat until it is closed."""
        client = self._connect(RuntimeTokenHttpInterceptor(item.token))
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        begin = threading.Timer(HEARTBEAT_SECONDS, heartbeat.start)
        begin.daemon = True
        begin.start()
        try:
            yield Delivery(client, item)
        finally:
            begin.cancel()
            begin.join()
            with contextlib.suppress(RuntimeError):  # raised if it has not begun, or has ended
                heartbeat.stop()
            client.close()

    def _connect(self, *interceptors: Interceptor) -> WorkerClient:
        return WorkerClient.from_server_address(
            server_address=self._address,
            insecure=True,
            root_certificates=None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="fedkin-node"),
                *interceptors,
            ],
            retry_invoker=make_simple_http_retry_invoker(),
        )


def _with_id(message: Message, number: str) -> Message:
    """Give a message its id, which Flower sends separately and offers no setter for."""
    message.metadata.__dict__["_message_id"] = number
    return message
