"""The progress of a study: runs done, the accuracy of those under way, the time left."""

import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedkin.events import Event, RunFailed, RunFinished, StepDone


class StudyDisplay:
    """Live on a terminal; elsewhere one line per finished run."""

    def __init__(self, console: Console) -> None:
        self._console = console
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
