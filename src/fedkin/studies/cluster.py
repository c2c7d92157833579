"""The runs of a study as tasks of a Ray cluster: everything that imports Ray.

A task does a run in a directory of its own and sends events and checkpoints to a mailbox, which this process
empties into the store. A task whose worker is lost is given again, and continues from the last checkpoint
that has arrived.
"""

import contextlib
import logging
import os
import secrets
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from fedkin.compilation import keep_compiled_code_like_parent
from fedkin.errors import FedkinError, InputError
from fedkin.events import EventReader, Warned
from fedkin.studies.away import Arrived, Attempt, AwayRun, News, Order, do_away
from fedkin.studies.config import RunConfig

LOCAL = "local"
SCHEME = "ray"
POLL_SECONDS = 0.3
CONNECT_SECONDS = 10.0
MOST_LOSSES = 3
"""A run that loses this many workers in a row without a new checkpoint has failed."""
OBJECT_STORE = 100 * 2**20
"""Bytes; Ray would take 30% of the memory for objects, and ours are checkpoints of small models."""


class Cluster:
    """A Ray cluster that does runs; use it in a `with` statement.

    Args:
        address: `local`, for workers on this machine that end with this process, or `ray://HOST:PORT`.
        most: The largest number of runs at the same time; None for as many as the cluster has processors.
        attempt: Does a run in a directory.
    """

    def __init__(self, address: str, most: int | None, attempt: Attempt) -> None:
        self._address, self._most, self._attempt = address, most, attempt
        self._place: tempfile.TemporaryDirectory[str] | None = None
        check_address(address)

    def __enter__(self) -> "Cluster":
        if self._address != LOCAL:
            _check_answers(self._address)
        # Nobody but the user's own cluster hears of it.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        common: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        try:
            if self._address == LOCAL:
                # Otherwise Ray writes one into the home directory, and every cluster begun later asks for it.
                os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
                # Ray's sockets are in its directory, and the path of a socket must be short.
                short = "/tmp" if Path("/tmp").is_dir() else None
                self._place = tempfile.TemporaryDirectory(
                    prefix="fedkin-", dir=short, ignore_cleanup_errors=True
                )
                ray.init(
                    address="local",
                    num_cpus=self._most or len(os.sched_getaffinity(0)),
                    object_store_memory=OBJECT_STORE,
                    include_dashboard=False,
                    _temp_dir=self._place.name,
                    **common,
                )
            else:
                ray.init(self._address, **common)
        except Exception as error:
            # Ray has exceptions of many kinds for a cluster of another version, or one that is full.
            self.__exit__(None, None, None)
            reason = " ".join(str(error).split())[:400]
            raise InputError(
                f"cannot use the cluster {self._address}: {reason} (if it asks for a token, set "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as its machines have them)"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        import ray

        ray.shutdown()
        if self._place is not None:
            self._place.cleanup()

    def do_runs(
        self,
        runs: Sequence[RunConfig],
        parent: Path,
        display: Any,
        data_directory: Path | None,
        finish: Callable[[RunConfig, str | None], None],
    ) -> None:
        """Do runs on the cluster, and write what they report and find into their directories.

        Args:
            runs: The runs.
            parent: The directory that holds theirs.
            display: Shows the events.
            data_directory: Where data sets are, on the workers.
            finish: Called with each run that has ended, and why it failed or None.
        """
        if not runs:
            return
        import ray
        from ray.exceptions import RayError, RayTaskError

        waiting = deque(AwayRun(run, parent) for run in runs)
        by_name = {each.run.directory: each for each in waiting}
        readers = {
            name: EventReader(each.directory.events, only_new=True)
            for name, each in by_name.items()
        }
        task = ray.remote(num_cpus=1, max_retries=0)(_task)
        mailbox = _make_mailbox()
        pending: dict[Any, AwayRun] = {}
        try:
            while waiting or pending:
                while waiting and (self._most is None or len(pending) < self._most):
                    each = waiting.popleft()
                    order = each.order(data_directory)
                    pending[task.remote(order, self._attempt, mailbox)] = each
                ready, _ = ray.wait(list(pending), timeout=POLL_SECONDS)
                for news in ray.get(mailbox.take.remote()):
                    by_name[news.run].take(news)
                ended: list[tuple[AwayRun, str | None]] = []
                for reference in ready:
                    each = pending.pop(reference)
                    try:
                        ended.append((each, each.end(ray.get(reference))))
                    except RayTaskError as error:
                        ended.append((each, each.fail(_task_error(error))))
                    except RayError as error:
                        if (failure := _lose_worker(each, error)) is None:
                            waiting.appendleft(each)
                        else:
                            ended.append((each, failure))
                for reader in readers.values():
                    for event in reader.new():
                        display.event(event)
                for each, failure in ended:
                    del readers[each.run.directory]
                    finish(each.run, failure)
        except (RayError, ConnectionError) as error:
            raise InputError(
                f"the cluster {self._address} is gone ({_first_line(error)}): finished runs and checkpoints "
                "are kept; continue with --resume"
            ) from error
        finally:
            for reference in pending:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)
            with contextlib.suppress(Exception):
                ray.kill(mailbox)


