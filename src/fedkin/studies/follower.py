"""Follows a study that another process carries out, by the events it writes to its directory."""

import time
from pathlib import Path

from fedkin.events import EVENTS_FILE, Event, EventReader, RunFailed, RunFinished
from fedkin.studies.store import Store, read_finished
from fedkin.studies.study import Display, StudyOutcome


class StudyFollower:
    """Shows the events of all runs of a study, each once.

    Args:
        directory: The study's directory; it may not exist yet.
        total: How many runs the study has.
        display: What shows the events.
    """

    def __init__(self, directory: Path, total: int, display: Display) -> None:
        self._store = Store(directory)
        self._display = display
        self._since = time.time()
        self._readers: dict[Path, EventReader] = {}
        self._failed: dict[str, str] = {}
        self._failed_trials: dict[str, str] = {}
        finished = sum(read_finished(path) is not None for path in _directories(self._store.runs))
        display.begin("running", total, finished)

    def poll(self) -> None:
        """Show the events since the last call."""
        for path in (*_directories(self._store.tuning), *_directories(self._store.runs)):
            reader = self._readers.setdefault(path, EventReader(path / EVENTS_FILE))
            for event in reader.new():
                # A directory may hold the events of an earlier attempt.
                if event.time >= self._since:
                    self._show(event, is_trial=path.parent == self._store.tuning)

    def outcome(self) -> StudyOutcome:
        """Return how the runs ended."""
        self.poll()
        finished = len(self._store.finished()) if self._store.runs.is_dir() else 0
        return StudyOutcome(finished, self._failed, self._failed_trials)

    def _show(self, event: Event, is_trial: bool) -> None:
        self._display.event(event)
        if isinstance(event, RunFailed):
            (self._failed_trials if is_trial else self._failed)[event.run] = event.reason
        if isinstance(event, RunFinished | RunFailed) and not is_trial:
            self._display.done(event.run, self._failed.get(event.run))


def _directories(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []
