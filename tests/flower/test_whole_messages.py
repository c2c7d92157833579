"""Whole messages in single requests, with Flower's own applications: a SuperLink's and a SuperNode's."""

import threading
import time
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

import uvicorn
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import BytesList
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.run import RunNotRunningException
from flwr.superlink.grid import http_grid
from flwr.superlink.main import create_app
from flwr.supernode import fleet_http_connection
from flwr.supernode import main as supernode_main
from flwr.supernode.nodestate import NodeStateFactory

from fedkin.flower.internals import bundles, handed_out, node_bundles, runtime, serverapp
from fedkin.flower.internals.bundles import COLLECT, DELIVER, DISPATCH, FETCH, Bundles, object_ids
from fedkin.flower.internals.bundling_clients import bundling_fleet_client
from fedkin.flower.internals.node_bundles import TAKE, Mailbox, NodeBundles
from flower.fake_grid import TaskIdentity

PROTOBUF = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}


class Noting:
    """An application that notes which paths are asked for."""

    def __init__(self, application):
        self.application = application
        self.paths = []

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            self.paths.append(scope["path"])
        await self.application(scope, receive, send)


@contextmanager
def served(application):
    """Serve on a free port; return the address."""
    config = uvicorn.Config(application, port=0, log_level="error", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)


class Link:
    """A SuperLink with one run, and its clients."""

    def __init__(self, stack):
        self.stack = stack
        application = create_app()
        self.state = application.state.linkstate_factory.state()
        self.run = self.state.create_run(
            "a/b", "1.0.0", "hash", {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP
        )
        (task,) = self.state.get_tasks(statuses=["pending"])
        self.token = self.state.claim_task(task.task_id)
        assert self.state.activate_task(task.task_id)
        self.task = task.task_id
        self.flower = Noting(application)
        self.outside = Noting(Bundles(self.flower, lambda: self.state))
        self.address = stack.enter_context(served(self.outside))

    def grid(self):
        grid = http_grid.HttpGrid(self.address, insecure=True, token=self.token)
        self.stack.callback(grid.close)
        grid.set_run(self.state.get_run_info(run_ids=[self.run])[0])
        return grid

    def node(self, contents=None, keys=None):
        """Connect a node."""
        contents = contents or (lambda tree: [])
        if keys is not None:
            self.state.create_node("", "", public_key_to_bytes(keys[1]), 0)
        self.arrived = threading.Event()
        client = bundling_fleet_client(contents, self.arrived.set)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fleet_http_connection, "FleetHttpClient", client)
            connection = fleet_http_connection.http_request_response(
                self.address, True, None, keys, 0
            )
            names = ("node_id", "receive", "send", "get_run", "get_fab", "pull", "push", "confirm")
            return SimpleNamespace(
                **dict(zip(names, self.stack.enter_context(connection), strict=True))
            )

    def requests(self):
        """Return what was asked for since this was called last, apart from heartbeats and the beginning."""
        found = [path for path in self.outside.paths if path in (*bundles.FLOWERS_OWN, *OBJECTS)]
        self.outside.paths.clear()
        self.flower.paths.clear()
        return found


OBJECTS = [
    f"/v1/{api}/{name}"
    for api in ("fleet", "runtime")
    for name in (
        *("pull-messages", "push-messages", "pull-object", "push-object"),
        "confirm-message-received",
    )
]


@pytest.fixture
def link(monkeypatch):
    """Clients of a run move whole messages, as the program of a run lets them."""
    monkeypatch.setattr(http_grid, "RuntimeHttpClient", http_grid.RuntimeHttpClient)
    push = http_grid.HttpGrid._try_push_messages
    monkeypatch.setattr(http_grid.HttpGrid, "_try_push_messages", push)
    serverapp.move_whole_messages()
    with ExitStack() as stack:
        made = Link(stack)
        monkeypatch.setattr(TaskIdentity, "_run_id", made.run)
        yield made


def question(node, **values):
    return Message(RecordDict({"request": ConfigRecord(values)}), node.node_id, "train")


