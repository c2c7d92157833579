"""Follows the directory of a study, or of a result that is being learned, while others write it."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from fedkin.advice.directory import read_advice
from fedkin.errors import InputError
from fedkin.events import (
    EVENTS_FILE,
    EventReader,
    GroupsTrained,
    events_beside,
    hidden_events_beside,
)
from fedkin.report import html
from fedkin.report.advice_page import render_advice
from fedkin.report.reading import read_contributions, read_record
from fedkin.studies.config import StudyConfig
from fedkin.studies.store import Store
from fedkin.training.map_directory import COLLABORATION
from fedkin.training.result_directory import ADVICE, METRICS, REPORT
from fedkin.watch.runs import LiveRun

FEDERATION_FILE = "federation.toml"
SLACK = 0.1
"""By how many seconds the time of a file may lag behind that of an event."""


class Watched(ABC):
    """What is watched. `refresh` reads what is new.

    Args:
        directory: The directory of the results.
    """

    kind: str
    """`study` or `result`."""
    total: int | None = None
    """How many runs there are to be; None if that is unknown."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs: dict[str, LiveRun] = {}
        self.groups: GroupsTrained | None = None

    @abstractmethod
    def refresh(self) -> None:
        """Read what is new."""

    @abstractmethod
    def is_over(self) -> bool:
        """Tell whether there is a result, and nothing that is newer."""

    @abstractmethod
    def steps_of(self, name: str) -> LiveRun:
        """Return a run with all its steps."""

    @abstractmethod
    def report(self) -> str:
        """Return the report of the result."""

    @property
    def title(self) -> str:
        """A heading."""
        return f"{self.kind.capitalize()} {self.directory.resolve().name}"

    @property
    def last_news(self) -> float:
        """When the last event happened; 0 if there was none."""
        return max((run.last_news for run in self.runs.values()), default=0.0)

    def in_state(self, state: str) -> list[LiveRun]:
        """Return the runs in a state, those with the latest news first."""
        found = [run for run in self.runs.values() if run.state == state]
        return sorted(found, key=lambda run: run.last_news, reverse=True)

    def seconds_left(self) -> float | None:
        """Estimate how long the rest takes, if as many runs as now share the work."""
        running = self.in_state("running")
        rest = [run.seconds_left for run in running]
        known = [seconds for seconds in rest if seconds is not None]
        own = [run for run in self.runs.values() if not run.is_trial]
        taken = [run.total_seconds for run in own if run.total_seconds is not None]
        taken += [
            run.last.seconds + left
            for run, left in zip(running, rest, strict=True)
            if left is not None and run.last is not None and not run.is_trial
        ]
        ended = sum(run.state in ("finished", "failed") for run in own)
        waiting = 0
        if self.total is not None:
            waiting = max(self.total - ended - sum(not run.is_trial for run in running), 0)
        if (waiting and not taken) or (running and not known):
            return None
        mean = sum(taken) / len(taken) if taken else 0.0
        return (waiting * mean + sum(known)) / max(len(running), 1)


