"""Who gets the page, and who does not."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from live_studies import begin_fit, begin_run, begin_study, started, step

from fedkin.events import Warned, events_beside
from fedkin.watch.server import LONGEST_QUERY
from stores import invent_study, study

CONFIG = study(method=["bilevel", "local"], seed=[0])


@pytest.fixture
def server(tmp_path, serve):
    store = begin_study(tmp_path / "out", CONFIG)
    begin_run(store, CONFIG.runs()[0])
    with serve(tmp_path / "out") as server:
        yield server


def ask(server, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_the_page_is_there_for_this_machine_only(server):
    assert server.server_address[0] == "127.0.0.1"
    answer, text = ask(server)
    assert answer.status == 200
    assert "1 run under way" in text
    for name in ("127.0.0.1:9999", "localhost", "LOCALHOST:8042"):
        assert ask(server, Host=name)[0].status == 200
    for name in ("evil.example", "127.0.0.1.evil.example", "localhost.evil:80", "", "[::1]:80"):
        answer, text = ask(server, Host=name)
        assert answer.status == 421
        assert "under way" not in text


def raw(server, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(request)
        received = b""
        while part := connection.recv(65536):
            received += part
    return received


def test_a_request_without_or_with_two_hosts_is_refused(server):
    assert b" 421 " in raw(server, b"GET / HTTP/1.0\r\n\r\n")
    two = b"GET / HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert b" 421 " in raw(server, two)


@pytest.mark.parametrize(
    "path",
    [
        "/study.json",
        "/../study.json",
        "/%2e%2e/study.json",
        "//etc/passwd",
        "/runs/",
        "/report.html",
        "/favicon.ico",
        "http://evil.example/",
        "/index.html",
        "/;x",
    ],
)
def test_nothing_but_the_page_is_served(server, path):
    answer, text = ask(server, path, Host="localhost")
    assert answer.status == 404
    assert text == "There is only one page, at /."


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE"])
def test_nothing_can_be_changed(server, method):
    assert ask(server, method=method)[0].status == 501


def test_the_names_of_runs_name_no_files(server, tmp_path):
    for name in ("../../study.json", "%2e%2e%2fstudy.json", "..", "/etc/passwd", "%00", "%ff"):
        answer, text = ask(server, f"/?run={name}")
        assert answer.status == 200
        assert "There is no run of this name" in text
        assert "format" not in text
    assert ask(server, "/?run=" + "x" * LONGEST_QUERY)[0].status == 414


def test_the_browser_is_told_to_keep_the_page_to_itself(server, serve, tmp_path):
    invent_study(tmp_path / "done", CONFIG)
    with serve(tmp_path / "done") as other:
        for each, asks in ((server, "'self'"), (other, "'none'")):
            answer, _ = ask(each)
            policy = answer.headers["Content-Security-Policy"]
            assert f"connect-src {asks};" in policy
            assert policy.startswith(
                "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha"
            )
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert answer.headers["Server"].strip() == "fedkin"
            assert "Access-Control-Allow-Origin" not in answer.headers


def test_head_has_no_body(server):
    answer, text = ask(server, method="HEAD")
    assert (answer.status, text) == (200, "")
    assert int(answer.headers["Content-Length"]) > 1000


def test_a_report_that_cannot_be_made_leaves_the_page(tmp_path, serve):
    store = invent_study(tmp_path / "out", CONFIG)
    with serve(tmp_path / "out") as server:
        for file in store.runs.glob("*/finished.json"):
            file.write_text("{}")
        answer, text = ask(server)
    assert answer.status == 200
    assert "Its report cannot be shown" in text


def test_events_of_any_content_leave_the_page(tmp_path, serve):
    begin_fit(tmp_path / "out", started(), step(1), step(2), Warned(message="late", time=1e300))
    with events_beside(tmp_path / "out").open("a") as file:
        file.write('{"event": "step", "step": "x"}\n[1]\n\\\n')
    with serve(tmp_path / "out") as server:
        answer, text = ask(server)
    assert answer.status == 200
    assert "–:</span> late" in text
    assert "after step 2" in text


def test_a_page_that_cannot_be_made_says_so_until_it_can(server, monkeypatch):
    def broken(*_):
        raise OverflowError

    with monkeypatch.context() as patch:
        patch.setattr("fedkin.watch.page.render", broken)
        answer, text = ask(server)
        assert answer.status == 500
        assert text == "The page cannot be made (OverflowError): are the files damaged?"
    assert ask(server)[0].status == 200


def test_an_address_that_is_none_is_refused(server):
    assert b" 400 " in raw(server, b"GET http://[ HTTP/1.0\r\nHost: localhost\r\n\r\n")


COMMAND = """
import signal
# Who runs these tests in the background may have told its children to ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
from fedkin.cli.app import main
main()
"""


@pytest.fixture
def watch(tmp_path):
    """Start the command, and end it whatever happens."""
    started = []

    def start(*arguments):
        line = [sys.executable, "-c", COMMAND, "watch", *map(str, arguments)]
        process = subprocess.Popen(
            line,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_command_says_where_the_page_is_and_ctrl_c_ends_it(tmp_path, watch):
    begin_fit(tmp_path / "result")
    process = watch("result", "--port", 0, "--json")
    lines = ""
    while not lines.endswith("}\n"):
        lines += process.stdout.readline()
    said = json.loads(lines)
    assert {**said, "url": None} == {
        "schema": "fedkin.watch/1",
        "url": None,
        "directory": "result",
        "kind": "result",
    }
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    described = page.partition("## fedkin.watch/1")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", described, re.MULTILINE)) == set(said) - {"schema"}
    port = int(said["url"].rsplit(":", 1)[1].strip("/"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/")
    assert "1 run under way" in connection.getresponse().read().decode()
    connection.close()
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, notes = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    assert notes == "the page has ended; the run is not affected\n"
