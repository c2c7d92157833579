"""Follows a study that another process carries out, by what it writes into its directory."""

import re
from pathlib import Path

from fedkin.studies.store import Store, read_finished
from fedkin.studies.study import Display, Report, StudyOutcome

STEP = re.compile(
    r"step (?P<step>\d+): (?P<synchronizations>\d+) synchronizations, .*"
    r"validation (?P<validation>[\d.]+|nan), test (?P<test>[\d.]+|nan)"
)
"""A line of a run's log (`experiments/cell.py`)."""
FAILED = "failed: "


class StudyWatch:
    """Reads the logs of all runs of a study, each line once.

    Args:
        directory: The study's directory; it may not exist yet.
        total: How many runs the study has.
        display: What is shown.
    """

    def __init__(self, directory: Path, total: int, display: Display) -> None:
        self._store = Store(directory)
        self._display = display
        self._read: dict[Path, int] = {}
        self._ended: dict[str, str | None] = {}
        self._failed_trials: dict[str, str] = {}
        for path in self._directories():
            # What an earlier attempt has written is not news.
            self._read[path] = len(_log(path))
            if read_finished(path) is not None:
                self._ended[path.name] = None
        before = sum(path.parent == self._store.runs for path in self._read if self._is_done(path))
        display.begin("running", total, before)

    def look(self) -> None:
        """Show what is new."""
        for path in self._directories():
            log = _log(path)
            new = log[self._read.get(path, 0) :]
            whole = new[: new.rfind("\n") + 1]  # the last line may still be written
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                self._show(path, line)
            if path.name not in self._ended and read_finished(path) is not None:
                self._end(path, None)

    def outcome(self) -> StudyOutcome:
        """Return what has become of the runs."""
        self.look()
        failed = {name: reason for name, reason in self._ended.items() if reason is not None}
        finished = len(self._store.finished()) if self._store.runs.is_dir() else 0
        return StudyOutcome(finished, failed, self._failed_trials)

    def _show(self, path: Path, line: str) -> None:
        match = STEP.fullmatch(line)
        if match:
            self._display.report(
                Report(
                    path.name,
                    int(match["step"]),
                    int(match["synchronizations"]),
                    float(match["validation"]),
                    float(match["test"]),
                )
            )
        elif line.startswith(FAILED):
            self._end(path, line.removeprefix(FAILED))

    def _end(self, path: Path, reason: str | None) -> None:
        if path.parent == self._store.tuning:
            if reason is not None:
                self._failed_trials[path.name] = reason
            self._ended[path.name] = None
            return
        self._ended[path.name] = reason
        self._display.done(path.name, reason)

    def _is_done(self, path: Path) -> bool:
        return path.name in self._ended

    def _directories(self) -> list[Path]:
        parents = (self._store.tuning, self._store.runs)
        return [
            path
            for parent in parents
            if parent.is_dir()
            for path in sorted(parent.iterdir())
            if path.is_dir()
        ]


def _log(path: Path) -> str:
    try:
        return (path / "log.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
