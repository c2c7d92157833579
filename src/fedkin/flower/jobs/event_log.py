"""The events of a job as lines of text, and in the log of the center's process."""

import logging

from fedkin.events import Event, RunFailed, RunFinished, RunStarted, StepDone, Warned

logger = logging.getLogger(__name__)


def event_text(event: Event) -> str:
    """Return an event as one line."""
    match event:
        case RunStarted():
            resumed = event.resumed_after
            after = "" if resumed is None else f"; resumed after step {resumed}"
            return f"{event.method} with nodes {', '.join(event.nodes)}{after}"
        case StepDone():
            return (
                f"step {event.step}: {event.synchronizations} synchronizations, validation loss "
                f"{event.validation_loss:.4f}"
            )
        case Warned():
            return event.message
        case RunFinished():
            return event.stopped
        case RunFailed():
            return f"failed: {event.reason}"
        case _:
            return event.kind


def log_event(event: Event) -> None:
    """Write an event to the log, with the name of its run."""
    levels = {Warned: logging.WARNING, RunFailed: logging.ERROR}
    run = f"{event.run}: " if event.run else ""
    logger.log(levels.get(type(event), logging.INFO), "%s%s", run, event_text(event))
