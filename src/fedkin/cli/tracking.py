"""The options of tracking, shared by `fedkin run` and `fedkin fit`."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedkin.cli.output import print_warning
from fedkin.events import Event, RunFailed
from fedkin.studies.study import Display
from fedkin.tracking.base import Tracker
from fedkin.tracking.with_mlflow import MLflowTracker
from fedkin.tracking.with_tensorboard import TensorBoardTracker

TRACKING_PANEL = "Tracking"

MLflowOption = Annotated[
    str | None,
    typer.Option(
        "--mlflow",
        metavar="DIR|URI",
        help="Report to MLflow too: a directory for a local store, or the address of one.",
        rich_help_panel=TRACKING_PANEL,
    ),
]
TensorBoardOption = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard",
        metavar="DIR",
        help="Report to TensorBoard too, in this directory.",
        rich_help_panel=TRACKING_PANEL,
    ),
]


@contextmanager
def open_trackers(
    mlflow: str | None,
    tensorboard: Path | None,
    *,
    experiment: str,
    run_name: str | None = None,
) -> Iterator[Sequence[Tracker]]:
    """Return the trackers that the options ask for, and close them at the end.

    Args:
        mlflow: The directory or address of an MLflow store.
        tensorboard: The directory for TensorBoard.
        experiment: The name of the experiment in MLflow.
        run_name: The name in MLflow of a run that has none itself.
    """
    with ExitStack() as stack:
        trackers: list[Tracker] = []
        if mlflow is not None:
            trackers.append(MLflowTracker(mlflow, experiment=experiment, run_name=run_name))
        if tensorboard is not None:
            trackers.append(TensorBoardTracker(tensorboard))
        for tracker in trackers:
            tracker.on_failure = print_warning
            stack.enter_context(tracker)
        yield trackers


class TrackedDisplay:
    """Shows the progress of a study, and hands its events on.

    Args:
        display: What shows it.
        trackers: Who gets the events.
    """

    def __init__(self, display: Display, trackers: Sequence[Tracker]) -> None:
        self._display, self._trackers = display, trackers

    def begin(self, phase: str, total: int, finished: int) -> None:
        """See `Display`."""
        self._display.begin(phase, total, finished)

    def event(self, event: Event) -> None:
        """See `Display`."""
        self._display.event(event)
        for tracker in self._trackers:
            tracker(event)

    def done(self, run: str, error: str | None) -> None:
        """See `Display`. A run in this process that fails reports no event itself."""
        self._display.done(run, error)
        if error is not None:
            for tracker in self._trackers:
                tracker(RunFailed(run=run, reason=error))
