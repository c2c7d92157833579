"""Whole messages between a SuperNode and its worker, and no waiting by asking again and again.

`NodeBundles` stands before the application that a SuperNode serves for its worker, as `bundles.Bundles`
does at a SuperLink. A worker asks at `TAKE` and is answered when there is work: with the message, its
objects, and the node's memory. It says which task it has got last, so that one that was lost on the way, as
when a machine wakes up, is given again. `Mailbox` is what both sides of a SuperNode's process share: the part
that talks to the SuperLink says when a message has arrived, and waits there for the answer.

This file is imported by programs that do not compute, and imports nothing of fedkin but `bundles` and
`handed_out`.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.common.constant import Status
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskResponse,
    PullAppMessagesRequest,
    PullTaskInputRequest,
)
from flwr.supercore.error import FlowerError
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supernode.servicer.runtime import runtime_handlers

from fedkin.flower.internals.bundles import (
    DISPATCH,
    LARGEST_BUNDLE,
    Answer,
    Application,
    Receive,
    Scope,
    Send,
    all_objects,
    answer_or_pass_on,
    ask,
    bundle,
    dispatch,
    object_ids,
    unbundle,
    wait_for,
)
from fedkin.flower.internals.handed_out import KEPT_SECONDS

logger = logging.getLogger("fedkin.node")

TAKE = "/v1/runtime/take"
"""Where a worker waits for work."""
ACQUIRE = "/v1/runtime/acquire-task"
"""Flower's own path for that."""
WORKER_SECONDS = 2.0
"""The longest that a worker's request is kept waiting. A SuperNode that ends waits for it, three seconds at
most."""
LOOK_SECONDS = 0.5
"""How often both sides look whether there is something that nobody has told them of."""
WORKER, LAST_TASK = b"fedkin-worker", b"fedkin-last-task"
"""Headers of a worker's request for work: a random number that stands for its process, and the last task that
it has got."""
COMPLETE_SECONDS = 1.0
"""How long a message may take to be stored after its work was announced; later parts are fetched singly."""


class Mailbox:
    """What a SuperNode's main thread and the server of its worker tell each other."""

    def __init__(self) -> None:
        self._state: Any = None
        self._answered = threading.Condition()
        self._storing = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: asyncio.Event | None = None

    @property
    def state(self) -> Any:
        """Flower's record of the node's messages."""
        assert self._state is not None
        return self._state

    def watch(self, state: Any) -> None:
        """Let Flower wait for an answer here: it would look twice a second."""
        self._state = state
        look = state.get_messages_legacy

        def get_messages(**options: Any) -> Any:
            if options.get("is_reply") is not True:
                return look(**options)
            with self._answered:
                # An answer is taken when all its objects are there.
                while self._storing or not (found := look(**options)):
                    self._answered.wait(LOOK_SECONDS)
            return found

        state.get_messages_legacy = get_messages

    def contents(self, tree: ObjectTree) -> list[bytes]:
        """Return those objects of an answer that are there."""
        found = (self.state.object_store.get(number) for number in object_ids([tree]))
        return [content for content in found if content]

    def arrived(self) -> None:
        """Say that a message has arrived; called by the main thread."""
        loop, event = self._loop, self._arrived
        if loop is not None and event is not None:
            loop.call_soon_threadsafe(event.set)

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Store an answer while inside, and say that there is one; called by the server."""
        with self._answered:
            self._storing += 1
        try:
            yield
        finally:
            with self._answered:
                self._storing -= 1
                self._answered.notify_all()

    def news(self) -> asyncio.Event:
        """Return what the server waits for; called by the server."""
        if self._arrived is None:
            self._loop, self._arrived = asyncio.get_running_loop(), asyncio.Event()
        return self._arrived


class Unconfirmed:
    """What the worker was given and has not confirmed: it may have been lost on the way.

    A message is given again while its task lives, and only for a while: the center may have given up, and
    late words of a secure sum would tell it more than they should.

    Args:
        is_alive: Tells whether a task, by its number, is still to be done, and prolongs its time.
    """

    def __init__(self, is_alive: Callable[[int], bool]) -> None:
        self._is_alive = is_alive
        self._worker = b""
        self._given: dict[int, tuple[float, bytes]] = {}

    def waits_for(self, worker: bytes, last_task: bytes) -> bool:
        """Tell whether there is anything but the task that the worker says it has got last."""
        return worker == self._worker and any(_header(task) != last_task for task in self._given)

    def confirm(self, worker: bytes, last_task: bytes) -> None:
        """Forget what the worker has got, what is too old, and what a former worker did not get."""
        if worker != self._worker:
            self._worker, self._given = worker, {}
        now = time.time()  # the clock of a task's time, which also counts a machine's sleep
        self._given = {
            task: (since, body)
            for task, (since, body) in self._given.items()
            if _header(task) != last_task
            and 0 <= now - since <= KEPT_SECONDS
            and self._is_alive(task)
        }

    def add(self, task: int, body: bytes) -> None:
        """Keep what the worker is about to get."""
        if self._worker:  # one that does not say who it is never confirms anything
            self._given[task] = time.time(), body

    @property
    def oldest(self) -> bytes | None:
        """What the worker is to get first; None if there is nothing."""
        return next((body for _, body in self._given.values()), None)


def _header(task: int) -> bytes:
    """Return a task's number as a worker sends it."""
    return str(task).encode()