def fetched(node, run, received):
    """Do with a message what a SuperNode does."""
    envelope, tree = received
    contents = {number: node.pull(run, number) for number in object_ids([tree])}
    node.confirm(run, tree.object_id)
    message = inflate_object_from_contents(tree.object_id, contents)
    message.metadata.__dict__["_message_id"] = tree.object_id
    assert envelope.metadata.message_id == tree.object_id
    return message


def replied(message, **values):
    """Return an answer, and the contents of its objects by their ids."""
    reply = Message(RecordDict({"answer": ConfigRecord(values)}), reply_to=message)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        return reply, {
            number: part.deflate() for number, part in get_all_nested_objects(reply).items()
        }


def answer(link, node, stored, received, **values):
    """Answer a message as a SuperNode does."""
    message = fetched(node, link.run, received)
    reply, parts = replied(message, **values)
    stored.update(parts)
    tree = get_object_tree(reply)
    wanted, session = node.send(reply, tree, 0.1)
    for number in wanted:
        node.push(link.run, session, number, stored[number])
    return message


def test_a_message_and_its_answer_take_four_requests(link):
    stored = {}
    node = link.node(lambda tree: [stored[each] for each in object_ids([tree])])
    grid = link.grid()
    link.requests()
    (number,) = grid.push_messages([question(node, number=7, content=b"x" * 1000)])
    message = answer(link, node, stored, node.receive(), reply=8)
    assert message.content["request"]["content"] == b"x" * 1000
    (found,) = grid.pull_messages([number])
    assert found.content["answer"]["reply"] == 8
    assert found.metadata.reply_to_message_id == number
    assert link.requests() == [DISPATCH, FETCH, DELIVER, COLLECT]
    assert link.arrived.is_set()
    assert not link.state.object_store.store  # nothing stays


def test_messages_for_several_nodes_take_one_request_of_the_center_and_so_do_answers(link):
    stored = {}
    nodes = [
        link.node(lambda tree: [stored[each] for each in object_ids([tree])]) for _ in range(3)
    ]
    grid = link.grid()
    link.requests()
    numbers = grid.push_messages([question(node, number=7) for node in nodes])
    for node in nodes:
        answer(link, node, stored, node.receive(), reply=8)
    assert len(grid.pull_messages(numbers)) == 3
    assert link.requests() == [DISPATCH, *[FETCH, DELIVER] * 3, COLLECT]


def test_large_messages_do_not_all_go_together(link, monkeypatch):
    monkeypatch.setattr(bundles, "LARGEST_BUNDLE", 25_000)
    stored = {}
    nodes = [
        link.node(lambda tree: [stored[each] for each in object_ids([tree])]) for _ in range(3)
    ]
    serverapp.move_whole_messages()
    grid = link.grid()
    link.requests()
    # What messages have in common goes once.
    contents = [b"a" * 20_000, b"a" * 20_000, b"b" * 20_000]
    numbers = grid.push_messages(
        [question(node, content=each) for node, each in zip(nodes, contents, strict=True)]
    )
    assert link.requests() == [DISPATCH] * 2
    for number, (node, content) in enumerate(zip(nodes, contents, strict=True)):
        message = answer(link, node, stored, node.receive(), reply=bytes([number]) * 20_000)
        assert message.content["request"]["content"] == content
    link.requests()
    found = {reply.metadata.reply_to_message_id: reply for reply in grid.pull_messages(numbers)}
    requests = link.requests()
    assert (requests[0], requests.count("/v1/runtime/pull-object")) == (COLLECT, 6)
    for place, number in enumerate(numbers):
        assert found[number].content["answer"]["reply"] == bytes([place]) * 20_000


