"""Processes of a federation: found by their mark, stopped for certain."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

import fedkin
from fedkin.errors import InputError
from fedkin.flower import processes
from fedkin.flower.internals import superlink, supernode
from fedkin.flower.launch import Node, Server, superlink_command, supernode_command
from fedkin.flower.layout import Layout, new_identity

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)"
)
PARENT = (
    "import subprocess, sys, time; "
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])"
)


@pytest.fixture
def identity():
    made = new_identity()
    yield made
    processes.stop(made, seconds=0)


def launch(tmp_path, identity, command, role="node"):
    variables = {**os.environ, processes.IDENTITY: identity, processes.ROLE: role}
    return processes.start(command, variables, tmp_path / f"{role}.log")


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.05)


def test_processes_are_found_by_their_mark_and_stopped(tmp_path, identity):
    ours = launch(tmp_path, identity, SLEEP, "alpha")
    stranger = launch(tmp_path, new_identity(), SLEEP, "beta")
    try:
        wait_for(lambda: processes.find(identity) == {ours.pid: "alpha"})
        assert processes.stop(identity) == ["alpha"]
        assert processes.find(identity) == {}
        assert processes.is_alive(stranger)
    finally:
        stranger.kill()
    assert processes.stop(identity) == []


def test_grandchildren_are_stopped_though_their_parent_is_dead(tmp_path, identity):
    parent = launch(tmp_path, identity, [sys.executable, "-c", f"{PARENT}; time.sleep(300)"])
    wait_for(lambda: len(processes.find(identity)) == 2)
    parent.send_signal(signal.SIGKILL)
    wait_for(lambda: len(processes.find(identity)) == 1)
    processes.stop(identity)
    assert processes.find(identity) == {}


def test_a_process_that_does_not_listen_is_killed(tmp_path, identity):
    launch(tmp_path, identity, [sys.executable, "-c", f"{DEAF}; time.sleep(300)"], "deaf")
    wait_for(lambda: "deaf" in (tmp_path / "deaf.log").read_text())
    processes.stop(identity, seconds=0.5)
    assert processes.find(identity) == {}


def test_what_was_started_outlives_its_starter(tmp_path, identity):
    """As `up` does: the starter ends, even by SIGKILL, and the processes are still found."""
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from fedkin.flower import processes\n"
        "command = [sys.executable, '-c', 'import time; time.sleep(300)']\n"
        "variables = {**os.environ, processes.IDENTITY: sys.argv[1], processes.ROLE: 'left'}\n"
        "processes.start(command, variables, Path(sys.argv[2]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    variables = processes.quiet_environment()
    command = [sys.executable, "-c", code, identity, str(tmp_path / "log")]
    ended = subprocess.run(command, env=variables, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert list(processes.find(identity).values()) == ["left"]
    assert processes.stop(identity) == ["left"]


def test_free_ports_are_free_and_different():
    ports = processes.free_ports(20)
    assert len(set(ports)) == 20
    with socket.socket() as server:
        server.bind(("127.0.0.1", ports[0]))
        server.listen()
        assert processes.port_is_taken("127.0.0.1", ports[0])
    assert not processes.port_is_taken("127.0.0.1", ports[0])


def test_two_commands_do_not_start_and_stop_at_once(tmp_path):
    layout = Layout(tmp_path)
    with (
        processes.locked(layout),
        pytest.raises(InputError, match="is starting or stopping"),
        processes.locked(layout),
    ):
        pass
    with processes.locked(layout):
        pass


def test_children_import_this_fedkin(tmp_path):
    """Not one that is installed, from whatever directory they are started in."""
    variables = processes.quiet_environment()
    variables["PYTHONPATH"] = variables["PYTHONPATH"].split(os.pathsep)[0]
    command = [
        sys.executable,
        "-P",
        "-S",
        "-c",
        "import importlib.util as u; print(u.find_spec('fedkin').origin)",
    ]
    done = subprocess.run(
        command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == fedkin.__file__


def test_the_environment_sends_nothing_elsewhere(tmp_path):
    variables = processes.environment(Layout(tmp_path), "0" * 16, "alpha")
    assert variables["FLWR_TELEMETRY_ENABLED"] == "0"
    assert variables["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert variables["FLWR_HOME"].startswith(str(tmp_path))


def test_the_end_of_a_log_is_shown_without_colors(tmp_path):
    log = tmp_path / "x.log"
    assert processes.last_lines(log, 3) == []
    log.write_text("one\n\x1b[92mINFO \x1b[0m: two\nthree\n")
    assert processes.last_lines(log, 2) == ["INFO : two", "three"]


def test_a_worker_ends_with_its_supernode(tmp_path, identity):
    """Also while nobody answers at the SuperNode's port, where its messages come from."""
    supernode = launch(tmp_path, identity, SLEEP, "supernode")
    address = f"127.0.0.1:{processes.free_ports(1)[0]}"
    command = [sys.executable, "-m", "fedkin.flower.worker", "--parent-pid"]
    command += [str(supernode.pid), "--runtime-api-address", address]
    variables = processes.quiet_environment() | {
        processes.IDENTITY: identity,
        processes.ROLE: "worker",
    }
    worker = processes.start(command, variables, tmp_path / "worker.log")
    wait_for(lambda: "failed, retrying" in (tmp_path / "worker.log").read_text(), seconds=120)
    supernode.kill()
    wait_for(lambda: not processes.is_alive(worker))


EVIL = """
from pathlib import Path
Path(__file__).with_name("executed").write_text(__name__)
raise SystemExit(9)
"""


def every_command(tmp_path):
    """The commands of all processes that a federation starts, beginning with their help."""
    server = Server("127.0.0.1", 1, None, tmp_path / "token", certificate=None)
    node = Node("127.0.0.1:1", 2, tmp_path / "node.toml", authority=None)
    started = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supernode, "keep_running", started.append)
        supernode.start_worker("1", tmp_path / "worker.secret")
    program = Path(superlink.__file__).with_name("serverapp.py")
    return {
        "superlink": [*superlink_command(server)[:3], "--help"],
        "supernode": [*supernode_command(node)[:3], "--help"],
        "worker": [*started[0], "--help"],
        "serverapp": [sys.executable, "-P", str(program), "--help"],
    }


@pytest.mark.parametrize("name", ["superlink", "supernode", "worker", "serverapp"])
def test_no_process_imports_from_the_directory_it_is_started_in(name, tmp_path):
    """Anybody may have put a `psutil.py` there."""
    for module in ("psutil", "argparse", "logging", "json", "flwr", "jax", "multiprocessing"):
        (tmp_path / f"{module}.py").write_text(EVIL)
    command = every_command(tmp_path)[name]
    variables = processes.quiet_environment()
    del variables[
        "PYTHONSAFEPATH"
    ]  # the option is enough, as where Flower's programs are started alone
    done = subprocess.run(
        command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert not (tmp_path / "executed").exists()
    assert done.returncode in (0, 2), done.stderr
    assert "usage:" in done.stdout + done.stderr


def test_programs_of_other_commands_do_not_either():
    """Such as the workers of `fedkin run --jobs 2`, which Python starts by itself."""
    code = (
        "import subprocess, sys, typer\n"
        "from fedkin.cli.program import run_program\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def path():\n"
        "    subprocess.run([sys.executable, '-c', 'import sys; print(sys.flags.safe_path)'])\n"
        "sys.argv = ['fedkin']\n"
        "run_program(app)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=processes.quiet_environment() | {"PYTHONSAFEPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "True"
