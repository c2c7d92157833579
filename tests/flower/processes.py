"""Real SuperLink, SuperNode and worker processes for tests, and the runs that are given to them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fedkin.flower
from fedkin.flower.certificates import make_token
from fedkin.flower.internals.control import connect
from fedkin.flower.launch import Node, Server, superlink_command, supernode_command

APP = Path(fedkin.flower.__file__).parent / "app"
BIN = Path(sys.executable).parent
SABOTAGED = """
from fedkin.flower.internals import supernode
supernode.WORKER = "flower.saboteur"
supernode.main()
"""
TESTS = Path(__file__).parents[1]
SOURCE = Path(fedkin.__file__).resolve().parents[1]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Processes:
    """A federation on this machine, without TLS; everything it starts ends with it."""

    def __init__(self, directory: Path, *, database=False):
        self.directory = directory
        self.database = directory / "state.db" if database else None
        self.token = directory / "superlink.token"
        self.port = free_port()
        self.started: dict[str, subprocess.Popen] = {}
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(directory / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # of bare nodes
            "PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "JAX_PLATFORMS": "cpu",
        }
        (directory / "flwr").mkdir(parents=True)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def start(self, name: str, *command, **environment):
        with (self.directory / f"{name}.log").open("ab") as log:
            self.started[name] = subprocess.Popen(
                [str(part) for part in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment | environment,
                cwd=self.directory,
                start_new_session=True,
            )

    def start_superlink(self):
        make_token(self.token)
        server = Server("127.0.0.1", self.port, self.database, self.token, certificate=None)
        self.start("superlink", *superlink_command(server))
        self.wait_for_port(self.port)

    def start_node(self, name, superlink=None, sabotage=None, bare=False, **settings):
        """Start a node as `fedkin federation` does; or with a worker that plays a trick; or a bare one."""
        port, link = free_port(), f"127.0.0.1:{superlink or self.port}"
        file = self.directory / name / "node.toml"
        file.parent.mkdir(exist_ok=True)
        lines = [f"{key} = {_toml(value)}" for key, value in {"name": name, **settings}.items()]
        file.write_text("\n".join(lines))
        if bare:
            command = [BIN / "flower-supernode", "--insecure", "--superlink", link, "--port", port]
            command += ["--node-config", file, "--isolation", "subprocess"]
            self.start(name, *command)
            return
        command = supernode_command(Node(link, port, file, authority=None))
        if sabotage is None:
            self.start(name, *command)
        else:
            script = command.index("-P") + 1
            command[script : script + 1] = ["-c", SABOTAGED]
            self.start(name, *command, SABOTAGE=sabotage)

    def control(self):
        return connect(f"127.0.0.1:{self.port}", None, self.token)

    def submit(self, job: Path, out: Path, *, resume=False):
        """Give a run to the SuperLink; return its number."""
        with self.control() as link:
            return link.start_run(APP, {"job": str(job), "out": str(out), "resume": resume})

    def wait_for_port(self, port, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.1)
        raise AssertionError(f"nothing listens on port {port}")

    def kill(self, name, signal_number=signal.SIGKILL):
        process = self.started.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        process.wait(30)

    def stop(self):
        for name in list(self.started):
            self.kill(name)
        # Flower's own children are not all in their parent's group; they share its environment.
        for process in self.left_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def left_running(self, word=""):
        """The numbers of the processes that belong to this federation, by their environment."""
        home = f"FLWR_HOME={self.environment['FLWR_HOME']}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                here = home in (process / "environ").read_bytes().split(b"\0")
                if here and word in (process / "cmdline").read_bytes().decode(errors="replace"):
                    found.append(int(process.name))
        return found


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} has not happened in {seconds} s"
        time.sleep(0.2)


def _toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, (str, Path)) else str(value)