def test_a_message_that_is_too_large_to_go_whole_is_fetched_in_parts(link, monkeypatch):
    """So that the SuperLink does not hold several copies of it at once."""
    monkeypatch.setattr(bundles, "LARGEST_BUNDLE", 10_000)
    stored = {}
    node = link.node(lambda tree: [stored[each] for each in object_ids([tree])])
    grid = link.grid()
    numbers = grid.push_messages([question(node, content=b"a" * 20_000)])
    link.requests()
    message = answer(link, node, stored, node.receive(), reply=b"b" * 20_000)
    assert message.content["request"]["content"] == b"a" * 20_000
    (found,) = grid.pull_messages(numbers)
    assert found.content["answer"]["reply"] == b"b" * 20_000
    fetched_singly = [["/v1/fleet/pull-object"] * 3, ["/v1/runtime/pull-object"] * 3]
    assert link.requests() == [
        *(FETCH, *fetched_singly[0], "/v1/fleet/confirm-message-received", DELIVER),
        *(COLLECT, *fetched_singly[1], "/v1/runtime/confirm-message-received"),
    ]
    assert not link.state.object_store.store


def test_a_request_waits_for_a_message_and_who_is_not_asked_gets_nothing(link, monkeypatch):
    monkeypatch.setattr(bundles, "NODE_SECONDS", 1.5)
    asked, other = link.node(), link.node()
    grid, got = link.grid(), {}

    def receive(name, node):
        begin = time.monotonic()
        got[name] = node.receive(), time.monotonic() - begin

    threads = [
        threading.Thread(target=receive, args=each) for each in [("asked", asked), ("other", other)]
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    link.requests()
    grid.push_messages([question(asked, number=7)])
    for thread in threads:
        thread.join()
    assert got["asked"][0] is not None
    assert 0.4 < got["asked"][1] < 1.4
    assert got["other"][0] is None
    assert got["other"][1] > 1.4
    # The other's request stayed where it was until its time was over.
    assert link.flower.paths.count(bundles.FLOWERS_OWN[FETCH]) == 2


def test_the_center_waits_for_an_answer(link):
    stored = {}
    node = link.node(lambda tree: [stored[each] for each in object_ids([tree])])
    grid = link.grid()
    numbers = grid.push_messages([question(node, number=7)])
    late = threading.Timer(0.3, lambda: answer(link, node, stored, node.receive(), reply=8))
    late.start()
    begin = time.monotonic()
    (found,) = grid.pull_messages(numbers)
    assert found.content["answer"]["reply"] == 8
    assert 0.2 < time.monotonic() - begin < bundles.CENTER_SECONDS
    late.join()


def test_a_client_that_has_gone_while_it_waited_takes_no_message_along(link):
    keys = generate_key_pairs()
    node = link.node(keys=keys)
    waiting = fleet_http_connection.FleetHttpClient.from_server_address(
        link.address,
        True,
        None,
        interceptors=[fleet_http_connection.NodeAuthHttpInterceptor(*keys)],
    )
    request = PullMessagesRequest(node=Node(node_id=node.node_id))
    with pytest.raises(httpx.ReadTimeout):
        waiting._unary_unary(
            path=FETCH, rpc_method="", request=request, response_type=Node, timeout=0.3
        )
    waiting._client.close()
    time.sleep(0.2)
    link.grid().push_messages([question(node, number=7)])
    assert node.receive() is not None


@contextmanager
def deaf(link):
    """Connect a node, and return a way to fetch whose answers do not reach it: what was on the way."""
    keys = generate_key_pairs()
    node = link.node(keys=keys)
    client = fleet_http_connection.FleetHttpClient.from_server_address(
        link.address,
        True,
        None,
        interceptors=[fleet_http_connection.NodeAuthHttpInterceptor(*keys)],
    )

    def fetch():
        request = PullMessagesRequest(node=Node(node_id=node.node_id))
        found = client._unary_unary(
            path=FETCH, rpc_method="", request=request, response_type=BytesList
        )
        response = PullMessagesResponse.FromString(found.vals[0])
        return [tree.object_id for tree in response.message_object_trees]

    try:
        yield node, fetch
    finally:
        client._client.close()


def test_a_message_that_was_lost_on_its_way_is_handed_out_again(link, monkeypatch):
    monkeypatch.setattr(bundles, "NODE_SECONDS", 0.2)
    with deaf(link) as (node, fetch):
        link.grid().push_messages([question(node, number=7), question(node, number=8)])
        (first,) = fetch()
        assert fetch() == [first]  # the second message waits for its turn
        assert node.receive()[0].metadata.message_id == first
        assert node.receive()[0].metadata.message_id != first
        assert node.receive() is None  # both have arrived
        assert fetch() == []


def test_a_message_is_not_handed_out_again_when_nobody_waits_for_the_answer(link, monkeypatch):
    monkeypatch.setattr(bundles, "NODE_SECONDS", 0.2)
    monkeypatch.setattr(handed_out, "KEPT_SECONDS", 0.5)
    with deaf(link) as (node, fetch), deaf(link) as (_, fetch_as_another):
        link.grid().push_messages([question(node, number=7)])
        assert len(fetch()) == 1
        assert fetch_as_another() == []
        time.sleep(0.6)
        assert fetch() == []


def test_a_message_that_goes_in_parts_is_announced_once(link, monkeypatch):
    """The node confirms it by itself when it has all parts, as with Flower."""
    monkeypatch.setattr(bundles, "NODE_SECONDS", 0.2)
    monkeypatch.setattr(bundles, "LARGEST_BUNDLE", 10)
    with deaf(link) as (node, fetch):
        link.grid().push_messages([question(node, number=7)])
        assert len(fetch()) == 1
        assert fetch() == []


def post(link, path, content, headers=()):
    return httpx.post(
        f"http://{link.address}{path}", content=content, headers=PROTOBUF | dict(headers)
    )


@pytest.mark.parametrize("path", [FETCH, DELIVER, COLLECT, DISPATCH])
@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 40, bundles.bundle([b"", b"x"])],
    ids=["nothing", "damage", "a bundle"],
)
def test_a_stranger_gets_what_flower_answers_to_strangers(link, path, content):
    own = bundles.FLOWERS_OWN[path]
    expected = post(link, own, content if path in (FETCH, COLLECT) else b"")
    found = post(link, path, content)
    assert found.status_code >= 400
    assert found.json()
    if content in (b"", b"\xff" * 40) and path in (FETCH, COLLECT):
        assert (found.status_code, found.content) == (expected.status_code, expected.content)