class WatchedStudy(Watched):
    """The store of a study."""

    kind = "study"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._store = Store(directory)
        self._readers: dict[Path, EventReader] = {}
        self._asked_at = 0.0
        self._read_study()

    def refresh(self) -> None:
        """See `Watched`."""
        self._read_study()
        there = set()
        for path in self._directories():
            there.add(path.name)
            run = self.runs.get(path.name)
            if run is None:
                run = LiveRun(path.name, is_trial=path.parent == self._store.tuning)
                self.runs[path.name] = run
                self._readers[path] = EventReader(path / EVENTS_FILE)
                if (path / "finished.json").exists():
                    # There may be thousands: their events are read when somebody asks for them.
                    self._readers[path] = EventReader(path / EVENTS_FILE, only_new=True)
                    _mark_finished(run, path)
                    continue
            new = self._readers[path].new()
            run.take(new)
            if run.state in ("running", "failed") and run.last_news < self._asked_at - SLACK:
                run.state = "waiting"  # until the study that was resumed comes to it
            if new and run.state == "finished":
                del run.steps[:-1]
        for name in set(self.runs) - there:  # set aside
            del self.runs[name]

    def is_over(self) -> bool:
        """See `Watched`."""
        own = [run for run in self.runs.values() if not run.is_trial]
        finished = sum((self._store.runs / run.name / "finished.json").exists() for run in own)
        failed = sum(run.state == "failed" for run in own)
        if not finished:
            return False
        if self.total is not None and finished + failed >= self.total:
            return True
        try:
            written = (self.directory / REPORT).stat().st_mtime
        except OSError:
            return False
        newest = max(self.last_news, self._asked_at)
        return written + SLACK >= newest and not self.in_state("running")

    def steps_of(self, name: str) -> LiveRun:
        """See `Watched`."""
        run = self.runs[name]
        if run.state != "finished":
            return run
        whole = LiveRun(name, run.is_trial)
        parent = self._store.tuning if run.is_trial else self._store.runs
        whole.take(EventReader(parent / name / EVENTS_FILE).new())
        return whole

    def report(self) -> str:
        """See `Watched`."""
        return html.render(read_record(self.directory))

    def _read_study(self) -> None:
        """Count the runs; the file is written again when a study is resumed."""
        try:
            written = (self.directory / "study.json").stat().st_mtime
        except OSError:
            return
        if written == self._asked_at:
            return
        self._store.check_format()
        content = json.loads((self.directory / "study.json").read_text(encoding="utf-8"))
        try:
            self.total = len(StudyConfig.from_record(content["study"]).runs())
        except (ValueError, KeyError, TypeError, AttributeError, InputError):
            self.total = None  # the file of a user's own setting is gone, say
        self._asked_at = written

    def _directories(self) -> Iterator[Path]:
        for parent in (self._store.tuning, self._store.runs):
            if parent.is_dir():
                yield from sorted(path for path in parent.iterdir() if path.is_dir())


class WatchedResult(Watched):
    """The directory that `fit`, `map` or `advise` is to write, alone or in a federation."""

    kind = "result"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._files = [hidden_events_beside(directory), events_beside(directory.resolve())]
        self._followed: Path | None = None
        self._reader = EventReader(self._files[0])

    def refresh(self) -> None:
        """See `Watched`."""
        file = next((path for path in self._files if path.exists()), None)
        if file is not None and file != self._followed:
            self._forget()
            self._reader, self._followed = EventReader(file), file
        new = self._reader.new()
        if self._reader.replaced:  # the command was given again
            self._forget()
        for event in new:
            if isinstance(event, GroupsTrained):
                self.groups = event
                continue
            run = self.runs.setdefault(event.run, LiveRun(event.run))
            run.take([event])

    def is_over(self) -> bool:
        """See `Watched`."""
        for name in (ADVICE, COLLABORATION, METRICS):
            path = self.directory / name
            if path.exists():
                newer = path.stat().st_mtime + SLACK >= self.last_news
                return newer or not any(each.exists() for each in self._files)
        return False

    def steps_of(self, name: str) -> LiveRun:
        """See `Watched`."""
        return self.runs[name]

    def report(self) -> str:
        """See `Watched`."""
        if (self.directory / ADVICE).is_file():
            advice, content = read_advice(self.directory)
            return render_advice(advice, content, read_contributions(self.directory))
        return html.render(read_record(self.directory))

    def _forget(self) -> None:
        self.runs.clear()
        self.groups = None


def open_directory(directory: Path) -> Watched:
    """Return what there is to watch in a directory, or is to become one.

    Raises:
        InputError: If nothing is under way there and there is no result either.
    """
    if directory.exists() and not directory.is_dir():
        raise InputError(
            f"{directory} is a file: name the --out of fedkin run, fit, map, advise or federation run"
        )
    if (directory / FEDERATION_FILE).exists():
        raise InputError(
            f"{directory} is the directory of a federation: name the --out of fedkin federation run, where "
            "its results will be"
        )
    if (directory / "study.json").exists():
        return WatchedStudy(directory)
    watched = WatchedResult(directory)
    watched.refresh()
    if watched.runs or watched.is_over():
        return watched
    what = "has no results" if directory.exists() else "does not exist"
    raise InputError(
        f"{directory} {what}, and nothing is under way there: start fedkin run, fit, map, advise or "
        "federation run first, and name its --out"
    )


def _mark_finished(run: LiveRun, path: Path) -> None:
    """Take the end of a run from its outcome; a damaged one has none."""
    run.state = "finished"
    try:
        file = path / "finished.json"
        outcome = json.loads(file.read_text(encoding="utf-8"))
        run.total_seconds = float(outcome["total_seconds"])
        run.reason = str(outcome["stopped"])
        run.last_news = min(file.stat().st_mtime, time.time())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
