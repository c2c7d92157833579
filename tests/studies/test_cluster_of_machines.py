"""A study on a Ray cluster of two machines, both of them this one, of which one goes down in between."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fedkin.events import EventReader, RunStarted, StepDone
from fedkin.studies.cell import do_run
from fedkin.studies.store import RunDirectory
from fedkin.studies.study_file import load_study
from run_files import files

pytest.importorskip("ray", reason="needs the extra cluster")

STUDY = """
dataset = "digits"
setting = 2
method = ["fedavg", "local"]
model = "logistic"
steps = 400

[settings]
learning_rate = 0.01
period = 5
rounds = 1
"""
COUNT_NODES = "import ray; ray.init({address!r}); print(sum(node['Alive'] for node in ray.nodes()))"
SECONDS = 90
"""How long the parts of a cluster may take to come up, on a machine with other work."""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def cluster(monkeypatch):
    """Start a head and another machine with one processor each; yield the address and the other's process."""
    # Whoever reaches Ray's ports can run code: only these tests know the token.
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    head, client = free_port(), free_port()
    address = f"ray://127.0.0.1:{client}"
    common = ["--block", "--num-cpus=1", f"--object-store-memory={100 * 2**20}"]
    machines = []

    def start(*options):
        command = [Path(sys.executable).with_name("ray"), "start", *common, *options]
        # In a session of its own, so that one signal ends all that it starts.
        machines.append(
            subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as place:
        try:
            start(
                "--head",
                f"--port={head}",
                f"--ray-client-server-port={client}",
                "--include-dashboard=false",
                f"--temp-dir={place}",
            )
            wait_for_nodes(address, 1)
            start(f"--address=127.0.0.1:{head}")
            wait_for_nodes(address, 2)
            yield address, machines[1]
        finally:
            for machine in reversed(machines):
                end(machine)


def end(machine):
    with suppress(ProcessLookupError):
        os.killpg(machine.pid, signal.SIGKILL)
    machine.wait()


def wait_for_nodes(address, count):
    until = time.monotonic() + SECONDS
    port = int(address.rpartition(":")[2])
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.2)
            continue
        asked = subprocess.run(
            [sys.executable, "-c", COUNT_NODES.format(address=address)],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.stdout.strip() == str(count):
            return
    raise AssertionError(f"the cluster has not come up in {SECONDS} s")


def steps(directory):
    return sum(isinstance(event, StepDone) for event in EventReader(directory.events).new())


@pytest.mark.slow
def test_a_machine_that_goes_down_changes_no_bit(cluster, tmp_path):
    address, other = cluster
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    runs = load_study(study).runs()
    command = [sys.executable, "-m", "fedkin", "run", study, "--out", tmp_path / "out"]
    process = subprocess.Popen(
        [*command, "--cluster", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    directories = [RunDirectory(tmp_path / "out" / "runs", run) for run in runs]
    while process.poll() is None and not all(steps(each) >= 3 for each in directories):
        time.sleep(0.05)
    assert process.poll() is None, "both runs should be under way, one on each machine"
    end(other)
    _, notes = process.communicate(timeout=300)
    assert process.returncode == 0, notes
    assert "the worker was lost" in notes
    for run in runs:
        do_run(run, tmp_path / "here")
        assert files(tmp_path / "out" / "runs", run) == files(tmp_path / "here", run)
    events = [event for each in directories for event in EventReader(each.events).new()]
    assert sum(isinstance(event, RunStarted) for event in events) == len(runs) + 1
