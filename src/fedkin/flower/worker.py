"""The process that does a node's work: it stays, so that a message pays neither for starting Python nor JAX.

Flower's SuperNode by itself starts a process for every message and runs in it whatever code the
SuperLink sends along. Started with `--isolation process` it leaves the work to another process: this
one. It runs fedkin's own code only, whatever app a run brings: the app is never installed.
"""

import argparse
import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

import psutil
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import SubStatus
from flwr.common.serde import context_from_proto, message_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
)
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
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
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

from fedkin.compilation import keep_compiled_code_like_parent
from fedkin.flower.node import MOST_RUNS, answer
from fedkin.flower.wire import Refusal

logger = logging.getLogger("fedkin.node")

INTERVAL = 0.05
"""Seconds between two looks for work."""
CALM_INTERVAL, CALM_AFTER = 1.0, 60.0
"""The same when there has been none for so many seconds: looking costs a part of a core."""

LONGEST_FETCH = 600.0
"""Seconds that the parts of a message may take to arrive."""

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class Worker:
    """Fetches messages from its SuperNode and answers them, one at a time.

    Args:
        address: The SuperNode's Runtime API, `host:port`; on this machine.
        secret: What the SuperNode knows this process by, or None.
    """

    def __init__(self, address: str, secret: bytes | None) -> None:
        self._address = address
        self._computing = threading.Lock()
        self._memories: dict[int, RecordDict] = {}  # by run, the newest of each
        interceptors: list = []
        if secret is not None:
            interceptors.append(
                SuperExecAuthHttpInterceptor(
                    master_secret=secret, protected_methods=frozenset({ACQUIRE})
                )
            )
        self._client = self._connect(*interceptors)

    def look(self) -> bool:
        """Look for a message, and begin to answer it; tell whether there is one.

        Every message has a thread of its own: one whose run has ended meanwhile never arrives whole, and
        Flower waits for it; the next ones need not.
        """
        request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        response = self._client.AcquireTask(request)
        if not (response.HasField("task") and response.token):
            return False
        arguments = (response.task.task_id, response.token)
        threading.Thread(target=self._work, args=arguments, daemon=True).start()
        return True

    def _work(self, task: int, token: str) -> None:
        client = self._connect(RuntimeTokenHttpInterceptor(token))
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heartbeat.start()
        try:
            self._respond(client, task)
        except Exception:
            # A SuperNode that is told of a failure waits for an answer for ever, and for nothing else.
            # One that hears no heartbeat any more gives the message up and answers by itself.
            logger.exception("a message was not answered, not even with an error")
        finally:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                heartbeat.stop()
            client.close()

    def _respond(self, client: RuntimeHttpClient, task: int) -> None:
        """Fetch a message and answer it: with an error, if it cannot be read or answered."""
        context = context_from_proto(client.PullTaskInput(PullTaskInputRequest()).context)
        pulled = client.PullMessages(PullAppMessagesRequest())
        envelope, tree = message_from_proto(pulled.messages_list[0]), pulled.message_object_trees[0]
        envelope.metadata.__dict__["_message_id"] = tree.object_id
        status, details = SubStatus.COMPLETED, ""
        try:
            message = _fetch(client, context, tree)
            with self._at_work(task, context):
                push_message(client, answer(message, context), context)
        except Exception as error:
            logger.exception("a message could not be answered")
            status, details = SubStatus.FAILED, "the message could not be read or answered"
            reason = f"{details} ({type(error).__name__}); the log of the node's owner says where"
            with self._at_work(task, context):
                refusal = Message(Error(int(Refusal.INTERNAL), reason), reply_to=envelope)
                push_message(client, refusal, context)
        push_task_output(client, context, status, details)

    @contextlib.contextmanager
    def _at_work(self, task: int, context: Context) -> Iterator[None]:
        """Be the only one at work, with what the node remembers of the run.

        The SuperNode hands out the next message as soon as it has an answer, and gets the node's memory
        only after that: what is remembered here may be newer.
        """
        with self._computing:
            TaskIdentity.task_id, TaskIdentity.run_id = task, context.run_id
            TaskIdentity.node_id = context.node_id
            context.state = self._memories.pop(context.run_id, context.state)
            try:
                yield
            finally:
                self._memories[context.run_id] = context.state
                while len(self._memories) > MOST_RUNS:
                    del self._memories[next(iter(self._memories))]

    def _connect(self, *interceptors: Any) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=True,
            root_certificates=None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="fedkin-node"),
                *interceptors,
            ],
            retry_invoker=make_simple_http_retry_invoker(),
        )


def _fetch(client: RuntimeHttpClient, context: Context, tree: ObjectTree) -> Message:
    """Fetch the parts of a message; the app that goes with it is left where it is.

    As Flower's own `pull_task_input`, but with shorter waits: a part of the message that has not arrived
    yet is asked for again after a twentieth of a second, not after a whole one.
    """
    node, run = Node(node_id=context.node_id), context.run_id
    contents = pull_objects(
        [part.object_id for part in iterate_object_tree(tree)],
        make_pull_object_fn_protobuf(client.PullObject, node, run),
        max_time=LONGEST_FETCH,
        initial_backoff=0.05,
        backoff_cap=1.0,
    )
    client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
    )
    message = cast(Message, inflate_object_from_contents(tree.object_id, contents))
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def main() -> None:
    """Work until the parent process is gone."""
    parser = argparse.ArgumentParser(prog="python -m fedkin.flower.worker")
    parser.add_argument("--runtime-api-address", required=True, metavar="HOST:PORT")
    parser.add_argument("--secret-file", type=Path)
    parser.add_argument("--parent-pid", type=int, help="end when this process is gone")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    keep_compiled_code_like_parent()
    secret = None
    if arguments.secret_file is not None:
        secret = load_superexec_auth_secret(secret_file=str(arguments.secret_file))
    if arguments.parent_pid is not None:
        threading.Thread(target=_end_with, args=(arguments.parent_pid,), daemon=True).start()
    worker = Worker(arguments.runtime_api_address, secret)
    last = time.monotonic()
    while True:
        if worker.look():
            last = time.monotonic()
        time.sleep(INTERVAL if time.monotonic() - last < CALM_AFTER else CALM_INTERVAL)


def _end_with(process: int) -> NoReturn:
    """End this process when another is gone: looking for messages does not end, it tries for ever."""
    while _exists(process):
        time.sleep(0.5)
    os._exit(0)


def _exists(process: int) -> bool:
    """Tell whether a process is there; one that has ended may stay listed until its parent looks."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main()
