"""A node's audit log: one line for every request that it has answered or refused, without any data.

The lines are JSON, in `audit.jsonl` in the node's `state` directory. When the file has half the size that the
owner allows, it becomes `audit.1.jsonl`, in place of the one before. A request is only answered if its line
could be written.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedkin.errors import InputError
from fedkin.flower.certificates import make_private_directory

NEWEST, BEFORE = "audit.jsonl", "audit.1.jsonl"

ANSWERED, REFUSED, ENDED = OUTCOMES = ("answered", "refused", "ended")
"""What became of a request; `ended` if it took longer than the owner allows, and the worker was ended."""

LONGEST_TEXT = 200
"""Texts that a center has sent are cut after this many characters."""


@dataclass
class Entry:
    """What is written down about a request."""

    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    node: str = ""
    request: str = "unknown"
    """`describe`, `join` or `exchange`."""
    run: str = ""
    """The name that the center has given to the run."""
    flower_run: int = 0
    """Flower's number of the run."""
    tasks: list[str] = field(default_factory=list)
    """What an exchange asked for: the tasks, with the part of the node and the number of models."""
    rows: int = 0
    """How many of the node's rows the answer was computed from, at most."""
    nodes: int = 0
    """How many nodes are in the smallest masked sum that the answer is for; 0 if nothing is masked."""
    evaluations: int = 0
    """How many gradients or products of single rows that took."""
    outcome: str = REFUSED
    cause: str = ""
    """Why it was refused: in words, if the reason has nothing to do with the data."""
    seconds: float = 0.0
    epsilon: float = 0.0
    """The ε that all answers so far have spent, if the node protects its rows; otherwise 0."""


class AuditLog:
    """The audit log in a node's directory.

    Args:
        directory: The node's `state` directory.
        largest: The largest number of bytes that both files may have together.
    """

    def __init__(self, directory: Path, largest: int) -> None:
        self._directory = directory
        self._largest = largest

    def write(self, entry: Entry) -> None:
        """Write a line.

        Raises:
            InputError: If it cannot be written.
        """
        content = asdict(entry) | {
            "run": _printable(entry.run),
            "cause": _printable(entry.cause),
            "seconds": round(entry.seconds, 4),
            "epsilon": float(f"{entry.epsilon:.6g}"),
        }
        line = json.dumps(content).encode() + b"\n"
        path = self._directory / NEWEST
        try:
            make_private_directory(self._directory)
            opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(opened, "ab") as file:
                file.write(line)
                size = file.tell()
            if size > self._largest // 2:
                path.replace(self._directory / BEFORE)
        except OSError as error:
            raise InputError(f"cannot write the audit log {path}: {error.strerror}") from error


def _printable(text: str) -> str:
    """Return the beginning of a text, without characters that would steer a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text[:LONGEST_TEXT])


def audit_logs(directory: Path) -> list[Path]:
    """Return the directories that have an audit log.

    Args:
        directory: A federation's directory, a node's, or the node's `state` directory.

    Raises:
        InputError: If there is none.
    """
    if not directory.is_dir():
        raise InputError(
            f"there is no directory {directory}: give that of a federation, or what --state names on a node"
        )
    places = [directory, directory / "memory", directory / "state"]
    found = [path for path in [*places, *sorted(directory.glob("nodes/*/state"))] if _has_log(path)]
    if not found:
        raise InputError(
            f"{directory} has no audit log: give the directory of a federation, or what --state names on a "
            "node; a node writes its log with the first request"
        )
    return found


def _has_log(directory: Path) -> bool:
    return any((directory / name).is_file() for name in (NEWEST, BEFORE))


def read_entries(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of an audit log, oldest first.

    Raises:
        InputError: If a line is not an entry.
    """
    for name in (BEFORE, NEWEST):
        path = directory / name
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path}: {error}") from error
        for number, line in enumerate(lines, 1):
            yield _read_entry(line, f"{path}, line {number}")


def _read_entry(line: str, place: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    known = asdict(Entry())
    if isinstance(entry, dict):
        entry = {"nodes": 0, "epsilon": 0.0} | entry  # logs of earlier versions do not have them
    if not isinstance(entry, dict) or any(
        type(entry.get(name)) is not type(value) for name, value in known.items()
    ):
        raise InputError(
            f"{place} is not an entry of an audit log: the file was changed or cut off"
        )
    return {name: entry[name] for name in known}