def check_address(address: str) -> None:
    """Refuse an address that is none, and Ray's absence."""
    if address != LOCAL:
        try:
            parts = urlsplit(address)
            whole = parts.scheme == SCHEME and parts.hostname and parts.port
        except ValueError:
            whole = False
        if not whole:
            raise InputError(
                f"--cluster: '{address}' is neither {LOCAL} nor an address such as {SCHEME}://HOST:10001"
            )
    for name in ("ray", *(() if address == LOCAL else ("grpc",))):
        if find_spec(name) is None:
            raise InputError(
                f"--cluster needs {name}, which is not installed: pip install 'fedkin[cluster]'"
            )


def _check_answers(address: str) -> None:
    """Refuse a cluster that nobody answers for; Ray would try for minutes."""
    parts = urlsplit(address)
    assert parts.hostname is not None
    assert parts.port is not None
    try:
        socket.create_connection((parts.hostname, parts.port), CONNECT_SECONDS).close()
    except OSError as error:
        raise InputError(
            f"nobody answers at {address} ({error.strerror or error}): start the cluster with ray start "
            "--head, and name the port of its Ray client server"
        ) from error


class _Mailbox:
    """An actor that keeps news until they are taken."""

    def __init__(self) -> None:
        self._news: list[News] = []

    def put(self, news: News) -> None:
        """Add news."""
        self._news.append(news)

    def take(self) -> list[News]:
        """Return the news since the last call."""
        news, self._news = self._news, []
        return news


def _make_mailbox() -> Any:
    """Make a mailbox on the node that this process is connected to: it ends with the cluster only."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Not soft: that one may be anywhere, and end with a machine that the cluster can do without.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    made: Any = ray.remote(_Mailbox)
    return made.options(num_cpus=0, scheduling_strategy=here).remote()


def _task(order: Order, attempt: Attempt, mailbox: Any) -> Arrived:
    """Do a run, on a worker."""
    import ray

    keep_compiled_code_like_parent()
    under_way: list[Any] = []

    def send(news: News) -> bool:
        if under_way and not ray.wait(under_way, timeout=0)[0]:
            return False  # the network is slower than the steps
        under_way[:] = [mailbox.put.remote(news)]
        return True

    return do_away(order, attempt, send)


def _task_error(error: Any) -> str:
    """Say why a task has failed before or after its run."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, FedkinError):
        return str(cause)
    if isinstance(cause, ModuleNotFoundError):
        return f"the workers of the cluster cannot import {cause.name}: install it there"
    return f"{type(cause).__name__}: {_first_line(cause)}"


def _lose_worker(run: AwayRun, error: Exception) -> str | None:
    """Note that the worker of a run was lost; return why the run has failed, if that was too often."""
    run.losses += 1
    reason = _first_line(error)
    if run.losses >= MOST_LOSSES:
        return run.fail(
            f"{run.losses} workers were lost in a row ({reason}); do they have too little memory?"
        )
    name = run.run.directory
    run.directory.record(
        Warned(run=name, message=f"the worker was lost, and another one continues ({reason})")
    )
    return None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]