def test_a_node_cannot_fetch_what_is_for_another(link):
    mine, keys = link.node(), generate_key_pairs()
    link.node(keys=keys)
    link.grid().push_messages([question(mine, number=7)])
    client = bundling_fleet_client(lambda tree: [], lambda: None).from_server_address(
        link.address,
        True,
        None,
        interceptors=[fleet_http_connection.NodeAuthHttpInterceptor(*keys)],
    )
    request = PullMessagesRequest(node=Node(node_id=mine.node_id))
    with pytest.raises(httpx.HTTPStatusError) as caught:
        client.PullMessages(request)
    client._client.close()
    assert caught.value.response.status_code == 401
    assert mine.receive() is not None


def test_a_stranger_stores_nothing(link):
    node = link.node()
    link.grid().push_messages([question(node, number=7)])
    message = fetched(node, link.run, node.receive())
    reply, parts = replied(message, reply=8)
    request = PushMessagesRequest(
        node=Node(node_id=node.node_id), message_object_trees=[get_object_tree(reply)]
    )
    content = bundles.bundle([request.SerializeToString(), *parts.values()])
    assert post(link, DELIVER, content).status_code == 401
    assert not link.state.object_store.store


def test_objects_that_were_not_announced_or_are_none_are_not_stored(link):
    """And Flower asks for those that are missing."""
    stray, stored = [b"no object", b""], {}
    node = link.node(lambda tree: [*stray, *list(stored.values())[:1]])
    grid = link.grid()
    numbers = grid.push_messages([question(node, number=7)])
    link.requests()
    answer(link, node, stored, node.receive(), reply=8)
    assert link.requests().count("/v1/fleet/push-object") == 2
    (found,) = grid.pull_messages(numbers)
    assert found.content["answer"]["reply"] == 8


