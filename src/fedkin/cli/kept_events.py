"""The events of a command on this machine, kept in a file while it is under way."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkin.events import Event, OnEvent, append_event, hidden_events_beside


@contextmanager
def kept_events(out: Path | None) -> Iterator[OnEvent]:
    """Keep events in a hidden file beside the result until the result is written, for `fedkin watch`.

    Args:
        out: The directory of the result; None if nothing is written.
    """
    if out is None:
        yield lambda event: None
        return
    path = hidden_events_beside(out)

    def keep(event: Event) -> None:
        append_event(path, event)

    path.unlink(missing_ok=True)  # of a command that was killed
    try:
        yield keep
    finally:
        path.unlink(missing_ok=True)
