"""Waiting for a run at the center: the ways in which it can end, and how to continue after each."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from fedkin.cli.output import StoppedByUserError
from fedkin.errors import InputError
from fedkin.flower import app_directory
from fedkin.flower.internals import control
from fedkin.flower.jobs.writing import Job
from fedkin.flower.layout import Layout

POLL_SECONDS = 1.0
SILENT_SECONDS = 60.0
"""How long a SuperLink that is there may not answer before it counts as lost."""

OF_THE_PROGRAM = "ServerApp failed with exception: "
"""What Flower writes before an error that the program at the center has raised."""
NO_SIGN = "No heartbeat received from the task"
"""What Flower says of a program that was alive and did nothing for a minute."""


def wait_for_run(
    layout: Layout,
    link: control.Control,
    configuration: Job,
    show: Callable[[control.RunStatus], None],
) -> str | None:
    """Start the program at the center and wait until it ends.

    Args:
        layout: The directory of the federation.
        link: The SuperLink.
        configuration: The configuration of the run.
        show: Called regularly while it runs, and once at the end.

    Returns:
        Why it did not complete, and how to continue; or None.
    """
    out = Path(configuration["out"])
    with interrupted_by_signals():
        number = None
        try:
            number = link.start_run(app_directory(), configuration)
            state = _follow(link, number, show)
        except KeyboardInterrupt:
            _stop(link, number)
            raise StoppedByUserError(
                f"the run is stopped at the center; {how_to_go_on(out)}"
            ) from None
        except control.LostError as error:
            raise InputError(
                f"{error}; the run has ended with the SuperLink: start it again, and then {how_to_go_on(out)}"
            ) from error
        except BaseException:
            _stop(link, number)
            raise
    if state.outcome == "completed":
        return None
    return f"{_reason(state, out)} (the whole log: fedkin federation logs {layout.directory})"


def how_to_go_on(out: Path) -> str:
    """Say how to continue a run that did not come to its end."""
    kept = any(out.parent.glob(f"{out.name}.*.checkpoint*")) or (out / "study.json").exists()
    if kept:
        return "continue with the same command and --resume: finished steps are kept"
    return "give the same command again: it had not kept anything yet"


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Treat a request to end, and the loss of the terminal, as Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # as nohup wishes
    }
    try:
        for number in before:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _follow(
    link: control.Control, number: int, show: Callable[[control.RunStatus], None]
) -> control.RunStatus:
    """Show how far a run is until it ends; return how it did."""
    heard = time.monotonic()
    while True:
        try:
            state = link.run_status(number)
        except control.LostError as error:
            if error.gone or time.monotonic() - heard > SILENT_SECONDS:
                raise
        else:
            heard = time.monotonic()
            show(state)
            if state.ended:
                return state
        time.sleep(POLL_SECONDS)


def _stop(link: control.Control, number: int | None) -> None:
    """Stop a run, if there is one and the SuperLink still answers."""
    if number is not None:
        with suppress(InputError):
            link.stop_run(number)


def _reason(state: control.RunStatus, out: Path) -> str:
    """Say why a run did not complete; errors of the program say by themselves what to do."""
    details = " ".join(state.details.split())
    if state.outcome == "stopped":
        return f"the run was stopped; {how_to_go_on(out)}"
    if details == NO_SIGN:
        return f"the program at the center gave no sign of life for a minute; {how_to_go_on(out)}"
    if not details.startswith(OF_THE_PROGRAM):
        return f"{details or f'the run was {state.outcome}'}; {how_to_go_on(out)}"
    reason = details.removeprefix(OF_THE_PROGRAM)
    return reason if "--resume" in reason else f"{reason}; when that is mended, {how_to_go_on(out)}"
