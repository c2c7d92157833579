"""The gate before a SuperLink's application: who may ask for what."""

import asyncio
import sys
import time

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from flwr.proto.task_pb2 import Task, TaskStatus

from fedkin.flower.internals.superlink import Gate, RunStarter, read_token

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


TOKEN = "a" * 64
OTHERS = [None, "", "b" * 64, TOKEN[:-1], TOKEN + "a", TOKEN.upper()]


def gate(application=None, listening=()):
    return Gate(application, TOKEN, lambda: list(listening))


def request(path, client, token=TOKEN):
    headers = [] if token is None else [(b"fedkin-token", token.encode())]
    return {"type": "http", "path": path, "client": client, "headers": headers}


@pytest.mark.parametrize("client", ELSEWHERE)
@pytest.mark.parametrize("path", OWNER + TRICKS)
def test_others_may_not_control(path, client):
    """Not even with the token."""
    assert "own machine" in gate().refusal(request(path, client))


@pytest.mark.parametrize("client", HERE + ELSEWHERE)
def test_nodes_may_come_from_everywhere(client):
    assert gate().refusal(request(NODES, client, None)) is None
    assert gate().refusal(request("/health", client, None)) is None


@pytest.mark.parametrize("client", HERE)
@pytest.mark.parametrize("path", OWNER)
def test_who_has_the_token_may_do_all_on_this_machine(path, client):
    assert gate().refusal(request(path, client)) is None


@pytest.mark.parametrize("token", OTHERS)
@pytest.mark.parametrize("path", OWNER + TRICKS)
def test_other_accounts_of_this_machine_may_not_control(path, token):
    assert "own user" in gate().refusal(request(path, HERE[0], token))


def test_two_tokens_are_no_token():
    asked = request(OWNER[0], HERE[0])
    asked["headers"] *= 2
    assert gate().refusal(asked)


def ask(scope, application=None, listening=()):
    """Send one request through a gate; return what reached the application and what was answered."""
    reached, sent = [], []

    async def note(scope, receive, send):
        reached.append(scope)

    async def receive():
        raise AssertionError("the gate reads no body")

    async def send(message):
        sent.append(message)

    asyncio.run(gate(application or note, listening)(scope, receive, send))
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


async def started(scope, receive, send):
    await send({"type": "lifespan.startup.complete"})


def test_an_application_that_listens_by_itself_does_not_start():
    """Whatever way Flower may find to serve: where the gate is not before it, there is no SuperLink."""
    assert ask({"type": "lifespan"}, started)[1] == [{"type": "lifespan.startup.complete"}]
    ((answer),) = ask({"type": "lifespan"}, started, listening=[9093])[1]
    assert answer["type"] == "lifespan.startup.failed"
    assert "9093" in answer["message"]


@pytest.mark.parametrize(("mode", "content"), [(0o644, TOKEN), (0o640, TOKEN), (0o600, "short")])
def test_a_token_that_others_know_is_refused(tmp_path, mode, content):
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(SystemExit, match="too short, or others can read it"):
        read_token(path)


# The programs of runs


class Runs:
    """Flower's record of runs, as far as they are started, ended and reported."""

    def __init__(self, *waiting):
        self.tasks = {number: TaskStatus(status="pending") for number in waiting}

    def get_tasks(self, *, task_ids=None, statuses=None, **_):
        return [
            Task(task_id=number, run_id=10 * number, type="flwr-serverapp", status=status)
            for number, status in self.tasks.items()
            if (task_ids is None or number in task_ids)
            and (statuses is None or status.status in statuses)
        ]

    def claim_task(self, number):
        self.tasks[number] = TaskStatus(status="running")
        return f"token-of-{number}"

    def finish_task(self, number, *, sub_status, details):
        if self.tasks[number].status == "finished":
            return False
        self.tasks[number] = TaskStatus(status="finished", sub_status=sub_status, details=details)
        return True


def starter(runs, code):
    return RunStarter(lambda: runs, [sys.executable, "-c", code], TOKEN, 0o022)


def look_until(runs, programs, condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        programs.look()
        time.sleep(0.02)


def ended(runs, number):
    return runs.tasks[number].status == "finished"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL (often: not enough memory)"),
        ("import os; os.kill(os.getpid(), 15)", "killed by SIGTERM"),
        ("raise SystemExit(3)", "ended with status 3 before the run was over"),
    ],
)
def test_a_program_that_ends_without_a_word_is_reported(code, words):
    runs = Runs(1)
    look_until(runs, starter(runs, code), lambda: ended(runs, 1))
    assert runs.tasks[1].sub_status == "failed"
    assert words in runs.tasks[1].details


def test_a_program_is_given_its_tokens_where_nobody_sees_them(tmp_path):
    runs, told = Runs(1), tmp_path / "told"
    code = f"import sys; open({str(told)!r}, 'w').write(sys.stdin.read() + ' '.join(sys.argv))"
    look_until(runs, starter(runs, code), lambda: ended(runs, 1))
    assert told.read_text() == f"token-of-1\n{TOKEN}\n-c"


def test_the_program_of_a_stopped_run_is_ended_before_another_begins():
    runs = Runs(1)
    programs = starter(runs, "import time; time.sleep(300)")
    look_until(runs, programs, lambda: runs.tasks[1].status == "running")
    (program,) = programs._programs
    runs.tasks |= {
        1: TaskStatus(status="finished", sub_status="stopped"),
        2: TaskStatus(status="pending"),
    }
    programs.look()
    assert runs.tasks[2].status == "pending"
    look_until(runs, programs, lambda: runs.tasks[2].status == "running")
    assert program.process.returncode == -15
    (other,) = programs._programs
    other.process.kill()
    look_until(runs, programs, lambda: not programs._programs)


def test_runs_of_an_earlier_start_are_given_up():
    runs = Runs(1)
    starter(runs, "").give_up_former()
    assert runs.tasks[1].details == "the SuperLink was started again"