class NodeBundles:
    """An ASGI application: a SuperNode's own, with whole messages.

    Args:
        application: Flower's application.
        mailbox: What it shares with the SuperNode's main thread.
    """

    def __init__(self, application: Application, mailbox: Mailbox) -> None:
        self._application = application
        self._mailbox = mailbox
        self._unconfirmed = Unconfirmed(lambda task: mailbox.state.acknowledge_task_heartbeat(task))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a whole message; pass all others on."""
        ways = {TAKE: self._take, DISPATCH: self._dispatch}
        await answer_or_pass_on(ways, self._application, scope, receive, send)

    async def _take(self, scope: Scope, body: bytes, receive: Receive) -> Answer | None:
        """Answer the worker when there is work, or after a while.

        A worker proves who it is once per request, so Flower is asked once: when there seems to be work.
        """
        headers = dict(scope["headers"])
        worker, last_task = headers.get(WORKER, b""), headers.get(LAST_TASK, b"")
        deadline, news = time.monotonic() + WORKER_SECONDS, self._mailbox.news()
        while (
            not self._has_work()
            and not self._unconfirmed.waits_for(worker, last_task)
            and (left := deadline - time.monotonic()) > 0
        ):
            news.clear()
            if not await wait_for(news, receive, min(left, LOOK_SECONDS)):
                return None
        answer = await ask(self._application, scope, ACQUIRE, body)
        if answer.status == 200:  # only now is it known that the worker is who it says
            self._unconfirmed.confirm(worker, last_task)
            acquired = AcquireTaskResponse.FromString(answer.body)
            answer.body = bundle([AcquireTaskResponse().SerializeToString()])
            if acquired.HasField("task") and acquired.token:
                parts = await asyncio.to_thread(self._parts, acquired)
                if parts is not None:
                    answer.body = bundle([acquired.SerializeToString(), *parts])
                    self._unconfirmed.add(acquired.task.task_id, answer.body)
            answer.body = self._unconfirmed.oldest or answer.body
        return answer

    def _has_work(self) -> bool:
        return bool(self._mailbox.state.get_tasks(statuses=[Status.PENDING]))

    def _parts(self, acquired: AcquireTaskResponse) -> list[bytes] | None:
        """Return the node's memory, the message, and its objects if all are there.

        None if there is no message: a SuperNode takes one back whose run ends while it arrives. When a
        task's time is over, Flower answers for it.
        """
        try:
            return self._pull(acquired)
        except (FlowerError, NoObjectInStoreError) as error:
            logger.warning("a message cannot be handed to the worker: %s", error)
            return None

    def _pull(self, acquired: AcquireTaskResponse) -> list[bytes] | None:
        state, task = self._mailbox.state, acquired.task
        memory = runtime_handlers.pull_task_input(PullTaskInputRequest(), state, task)
        memory.ClearField("fab")  # a worker runs fedkin's own code
        deadline = time.monotonic() + COMPLETE_SECONDS
        while True:
            pulled = runtime_handlers.pull_messages(PullAppMessagesRequest(), state, task)
            if pulled.messages_list:
                break
            if time.monotonic() > deadline:
                logger.warning("a message was gone before the worker had it")
                return None
            time.sleep(0.005)
        tree = pulled.message_object_trees[0]
        contents = self._contents(acquired, tree, deadline)
        if contents:
            confirm = ConfirmMessageReceivedRequest(message_object_id=tree.object_id)
            runtime_handlers.confirm_message_received(confirm, state, task)
        return [memory.SerializeToString(), pulled.SerializeToString(), *contents]

    def _contents(
        self, acquired: AcquireTaskResponse, tree: ObjectTree, deadline: float
    ) -> list[bytes]:
        """Return the objects of a message; none if they do not arrive soon, or do not go together."""

        def read(number: str) -> bytes:
            request = PullObjectRequest(object_id=number)
            while True:
                found = runtime_handlers.pull_object(request, self._mailbox.state, acquired.task)
                if found.object_available or time.monotonic() > deadline:
                    return found.object_content
                time.sleep(0.005)

        return all_objects(tree, read, LARGEST_BUNDLE) or []

    async def _dispatch(self, scope: Scope, body: bytes, receive: Receive) -> Answer:
        """Take the worker's answer."""
        first, *objects = unbundle(body)
        with self._mailbox.storing():
            answer, _ = await dispatch(
                self._application, scope, first, objects, self._mailbox.state
            )
        return answer
