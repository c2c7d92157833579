"""How parts of a federation die, with real processes: noticed soon, and how to go on is said."""

import json
import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager, suppress

import psutil
import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from fedkin.events import EventReader, RunStarted
from fedkin.flower import processes, trial
from fedkin.flower.certificates import make_token
from fedkin.flower.launch import Server, superlink_command
from fedkin.flower.layout import SUPERLINK, Layout
from flower.processes import Processes, wait_until
from flower.test_trial import FEDKIN, fedkin

pytestmark = pytest.mark.flower

PATIENCE = 600
STUDY = """
model = "logistic"
method = "fedavg"
steps = 10000
synchronizations = 1000000
[settings]
preset = "paper"
rounds = 1
learning_rate = 0.05
period = 5
"""
"""It takes all its steps: nothing in it converges."""
GO_ON = "continue with the same command and --resume: finished steps are kept"


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    layout = Layout(tmp_path_factory.mktemp("federation") / "trial")
    try:
        fedkin("init", layout.directory, "--nodes", "2", "--json")
        fedkin("up", layout.directory, "--json")
        yield layout
    finally:
        fedkin("down", layout.directory, "--json")


@contextmanager
def running(layout, out, *more):
    """A study that does not end by itself, after its first step."""
    study = out.with_suffix(".toml")
    study.write_text(STUDY)
    command = [*FEDKIN, "federation", "run", layout.directory, study, "--out", out, *more]
    before = set(out.glob("runs/*/checkpoint*"))
    process = subprocess.Popen(
        [str(part) for part in command],
        env=processes.quiet_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(
            lambda: (
                process.poll() is not None
                or (programs(layout) and (before or list(out.glob("runs/*/checkpoint*"))))
            ),
            PATIENCE,
            "the first step",
        )
        yield process
    finally:
        process.kill()
        process.wait(30)
        process.stderr.close()


def programs(layout):
    """The programs of runs at the center."""
    found = []
    for number in processes.find(layout.read().id):
        with suppress(psutil.Error):  # one that has just ended
            process = psutil.Process(number)
            if any("serverapp.py" in part for part in process.cmdline()):
                found.append(process)
    return found


def resumed(out):
    """The steps after which the run was resumed."""
    (file,) = out.glob("runs/*/events.jsonl")
    starts = [each for each in EventReader(file).new() if isinstance(each, RunStarted)]
    return [each.resumed_after for each in starts if each.resumed_after is not None]


def end_of(process):
    """Wait until a command ends; return its status, the error that it gives, and the seconds."""
    begin = time.monotonic()
    _, written = process.communicate(timeout=PATIENCE)
    (error,) = re.findall(r"^error: (.*)$", written, re.MULTILINE)
    seconds = time.monotonic() - begin
    print(f"{seconds:.1f} s: {error}")  # noqa: T201
    return process.returncode, error, seconds


def test_a_superlink_that_would_listen_without_its_gate_does_not_start(tmp_path):
    """As Flower's older interface for commands would, which asks nobody for a token."""
    parts = Processes(tmp_path / "federation")
    make_token(parts.token)
    server = Server("127.0.0.1", parts.port, None, parts.token, certificate=None)
    try:
        command = superlink_command(server)
        parts.start("superlink", *command, FLWR_INTERNAL_GRPC_CONTROL_API="1")
        assert parts.started["superlink"].wait(120) != 0
        log = parts.log("superlink")
    finally:
        parts.stop()
    assert "where fedkin's gate is not before it: the SuperLink does not start" in " ".join(
        log.split()
    )


def test_a_program_at_the_center_that_is_killed_is_noticed_at_once(federation, tmp_path):
    """And the same command with --resume continues after its last step."""
    out = tmp_path / "out"
    with running(federation, out) as process:
        (program,) = programs(federation)
        program.kill()
        status, error, seconds = end_of(process)
    assert status == 2
    assert "was killed by SIGKILL" in error
    assert GO_ON in error
    assert "fedkin federation logs" in error
    assert seconds < 60
    with running(federation, out, "--resume") as process:
        wait_until(lambda: process.poll() is not None or resumed(out), PATIENCE, "the resumed run")
        process.send_signal(signal.SIGTERM)
        status, error, _ = end_of(process)
    assert resumed(out)[0] >= 1
    assert (status, error) == (130, f"interrupted: the run is stopped at the center; {GO_ON}")
    wait_until(lambda: not programs(federation), 30, "the end of the program at the center")


def test_a_lost_command_leaves_a_run_that_can_be_stopped(federation, tmp_path):
    """Nobody starts a second run into the same directory meanwhile."""
    out = tmp_path / "out"
    with running(federation, out) as process:
        process.kill()
        process.wait(30)
    again = fedkin("run", federation.directory, out.with_suffix(".toml"), "--out", out, check=False)
    assert again.returncode == 2
    assert "is still under way at the center" in again.stderr
    assert f"fedkin federation stop {federation.directory}" in again.stderr
    (stopped,) = fedkin("stop", federation.directory, "--json")["stopped"]
    assert stopped["out"] == str(out)
    wait_until(lambda: not programs(federation), 30, "the end of the program at the center")
    nothing = fedkin("stop", federation.directory, check=False)
    assert nothing.returncode == 2
    assert "nothing is under way" in nothing.stderr


def test_who_waits_for_a_run_that_another_command_stops_is_told(federation, tmp_path):
    with running(federation, tmp_path / "out") as process:
        fedkin("stop", federation.directory, "--json")
        status, error, seconds = end_of(process)
    assert (status, seconds < 60) == (2, True)
    assert f"the run was stopped; {GO_ON}" in error


def test_a_superlink_that_is_killed_is_noticed_at_once(federation, tmp_path):
    """The last test of this federation."""
    with running(federation, tmp_path / "out") as process:
        roles = processes.find(federation.read().id)
        main = min(number for number, role in roles.items() if role == SUPERLINK)
        os.kill(main, signal.SIGKILL)
        status, error, seconds = end_of(process)
    assert (status, seconds < 60) == (2, True)
    assert "cannot be reached" in error
    assert "start it again, and then continue with the same command and --resume" in error
    wait_until(lambda: not programs(federation), 30, "the end of the program at the center")
    assert trial.status(federation)[0].state == "down"
    assert json.dumps(fedkin("down", federation.directory, "--json"))
