"""A run on another machine: what is sent there, what it sends back, and what becomes of it in the store.

Nothing here knows Ray: `cluster.py` does.
"""

import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedkin.errors import FedkinError, InputError
from fedkin.events import Event, RunFailed, StepDone, append_lines
from fedkin.files import write_atomically
from fedkin.studies.config import RunConfig
from fedkin.studies.store import RunDirectory, read_finished
from fedkin.training.checkpoint import versions

CHECKPOINTS = "checkpoint*.npz"
FINISHED = "finished.json"
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
SECONDS_BETWEEN_NEWS = 0.5
"""Steps that are shorter share a message."""


@dataclass(frozen=True)
class Order:
    """A run that another machine is to do."""

    run: RunConfig
    attempt: int
    """Counts from 0; what an attempt sends after it was given up is ignored."""
    files: Mapping[str, bytes]
    """The run's config and, if it is to continue, its checkpoints."""
    versions: Mapping[str, str]
    data_directory: Path | None
    parent: str
    """Where the run's directory is at home, for messages."""


@dataclass(frozen=True)
class News:
    """What has happened since the last news of an attempt."""

    run: str
    attempt: int
    offset: int
    """Where in the attempt's events the new ones begin."""
    events: bytes
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Arrived:
    """The end of a run, with everything that it has written."""

    error: str | None
    """Why it failed; None if it did not."""
    events: bytes
    """All events of the attempt."""
    files: Mapping[str, bytes]


Attempt = Callable[[RunConfig, Path, Path | None, Callable[[Event], None]], str | None]
"""Does a run in a directory; returns why it failed, or None."""


def do_away(order: Order, attempt: Attempt, send: Callable[[News], bool]) -> Arrived:
    """Do a run in a directory of its own, and report while it is under way.

    Args:
        order: The run.
        attempt: Does it.
        send: Sends news home; returns whether it could: otherwise they come with the next.
    """
    own = versions()
    for name, version in order.versions.items():
        if own.get(name) != version:
            raise InputError(
                f"a worker of the cluster has {name} {own.get(name)}, and this machine has {version}: "
                "install the same versions, since results depend on them"
            )
    with tempfile.TemporaryDirectory(prefix="fedkin-run-") as place:
        directory = RunDirectory(Path(place), order.run)
        directory.path.mkdir()
        for name, content in order.files.items():
            (directory.path / name).write_bytes(content)
        reporter = _Reporter(order, directory, send)
        error = attempt(order.run, Path(place), order.data_directory, reporter.event)
        files = {
            path.name: path.read_bytes()
            for path in directory.path.iterdir()
            if path != directory.events
        }
        events = directory.events.read_bytes() if directory.events.exists() else b""
    return Arrived(None if error is None else error.replace(place, order.parent), events, files)


class _Reporter:
    """Sends home the events and checkpoints of a run, not too often."""

    def __init__(self, order: Order, directory: RunDirectory, send: Callable[[News], bool]) -> None:
        self._order, self._directory, self._send = order, directory, send
        self._offset = 0
        self._sent_at = float("-inf")
        self._written: dict[str, int] = {}

    def event(self, event: Event) -> None:
        """Take in an event, which is in the run's file already, as is the checkpoint of its step."""
        if isinstance(event, StepDone) and time.monotonic() - self._sent_at < SECONDS_BETWEEN_NEWS:
            return
        with self._directory.events.open("rb") as file:
            file.seek(self._offset)
            events = file.read()
        files, written = {}, {}
        for path in self._directory.path.glob(CHECKPOINTS):
            when = path.stat().st_mtime_ns
            if self._written.get(path.name) != when:
                files[path.name], written[path.name] = path.read_bytes(), when
        name = self._order.run.directory
        if self._send(News(name, self._order.attempt, self._offset, events, files)):
            self._offset += len(events)
            self._sent_at = time.monotonic()
            self._written |= written


class AwayRun:
    """A run that is done elsewhere, as its directory at home knows it.

    Args:
        run: The run.
        parent: The directory that holds the run's own.
    """

    def __init__(self, run: RunConfig, parent: Path) -> None:
        self.run = run
        self.directory = RunDirectory(parent, run)
        self.losses = 0
        """How many workers were lost since it has last come forward."""
        self._attempt = -1
        self._received = 0

    def order(self, data_directory: Path | None) -> Order:
        """Return what to send for the next attempt, which continues where news of the last one ended."""
        self._attempt += 1
        self._received = 0
        self.directory.create()
        paths = [self.directory.path / "config.json", *self.directory.path.glob(CHECKPOINTS)]
        return Order(
            self.run,
            self._attempt,
            {path.name: path.read_bytes() for path in paths},
            versions(),
            data_directory,
            str(self.directory.path.parent),
        )

    def take(self, news: News) -> None:
        """Write news into the run's directory."""
        if news.attempt != self._attempt:
            return
        if news.offset == self._received:  # otherwise some were lost: all come again at the end
            self._append(news.events)
        for name, content in news.files.items():
            self._write(name, content)
            self.losses = 0

    def end(self, arrived: Arrived) -> str | None:
        """Write all that has arrived, the outcome last; return why the run failed, or None."""
        self._attempt += 1  # its news that are still on their way come too late
        self._append(arrived.events[self._received :])
        last = {name: arrived.files[name] for name in (FINISHED,) if name in arrived.files}
        for name, content in {**arrived.files, **last}.items():
            if name not in last or arrived.error is None:
                self._write(name, content)
        if arrived.error is not None:
            return arrived.error
        if read_finished(self.directory.path) is None:
            return "what arrived from the cluster is damaged: run the study again with --resume"
        for path in self.directory.path.glob(CHECKPOINTS):
            path.unlink()
        return None

    def fail(self, reason: str) -> str:
        """Note why the run has failed, as a run that fails itself does; return it."""
        self.directory.record(RunFailed(run=self.run.directory, reason=reason))
        return reason

    def _append(self, events: bytes) -> None:
        if not events:
            return
        append_lines(self.directory.events, events)
        self._received += len(events)

    def _write(self, name: str, content: bytes) -> None:
        if FILE_NAME.fullmatch(name) is None:
            raise FedkinError(f"a worker of the cluster has sent a file with the name {name!r}")
        write_atomically(self.directory.path / name, content)
