"""The events of a job in the log of the center's process."""

import logging

from fedkin.events import Event, RunFailed, RunFinished, RunStarted, StepDone, Warned

logger = logging.getLogger(__name__)


def log_event(event: Event) -> None:
    """Write an event to the log, as one line."""
    run = f"{event.run}: " if event.run else ""
    if isinstance(event, RunStarted):
        resumed = (
            "" if event.resumed_after is None else f", resumed after {event.resumed_after} steps"
        )
        logger.info("%s%s with nodes %s%s", run, event.method, ", ".join(event.nodes), resumed)
    elif isinstance(event, StepDone):
        logger.info(
            "%sstep %d, %d synchronizations, validation loss %.4f",
            run,
            event.step,
            event.synchronizations,
            event.validation_loss,
        )
    elif isinstance(event, Warned):
        logger.warning("%s%s", run, event.message)
    elif isinstance(event, RunFinished):
        logger.info("%s%s", run, event.stopped)
    elif isinstance(event, RunFailed):
        logger.error("%sfailed: %s", run, event.reason)
