"""Other accounts of the server's machine: what they may not do with a federation that runs there."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from fedkin.flower import processes
from fedkin.flower.layout import SUPERLINK, Layout
from flower.processes import wait_until
from flower.test_trial import FEDKIN, fedkin

STRANGERS = (65534, 31337)
"""Two accounts: the one that is called nobody, and one that has no name."""
PROGRAM = Path(__file__).with_name("stranger.py")

CONTROL = ["/v1/control/list-nodes", "/v1/control/start-run", "/v1/control/list-runs", "/docs"]
RUNTIME = ["/v1/runtime/acquire-task", "/v1/runtime/pull-task-input", "/v1/runtime/push-messages"]

PUBLIC = ("ca.pem", "server.pem", ".pub")
"""Certificates and public keys, which are no secret."""
NO_SECRETS = {
    *("federation.toml", "node.toml", "running.json", ".lock"),
    *("pyproject.toml", "source"),  # of the app, which has no code
}

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() != 0,
        reason="only root can act as other accounts",
    ),
]


def python_for_all():
    """Return a Python that every account may run."""
    for program in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")):
        try:
            subprocess.run([program, "-I", "-c", ""], user=STRANGERS[0], check=True, cwd="/")
        except (OSError, TypeError, subprocess.CalledProcessError):
            continue
        return program
    pytest.skip("no Python that other accounts may run")
    return None


def try_everything(layout, user, headers):
    """Let an account try everything; return what it was answered and what it could read."""
    ports = dict(layout.read_running().ports)
    given = {
        "directory": str(layout.directory),
        "superlink": ports.pop(SUPERLINK),
        "nodes": list(ports.values()),
        "paths": CONTROL + RUNTIME,
        "headers": headers,
        "processes": [str(process) for process in processes.find(layout.read().id)],
    }
    done = subprocess.run(
        [python_for_all(), "-I", "-c", PROGRAM.read_text()],
        input=json.dumps(given),
        user=user,
        group=user,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return given | json.loads(done.stdout)


@pytest.fixture(scope="module")
def working():
    """A federation that works on a study, in a directory that every account may enter."""
    place = Path(tempfile.mkdtemp(prefix="fedkin-accounts-"))
    place.chmod(0o755)
    layout = Layout(place / "trial")
    started = None
    try:
        fedkin("init", layout.directory, "--nodes", "2", "--json")
        fedkin("up", layout.directory, "--json")
        # Nothing but the modes of what is in it protects it now.
        for folder in (layout.directory, *layout.directory.rglob("*")):
            if folder.is_dir():
                folder.chmod(0o755)
        study = place / "study.toml"
        study.write_text('method = "bilevel"\nsteps = 10000\nsynchronizations = 1000000\n')
        command = [*FEDKIN, "federation", "run", str(layout.directory), str(study)]
        started = subprocess.Popen(
            [*command, "--out", str(place / "out")],
            env=processes.quiet_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: any(place.glob("out/runs/*/checkpoint*")), 600, "the first step")
        yield layout
    finally:
        if started is not None:
            started.terminate()
            started.wait(60)
        fedkin("down", layout.directory, "--json")
        shutil.rmtree(place)


@pytest.mark.parametrize("user", STRANGERS)
def test_another_account_cannot_start_runs_read_keys_or_take_tasks(working, user):
    answer = try_everything(working, user, {})
    assert answer["user"] == user
    assert set(answer["superlink"].values()) == {403}
    assert set(answer["nodes"]) == {401}
    # Everything was there to be read but for its modes.
    assert str(working.token) in answer["found"]
    assert len([path for path in answer["found"] if path.endswith((".key", ".secret"))]) == 6
    known = {Path(path).name for path in answer["read"] if not path.endswith(PUBLIC)}
    assert known <= NO_SECRETS
    assert answer["written"] == []
    # What every account sees of other processes has no secret in it.
    assert answer["environments"] == []
    assert len(answer["processes"]) >= 6
    told = "\n".join(answer["commands"])
    assert "serverapp.py" in told
    assert working.token.read_text().strip() not in told
    assert "--token\0" not in told


def test_whoever_has_the_token_is_let_in(working):
    """The test above can fail: the same program, with the token, is not refused."""
    headers = {"fedkin-token": working.token.read_text().strip()}
    answer = try_everything(working, 0, headers)
    assert 403 not in answer["superlink"].values()
    assert str(working.token) in answer["read"]
    assert len(answer["environments"]) == len(answer["processes"])
