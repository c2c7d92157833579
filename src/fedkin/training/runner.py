"""The only outer loop: steps an algorithm, evaluates, records, keeps the best model."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from fedkin.errors import FedkinError
from fedkin.events import StepDone
from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center, Score
from fedkin.methods.base import Algorithm, Info, Keep
from fedkin.types import Key, Points, Vector

MOST_STEPS_OWED = 3
"""A run that has come to its end takes up to this many steps more for nodes that are just back."""


@dataclass(frozen=True)
class Budget:
    """When to stop, whatever comes first; None is no limit.

    Args:
        steps: The largest number of outer steps.
        synchronizations: No step is begun that would probably need more than these in all.
        points: The same for points processed by the busiest node.
    """

    steps: int | None = None
    synchronizations: int | None = None
    points: int | None = None


@dataclass(frozen=True)
class Evaluation:
    """One row of the history: the model after an outer step, and what all steps so far have cost."""

    step: int
    rounds: int
    """Synchronizations so far, and rounds of training without communication that count as such."""
    cost: Cost
    seconds: float
    validation: Score
    test: Score | None
    node_weights: np.ndarray | None
    diagnostics: dict[str, float]
    warnings: tuple[str, ...]


@dataclass
class RunState:
    """All that a run is: what it needs to continue, and what it has found so far."""

    algorithm_state: Any
    cost: Cost
    """What has been spent."""
    rounds: int = 0
    """Synchronizations, and rounds of training that count as such, against the budget."""
    seconds: float = 0.0
    history: list[Evaluation] = field(default_factory=list)
    kept: Evaluation | None = None
    """The evaluation of the model that is the result."""
    kept_theta: Vector | None = None
    """That model."""
    last_theta: Vector | None = None
    """The model after the last step."""
    stopped: str | None = None
    """Why the run ended, or None while it continues."""


def begin(
    algorithm: Algorithm[Any], federation: Federation, theta: Vector, cost: Cost | None = None
) -> RunState:
    """Return the state before the first step; `cost` is what has been spent already."""
    cost = cost or Cost()
    state = algorithm.init(theta, len(federation.names))
    return RunState(state, cost, rounds=cost.synchronizations)


def run(
    algorithm: Algorithm[Any],
    federation: Federation,
    center: Center,
    state: RunState,
    key: Key,
    *,
    budget: Budget,
    keep: Keep = "best",
    test: Points | None = None,
    after_step: Callable[[RunState], None] | None = None,
) -> RunState:
    """Step an algorithm until it stops by itself or the budget is used up.

    It takes a few steps more where nodes are back that the last step has not asked.

    Args:
        algorithm: What to run.
        federation: The nodes.
        center: The owner's own data.
        state: From `begin`, or from a checkpoint; it is changed in place.
        key: Step s uses `fold_in(key, s)`.
        budget: When to stop.
        keep: Which iterate is the result.
        test: Points to report the accuracy on; they decide nothing.
        after_step: Called after each step, for progress and checkpoints.
    """
    clock = time.perf_counter() - state.seconds
    owed, took_part = 0, None
    while True:
        step = len(state.history)
        state.stopped = state.stopped or _used_up(budget, state)
        if state.stopped is not None:
            if owed == MOST_STEPS_OWED or not _somebody_is_back(federation, took_part, step):
                break
            state.stopped, owed = None, owed + 1
        step_key = jax.random.fold_in(key, step)
        try:
            federation.begin_step(step)
            state.algorithm_state, info = algorithm.step(
                state.algorithm_state, step_key, federation, center
            )
        except FedkinError as error:
            error.add_note(f"in outer step {step + 1}")
            raise
        took_part = federation.present.copy()
        state.cost += info.cost
        state.rounds += info.cost.synchronizations + info.silent_rounds
        state.seconds = time.perf_counter() - clock
        info = replace(info, warnings=info.warnings + federation.end_step())
        evaluation = _evaluate(info, state, center, test)
        state.history.append(evaluation)
        state.last_theta = info.theta
        if _is_kept(evaluation, state, keep, step_key):
            state.kept, state.kept_theta = evaluation, info.theta
        state.stopped = info.stop
        if after_step is not None:
            after_step(state)
    return state


def _somebody_is_back(federation: Federation, took_part: np.ndarray | None, step: int) -> bool:
    """Look for nodes that the last step has done without; None is for a run without a last step."""
    if took_part is None or took_part.all():
        return False
    federation.begin_step(step)
    return bool((federation.present & ~took_part).any())


def _used_up(budget: Budget, state: RunState) -> str | None:
    """Return why no further step fits into the budget, or None if one does."""
    done = len(state.history)
    if budget.steps is not None and done >= budget.steps:
        return f"stopped: reached the limit of {budget.steps} outer steps"
    # The next step is taken to need as much as those so far on average; the first is always taken.
    if budget.synchronizations is not None and done > 0:
        next_rounds = state.rounds / done
        if state.rounds + next_rounds > budget.synchronizations:
            return f"stopped: used the budget of {budget.synchronizations} synchronizations"
    if budget.points is not None and done > 0:
        next_points = state.cost.points / done
        if state.cost.points + next_points > budget.points:
            return f"stopped: used the budget of {budget.points} points"
    return None


def _evaluate(info: Info, state: RunState, center: Center, test: Points | None) -> Evaluation:
    return Evaluation(
        step=len(state.history) + 1,
        rounds=state.rounds,
        cost=state.cost,
        seconds=state.seconds,
        validation=center.validate(info.theta),
        test=None if test is None else center.score(info.theta, *test),
        node_weights=None if info.node_weights is None else np.asarray(info.node_weights),
        diagnostics=info.diagnostics,
        warnings=info.warnings,
    )


def _is_kept(evaluation: Evaluation, state: RunState, keep: Keep, step_key: Key) -> bool:
    if state.kept is None or keep == "last":
        return True
    if keep == "random":
        # Replacing the iterate of step n with probability 1/n makes each of them equally likely.
        chance = jax.random.uniform(jax.random.fold_in(step_key, 2**31 - 1))
        return float(chance) < 1 / evaluation.step
    return _quality(evaluation) > _quality(state.kept)


def _quality(evaluation: Evaluation) -> tuple[bool, float, float]:
    """Rank by validation accuracy, then by validation loss; a model that has diverged comes last."""
    score = evaluation.validation
    if not math.isfinite(score.loss):
        return (False, 0.0, 0.0)
    return (True, score.accuracy or 0.0, -score.loss)


def step_event(state: RunState, run_name: str, federation: Federation) -> StepDone:
    """Return what a run reports after a step."""
    last = state.history[-1]
    weights = None if last.node_weights is None else tuple(last.node_weights.tolist())
    return StepDone(
        run=run_name,
        step=last.step,
        synchronizations=last.cost.synchronizations,
        seconds=last.seconds,
        bytes_up=last.cost.bytes_up,
        bytes_down=last.cost.bytes_down,
        validation_loss=last.validation.loss,
        validation_accuracy=last.validation.accuracy,
        test_accuracy=None if last.test is None else last.test.accuracy,
        weights=weights,
        absent=tuple(np.array(federation.names)[~federation.present].tolist()),
    )
