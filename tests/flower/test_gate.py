"""The gate before a SuperLink's application: who may ask for what."""

import asyncio

import pytest

from fedkin.flower.internals.superlink import Gate, may_pass

NODES = "/v1/fleet/pull-messages"
OWNER = ["/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/", "", "/v1/fleet"]
TRICKS = [
    "/V1/FLEET/x",
    "//v1/fleet/x",
    "/v1/control/../fleet/x",
    "/health/../v1/control/start-run",
]
HERE = [("127.0.0.1", 5), ("::1", 5), ("127.8.0.1", 5), ("::ffff:127.0.0.1", 5)]
ELSEWHERE = [
    ("10.0.0.7", 5),
    ("192.0.2.1", 5),
    ("::ffff:10.0.0.7", 5),
    ("0.0.0.0", 5),
    ("", 0),
    None,
]


@pytest.mark.parametrize("client", ELSEWHERE)
@pytest.mark.parametrize("path", OWNER + TRICKS)
def test_others_may_not_control(path, client):
    assert not may_pass(path, client)


@pytest.mark.parametrize("client", HERE + ELSEWHERE)
def test_nodes_may_come_from_everywhere(client):
    assert may_pass(NODES, client)
    assert may_pass("/health", client)


@pytest.mark.parametrize("client", HERE)
@pytest.mark.parametrize("path", OWNER)
def test_this_machine_may_do_all(path, client):
    assert may_pass(path, client)


def ask(scope):
    """Send one request through a gate; return what reached the application and what was answered."""
    reached, sent = [], []

    async def application(scope, receive, send):
        reached.append(scope)

    async def receive():
        raise AssertionError("the gate reads no body")

    async def send(message):
        sent.append(message)

    asyncio.run(Gate(application)(scope, receive, send))
    return reached, sent


def test_a_refused_request_does_not_reach_the_application():
    reached, sent = ask(
        {"type": "http", "path": "/v1/control/start-run", "client": ("10.0.0.7", 9)}
    )
    assert not reached
    assert sent[0]["status"] == 403
    assert b"own machine" in sent[1]["body"]


def test_a_header_does_not_make_a_stranger_local():
    headers = [(b"x-forwarded-for", b"127.0.0.1"), (b"host", b"localhost")]
    scope = {
        "type": "http",
        "path": "/v1/control/start-run",
        "client": ("10.0.0.7", 9),
        "headers": headers,
    }
    assert not ask(scope)[0]


def test_websockets_are_refused_too():
    reached, sent = ask({"type": "websocket", "path": "/v1/control/x", "client": ("10.0.0.7", 9)})
    assert not reached
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_start_and_end_of_the_application_pass():
    assert ask({"type": "lifespan"})[0]