def test_clients_that_move_parts_singly_are_served_as_before(link, monkeypatch):
    """As a SuperNode of another program is."""
    stored = {}
    flowers = fleet_http_connection.FleetHttpClient
    connection = fleet_http_connection.http_request_response(link.address, True)
    node_id, receive, send, _, _, pull, push, confirm = link.stack.enter_context(connection)
    node = SimpleNamespace(
        node_id=node_id, receive=receive, send=send, pull=pull, push=push, confirm=confirm
    )
    grid = link.grid()
    link.requests()
    numbers = grid.push_messages([question(node, number=7)])
    answer(link, node, stored, node.receive(), reply=8)
    assert fleet_http_connection.FleetHttpClient is flowers
    assert link.requests().count("/v1/fleet/pull-object") == 3
    (found,) = grid.pull_messages(numbers)
    assert found.content["answer"]["reply"] == 8


def test_a_node_learns_that_a_run_has_ended(link):
    node = link.node()
    link.grid().push_messages([question(node, number=7)])
    link.state.finish_task(link.task, sub_status="stopped", details="")
    received = node.receive()
    with pytest.raises(RunNotRunningException):  # which a SuperNode takes as it is
        fetched(node, link.run, received)


def test_a_superlink_without_whole_messages_is_named(link):
    with (
        served(create_app()) as address,
        ExitStack() as stack,
    ):
        link.address, link.stack = address, stack
        node = link.node()
        with pytest.raises(SystemExit, match="another version of fedkin"):
            node.receive()


# Between a SuperNode and its worker


@pytest.fixture
def supernode():
    """A SuperNode's application, with a run and what its main thread has."""
    factory = NodeStateFactory(ObjectStoreFactory())
    state = factory.state()
    state.set_node_id(7)
    mailbox = Mailbox()
    mailbox.watch(state)
    application = Noting(NodeBundles(supernode_main.create_app(state_factory=factory), mailbox))
    with served(application) as address:
        connection = runtime.SuperNodeConnection(address, None)
        yield SimpleNamespace(
            state=state,
            mailbox=mailbox,
            connection=connection,
            paths=application.paths,
            address=address,
        )
        connection._client.close()


def message_for_a_node(**values):
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    message = Message(RecordDict({"request": ConfigRecord(values)}), 7, "train")
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def test_a_worker_is_told_that_there_is_work_and_gets_it_whole(supernode, monkeypatch):
    message = message_for_a_node(number=7)
    state = supernode.state
    with no_object_id_recompute():
        tree, parts = get_object_tree(message), get_all_nested_objects(message)
    monkeypatch.setattr(
        node_bundles.runtime_handlers,
        "pull_task_input",
        lambda request, state, task: runtime.PullTaskInputResponse(),
    )
    connection = supernode.connection
    got = {}

    def wait():
        begin = time.monotonic()
        got["item"], got["seconds"] = connection.next_work_item(), time.monotonic() - begin

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.6)
    assert state.create_task(task_type=TaskType.CLIENT_APP, run_id=1, fab_hash="hash")
    state.object_store.preregister(1, tree)
    state.store_message(message)
    for number, part in parts.items():
        state.object_store.put(number, part.deflate())
    supernode.mailbox.arrived()
    thread.join()
    item = got["item"]
    assert 0.5 < got["seconds"] < 1.5
    assert supernode.paths == [TAKE]
    contents = {bundles.get_object_id(part): part for part in item.parts}
    found = inflate_object_from_contents(tree.object_id, contents)
    assert found.content["request"]["number"] == 7
    assert not state.object_store.store


@pytest.fixture
def given(supernode, monkeypatch):
    """Gives the worker work, and lets a connection forget that it has got it."""
    monkeypatch.setattr(node_bundles, "WORKER_SECONDS", 0.3)
    monkeypatch.setattr(NodeBundles, "_parts", _running)
    state, connection = supernode.state, supernode.connection

    def create():
        return state.create_task(task_type=TaskType.CLIENT_APP, run_id=1, fab_hash="hash")

    def lose():
        """Take work, as if the answer had never come: a machine slept, and the worker gave up first."""
        before = connection._last_task.number
        lost = connection.next_work_item()
        connection._last_task.number = before
        return lost

    return SimpleNamespace(create=create, lose=lose, take=connection.next_work_item)


def _running(self, acquired):
    self._mailbox.state.activate_task(acquired.task.task_id)
    return [b"", b""]


