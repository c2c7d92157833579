"""Flower's SuperLink behind a gate: a program with the options of `flower-superlink`, and `--token-file`.

One port of the SuperLink serves three interfaces. At `/v1/fleet/`, nodes fetch and answer messages, and
sign with their keys. `/v1/control/` starts runs and registers nodes, and `/v1/runtime/` is for the program
of a run; Flower asks nobody for a name at the first, and at the second only for the token of a task. A run is
a program that the SuperLink executes, so anybody who reached the port could execute any code as the
SuperLink's user. The gate only lets requests for `/v1/fleet/` pass from everywhere. All others must come from
this machine and carry the token, which is new at each start and in a file that only the SuperLink's user
can read.

Flower has no option for a gate. So this program makes Flower's application and serves it itself: nothing of
Flower's can serve it without the gate. If Flower opens a port of its own, it does not start.

The runs are started here too (`RunStarter`), not by Flower's SuperExec: that puts the token of a task on the
command line, which every account of the machine can read, and notices after a minute that a program has died.

This file is run by its path and imports nothing of fedkin but `bundles.py` (see `internals/__init__.py`).
"""

import argparse
import hmac
import ipaddress
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

NODE_PATHS = "/v1/fleet/"
HEALTH_PATH = "/health"
TOKEN_HEADER = "fedkin-token"
SECRET_BYTES = 32
POLL_SECONDS = 0.1
"""Seconds between two looks for a run to start, and for one that has ended."""
STOP_SECONDS = 10.0
"""How long the program of a stopped run may take to end before it is killed."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("fedkin.gate")


class Gate:
    """An ASGI application that passes on what the client may ask for, and refuses the rest.

    Args:
        application: Flower's application.
        token: What a request that is not a node's must carry.
        listening: Returns the ports at which this process already listens; there must be none when the
            application has started, because the gate is not before them.
    """

    def __init__(
        self, application: Application, token: str, listening: Callable[[], list[int]]
    ) -> None:
        self._application = application
        self._token = token.encode()
        self._listening = listening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, self._checking_start(send))
            return
        refusal = self.refusal(scope)
        if refusal is None:
            await self._application(scope, receive, send)
            return
        client = scope.get("client") or ("unknown",)
        logger.warning("refused %r from %s: %s", scope.get("path"), client[0], refusal)
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        body = json.dumps({"detail": refusal}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def refusal(self, scope: Scope) -> str | None:
        """Return why a request may not pass; None if it may."""
        path: str = scope.get("path", "")
        if path.startswith(NODE_PATHS) or path == HEALTH_PATH:
            return None
        if not is_this_machine(scope.get("client")):
            return "only the SuperLink's own machine may do this"
        given = [value for name, value in scope.get("headers", ()) if name == TOKEN_HEADER.encode()]
        if len(given) != 1 or not hmac.compare_digest(given[0], self._token):
            return "only the SuperLink's own user may do this, with the token of its present start"
        return None

    def _checking_start(self, send: Send) -> Send:
        """Let the application report that it has started only if nothing of it listens without a gate."""

        async def checked(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete" and (ports := self._listening()):
                reason = (
                    f"Flower listens at port {', '.join(map(str, ports))} by itself, where fedkin's gate "
                    "is not before it: the SuperLink does not start"
                )
                logger.error(reason)
                message = {"type": "lifespan.startup.failed", "message": reason}
            await send(message)

        return checked


def is_this_machine(client: tuple[str, int] | None) -> bool:
    """Return whether an address is one that only this machine can have."""
    if client is None:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def own_listening_ports() -> list[int]:
    """Return the ports at which this process listens."""
    import psutil

    connections = psutil.Process().net_connections(kind="inet")
    return sorted({each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN})


def read_token(path: Path) -> str:
    """Return the token of this start; refuse one that others can read."""
    try:
        found = path.stat()
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"error: cannot read the token {path}: {error}")
    if found.st_mode & 0o077 or len(token) < SECRET_BYTES:
        sys.exit(f"error: the token {path} is too short, or others can read it: start again")
    return token


@dataclass
class Program:
    """The program of a run that was started."""

    task: int
    run: int
    process: subprocess.Popen[bytes]
    kill_at: float | None = None
    """When it is killed, once it has been asked to end."""


class RunStarter:
    """Starts the program of each run, ends it when the run is stopped, and reports if it ends without a word.

    Args:
        state: Returns Flower's record of runs.
        command: The command that runs a program; it reads the token of its task and that of the gate from
            its standard input.
        token: The token of the gate.
        mask: The file mode mask of programs: the results that they write are the user's.
    """

    def __init__(self, state: Callable[[], Any], command: list[str], token: str, mask: int) -> None:
        self._state, self._command = state, command
        self._token, self._mask = token, mask
        self._programs: list[Program] = []

    def give_up_former(self) -> None:
        """Report the runs of an earlier start as failed: their programs have ended with that SuperLink."""
        from flwr.common.constant import Status, SubStatus
        from flwr.supercore.constant import TaskType

        state = self._state()
        for task in state.get_tasks(statuses=[Status.PENDING, Status.STARTING, Status.RUNNING]):
            if task.type == TaskType.SERVER_APP:
                reason = "the SuperLink was started again"
                state.finish_task(task.task_id, sub_status=SubStatus.FAILED, details=reason)

    def watch(self) -> None:
        """Look for runs to start and programs that have ended, forever."""
        while True:
            try:
                self.look()
            except Exception:  # such as a database that is busy: the next look comes soon
                logger.exception("a run could not be started or reported")
            time.sleep(POLL_SECONDS)

    def look(self) -> None:
        """Report programs that have ended, end those of stopped runs, and start a run that waits.

        A run waits for the programs of stopped runs: it may resume from the files that they still write.
        """
        for program in list(self._programs):
            status = program.process.poll()
            if status is None:
                self._end_if_stopped(program)
            else:
                self._report(program, status)
                self._programs.remove(program)
        if all(program.kill_at is None for program in self._programs):
            self._start_waiting()

    def _start_waiting(self) -> None:
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType
        from flwr.supercore.servicer.runtime.runtime_handlers import acquire_task

        request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        acquired = acquire_task(request, self._state())
        if acquired.HasField("task") and acquired.token:
            process = self._start(acquired.token)
            self._programs.append(Program(acquired.task.task_id, acquired.task.run_id, process))

    def _end_if_stopped(self, program: Program) -> None:
        from flwr.common.constant import SubStatus

        now = time.monotonic()
        if program.kill_at is None:
            (task,) = self._state().get_tasks(task_ids=[program.task])
            if task.status.sub_status == SubStatus.STOPPED:
                program.process.terminate()
                program.kill_at = now + STOP_SECONDS
        elif now > program.kill_at:
            program.process.kill()

    def _start(self, token: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(self._command, stdin=subprocess.PIPE, umask=self._mask)
        assert process.stdin is not None
        with (
            suppress(BrokenPipeError),
            process.stdin as pipe,
        ):  # if it has ended, the next look notices
            pipe.write(f"{token}\n{self._token}\n".encode())
        return process

    def _report(self, program: Program, status: int) -> None:
        """Report that a program has ended; one that has reported its own end is left as it is."""
        from flwr.common.constant import SubStatus

        reason = ending(status)
        if self._state().finish_task(program.task, sub_status=SubStatus.FAILED, details=reason):
            logger.error("run %s: %s", program.run, reason)


def ending(status: int) -> str:
    """Say how a program has ended that did not say so itself."""
    if status >= 0:
        return f"the program at the center ended with status {status} before the run was over"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    cause = " (often: not enough memory)" if -status == signal.SIGKILL else ""
    return f"the program at the center was killed by {name}{cause}"


def main() -> None:
    """Serve Flower's SuperLink behind the gate."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--token-file", type=Path, required=True)
    own, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    token = read_token(own.token_file)
    mask = os.umask(0o077)  # the database has messages under way

    import uvicorn
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.supercore.logger import console_handler
    from flwr.superlink.cli.flower_superlink import (
        SuperLinkLifespan,
        _parse_superlink_lifespan_config,
    )
    from flwr.superlink.main import create_app

    from fedkin.flower.internals.bundles import Bundles

    # Nobody may take a run over the network: this process starts them, and forgets the secret for it.
    config = replace(
        _parse_superlink_lifespan_config(),
        superexec_auth_secret=secrets.token_bytes(SECRET_BYTES),
    )
    application = create_app(config, SuperLinkLifespan)
    command = [sys.executable, "-P", str(Path(__file__).with_name("serverapp.py"))]
    command += ["--runtime-api-address", f"127.0.0.1:{config.port}"]
    command += ["--parent-pid", str(os.getpid())]
    if config.ssl_ca_certfile is not None:
        command += ["--root-certificates", config.ssl_ca_certfile]
    starter = RunStarter(application.state.linkstate_factory.state, command, token, mask)
    starter.give_up_former()
    threading.Thread(target=starter.watch, daemon=True).start()
    # The peer's own address decides: no header may change it. Nodes ask for messages many times per
    # minute, which is not worth a line in the log each time.
    whole = Bundles(application, application.state.linkstate_factory.state)
    uvicorn.run(
        Gate(whole, token, own_listening_ports),
        host=config.host,
        port=config.port,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        log_config=get_uvicorn_log_config(console_handler.level),
        proxy_headers=False,
        access_log=False,
        timeout_graceful_shutdown=1,  # nodes that wait for messages are not waited for
        lifespan="on",  # without it, nothing would check the ports
    )


if __name__ == "__main__":
    main()
