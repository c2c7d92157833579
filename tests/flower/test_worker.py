"""The worker against a SuperNode that is none: every message is answered, whatever it is made of."""

import threading
import time
from types import SimpleNamespace

import httpx
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import context_from_proto, context_to_proto, message_to_proto
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PullTaskInputResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedkin.flower import wire, worker
from fedkin.flower.internals import runtime
from fedkin.flower.wire import Parcel, Refusal
from flower.fake_grid import TaskIdentity
from flower.trials import JOIN, settings


class StubNode:
    """Hands one message out and notes what comes back."""

    def __init__(self, content, state=None, damage=lambda data: data, refuses=()):
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 0
        message = Message(content, 7, "train")
        message.metadata.__dict__["_message_id"] = message.object_id
        self.tree = get_object_tree(message)
        self.parts = {
            name: damage(part.deflate()) for name, part in get_all_nested_objects(message).items()
        }
        self.envelope = message_to_proto(remove_content_from_message(message))
        self.context = context_to_proto(
            Context(1, 7, settings("minority-1"), state or RecordDict(), {})
        )
        self.refuses = refuses
        self.replies, self.statuses, self.states = [], [], []
        self.pulled, self.confirmed, self.heartbeats, self.outgoing = [], [], [], []
        self.closed = False

    def item(self, *, whole=True):
        """Return what the worker gets when it asks for work."""
        return runtime.WorkItem(
            1,
            "token",
            PullTaskInputResponse(context=self.context),
            PullAppMessagesResponse(
                messages_list=[self.envelope], message_object_trees=[self.tree]
            ),
            tuple(self.parts.values()) if whole else (),
        )

    def PullObject(self, request):  # noqa: N802
        self.pulled.append(request.object_id)
        content = self.parts[request.object_id]
        return SimpleNamespace(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.confirmed.append(request.message_object_id)

    def PushMessages(self, request):  # noqa: N802
        if len(self.replies) < len(self.refuses):
            self.replies.append(None)
            raise self.refuses[len(self.replies) - 1]
        self.replies.extend(request.messages_list)
        self.sent = list(self.outgoing)
        return SimpleNamespace(objects_to_push=[], session_id="one")

    def PushObject(self, request):  # noqa: N802
        raise AssertionError("no part of it was asked for")

    def PushTaskOutput(self, request):  # noqa: N802
        self.statuses.append(request.sub_status)
        self.states.append(context_from_proto(request.context).state)

    def SendTaskHeartbeat(self, request):  # noqa: N802
        self.heartbeats.append(time.monotonic())
        return SimpleNamespace(success=True)

    def close(self):
        self.closed = True


@pytest.fixture
def work(monkeypatch):
    """Let one worker answer the messages of one stub after the other."""
    stubs = [None]  # the first connection asks for work
    monkeypatch.setattr(
        runtime.SuperNodeConnection, "_connect", lambda self, *interceptors: stubs.pop()
    )
    made = worker.Worker(runtime.SuperNodeConnection("127.0.0.1:1", None))

    def work(stub, **more):
        stubs.append(stub)
        made.handle(stub.item(**more))
        return stub

    return work


def request(**values):
    return wire.pack("request", Parcel(values))


def test_a_message_is_answered(work):
    stub = work(StubNode(request(kind="describe")))
    (reply,) = stub.replies
    assert not reply.HasField("error")
    assert reply.metadata.reply_to_message_id == stub.tree.object_id
    assert stub.statuses == ["completed"]
    assert stub.closed


def test_a_message_that_has_come_whole_is_not_fetched_again(work):
    stub = work(StubNode(request(kind="describe")))
    assert stub.pulled == stub.confirmed == []


def test_parts_that_have_not_come_with_the_message_are_fetched(work):
    stub = work(StubNode(request(kind="describe")), whole=False)
    assert set(stub.pulled) == set(stub.parts)
    assert stub.confirmed == [stub.tree.object_id]
    assert stub.statuses == ["completed"]


def test_an_answer_goes_with_its_objects(work):
    stub = work(StubNode(request(kind="describe")))
    (reply,) = stub.replies
    contents = {get_object_id(content): content for content in stub.sent}
    assert len(contents) == 3  # the message, its records, and the one that is in them
    message = inflate_object_from_contents(reply.metadata.message_id, contents)
    assert wire.unpack("answer", message.content, 0).values["name"] == "minority-1"


def test_a_short_answer_needs_no_heartbeat_and_a_long_one_has_it(work, monkeypatch):
    assert work(StubNode(request(kind="describe"))).heartbeats == []
    monkeypatch.setattr(runtime, "HEARTBEAT_SECONDS", 0.01)
    answer = worker.answer

    def slowly(message, context):
        time.sleep(0.3)
        return answer(message, context)

    monkeypatch.setattr(worker, "answer", slowly)
    assert len(work(StubNode(request(kind="describe"))).heartbeats) == 1


def test_a_message_that_cannot_be_read_is_answered_with_an_error(work):
    """Without an answer the SuperNode would wait for ever, and the node be silent from then on."""
    stub = work(StubNode(request(kind="describe"), damage=lambda data: data[: len(data) // 2]))
    (reply,) = stub.replies
    assert reply.error.code == Refusal.INTERNAL
    assert reply.metadata.reply_to_message_id == stub.tree.object_id
    assert reply.metadata.dst_node_id == stub.envelope.metadata.src_node_id
    assert stub.statuses == ["failed"]


def test_an_answer_that_cannot_be_sent_becomes_an_error(work):
    stub = work(StubNode(request(kind="describe"), refuses=[ValueError("too long")]))
    assert stub.replies[-1].error.code == Refusal.INTERNAL
    assert "too long" not in stub.replies[-1].error.reason
    assert stub.statuses == ["failed"]


def test_a_node_that_can_send_nothing_lets_its_token_expire(work):
    """Told that the work has failed, the SuperNode would not answer by itself."""
    lost = httpx.ConnectError("gone")
    stub = work(StubNode(request(kind="describe"), refuses=[lost, lost]))
    assert stub.statuses == []
    assert stub.closed


def test_a_heartbeat_that_has_ended_by_itself_does_no_harm(work, monkeypatch):
    monkeypatch.setattr(runtime.HeartbeatSender, "_run", lambda self: None)
    monkeypatch.setattr(runtime, "HEARTBEAT_SECONDS", 0.0)
    start = runtime.HeartbeatSender.start

    def start_and_end(self):
        start(self)
        self._thread.join()

    monkeypatch.setattr(runtime.HeartbeatSender, "start", start_and_end)
    stub = work(StubNode(request(kind="describe")))
    assert stub.statuses == ["completed"]
    assert stub.closed


def test_the_newest_memory_counts_not_the_one_that_was_handed_out(work):
    """The SuperNode may hand out a message before it has the memory that the last one left."""
    joined = work(StubNode(request(**JOIN)))
    assert "joined" in joined.states[0]
    later = work(StubNode(request(kind="describe")))  # with an empty memory
    assert "joined" in later.states[0]


def test_a_worker_that_waits_for_work_still_watches_the_time(monkeypatch):
    """A request for work waits for seconds, and an owner's limit may be shorter."""
    looks, looked = iter(range(3)), threading.Event()

    def end_if_overdue():
        if next(looks, None) is None:
            looked.set()
            threading.Event().wait()  # so that this thread looks at no other test's requests

    def next_work_item():
        raise KeyboardInterrupt if looked.wait(5) else TimeoutError

    connection = SimpleNamespace(next_work_item=next_work_item)
    monkeypatch.setattr(worker, "SuperNodeConnection", lambda address, secret: connection)
    monkeypatch.setattr(worker, "OVERDUE_INTERVAL", 0.01)
    monkeypatch.setattr(worker, "keep_compiled_code_like_parent", lambda: None)
    monkeypatch.setattr(worker, "end_if_overdue", end_if_overdue)
    monkeypatch.setattr("sys.argv", ["worker", "--runtime-api-address", "127.0.0.1:1"])
    with pytest.raises(KeyboardInterrupt):
        worker.main()
