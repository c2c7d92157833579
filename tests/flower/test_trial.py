"""A trial federation of real processes: up, who may come in, down."""

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

import psutil

from fedkin.flower import certificates, processes, trial
from fedkin.flower.launch import Node, supernode_command
from fedkin.flower.layout import SUPERLINK, Layout, write_configuration

FEDKIN = [sys.executable, "-c", "from fedkin.cli.app import main; main()"]
HEART = {
    "cleveland": "processed.cleveland.data",
    "hungary": "processed.hungarian.data",
    "switzerland": "processed.switzerland.data",
    "va": "processed.va.data",
}


def fedkin(*arguments, check=True, timeout=240):
    """Run the command line as a user does; return what it prints on stdout, read as JSON."""
    done = subprocess.run(
        [*FEDKIN, "federation", *map(str, arguments)],
        env=processes.quiet_environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    return done


def heart_files():
    folder = Path(os.environ.get("FEDKIN_DATA", "")) / "heart-disease"
    files = {name: folder / file for name, file in HEART.items()}
    return files if all(file.is_file() for file in files.values()) else None


def data_options():
    """Four hospitals where their files are at hand, digits otherwise."""
    files = heart_files()
    if files is None:
        return ["--nodes", "4"]
    options = [part for name, file in files.items() for part in ("--node", f"{name}={file}")]
    return [
        *options,
        "--columns",
        "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num",
        *("--label", "num", "--positive", ">0", "--categorical", "cp,restecg,slope,thal"),
        *("--missing", "chol=0,trestbps=0", "--target-node", "va"),
        *("--validation-fraction", "0.3", "--test-fraction", "0.3"),
    ]


def left_running(directory):
    """Return the command lines of living processes that have to do with a directory."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = " ".join(process.info["cmdline"] or [])
        if str(directory) in command and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(command)
    return found


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A federation of four nodes that listens to other machines too."""
    directory = tmp_path_factory.mktemp("federation") / "trial"
    fedkin("init", directory, *data_options(), "--listen", "0.0.0.0", "--json")
    layout = Layout(directory)
    # Nodes that other machines' centers may ask draw from secrets of their own.
    layout.file.write_text(layout.file.read_text().replace("reproducible = true\n", ""))
    try:
        fedkin("up", directory, "--json")
        yield layout
    finally:
        fedkin("down", directory, "--json")
    assert processes.find(layout.read().id) == {}
    assert left_running(directory) == []


def port(layout):
    return layout.read_running().ports[SUPERLINK]


def start_stranger(layout, place, *, authority, key):
    """Start a SuperNode that gives up at once."""
    place.mkdir()
    configuration = place / "node.toml"
    write_configuration(configuration, {"name": "stranger", "data": "digits"})
    node = Node(
        f"127.0.0.1:{port(layout)}", processes.free_ports(1)[0], configuration, authority, key
    )
    return subprocess.Popen(
        [*supernode_command(node), "--max-retries", "0"],
        env=processes.quiet_environment() | {"FLWR_HOME": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def strangers(running, tmp_path_factory):
    """Who may not come in, all at the same time: how each ended, and what it said."""
    place = tmp_path_factory.mktemp("strangers")
    certificates.make_node_key(place / "stranger.key")
    certificates.make_authority(place / "other.pem", place / "other.key")
    registered = running.node_key(running.read().node[0].name)
    started = {
        name: start_stranger(running, place / name, authority=authority, key=key)
        for name, authority, key in (
            ("unknown key", running.authority, place / "stranger.key"),
            ("other authority", place / "other.pem", registered),
            ("no TLS", None, None),
        )
    }
    try:
        told = {name: process.communicate(timeout=180)[0] for name, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
    return {name: (process.returncode, told[name]) for name, process in started.items()}


def online(layout):
    with trial.connect(layout) as link:
        return {node.name for node in link.nodes() if node.status == "online"}


def test_all_nodes_are_online(running):
    answer = fedkin("status", running.directory, "--json")
    names = {node.name for node in running.read().node}
    assert len(names) == 4
    assert {name for name, node in answer["nodes"].items() if node["state"] == "online"} == names
    assert answer["superlink"]["state"] == "running"


def test_a_node_with_an_unknown_key_is_refused(running, strangers):
    status, told = strangers["unknown key"]
    assert status != 0
    assert "Failed to activate SuperNode" in told
    assert online(running) == {node.name for node in running.read().node}


def test_a_node_without_the_authority_cannot_connect(strangers):
    """Its key is a registered one; but it trusts another authority, so it turns away."""
    status, told = strangers["other authority"]
    assert status != 0
    assert "CERTIFICATE_VERIFY_FAILED" in told
    assert "is ca.pem that of its owner" in told


def test_a_client_without_the_authority_cannot_connect(running):
    connection = http.client.HTTPSConnection("localhost", port(running), timeout=10)
    with pytest.raises(ssl.SSLCertVerificationError):
        connection.request("GET", "/health")
    known = ssl.create_default_context(cafile=running.authority)
    connection = http.client.HTTPSConnection("localhost", port(running), timeout=10, context=known)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()


def test_plain_http_is_refused(running):
    connection = http.client.HTTPConnection("127.0.0.1", port(running), timeout=10)
    connection.request("GET", "/health")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        connection.getresponse()
    connection.close()


def test_a_node_without_tls_is_refused(strangers):
    status, told = strangers["no TLS"]
    assert status != 0
    assert "talks with TLS only, and this node was started with --insecure" in told


def test_grpc_without_tls_is_refused(running):
    import grpc

    channel = grpc.insecure_channel(f"127.0.0.1:{port(running)}")
    try:
        with pytest.raises(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(timeout=3)
    finally:
        channel.close()


def own_address():
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family.name == "AF_INET" and not address.address.startswith("127."):
                return address.address
    return None


@pytest.mark.skipif(own_address() is None, reason="this machine has no address but its own loop")
def test_only_this_machine_may_control(running):
    """A connection to the machine's outer address comes from there, as another machine's would.

    There the token is of no use; here nothing is answered without it.
    """
    context = ssl.create_default_context(cafile=running.authority)
    context.check_hostname = False

    token = running.token.read_text().strip()

    def ask(address, path, *, with_token=False):
        connection = http.client.HTTPSConnection(
            address, port(running), timeout=10, context=context
        )
        headers = {"content-type": "application/protobuf", "x-forwarded-for": "127.0.0.1"}
        headers |= {"fedkin-token": token} if with_token else {}
        connection.request("POST", path, body=b"", headers=headers)
        status = connection.getresponse().status
        connection.close()
        return status

    for path in ("/v1/control/list-nodes", "/v1/control/start-run", "/v1/runtime/acquire-task"):
        assert ask(own_address(), path) == 403
        assert ask(own_address(), path, with_token=True) == 403
        assert ask("127.0.0.1", path) == 403
        assert ask("127.0.0.1", path, with_token=True) != 403
    # Nodes may come from there, and must then say who they are.
    assert ask(own_address(), "/v1/fleet/pull-messages") == 401


STUDY = """
model = "logistic"
steps = 1

[settings{section}]
rounds = 2
solver_iterations = 2
"""


def test_a_study_ends_with_weights_and_report(running, tmp_path):
    """Few synchronizations: that the numbers are right is tested elsewhere."""
    tables = heart_files() is not None
    study, out = tmp_path / "study.toml", tmp_path / "results"
    study.write_text(
        STUDY.format(section="" if tables else ".bilevel").replace(
            "steps", 'method = "bilevel"\nsteps'
        )
    )
    answer = fedkin("run", running.directory, study, "--out", out, "--json", timeout=900)
    names = {node.name for node in running.read().node}
    if tables:
        weights = answer["weights"]
        assert answer["rows"] == {"cleveland": 303, "hungary": 294, "switzerland": 123, "va": 80}
    else:
        assert answer["finished"] == 1
        weights = json.loads(next(out.glob("runs/*/weights.json")).read_text())
    assert set(weights) == names
    assert sum(weights.values()) == pytest.approx(1, abs=1e-5)
    assert Path(answer["report"]).read_text().startswith("<!doctype html>")
    again = fedkin("run", running.directory, study, "--out", out, check=False)
    assert again.returncode == 2
    assert "choose another" in again.stderr


def test_a_second_start_is_refused(running):
    done = fedkin("up", running.directory, check=False)
    assert done.returncode == 2
    assert "is running already" in done.stderr
    assert len(online(running)) == 4


@pytest.mark.flower
def test_a_start_that_was_killed_leaves_nothing_after_down(tmp_path):
    directory = tmp_path / "half"
    fedkin("init", directory, "--nodes", "2", "--json")
    layout = Layout(directory)
    identity = layout.read().id
    starting = subprocess.Popen(
        [*FEDKIN, "federation", "up", str(directory)],
        env=processes.quiet_environment(),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 90
    # Some nodes are there and the start is not at its end.
    while len(set(processes.find(identity).values())) < 2:
        assert time.monotonic() < deadline, "the start does not come so far"
        time.sleep(0.05)
    starting.send_signal(signal.SIGKILL)
    assert starting.wait(10) == -signal.SIGKILL
    assert SUPERLINK in fedkin("down", directory, "--json")["stopped_processes"]
    assert processes.find(identity) == {}
    assert left_running(directory) == []
    assert fedkin("down", directory, "--json")["stopped_processes"] == []


@pytest.mark.flower
def test_a_start_that_fails_stops_what_it_has_started(tmp_path):
    directory = tmp_path / "broken"
    fedkin("init", directory, "--nodes", "2", "--json")
    layout = Layout(directory)
    layout.server_key.write_bytes(layout.authority_key.read_bytes())  # not the certificate's
    done = fedkin("up", directory, check=False)
    left = processes.stop(layout.read().id)
    assert done.returncode == 2
    assert "superlink has ended" in done.stderr
    assert "KEY_VALUES_MISMATCH" in done.stderr
    assert left == []
