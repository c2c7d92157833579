"""The progress of a study: runs done, the accuracy of those under way, the time left."""

import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedkin.events import Event, RunFailed, RunFinished, StepDone, Warned


class StudyDisplay:
    """Live on a terminal; elsewhere one line per finished run.

    Args:
        console: Where to show it.
        show_warnings: Whether to print warnings as they happen, and once more at the end.
    """

    def __init__(self, console: Console, *, show_warnings: bool = False) -> None:
        self._console = console
        self._show_warnings = show_warnings
        self._warnings: dict[str, int] = {}  # how often each was given
        self._phase, self._total, self._finished, self._failed = "", 0, 0, 0
        self._since, self._done_since = time.monotonic(), 0
        self._running: dict[str, StepDone] = {}
        self._last_steps: dict[str, StepDone] = {}
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

    def event(self, event: Event) -> None:
        """See `Display`."""
        if isinstance(event, StepDone):
            self._running[event.run] = self._last_steps[event.run] = event
        elif isinstance(event, RunFinished | RunFailed):
            self._running.pop(event.run, None)
        elif isinstance(event, Warned) and self._show_warnings:
            warning = f"{event.run}: {event.message}"
            self._warnings[warning] = self._warnings.get(warning, 0) + 1
            if self._warnings[warning] == 1:
                self._print_warning(warning)

    def repeat_warnings(self) -> None:
        """Print all warnings once more, each with how often it was given."""
        for warning, count in self._warnings.items():
            self._print_warning(warning if count == 1 else f"{warning} ({count} times)")

    def _print_warning(self, warning: str) -> None:
        self._console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)

    def done(self, run: str, error: str | None) -> None:
        """See `Display`."""
        self._running.pop(run, None)
        last = self._last_steps.pop(run, None)
        self._done_since += 1
        count = f"{self._finished + self._failed + 1}/{self._total}"
        if error is not None:
            self._failed += 1
            self._console.print(f"{count} failed: {run}: {error}", style="red", markup=False)
            return
        self._finished += 1
        accuracy = None if last is None else last.test_accuracy
        at_the_end = "" if accuracy is None else f", test accuracy {accuracy:.3f} at the end"
        if not self._console.is_terminal:
            self._console.print(f"{count} {run}{at_the_end}", markup=False)

    def _render(self) -> RenderableType:
        done = self._finished + self._failed
        head = Table.grid(padding=(0, 2))
        head.add_row(
            f"{self._phase} {done}/{self._total}",
            ProgressBar(total=max(self._total, 1), completed=done, width=40),
            self._time_left(done),
        )
        lines = Table.grid(padding=(0, 2))
        for last in self._running.values():
            scores = {"validation": last.validation_accuracy, "test": last.test_accuracy}
            lines.add_row(
                Text(last.run),
                f"step {last.step}",
                f"{last.synchronizations} synchronizations",
                *(f"{name} {score:.3f}" for name, score in scores.items() if score is not None),
            )
        return Group(head, lines)

    def _time_left(self, done: int) -> str:
        if not self._done_since:
            return ""
        seconds = (time.monotonic() - self._since) / self._done_since * (self._total - done)
        return (
            f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"
        )
