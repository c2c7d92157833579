"""What a run reports while it is under way.

Whoever runs something passes `on_event`, a function that takes one of the events below. Runs in other
processes append their events to a file, one JSON object per line, and `EventReader` follows that file.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedkin.errors import InputError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

EVENTS_FILE = "events.jsonl"
"""The name of the file of events in a run's directory."""
BEGINNING = 1000
"""Bytes by which two files of events are told apart: their first event has a time."""


def events_beside(out: Path) -> Path:
    """Return the file of events of a run whose results are to be written to `out`."""
    return out.with_name(f"{out.name}.{EVENTS_FILE}")


def hidden_events_beside(out: Path) -> Path:
    """Return the file of events that is there only while a command on this machine writes `out`."""
    out = out.resolve()
    return out.with_name(f".{out.name}.{EVENTS_FILE}")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a run."""

    kind: ClassVar[str]
    run: str = ""
    """The name of the run; empty where there is only one."""
    time: float = field(default_factory=time.time)
    """Seconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """A run begins, or continues from a checkpoint."""

    kind: ClassVar[str] = "started"
    method: str
    nodes: tuple[str, ...]
    resumed_after: int | None = None
    """The outer steps that a checkpoint already has; None for a new run."""
    most_steps: int | None = None
    """The limit of outer steps, if there is one; a run may end before."""
    most_synchronizations: int | None = None
    """The limit of synchronizations, if there is one."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """What the method runs with, as plain JSON values."""


@dataclass(frozen=True, kw_only=True)
class StepDone(Event):
    """One outer step is done and its model evaluated."""

    kind: ClassVar[str] = "step"
    step: int
    synchronizations: int
    seconds: float
    """Since the run began."""
    bytes_up: int
    bytes_down: int
    validation_loss: float
    validation_accuracy: float | None = None
    test_accuracy: float | None = None
    weights: tuple[float, ...] | None = None
    """One weight per node, in the order of `RunStarted.nodes`; None where nodes have no weights."""
    absent: tuple[str, ...] = ()
    """The nodes that are missing or dropped at the end of the step."""


@dataclass(frozen=True, kw_only=True)
class Warned(Event):
    """Something went wrong and was mended."""

    kind: ClassVar[str] = "warning"
    message: str


@dataclass(frozen=True, kw_only=True)
class GroupsTrained(Event):
    """Models of some groups of nodes are trained, to learn what each node contributes."""

    kind: ClassVar[str] = "groups"
    done: int
    """How many groups are trained."""
    most: int
    """How many there are in all, at most."""


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """A run came to its end."""

    kind: ClassVar[str] = "finished"
    stopped: str
    """Why it ended, in a sentence."""


@dataclass(frozen=True, kw_only=True)
class RunFailed(Event):
    """A run ended without a result."""

    kind: ClassVar[str] = "failed"
    reason: str
    traceback: str | None = None
    """For faults of fedkin itself."""


OnEvent = Callable[[Event], None]

KINDS: dict[str, type[Event]] = {
    each.kind: each
    for each in (RunStarted, StepDone, Warned, GroupsTrained, RunFinished, RunFailed)
}


def to_json(event: Event) -> dict[str, Any]:
    """Return an event as plain JSON values."""
    return {"event": event.kind, **asdict(event)}


def from_json(plain: dict[str, Any]) -> Event | None:
    """Return the event that `to_json` was given; None for a kind this version does not know.

    Raises:
        ValueError: If a field is missing, or of another type.
    """
    kind = KINDS.get(plain.get("event", ""))
    if kind is None:
        return None
    known = {each.name for each in fields(kind)}
    return _checker(kind).validate_python(
        {name: value for name, value in plain.items() if name in known}
    )


@cache
def _checker(kind: type[Event]) -> "TypeAdapter[Event]":
    """Return what checks the types of a kind's fields: whoever reads an event relies on them."""
    from pydantic import TypeAdapter  # `import fedkin` must not wait for it

    return TypeAdapter(kind)


def plain(value: Any) -> Any:
    """Return a value as JSON has it; what has no such form becomes text.

    >>> plain({"cap": 0.5, "prior": (1, None), "solver": complex(1, 2)})
    {'cap': 0.5, 'prior': [1, None], 'solver': '(1+2j)'}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value)


def append_event(path: Path, event: Event) -> None:
    """Add an event to a file, as one line."""
    append_lines(path, json.dumps(to_json(event)).encode() + b"\n")


def append_lines(path: Path, lines: bytes) -> None:
    """Add whole lines of events to a file."""
    try:
        with path.open("ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # the writer of the last line was killed
                    lines = b"\n" + lines
            file.write(lines)
    except OSError as error:
        raise InputError(f"cannot write to {path}: {error.strerror}") from error


class EventReader:
    """Follows a file of events that another process may still be writing.

    A file that was replaced is read from its beginning.

    Args:
        path: The file; it need not exist yet.
        only_new: Whether to skip the events that are in the file already.
    """

    def __init__(self, path: Path, *, only_new: bool = False) -> None:
        self._path = path
        self._read = 0
        self._beginning = b""
        self.replaced = False
        """Whether the last call of `new` has found another file than the one before."""
        if only_new and path.exists():
            with path.open("rb") as file:
                self._beginning = file.read(BEGINNING)
                self._read = file.seek(0, os.SEEK_END)

    def new(self) -> list[Event]:
        """Return the events since the last call; a line that is still being written waits."""
        self.replaced = False
        try:
            with self._path.open("rb") as file:
                if file.read(len(self._beginning)) != self._beginning:
                    self.replaced, self._read, self._beginning = True, 0, b""
                file.seek(self._read)
                content = file.read()
        except OSError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        if self._read == 0:
            self._beginning = whole[:BEGINNING]
        self._read += len(whole)
        events = []
        for line in whole.splitlines():
            try:
                event = from_json(json.loads(line))
            except (ValueError, TypeError, AttributeError, RecursionError):
                continue  # cut off when its writer was killed, or damaged
            if event is not None:
                events.append(event)
        return events