def test_work_that_was_lost_on_the_way_to_the_worker_is_given_again(given):
    numbers = {given.create(), given.create()}
    lost = given.lose()
    again, other = given.take(), given.take()
    assert (again.number, again.token) == (lost.number, lost.token)
    assert {again.number, other.number} == numbers
    assert given.take() is None  # what has arrived does not come twice


def test_another_process_does_not_get_what_was_lost_on_the_way_to_the_former_one(given, supernode):
    given.create()
    given.lose()
    another = runtime.SuperNodeConnection(supernode.address, None)
    with closing(another._client):
        assert another.next_work_item() is None
    assert given.take() is None  # the former one is gone, and what it did not get, too


def test_work_whose_time_is_over_is_not_given_again(given, supernode, monkeypatch):
    """Flower has answered for it; the worker's own answer would be refused."""
    task = given.create()
    given.lose()
    supernode.state.task_token_store[task].active_until -= timedelta(seconds=120)
    assert given.take() is None
    given.create()
    given.lose()
    monkeypatch.setattr(node_bundles, "KEPT_SECONDS", 0.2)
    time.sleep(0.3)
    assert given.take() is None  # nobody may wait for the answer any more


def test_who_cannot_prove_to_be_the_worker_neither_gets_nor_confirms_anything(
    given, supernode, monkeypatch
):
    given.create()
    lost = given.lose()
    asked = node_bundles.ask

    async def refuse(*arguments):
        return bundles.Answer(status=401, body=b"no")

    monkeypatch.setattr(node_bundles, "ask", refuse)
    monkeypatch.setattr(supernode.connection._client, "_retry_invoker", None)
    for claimed in (None, lost.number):
        supernode.connection._last_task.number = claimed
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            given.take()
    monkeypatch.setattr(node_bundles, "ask", asked)
    supernode.connection._last_task.number = None
    assert given.take().number == lost.number


def test_work_whose_message_is_gone_is_none(supernode, monkeypatch):
    """Such as that of a run that has ended while it arrived. It must not end the worker."""
    state, connection = supernode.state, supernode.connection
    assert state.create_task(task_type=TaskType.CLIENT_APP, run_id=1, fab_hash="hash")
    assert connection.next_work_item() is None  # the SuperNode does not know the run
    monkeypatch.setattr(
        node_bundles.runtime_handlers,
        "pull_task_input",
        lambda request, state, task: runtime.PullTaskInputResponse(),
    )
    monkeypatch.setattr(node_bundles, "COMPLETE_SECONDS", 0.1)
    assert state.create_task(task_type=TaskType.CLIENT_APP, run_id=1, fab_hash="hash")
    assert connection.next_work_item() is None  # there is no message
    message = message_for_a_node(number=7)
    state.store_message(message)
    assert state.create_task(task_type=TaskType.CLIENT_APP, run_id=1, fab_hash="hash")
    assert connection.next_work_item() is None  # its objects have been deleted
    assert supernode.paths == [TAKE] * 3


def test_a_worker_without_work_asks_again_after_a_while(supernode, monkeypatch):
    monkeypatch.setattr(node_bundles, "WORKER_SECONDS", 0.3)
    connection = supernode.connection
    begin = time.monotonic()
    assert connection.next_work_item() is None
    assert 0.2 < time.monotonic() - begin < 2


def test_a_supernode_waits_for_an_answer_without_asking_all_the_time(supernode):
    """Flower's main thread looks, and sleeps half a second if there is none."""
    state, got = supernode.state, {}

    def wait():
        got["messages"] = state.get_messages_legacy(is_reply=True)
        got["at"] = time.monotonic()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.1)
    assert state.get_messages_legacy(is_reply=False) == []  # does not wait
    message = message_for_a_node(number=7)
    reply, _ = replied(message, reply=8)
    with supernode.mailbox.storing():
        state.store_message(reply)
        time.sleep(1.2 * node_bundles.LOOK_SECONDS)
        assert got == {}  # its objects are still to come
        begin = time.monotonic()
    thread.join(5)
    assert got["messages"] == [reply]
    assert got["at"] - begin < 0.2
