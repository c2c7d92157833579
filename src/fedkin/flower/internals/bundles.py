"""Whole messages in single requests: in Flower, every part of a message is a request of its own.

Flower makes several objects of a message. It announces the message in one request, pushes or pulls each
object in another, and confirms its arrival in a third; and who waits for a message asks again and again. A
server spends most of a small message's time on taking requests apart. Here one request moves a message with
all its objects, and one that waits is answered when there is something.

`Bundles` stands before Flower's application. It knows four more paths; each is passed on to Flower's own
path as what Flower expects there, so it is Flower that decides who may ask, and only then are the objects
added or stored. A client that does not know these paths uses Flower's own, as before. `bundling_clients.py`
has Flower's clients with these paths.

This file is imported by programs that do not compute, and imports nothing of fedkin but `handed_out.py`.
"""

import asyncio
import time
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import BytesList
from flwr.proto.runtime_pb2 import (
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.supercore.inflatable.inflatable_object import (
    UnexpectedObjectContentError,
    get_object_id,
    iterate_object_tree,
)

from fedkin.flower.internals.handed_out import HandedOut

FETCH, DELIVER = "/v1/fleet/fetch", "/v1/fleet/deliver"
"""Where a node waits for a message and gets it whole, and where it sends its answer."""
COLLECT, DISPATCH = "/v1/runtime/collect", "/v1/runtime/dispatch"
"""Where a run's program waits for answers, and where it sends messages."""
FLOWERS_OWN = {
    FETCH: "/v1/fleet/pull-messages",
    DELIVER: "/v1/fleet/push-messages",
    COLLECT: "/v1/runtime/pull-messages",
    DISPATCH: "/v1/runtime/push-messages",
}

NODE_SECONDS, CENTER_SECONDS = 5.0, 1.0
"""The longest that a request is kept waiting. Flower itself answers for a node that is gone, which the
center notices when it asks."""
LARGEST_BUNDLE = 64_000_000
"""Messages are handed out together up to this many bytes, which both sides hold in memory at once. The
objects of a larger message are fetched one by one."""
TOGETHER_SECONDS = 0.01
"""How long answers that arrive after the first are waited for, so that one request takes them all."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass
class Answer:
    """What an application answered."""

    status: int = 500
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    async def send(self, send: Send) -> None:
        """Send it to the client."""
        length = (b"content-length", str(len(self.body)).encode())
        headers = [each for each in self.headers if each[0].lower() != length[0]]
        start = {"type": "http.response.start", "status": self.status}
        await send({**start, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": self.body})


async def read_body(receive: Receive) -> bytes | None:
    """Return the body of a request; None if the client is gone."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def ask(application: Application, scope: Scope, path: str, body: bytes) -> Answer:
    """Let an application answer a request as if it had been for another path and had this body."""
    answer, answered, begun = Answer(), asyncio.Event(), False

    async def receive() -> MutableMapping[str, Any]:
        nonlocal begun
        if not begun:
            begun = True
            return {"type": "http.request", "body": body, "more_body": False}
        await answered.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status, answer.headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            answer.body += message.get("body", b"")
            if not message.get("more_body", False):
                answered.set()

    length = (b"content-length", str(len(body)).encode())
    headers = [each for each in scope["headers"] if each[0] != length[0]]
    own = {"path": path, "raw_path": path.encode(), "headers": [*headers, length]}
    # Flower keeps in `state` what it has read of a request, which may be asked again.
    await application({**scope, **own, "state": dict(scope.get("state", {}))}, receive, send)
    return answer


def parsed(kind: Any, body: bytes) -> Any:
    """Return a message of protobuf; None if the body is none."""
    try:
        return kind.FromString(body)
    except Exception:  # protobuf's own, which says no more
        return None


def unbundle(body: bytes) -> list[bytes]:
    """Return the parts of a bundle; one without content if it is no bundle, which Flower then refuses."""
    found = parsed(BytesList, body)
    return list(found.vals) if found is not None and found.vals else [b""]


def bundle(parts: Iterable[bytes]) -> bytes:
    """Return parts as one body."""
    return BytesList(vals=parts).SerializeToString()


def object_ids(trees: Iterable[ObjectTree]) -> list[str]:
    """Return the ids of all objects of messages, each once."""
    return list(
        dict.fromkeys(part.object_id for tree in trees for part in iterate_object_tree(tree))
    )


def all_objects(
    tree: ObjectTree, read: Callable[[str], bytes | None], largest: int
) -> list[bytes] | None:
    """Return all objects of a message; None if one is missing, or if they have more bytes than `largest`.

    Args:
        tree: The message.
        read: Returns an object, given its id; nothing if it is not there.
        largest: How many bytes the objects may have together.
    """
    found: list[bytes] = []
    for number in object_ids([tree]):
        content = read(number)
        if not content or len(content) > largest:
            return None
        found.append(content)
        largest -= len(content)
    return found


class Waiting:
    """Who waits for a message, by an address."""

    def __init__(self) -> None:
        self._events: dict[int, set[asyncio.Event]] = {}

    @contextmanager
    def registered(self, address: int) -> Iterator[asyncio.Event]:
        """Hear of news for an address while inside."""
        event = asyncio.Event()
        self._events.setdefault(address, set()).add(event)
        try:
            yield event
        finally:
            own = self._events[address]
            own.discard(event)
            if not own:
                del self._events[address]

    def wake(self, addresses: Iterable[int]) -> None:
        """Say that there is news."""
        for address in addresses:
            for event in self._events.get(address, ()):
                event.set()


async def wait_for(event: asyncio.Event, receive: Receive, seconds: float) -> bool:
    """Wait for news, at most so long; return whether the client is still there."""
    news, gone = asyncio.ensure_future(event.wait()), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({news, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return not gone.done()
    finally:
        for task in (news, gone):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def answer_or_pass_on(
    ways: Mapping[str, Callable[[Scope, bytes, Receive], Awaitable[Answer | None]]],
    application: Application,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Answer a request whose path has a way of its own; let Flower's application answer all others."""
    way = ways.get(scope.get("path", "")) if scope["type"] == "http" else None
    if way is None:
        await application(scope, receive, send)
        return
    body = await read_body(receive)
    answer = None if body is None else await way(scope, body, receive)
    if answer is not None:
        await answer.send(send)


class Bundles:
    """An ASGI application: a SuperLink's own, with whole messages.

    Args:
        application: Flower's application.
        state: Returns Flower's record of messages.
    """

    def __init__(self, application: Application, state: Callable[[], Any]) -> None:
        self._application = application
        self._state = state
        self._nodes, self._runs = Waiting(), Waiting()
        self._handed_out = HandedOut()
        self._whole = asyncio.Lock()
        """Held while a message is stored or taken, so that none is taken before all its objects are there."""
        self._ways = {
            FETCH: self._fetch,
            DELIVER: self._deliver,
            COLLECT: self._collect,
            DISPATCH: self._dispatch,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a whole message; pass all others on."""
        await answer_or_pass_on(self._ways, self._application, scope, receive, send)

    async def _fetch(self, scope: Scope, body: bytes, receive: Receive) -> Answer | None:
        """Answer a node that waits for a message."""
        request = parsed(PullMessagesRequest, body)
        if request is None:
            return await ask(self._application, scope, FLOWERS_OWN[FETCH], body)
        node: int = request.node.node_id

        def contents(answered: bytes) -> bytes | None:
            response = PullMessagesResponse.FromString(answered)
            self._handed_out.arrived(node, request.message_ids)
            if response.messages_list:
                (message,), (tree,) = response.messages_list, response.message_object_trees
                taken = self._take_for_node(node, message.metadata.run_id, tree)
                arriving = tree.object_id if taken else None
                self._handed_out.add(node, bundle([answered, *taken]), arriving)
            return self._handed_out.next(node)

        with self._nodes.registered(node) as news:
            return await self._wait(scope, body, receive, FETCH, NODE_SECONDS, news, contents)

    async def _collect(self, scope: Scope, body: bytes, receive: Receive) -> Answer | None:
        """Answer a run's program that waits for answers of nodes."""

        def contents(answered: bytes) -> bytes | None:
            response = PullAppMessagesResponse.FromString(answered)
            taken: list[bytes] = []
            state, left = self._state(), LARGEST_BUNDLE
            for message, tree in zip(
                response.messages_list, response.message_object_trees, strict=True
            ):
                read = partial(state.get_object, message.metadata.run_id)
                own = all_objects(tree, read, left)
                if own is not None:
                    taken += own
                    left -= sum(map(len, own))
                    state.object_store.delete(tree.object_id)
            return bundle([answered, *taken]) if response.messages_list else None

        with self._runs.registered(0) as news:
            return await self._wait(scope, body, receive, COLLECT, CENTER_SECONDS, news, contents)

    async def _wait(
        self,
        scope: Scope,
        body: bytes,
        receive: Receive,
        path: str,
        seconds: float,
        news: asyncio.Event,
        contents: Callable[[bytes], bytes | None],
    ) -> Answer | None:
        """Ask Flower for a message, and again on news; `contents` makes the answer, or None to wait."""
        deadline = time.monotonic() + seconds
        while True:
            news.clear()
            async with self._whole:
                answer = await ask(self._application, scope, FLOWERS_OWN[path], body)
                if answer.status != 200:
                    return answer
                whole = await asyncio.to_thread(contents, answer.body)
            left = deadline - time.monotonic()
            if whole is not None or left <= 0:
                answer.body = whole or bundle([answer.body])
                return answer
            if not await wait_for(news, receive, left):
                return None
            if path == COLLECT and news.is_set():
                await asyncio.sleep(TOGETHER_SECONDS)

    def _take_for_node(self, node: int, run: int, tree: ObjectTree) -> list[bytes]:
        """Return all objects of a message, and confirm it; none if they do not go together."""
        from flwr.supercore.error import FlowerError
        from flwr.superlink.servicer.fleet.fleet_handlers import (
            confirm_message_received,
            pull_object,
        )

        state, identity = self._state(), Node(node_id=node)

        def read(number: str) -> bytes:
            request = PullObjectRequest(node=identity, run_id=run, object_id=number)
            return pull_object(request, state).object_content

        try:
            taken = all_objects(tree, read, LARGEST_BUNDLE)
            if taken is None:
                return []  # the node asks for them one by one, and waits
            request = ConfirmMessageReceivedRequest(
                node=identity, run_id=run, message_object_id=tree.object_id
            )
            confirm_message_received(request, state, state.object_store)
        except FlowerError:  # the run has ended: the node is told when it asks for an object
            return []
        return taken

    async def _deliver(self, scope: Scope, body: bytes, receive: Receive) -> Answer:
        """Take an answer of a node."""
        from flwr.superlink.servicer.fleet.fleet_handlers import push_object

        first, *objects = unbundle(body)
        async with self._whole:
            answer = await ask(self._application, scope, FLOWERS_OWN[DELIVER], first)
            if answer.status != 200:
                return answer
            request = PushMessagesRequest.FromString(first)
            response = PushMessagesResponse.FromString(answer.body)
            run = request.messages_list[0].metadata.run_id

            def store(number: str, content: bytes) -> bool:
                push = PushObjectRequest(
                    node=request.node,
                    run_id=run,
                    session_id=response.session_id,
                    object_id=number,
                    object_content=content,
                )
                return push_object(push, self._state()).stored

            missing = await asyncio.to_thread(
                store_objects, response.objects_to_push, objects, store
            )
        self._runs.wake([0])
        del response.objects_to_push[:]
        response.objects_to_push.extend(missing)
        answer.body = response.SerializeToString()
        return answer

    async def _dispatch(self, scope: Scope, body: bytes, receive: Receive) -> Answer:
        """Take messages of a run's program."""
        first, *objects = unbundle(body)
        async with self._whole:
            answer, request = await dispatch(
                self._application, scope, first, objects, self._state()
            )
        if request is not None:
            self._nodes.wake({each.metadata.dst_node_id for each in request.messages_list})
        return answer


async def dispatch(
    application: Application, scope: Scope, first: bytes, objects: Sequence[bytes], state: Any
) -> tuple[Answer, PushAppMessagesRequest | None]:
    """Store messages and their objects, if Flower accepts the messages."""
    answer = await ask(application, scope, FLOWERS_OWN[DISPATCH], first)
    if answer.status != 200:
        return answer, None
    request = PushAppMessagesRequest.FromString(first)
    response = PushAppMessagesResponse.FromString(answer.body)
    run = request.messages_list[0].metadata.run_id

    def store(number: str, content: bytes) -> bool:
        return state.store_object(run, response.session_id, number, content)

    missing = await asyncio.to_thread(store_objects, response.objects_to_push, objects, store)
    del response.objects_to_push[:]
    response.objects_to_push.extend(missing)
    answer.body = response.SerializeToString()
    return answer, request


def store_objects(
    wanted: Collection[str], contents: Iterable[bytes], store: Callable[[str, bytes], bool]
) -> list[str]:
    """Store those objects that Flower wants; return the ids of those that it does not have yet.

    The client pushes those by itself, and Flower tells it what is wrong: the run has ended, or an object is
    not what its message has announced.
    """
    from flwr.supercore.error import FlowerError

    missing = dict.fromkeys(wanted)
    for content in contents:
        number = get_object_id(content)
        if number in missing:
            with suppress(FlowerError, UnexpectedObjectContentError, ValueError):
                if store(number, content):
                    del missing[number]
    return list(missing)
