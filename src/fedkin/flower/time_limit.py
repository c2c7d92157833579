"""The time that a node may take for one answer, as its owner has set it.

Compiled code cannot be interrupted, so a worker that takes longer ends itself, and its SuperNode starts a new
one. The center sees a node that has not answered.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedkin.errors import InputError
from fedkin.flower.audit import ENDED, AuditLog, Entry

logger = logging.getLogger("fedkin.node")

OVERDUE_STATUS = 70
"""The exit status of a worker that has taken too long."""


@dataclass(frozen=True)
class _Running:
    entry: Entry
    log: AuditLog | None
    seconds: float
    begin: float


_running: _Running | None = None


@contextlib.contextmanager
def limited_time(entry: Entry, log: AuditLog | None, seconds: float) -> Iterator[None]:
    """Say that a request is being answered, one at a time, and how long it may take."""
    global _running
    _running = _Running(entry, log, seconds, time.monotonic())
    try:
        yield
    finally:
        _running = None


def end_if_overdue(end: Callable[[int], None] = os._exit) -> None:
    """End this process if the request that it answers has taken too long; write that down first.

    Args:
        end: Ends the process.
    """
    running = _running
    if running is None:
        return
    taken = time.monotonic() - running.begin
    if taken <= running.seconds:
        return
    running.entry.outcome, running.entry.seconds = ENDED, taken
    running.entry.cause = "it took longer than the owner allows (seconds-per-request)"
    logger.error(
        "a request has taken longer than %g s (seconds-per-request): the worker is ended",
        running.seconds,
    )
    if running.log is not None:
        with contextlib.suppress(InputError):
            running.log.write(running.entry)
    end(OVERDUE_STATUS)
