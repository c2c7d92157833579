"""Runs in TensorBoard: a directory per run, with the numbers of every step."""

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedkin.errors import InputError
from fedkin.events import Event, RunFailed, RunFinished, RunStarted, StepDone, Warned
from fedkin.tracking.base import Tracker, distinct_names, flat, step_numbers

FLUSH_SECONDS = 5
"""How late a step may appear."""


class TensorBoardTracker(Tracker):
    """Hands events on to TensorBoard: `fedkin.fit(…, on_event=fedkin.TensorBoardTracker("logs"))`.

    Look at them with `tensorboard --logdir logs`. Every run has a directory of its own; one without a name
    writes to the directory itself.

    Args:
        directory: The directory for the files.

    >>> import tempfile
    >>> import fedkin
    >>> nodes = {"north": ([[0.0], [1.0], [2.0]], [0, 1, 1]), "south": ([[0.5], [2.5]], [0, 1])}
    >>> with tempfile.TemporaryDirectory() as logs, TensorBoardTracker(logs) as tracker:
    ...     result = fedkin.fit(nodes, nodes["north"], minimum_rows=1, steps=2, on_event=tracker)
    ...     len(list(Path(logs).iterdir()))
    1
    """

    title = "TensorBoard"

    def __init__(self, directory: str | Path) -> None:
        super().__init__()
        if find_spec("tensorboardX") is None:
            raise InputError(
                "tracking with TensorBoard needs tensorboardX, which is not installed: pip install "
                "'fedkin[tensorboard]'"
            )
        self._directory = Path(directory)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot make the directory {directory} for TensorBoard: {error.strerror}; choose "
                "another one"
            ) from error
        self._names: list[str] = []
        self._writers: dict[str, Any] = {}
        self._nodes: dict[str, list[str]] = {}

    def track(self, event: Event) -> None:
        """See `Tracker`."""
        if isinstance(event, RunStarted):
            self._start(event)
            return
        writer = self._writers.get(event.run)
        if writer is None:
            return
        match event:
            case StepDone():
                for name, value in step_numbers(event, self._nodes[event.run]).items():
                    writer.add_scalar(name, value, event.step, walltime=event.time)
            case Warned():
                writer.add_text("warnings", event.message, walltime=event.time)
            case RunFinished():
                writer.add_text("stopped", event.stopped, walltime=event.time)
                self._writers.pop(event.run).close()
            case RunFailed():
                writer.add_text("failed", event.reason, walltime=event.time)
                self._writers.pop(event.run).close()
            case _:
                pass

    def finish(self) -> None:
        """Write what is not written yet."""
        while self._writers:
            self._writers.popitem()[1].close()

    def _start(self, event: RunStarted) -> None:
        from tensorboardX import SummaryWriter

        if event.run in self._writers:
            self._writers.pop(event.run).close()
        if event.run and event.run not in self._names:
            self._names.append(event.run)
        place = self._directory
        if event.run:
            place /= distinct_names(self._names)[self._names.index(event.run)]
        # What an earlier attempt wrote beyond the checkpoint, or at all, is not shown any more.
        first = 0 if event.resumed_after is None else event.resumed_after + 1
        writer = SummaryWriter(
            str(place),
            flush_secs=FLUSH_SECONDS,
            purge_step=first,
            # Names have whole seconds only, and a second writer would replace the file of the first.
            filename_suffix=f".{time.time_ns()}",
        )
        self._writers[event.run] = writer
        self._nodes[event.run] = distinct_names(event.nodes)
        known = {"method": event.method, "nodes": str(len(event.nodes)), **flat(event.parameters)}
        lines = [f"| {name} | {_cell(value)} |" for name, value in known.items()]
        table = "\n".join(["| parameter | value |", "|---|---|", *lines])
        writer.add_text("parameters", table, walltime=event.time)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
