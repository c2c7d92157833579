"""One live display of a study: runs done, the running ones with their accuracy, time left."""

import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedkin.studies.study import Report


class StudyDisplay:
    """Live on a terminal; elsewhere one line a finished run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase, self._total, self._finished, self._failed = "", 0, 0, 0
        self._since, self._done_since = time.monotonic(), 0
        self._running: dict[str, Report] = {}
        self._ended: set[str] = set()
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4)

    def __enter__(self) -> "StudyDisplay":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def begin(self, phase: str, total: int, finished: int) -> None:
        """See `Display`."""
        self._phase, self._total, self._finished, self._failed = phase, total, finished, 0
        self._since, self._done_since = time.monotonic(), 0
        self._running.clear()
        if finished:
            self._console.print(f"{phase}: {finished} of {total} runs were finished before")

    def report(self, report: Report) -> None:
        """See `Display`."""
        if report.run not in self._ended:  # a last report may come after the end
            self._running[report.run] = report

    def done(self, run: str, error: str | None) -> None:
        """See `Display`."""
        last = self._running.pop(run, None)
        self._ended.add(run)
        self._done_since += 1
        count = f"{self._finished + self._failed + 1}/{self._total}"
        if error is not None:
            self._failed += 1
            self._console.print(f"{count} failed: {run}: {error}", style="red", markup=False)
            return
        self._finished += 1
        accuracy = "" if last is None else f", test accuracy {last.test_accuracy:.3f} at the end"
        if not self._console.is_terminal:
            self._console.print(f"{count} {run}{accuracy}", markup=False)

    def _render(self) -> RenderableType:
        done = self._finished + self._failed
        head = Table.grid(padding=(0, 2))
        head.add_row(
            f"{self._phase} {done}/{self._total}",
            ProgressBar(total=max(self._total, 1), completed=done, width=40),
            self._time_left(done),
        )
        lines = Table.grid(padding=(0, 2))
        for report in self._running.values():
            lines.add_row(
                Text(report.run),
                f"step {report.step}",
                f"{report.synchronizations} synchronizations",
                f"validation {report.validation_accuracy:.3f}",
                f"test {report.test_accuracy:.3f}",
            )
        return Group(head, lines)

    def _time_left(self, done: int) -> str:
        if not self._done_since:
            return ""
        seconds = (time.monotonic() - self._since) / self._done_since * (self._total - done)
        return (
            f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"
        )
