"""`fedkin.fit`: from arrays to weights and a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedkin.data.arrays import FEWEST_ROWS, check_arrays, check_several_nodes, name_nodes
from fedkin.errors import InputError
from fedkin.events import OnEvent
from fedkin.methods.base import Keep, Method, PresetName
from fedkin.methods.bilevel.hypergradient import AdjointSolver
from fedkin.methods.bilevel.method import Bilevel, OuterName
from fedkin.methods.bilevel.prior import PriorName, prior_weights
from fedkin.methods.bilevel.theory import TheoryBilevel
from fedkin.methods.registry import make_method
from fedkin.methods.settings import check_seed, whole_number
from fedkin.models import named
from fedkin.models.base import is_torch_module
from fedkin.training.alone import coefficients, parameters
from fedkin.training.alone import recalibrate as fit_outputs
from fedkin.training.comparison import compare, own_rows
from fedkin.training.comparison import warning as beaten_by_alone
from fedkin.training.history import to_row
from fedkin.training.keys import refit_key
from fedkin.training.problem import Problem, TrainedRun, cap_in, simulation
from fedkin.training.refit import owner_share, refits_cheaply
from fedkin.training.refit import refit as train_again
from fedkin.training.result import Result
from fedkin.training.runner import Budget, Evaluation
from fedkin.types import LearningTask


def fit(
    nodes: Mapping[str, Any] | Sequence[Any],
    validation: tuple[Any, Any],
    *,
    model: Any = "logistic",
    method: str | Method = "bilevel",
    cap: float | None = None,
    seed: int = 0,
    test: tuple[Any, Any] | None = None,
    classes: int | Sequence[Any] | None = None,
    task: LearningTask | None = None,
    l2: float | None = None,
    batch_size: int = 50,
    minimum_rows: int = FEWEST_ROWS,
    prior: PriorName | None = None,
    refit: bool | None = False,
    recalibrate: bool = False,
    steps: int | None = None,
    synchronizations: int | None = None,
    ask_all: bool | None = None,
    keep: Keep | None = None,
    preset: PresetName | None = None,
    schedule: Literal["theory"] | None = None,
    epsilon: float | None = None,
    learning_rate: float | None = None,
    period: int | None = None,
    rounds: int | None = None,
    refresh_probability: float | None = None,
    averaging: bool | None = None,
    solver: str | AdjointSolver | None = None,
    damping: float | None = None,
    solver_iterations: int | None = None,
    adjoint_learning_rate: float | None = None,
    outer: OuterName | None = None,
    outer_learning_rate: float | None = None,
    restarts: int | None = None,
    warm_start: bool | None = None,
    warm_start_adjoint: bool | None = None,
    proximal: float | None = None,
    personal_steps: int | None = None,
    on_step: Callable[[Evaluation], None] | None = None,
    on_event: OnEvent | None = None,
    **further: Any,
) -> Result:
    """Learn a weight for every node, and the model trained with those weights.

    Without further options it works on any standardized data: step sizes come from the data, and
    iterations end when they no longer pay; `Result.stopped` says why. For `logistic` and `ridge` a step is
    one exchange with the nodes, and "converged" means that the model is trained and that, to first
    order, no weights within the cap lower the validation loss noticeably.

    >>> import numpy as np
    >>> draw = np.random.default_rng(0)
    >>> def node(sign, rows=60):
    ...     x = draw.normal(size=(rows, 2))
    ...     return x, (sign * x[:, 0] > 0).astype(int)
    >>> nodes = {"north": node(1), "south": node(1), "west": node(-1)}
    >>> result = fit(nodes, validation=node(1, 40), model="logistic")
    >>> result.weights["west"] < 0.01
    True
    >>> float((result.predict([[1.0, 0.0], [-1.0, 0.0]]) == [1, 0]).mean())
    1.0

    Args:
        nodes: (X, y) of each node: a dict by name, or a list. X are rows of features or images
            (uint8 images are scaled to 0 … 1), y labels (or numbers, for regression); arrays, tensors or
            DataFrames, which are matched by the names of their columns.
        validation: (X, y) of the owner: the data that the model should do well on.
        model: `logistic`, `ridge`, `mlp`, for images also `cnn` (the paper's small network), `cnn-fedavg`
            and `resnet`; a PyTorch module (docs/pytorch.md); a Flax module, linen or nnx; or any object
            with `init(key, X)` and `apply(params, X)`.
        method: An object with its settings, such as
            `fedkin.Bilevel(solver=fedkin.ConjugateGradients(damping=1.0))`, or a name; the settings are then
            keywords of `fit` (`cap`, and all from `preset` to `personal_steps`). `bilevel` learns the
            weights; `fedavg` gives all nodes the same; `local` trains on the validation data alone; `ditto`
            and `pfedme` train a model on all nodes alike and fit it to the validation data.
            docs/rivals.md has ten more.
        cap: The largest weight that one node may get, from 1/K to 1. By default 1/3, or 2/K with fewer
            than six nodes. A smaller cap spreads trust over more nodes.
        seed: Decides everything random: the same seed gives the same result, bit for bit.
        test: (X, y) to report on in the history; it decides nothing.
        classes: All labels that may occur, or their number; by default those that do.
        task: `classification` or `regression`, for a model of your own; otherwise the model tells.
        l2: The factor of ½‖θ‖² in the loss (default: 0.001; 0 for the networks of images and PyTorch
            modules).
        batch_size: The number of points in a mini-batch.
        minimum_rows: The fewest points that a node may have; one with fewer is refused.
        prior: Draw the weights toward shares of all rows (`size`) or `equal` ones: they leave these only as
            far as the validation data demand. For linear models.
        refit: Whether the validation data join as a node once the weights are chosen, for a better final
            model. Scores in the history are of before, and so is `Result.before`. For linear models; None
            does so where it is possible.
        recalibrate: Whether the final model's outputs are fitted to the validation data by a shift and a
            scale, for better probabilities. For linear models.
        steps: The largest number of outer steps (default: 50; 200 where a step is one exchange; with preset
            `paper` 20; no limit where `synchronizations` is given).
        synchronizations: Begin no outer step that would probably need more than these in all.
        ask_all: Whether nodes of weight zero are asked too. By default only with preset `paper` or a
            schedule, as the paper counts.
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
        rounds: The synchronizations of one training run within an outer step.
        refresh_probability: The probability q of renewing a reference point in a step.
        averaging: Whether training returns the weighted average of its iterates, as in Algorithm 1 of
            the paper, and not the last one (default).
        solver: `cg`, `svrg`, `neumann` or `own`: how the hypergradient's linear system is solved.
        damping: The number λ added to the Hessian (cg, neumann, own).
        solver_iterations: Iterations (cg, own), terms (neumann) or rounds (svrg) of that solver.
        adjoint_learning_rate: The step size γ_h (svrg) or α (neumann) of that solver.
        outer: `single` moves model, h and weights with one synchronization per step; it is the default,
            unless a setting is given that it does not read. `adaptive` takes several per step and
            chooses its step; `proximal` (Algorithm 3) and `accelerated` (Algorithm 2) have a fixed one.
        outer_learning_rate: That fixed step η.
        restarts: How many new models `single` starts when the weights have settled, to keep the best
            (default: 3; none for linear models).
        warm_start: Whether training continues from the last model (default) or begins at zero.
        warm_start_adjoint: Whether the solver continues from the last solution or begins at zero (default).
        proximal: The strength λ of the pull toward the shared model (default: 0.1 for `ditto`, 5 for
            `pfedme`).
        personal_steps: Steps on the personal model per synchronization (`ditto`; default: 25).
        on_step: Called after each outer step, with its evaluation.
        on_event: Called with the events of the run (`fedkin.events`).
        **further: Settings that only a method, or a solver, of another package has.

    Returns:
        The weights, the model, and the history.

    Raises:
        InputError: If data or settings cannot be used; the message says what to do.
        DivergedError: If training diverges; the message names the step size.
    """
    settings = {
        "preset": preset,
        "learning_rate": learning_rate,
        "period": period,
        "rounds": rounds,
        "refresh_probability": refresh_probability,
        "averaging": averaging,
        "cap": cap,
        "solver": solver,
        "damping": damping,
        "solver_iterations": solver_iterations,
        "adjoint_learning_rate": adjoint_learning_rate,
        "outer": outer,
        "outer_learning_rate": outer_learning_rate,
        "restarts": restarts,
        "warm_start": warm_start,
        "warm_start_adjoint": warm_start_adjoint,
        "proximal": proximal,
        "personal_steps": personal_steps,
        **further,
    }
    seed = check_seed(seed)
    batch_size = whole_number("batch_size", batch_size)
    budget = Budget(
        None if steps is None else whole_number("steps", steps),
        None if synchronizations is None else whole_number("synchronizations", synchronizations),
    )
    if keep not in (None, *get_args(Keep)):
        raise InputError(f"keep={keep!r} is unknown; choose one of {', '.join(get_args(Keep))}")
    if refit and recalibrate:
        raise InputError(
            "refit and recalibrate both use the validation data for the final model: leave one out"
        )
    if schedule is not None or epsilon is not None:
        chosen = _theory_method(method, settings, schedule, epsilon)
    else:
        chosen = make_method(method, settings)
    task = choose_task(model, task)
    _check_devices(model, [*name_nodes(nodes).values(), validation])
    arrays = check_arrays(
        nodes,
        validation,
        test,
        task=task,
        classes=classes,
        minimum_rows=whole_number("minimum_rows", minimum_rows),
    )
    if chosen.weighs_nodes:
        check_several_nodes(len(arrays.names), ", or choose the method fedavg to train on it")
    rows = [len(points.labels) for points in arrays.nodes]
    if prior is not None:
        chosen = _with_prior(chosen, prior, rows)
    engine = simulation(
        dict(zip(arrays.names, arrays.nodes, strict=True)), batch_size=batch_size, seed=seed
    )
    problem = Problem.build(
        engine,
        arrays.validation,
        model=model,
        task=task,
        classes=arrays.classes,
        test=arrays.test,
        l2=l2,
        batch_size=batch_size,
        seed=seed,
    )
    trained = problem.train(
        chosen,
        budget=budget,
        keep=keep,
        ask_all=ask_all,
        on_event=on_event,
        after_step=None if on_step is None else lambda state: on_step(state.history[-1]),
    )
    result = make_result(problem, trained, columns=arrays.columns)
    if recalibrate:
        return recalibrated(problem, result)
    possible = chosen.weighs_nodes and refits_cheaply(problem.center)
    return put_rows_back(problem, result, rows) if refit or (refit is None and possible) else result


def _with_prior(method: Method, prior: str, rows: list[int]) -> Method:
    weights = prior_weights(prior, rows)
    if not isinstance(method, Bilevel):
        raise InputError(f"prior is a setting of the method 'bilevel', not of {method.name!r}")
    return replace(method, prior=weights)


def put_rows_back(problem: Problem, result: Result, rows: Sequence[int]) -> Result:
    """Let the owner's rows join as a node, now that the weights are chosen, and train once more.

    Args:
        problem: What was trained.
        result: What was found without the owner's rows.
        rows: The number of rows of each node.
    """
    if result.weights is None:
        raise InputError(f"refit needs weights of nodes, which {result.method!r} does not have")
    weights = np.array(list(result.weights.values()))
    share = owner_share(weights, np.asarray(rows), problem.center.points)
    theta, cost = train_again(
        problem.federation,
        problem.center,
        jnp.asarray(result.theta),
        weights,
        share,
        refit_key(problem.seed),
    )
    return replace(result, theta=np.asarray(theta), cost=result.cost + cost, before=result)


def recalibrated(problem: Problem, result: Result) -> Result:
    """Fit the outputs of a linear model to the owner's rows by a shift and a scale."""
    rows = own_rows(problem.center)
    if rows is None:
        raise InputError("recalibrate is for linear models (logistic, ridge): leave it out")
    model = fit_outputs(coefficients(jnp.asarray(result.theta), problem.objective), rows)
    return replace(result, theta=parameters(model, problem.objective), before=result)


def _theory_method(
    method: str | Method,
    settings: Mapping[str, Any],
    schedule: str | None,
    epsilon: float | None,
) -> TheoryBilevel:
    """Make the method that `schedule="theory"` stands for, and refuse what it chooses by itself."""
    if schedule is None:
        raise InputError(
            "epsilon is a setting of schedule='theory': give that too, or leave it out"
        )
    if schedule != "theory":
        raise InputError(f"schedule={schedule!r} is unknown; choose 'theory' or leave it out")
    if isinstance(method, Method):
        raise InputError(
            "schedule='theory' goes with method='bilevel' as a name: leave the schedule out, or give "
            "method=TheoryBilevel(epsilon=…)"
        )
    if method != "bilevel":
        raise InputError(f"schedule='theory' is for the method 'bilevel', not {method!r}")
    if epsilon is None:
        raise InputError(
            "schedule='theory' needs epsilon: how close to its minimum the validation loss must get"
        )
    given = {name: value for name, value in settings.items() if value is not None}
    if given.pop("preset", "automatic") != "automatic":
        raise InputError("schedule='theory' and preset='paper' exclude each other: leave one out")
    if given.get("outer") == "adaptive":
        raise InputError(
            "schedule='theory' has no adaptive steps: choose outer='accelerated' (Algorithm 2) or "
            "'proximal' (Algorithm 3)"
        )
    for name in given:
        if name not in TheoryBilevel.setting_names():
            raise InputError(f"{name} is chosen by schedule='theory': leave it out")
    return TheoryBilevel(epsilon=epsilon, **given)


def choose_task(model: Any, task: LearningTask | None) -> LearningTask:
    """Return the task that a model has, or that the user says it has."""
    if task not in (None, "classification", "regression"):
        raise InputError(f"task={task!r} is unknown; choose classification or regression")
    known = named.known_task(model) if isinstance(model, str) else getattr(model, "task", None)
    if known is not None and task is not None and known != task:
        raise InputError(f"the model {model!r} is for {known}, not for {task}")
    return task or known or "classification"


def _check_devices(model: Any, points: Sequence[Any]) -> None:
    """Refuse tensors that are on another device than the module; those of the CPU are moved."""
    if not is_torch_module(model):
        return
    own = {str(parameter.device) for parameter in model.parameters()}
    tensors = [each for pair in points if isinstance(pair, (tuple, list)) for each in pair]
    others = {str(each.device) for each in tensors if hasattr(each, "detach")} - own - {"cpu"}
    if own and others:
        raise InputError(
            f"the points are on the device {min(others)}, and the module is on {min(own)}: move the "
            f"module to the points, module.to({min(others)!r}), or the points to the CPU"
        )


def make_result(
    problem: Problem, trained: TrainedRun, *, columns: tuple[str, ...] | None = None
) -> Result:
    """Put the result of a finished run together; `columns` are the names of the features, if known."""
    state, names = trained.state, problem.federation.names
    assert state.kept is not None
    assert state.kept_theta is not None
    assert state.stopped is not None
    node_weights = state.kept.node_weights
    weights, comparison, beaten = None, None, None
    if trained.method.weighs_nodes:
        comparison = compare(problem, trained)
    if node_weights is not None:
        beaten = beaten_by_alone(comparison, np.asarray(node_weights), problem.center.points)
        weights = {name: float(weight) for name, weight in zip(names, node_weights, strict=True)}
    return Result(
        method=trained.method.name,
        weights=weights,
        history=pd.DataFrame([to_row(row, names) for row in state.history]),
        cost=state.cost,
        stopped=state.stopped,
        warnings=(
            *(warning for row in state.history for warning in row.warnings),
            *filter(None, [beaten]),
        ),
        classes=problem.classes,
        theta=np.asarray(state.kept_theta),
        objective=problem.objective,
        statistics=jax.tree.map(np.asarray, problem.center.statistics(state.kept_theta)),
        point_shape=problem.point_shape,
        columns=columns,
        cap=_cap(trained.parameters, problem.federation.names),
        comparison=comparison,
        secure_sums=getattr(problem.federation, "secure", None),
    )


def _cap(parameters: Mapping[str, Any], names: Sequence[str]) -> float | dict[str, float] | None:
    """Return the cap that an algorithm ran with; by node where they differ."""
    found = cap_in(parameters)
    if isinstance(found, (tuple, list)):
        return dict(zip(names, map(float, found), strict=True))
    return None if found is None else float(found)
