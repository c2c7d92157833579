"""The only outer loop: steps an algorithm, evaluates, records, keeps the best model."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import numpy as np

from fedkin.algorithms.base import Algorithm, Info
from fedkin.algorithms.centre import Centre, Score
from fedkin.errors import FedkinError
from fedkin.federation.base import Cost, Federation
from fedkin.types import Key, Vector

Keep = Literal["best", "last", "random"]
"""Which iterate is the result: best on the validation data, last, or uniformly random."""

Points = tuple[np.ndarray, np.ndarray]
"""Prepared inputs and labels."""


@dataclass(frozen=True)
class Evaluation:
    """One row of the history: the model after an outer step, and what all steps so far have cost."""

    step: int
    cost: Cost
    seconds: float
    validation: Score
    test: Score | None
    node_weights: np.ndarray | None
    diagnostics: dict[str, float]
    warnings: tuple[str, ...]


@dataclass
class Run:
    """What a run of an algorithm has brought."""

    history: list[Evaluation] = field(default_factory=list)
    kept: Evaluation | None = None
    """The evaluation of the model that is the result."""
    theta: Vector | None = None
    """That model."""
    stopped: str = ""
    """Why the run ended."""


def run(
    algorithm: Algorithm,
    federation: Federation,
    centre: Centre,
    theta: Vector,
    key: Key,
    *,
    steps: int,
    synchronizations: int | None = None,
    keep: Keep = "best",
    test: Points | None = None,
    first_cost: Cost | None = None,
    on_step: Callable[[Evaluation], None] | None = None,
) -> Run:
    """Step an algorithm until it stops by itself or the budget is used up.

    Args:
        algorithm: What to run.
        federation: The nodes.
        centre: The owner's own data.
        theta: The initial model.
        key: Step s uses `fold_in(key, s)`.
        steps: The largest number of outer steps.
        synchronizations: Begin no step after this many synchronizations.
        keep: Which iterate is the result.
        test: Points to report the accuracy on; they decide nothing.
        first_cost: What has been spent before the first step.
        on_step: Called after each step, for progress.
    """
    outcome = Run(stopped=f"stopped: reached the limit of {steps} outer steps")
    state: Any = algorithm.init(theta, len(federation.names))
    cost = first_cost or Cost()
    begin = time.perf_counter()
    # The theory's choice: every iterate is equally likely; drawn beforehand, but for early stops.
    chosen = int(jax.random.randint(jax.random.fold_in(key, 2**31 - 1), (), 0, steps))
    for step in range(steps):
        if synchronizations is not None and cost.synchronizations >= synchronizations:
            outcome.stopped = f"stopped: used the budget of {synchronizations} synchronizations"
            break
        try:
            state, info = algorithm.step(state, jax.random.fold_in(key, step), federation, centre)
        except FedkinError as error:
            error.add_note(f"in outer step {step + 1}")
            raise
        cost += info.cost
        evaluation = _evaluate(step, info, cost, time.perf_counter() - begin, centre, test)
        outcome.history.append(evaluation)
        if (
            outcome.kept is None
            or keep == "last"
            or (keep == "random" and step <= chosen)
            or (keep == "best" and _quality(evaluation) > _quality(outcome.kept))
        ):
            outcome.kept, outcome.theta = evaluation, info.theta
        if on_step is not None:
            on_step(evaluation)
        if info.stop is not None:
            outcome.stopped = info.stop
            break
    return outcome


def _evaluate(
    step: int, info: Info, cost: Cost, seconds: float, centre: Centre, test: Points | None
) -> Evaluation:
    return Evaluation(
        step=step + 1,
        cost=cost,
        seconds=seconds,
        validation=centre.validate(info.theta),
        test=None if test is None else centre.score(info.theta, *test),
        node_weights=None if info.node_weights is None else np.asarray(info.node_weights),
        diagnostics=info.diagnostics,
        warnings=info.warnings,
    )


def _quality(evaluation: Evaluation) -> tuple[float, float]:
    """Rank by validation accuracy, then by validation loss."""
    score = evaluation.validation
    return (score.accuracy or 0.0, -score.loss)
