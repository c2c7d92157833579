"""`fedkin.fit`: from arrays to weights and a model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedkin.data.arrays import CheckedArrays, check_arrays
from fedkin.errors import InputError
from fedkin.federation.center import Center
from fedkin.federation.simulation import SimulatedFederation
from fedkin.models import named
from fedkin.models.base import LinearModel, Model, as_model
from fedkin.models.objective import Objective
from fedkin.training import method_settings as methods
from fedkin.training import theory_plan
from fedkin.training.history import to_row
from fedkin.training.method_settings import MethodSettings, OuterName, PresetName, SolverName
from fedkin.training.result import Result
from fedkin.training.runner import Budget, Evaluation, Keep, RunState, begin, run
from fedkin.types import LearningTask, Points


def fit(
    nodes: Mapping[str, Any] | Sequence[Any],
    validation: tuple[Any, Any],
    *,
    model: Any = "logistic",
    method: str = "bilevel",
    cap: float | None = None,
    seed: int = 0,
    test: tuple[Any, Any] | None = None,
    classes: int | Sequence[Any] | None = None,
    task: LearningTask | None = None,
    l2: float | None = None,
    batch_size: int = 50,
    steps: int | None = None,
    synchronizations: int | None = None,
    keep: Keep | None = None,
    preset: PresetName = "automatic",
    schedule: Literal["theory"] | None = None,
    epsilon: float | None = None,
    learning_rate: float | None = None,
    period: int | None = None,
    rounds: int | None = None,
    refresh_probability: float | None = None,
    averaging: bool | None = None,
    solver: SolverName | None = None,
    damping: float | None = None,
    solver_iterations: int | None = None,
    adjoint_learning_rate: float | None = None,
    outer: OuterName | None = None,
    outer_learning_rate: float | None = None,
    warm_start: bool | None = None,
    warm_start_adjoint: bool | None = None,
    proximal: float | None = None,
    personal_steps: int | None = None,
    on_step: Callable[[Evaluation], None] | None = None,
) -> Result:
    """Learn with whom to learn, and how much: the weight of each node, and the model.

    Without further options it works on any standardized data: step sizes come from the data, the
    outer step adapts itself, and iterations end when they no longer pay; `Result.stopped` says why.

    Args:
        nodes: (X, y) of each node: a dict by name, or a list. X are rows of features or images
            (uint8 images are scaled to 0 … 1), y labels (or numbers, for regression).
        validation: (X, y) of the owner: the data that the model shall do well on.
        model: `logistic`, `ridge`, `mlp`, `cnn`, or any object with `init(key, X)` and
            `apply(params, X)`, such as a Flax linen module.
        method: `bilevel` learns the weights; `fedavg` gives all nodes the same; `local` trains on the
            validation data alone; `ditto` and `pfedme` train a model on all nodes alike and fit it to the
            validation data.
        cap: The largest weight that one node may get, from 1/K to 1. By default 1/3, or 2/K with fewer
            than six nodes. A smaller cap spreads trust over more nodes.
        seed: Decides everything random: the same seed gives the same result, bit for bit.
        test: (X, y) to report on in the history; it decides nothing.
        classes: All labels that may occur, or their number; by default those that do.
        task: `classification` or `regression`, for a model of your own; otherwise the model tells.
        l2: The factor of ½‖θ‖² in the loss (default: 0.001; 0 for `cnn`).
        batch_size: The number of points in a mini-batch.
        steps: The largest number of outer steps (default: 50; with preset `paper` 20).
        synchronizations: Begin no outer step that would probably need more than these in all.
        keep: Which iterate is the result: the `best` by validation accuracy, the `last`, or a `random`
            one as in the theory. By default the last for convex models with the automatic preset,
            where iterations end at convergence, and the best otherwise, as in the paper; `ditto` and
            `pfedme` do not converge, but hover, so there it is always the best.
        preset: Where open choices below come from: `automatic`, from the data, or `paper`, the fixed
            values of the paper's experiments.
        schedule: `theory` takes all step sizes and numbers of steps from the paper's theory, for `ridge`
            and `logistic`, with Algorithm 2 (or with 3: outer="proximal"); of the choices below, only
            `period` (default 1) and `refresh_probability` (default 0.1) are left. Algorithm 2 keeps its
            promise only where the validation loss is a convex function of the weights, which nothing
            checks (it is for ridge with the same second moments of X at every node, not in general);
            where that is not known, give outer="proximal". It is slow: its constants are those of the
            worst case (docs/theory.md).
        epsilon: With that schedule, how near to its minimum the validation loss (with its regularizer)
            shall come in expectation, if it is convex in the weights; for Algorithm 3, how small the
            stationarity measure shall be.
        learning_rate: The step size γ of training.
        period: The number τ of local steps between synchronizations.
        rounds: Synchronizations of one training run within an outer step.
        refresh_probability: The probability q of renewing a reference point in a step.
        averaging: Whether training returns the weighted average of its iterates, as in Algorithm 1 of
            the paper, and not the last one (default).
        solver: `cg`, `svrg` or `neumann`: how the hypergradient's linear system is solved.
        damping: The number λ added to the Hessian (cg, neumann).
        solver_iterations: Iterations (cg), terms (neumann) or rounds (svrg) of that solver.
        adjoint_learning_rate: The step size γ_h (svrg) or α (neumann) of that solver.
        outer: `adaptive`, or with a fixed step `proximal` (Algorithm 3) or `accelerated` (Algorithm 2).
        outer_learning_rate: That fixed step η.
        warm_start: Whether training goes on from the last model (default) or from zero.
        warm_start_adjoint: Whether the solver goes on from the last solution or from zero (default).
        proximal: The strength λ of the pull toward the shared model (default: 0.1 for `ditto`, 5 for
            `pfedme`).
        personal_steps: Steps on the personal model in a synchronization (`ditto`; default: 25).
        on_step: Called after each outer step, with its evaluation.

    Returns:
        The weights, the model, and the history.

    Raises:
        InputError: If data or settings cannot be used; the message says what to do.
        DivergedError: If training diverges; the message names the step size.
    """
    settings = MethodSettings(
        preset=preset,
        learning_rate=learning_rate,
        period=period,
        rounds=rounds,
        refresh_probability=refresh_probability,
        averaging=averaging,
        cap=cap,
        solver=solver,
        damping=damping,
        solver_iterations=solver_iterations,
        adjoint_learning_rate=adjoint_learning_rate,
        outer=outer,
        outer_learning_rate=outer_learning_rate,
        warm_start=warm_start,
        warm_start_adjoint=warm_start_adjoint,
        proximal=proximal,
        personal_steps=personal_steps,
    )
    if not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed must be a whole number from 0 on, not {seed!r}")
    if keep not in (None, *get_args(Keep)):
        raise InputError(f"keep={keep!r} is unknown; choose one of {', '.join(get_args(Keep))}")
    for name, value in (
        ("batch_size", batch_size),
        ("steps", steps),
        ("synchronizations", synchronizations),
    ):
        if value is not None and not (isinstance(value, int) and value >= 1):
            raise InputError(f"{name} must be a whole number from 1 on, not {value!r}")
    if schedule not in (None, "theory"):
        raise InputError(f"schedule={schedule!r} is unknown; choose 'theory' or leave it out")
    if epsilon is not None and schedule is None:
        raise InputError(
            "epsilon is a setting of schedule='theory': give that too, or leave it out"
        )
    if keep is None and schedule is not None:
        keep = "random" if outer == "proximal" else "last"
    task = _task(model, task)
    arrays = check_arrays(nodes, validation, test, task=task, classes=classes)
    point_shape = arrays.validation[0].shape[1:]
    chosen = _model(model, task, arrays, l2)
    prepared = [_prepare(chosen, points) for points in arrays.nodes]
    objective = Objective.create(chosen, jnp.asarray(prepared[0][0][:2]))
    _check_outputs(objective, arrays)
    federation = SimulatedFederation(
        objective, prepared, names=arrays.names, batch_size=batch_size, seed=seed
    )
    center = Center(
        objective, *_prepare(chosen, arrays.validation), batch_size=batch_size, seed=seed
    )
    converges = (
        preset == "automatic"
        and isinstance(chosen, LinearModel)
        and method not in methods.DEFAULT_PROXIMAL
    )
    key = methods.training_key(seed)
    limit = steps or (20 if preset == "paper" else 50)
    keep = keep or ("last" if converges else "best")
    if schedule is None:
        algorithm, cost = methods.build(
            method, settings, federation, center, methods.building_key(seed)
        )
    else:
        algorithm, cost = theory_plan.plan(
            method,
            settings,
            epsilon,
            federation,
            center,
            methods.building_key(seed),
            limited=steps is not None or synchronizations is not None,
        )
        limit = steps or algorithm.iterations
    outcome = run(
        algorithm,
        federation,
        center,
        begin(algorithm, federation, objective.init(methods.initial_model_key(seed)), cost),
        key,
        budget=Budget(limit, synchronizations),
        keep=keep,
        test=None if arrays.test is None else _prepare(chosen, arrays.test),
        after_step=None if on_step is None else lambda state: on_step(state.history[-1]),
    )
    return make_result(
        method, outcome, arrays.names, arrays.classes, objective, center, point_shape
    )


def _task(model: Any, task: LearningTask | None) -> LearningTask:
    """Return the task that a model has, or that the user says it has."""
    if task not in (None, "classification", "regression"):
        raise InputError(f"task={task!r} is unknown; choose classification or regression")
    known = named.MODEL_TASKS.get(model) if isinstance(model, str) else getattr(model, "task", None)
    if known is not None and task is not None and known != task:
        raise InputError(f"the model {model!r} is for {known}, not for {task}")
    return task or known or "classification"


def _model(model: Any, task: LearningTask, arrays: CheckedArrays, l2: float | None) -> Model:
    if isinstance(model, str):
        classes = 1 if arrays.classes is None else len(arrays.classes)
        return named.named_model(model, task, classes, arrays.validation[0].shape[1:], l2)
    if l2 is not None:
        raise InputError("l2 is a setting of the named models: put it into your model's settings")
    return as_model(model, task)


def _check_outputs(objective: Objective, arrays: CheckedArrays) -> None:
    """Refuse a model of the user's own whose outputs do not fit the labels."""
    shape = objective.output_shape()
    count = None if arrays.classes is None else len(arrays.classes)
    if shape != (() if count is None else (count,)):
        what = "one number" if count is None else f"{count} scores, one a class,"
        raise InputError(f"the model must give {what} for each point, but gives shape {shape}")


def _prepare(model: Model, points: Points) -> Points:
    return Points(np.asarray(model.prepare(jnp.asarray(points.inputs))), points.labels)


def make_result(
    method: str,
    outcome: RunState,
    names: Sequence[str],
    classes: np.ndarray | None,
    objective: Objective,
    center: Center,
    point_shape: tuple[int, ...],
) -> Result:
    """Put the result of a finished run together."""
    assert outcome.kept is not None
    assert outcome.kept_theta is not None
    assert outcome.stopped is not None
    node_weights = outcome.kept.node_weights
    weights = None
    if node_weights is not None:
        weights = {name: float(weight) for name, weight in zip(names, node_weights, strict=True)}
    return Result(
        method=method,
        weights=weights,
        history=pd.DataFrame([to_row(row, names) for row in outcome.history]),
        cost=outcome.cost,
        stopped=outcome.stopped,
        warnings=tuple(warning for row in outcome.history for warning in row.warnings),
        classes=classes,
        theta=np.asarray(outcome.kept_theta),
        objective=objective,
        statistics=jax.tree.map(np.asarray, center.statistics(outcome.kept_theta)),
        point_shape=point_shape,
    )
