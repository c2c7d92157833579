"""What a run reports after an outer step."""

from fedkin.events import Event, StepDone, Warned
from fedkin.training.runner import Evaluation


def step_events(evaluation: Evaluation, run: str = "") -> list[Event]:
    """Return the events of one outer step: its scores and costs, then its warnings.

    Args:
        evaluation: The model after the step.
        run: The name of the run; empty where there is only one.
    """
    cost, validation, test = evaluation.cost, evaluation.validation, evaluation.test
    weights = evaluation.node_weights
    done = StepDone(
        run=run,
        step=evaluation.step,
        synchronizations=cost.synchronizations,
        seconds=evaluation.seconds,
        bytes_up=cost.bytes_up,
        bytes_down=cost.bytes_down,
        validation_loss=validation.loss,
        validation_accuracy=validation.accuracy,
        test_accuracy=None if test is None else test.accuracy,
        weights=None if weights is None else tuple(weights.tolist()),
    )
    return [done, *(Warned(run=run, message=message) for message in evaluation.warnings)]
