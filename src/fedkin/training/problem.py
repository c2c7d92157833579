"""A problem: data, model, engine and owner. `Problem.train` is the one way from there to a result."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.data.batches import NodeData
from fedkin.errors import DivergedError, InputError
from fedkin.events import OnEvent, RunFinished, RunStarted, Warned, plain
from fedkin.federation.attendance import AttendedFederation
from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.federation.excluding import ExcludingFederation
from fedkin.federation.secure.refusals import fewest_in_sum
from fedkin.federation.simulation import SimulatedFederation, Work
from fedkin.federation.task import slots_of
from fedkin.methods.base import Keep, Method
from fedkin.methods.weights import Cap
from fedkin.models import named
from fedkin.models.base import Model, as_model, is_torch_module, torch_model
from fedkin.models.objective import Objective
from fedkin.training.checkpoint import (
    load_checkpoint,
    read_made_with,
    save_checkpoint,
    versions,
)
from fedkin.training.judged import exclude_somebody
from fedkin.training.keys import building_key, initial_model_key, judging_key, training_key
from fedkin.training.leave_out import models_apart
from fedkin.training.runner import Budget, RunState, begin, run, step_event
from fedkin.types import LearningTask, Points, Vector

Engine = Callable[[Objective], Federation]
"""Makes the federation of a problem, given the model."""


def simulation(
    nodes: Mapping[str, Points],
    *,
    batch_size: int,
    seed: int,
    threads: int | None = None,
    work: Callable[[Objective, NodeData], Work] | None = None,
) -> Engine:
    """Return the engine that lets this process be all the nodes.

    Args:
        nodes: The raw inputs and labels of each node by name.
        batch_size: The number of points in a mini-batch.
        seed: Decides how each node's points are divided into mini-batches.
        threads: How many threads work for the nodes; None for one per core.
        work: Makes what runs tasks, such as `PrivateWork` for nodes that protect their rows.
    """

    def engine(objective: Objective) -> SimulatedFederation:
        return SimulatedFederation(
            objective,
            [prepare_points(objective.model, points) for points in nodes.values()],
            names=tuple(nodes),
            batch_size=batch_size,
            seed=seed,
            threads=threads,
            work=work,
        )

    return engine


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that training needs, except for the method.

    `fedkin.fit` builds one of arrays. Build one yourself to choose the engine, or to train several
    methods on the same nodes.

    >>> import numpy as np
    >>> from fedkin.methods.fedavg import FedAvg
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> points = Points(x, (x[:, 0] > 0).astype(int))
    >>> engine = simulation({"north": points, "south": points}, batch_size=10, seed=0)
    >>> problem = Problem.build(engine, points, model="logistic", classes=np.arange(2))
    >>> trained = problem.train(FedAvg(rounds=3), budget=Budget(steps=2))
    >>> trained.state.cost.synchronizations  # one for the step size, then three per step
    7
    """

    federation: Federation
    center: Center
    test: Points | None
    """Prepared points to report on; they decide nothing."""
    seed: int
    classes: np.ndarray | None
    """The label of each class; None for regression."""
    point_shape: tuple[int, ...]
    """The shape of one raw input point."""

    @classmethod
    def build(
        cls,
        engine: Engine,
        validation: Points,
        *,
        model: Any = "logistic",
        task: LearningTask = "classification",
        classes: np.ndarray | None,
        own: Points | None = None,
        test: Points | None = None,
        l2: float | None = None,
        batch_size: int = 50,
        seed: int = 0,
    ) -> "Problem":
        """Bind a model to data.

        Args:
            engine: Makes the federation.
            validation: The owner's raw inputs and labels.
            model: The name of a model, a fedkin model, a PyTorch module, or any object with `init` and
                `apply`.
            task: Classification or regression.
            classes: The label of each class; None for regression.
            own: Raw points that the owner trains on where a method lets it train alone; by default the
                validation data.
            test: Raw points to report on.
            l2: The factor of ½‖θ‖² in the loss of a named model or a PyTorch module.
            batch_size: The number of points in a mini-batch.
            seed: Decides everything random.
        """
        point_shape = tuple(validation[0].shape[1:])
        chosen = make_model(model, task, classes, point_shape, l2)
        prepared = prepare_points(chosen, validation)
        objective = Objective.create(chosen, jnp.asarray(prepared[0][:2]))
        check_outputs(objective, classes)
        center = Center(objective, *prepared, batch_size=batch_size, seed=seed)
        if own is not None:
            own = prepare_points(chosen, own)
            center = center.with_alone(
                SimulatedFederation(objective, [own], batch_size=batch_size, seed=seed)
            )
        return cls(
            federation=engine(objective),
            center=center,
            test=None if test is None else prepare_points(chosen, test),
            seed=seed,
            classes=classes,
            point_shape=point_shape,
        )

    @property
    def objective(self) -> Objective:
        """The model, as a function of one flat vector."""
        return self.center.objective

    def train(
        self,
        method: Method,
        *,
        budget: Budget | None = None,
        keep: Keep | None = None,
        ask_all: bool | None = None,
        checkpoint: Path | None = None,
        made_with: Mapping[str, Any] | None = None,
        on_event: OnEvent | None = None,
        after_step: Callable[[RunState], None] | None = None,
        run_name: str = "",
        leave_one_out: bool = False,
        owner: str = "the owner",
    ) -> "TrainedRun":
        """Run a method to its end, or continue from a checkpoint.

        Args:
            method: The method with its settings.
            budget: When to stop; by default after as many outer steps as the method finds sensible.
            keep: Which iterate is the result; by default the method decides.
            ask_all: Whether nodes of weight zero are asked too; by default only with the paper's preset.
            checkpoint: A file to continue from, if it exists, and to write after every step.
            made_with: What else the run depends on: a checkpoint made with something else is refused.
            on_event: Called with the events of the run.
            after_step: Called after each outer step, once its checkpoint is written.
            run_name: The name of the run in its events.
            leave_one_out: Whether, at the end, each node that has a weight is left out once
                (`training.leave_out`). A node without which the owner's loss is clearly lower is named in a
                warning, and the run starts over without it.
            owner: Whose loss that is, in the words of the warning.
        """
        method.check(len(self.federation.names))
        parameters_before = _parameters_in(checkpoint)
        if parameters_before is not None:
            method = method.resumed(parameters_before)
        budget = budget or Budget()
        method = method.for_budget(limited=budget != Budget())
        self.federation.ask_all = method.asks_all if ask_all is None else ask_all
        keep = keep or method.default_keep(self.objective)
        choices = {"keep": keep, "ask_all": self.federation.ask_all}
        attended = self.federation if isinstance(self.federation, AttendedFederation) else None
        if attended is not None and checkpoint is not None:
            attended.book.keep(checkpoint.with_suffix(".sums.json"))
        leave_one_out = leave_one_out and method.weighs_nodes
        if leave_one_out:
            choices["leave_one_out"] = True
        plan = _Plan(
            method,
            _limited(budget, method, self.objective),
            keep,
            checkpoint,
            {"choices": choices, **(made_with or {})},
            on_event or (lambda event: None),
            after_step,
            run_name,
            owner,
        )
        if leave_one_out:
            trained = self._run_judged(plan)
        else:
            trained = self._finish(plan, self._begin(plan, self.federation))
        if attended is not None:
            attended.book.forget()
        assert trained.state.stopped is not None
        plan.report(RunFinished(run=run_name, stopped=trained.state.stopped))
        return trained

    def _begin(
        self, plan: "_Plan", federation: Federation, spent: Cost | None = None
    ) -> "_Attempt":
        """Get ready for a run, or for continuing one from a checkpoint.

        Args:
            plan: What to do.
            federation: The nodes.
            spent: What earlier attempts have cost; None for the first attempt.
        """
        method = plan.method
        if spent is not None and isinstance(self.federation, AttendedFederation):
            self.federation.book.start_over()
        algorithm, cost = method.prepare(federation, self.center, building_key(self.seed))
        parameters = asdict(cast(Any, algorithm))
        theta = self._first_model(federation)
        state = begin(algorithm, federation, theta, cost + (spent or Cost()))
        state.rounds = cost.synchronizations  # every attempt has the whole budget
        depends_on = {
            "parameters": parameters,
            "versions": versions(*(() if self.objective.in_jax else ("torch",))),
            **plan.made_with,
        }
        attempt = _Attempt(algorithm, parameters, depends_on, federation, state)
        if spent is not None:
            return attempt
        resumed_after = None
        if plan.checkpoint is not None and plan.checkpoint.exists():
            slots = slots_of(method.tasks)
            load_checkpoint(plan.checkpoint, state, federation, self.center, depends_on, slots)
            resumed_after = len(state.history)
        plan.report(
            RunStarted(
                run=plan.name,
                method=method.name,
                nodes=federation.names,
                resumed_after=resumed_after,
                most_steps=plan.budget.steps,
                most_synchronizations=plan.budget.synchronizations,
                parameters=plain(parameters),
            )
        )
        return attempt

    def _first_model(self, federation: Federation) -> Vector:
        """Return the model that a run begins with.

        Where sums are secure, a run without a node begins elsewhere than the run with it: the difference of
        two sums at one model would be that node's vector, and the others would refuse.
        """
        key = initial_model_key(self.seed)
        theta = self.objective.start(key)
        excluded = federation.excluded.sum() if isinstance(federation, ExcludingFederation) else 0
        if not excluded or fewest_in_sum(federation) == 1:
            return theta
        noise = jax.random.normal(jax.random.fold_in(key, int(excluded)), (1, len(theta)))
        return models_apart(theta, noise.astype(theta.dtype))[0]

    def _finish(self, plan: "_Plan", attempt: "_Attempt") -> "TrainedRun":
        """Run to the end, with a checkpoint and events after every step."""

        def record(state: RunState) -> None:
            if plan.checkpoint is not None:
                save_checkpoint(
                    plan.checkpoint, state, attempt.federation, self.center, attempt.depends_on
                )
            plan.report(step_event(state, plan.name, attempt.federation))
            for warning in state.history[-1].warnings:
                plan.report(Warned(run=plan.name, message=warning))
            if plan.after_step is not None:
                plan.after_step(state)

        run(
            attempt.algorithm,
            attempt.federation,
            self.center,
            attempt.state,
            training_key(self.seed),
            budget=plan.budget,
            keep=plan.keep,
            test=self.test,
            after_step=record,
        )
        return TrainedRun(plan.method, attempt.parameters, attempt.state)

    def _run_judged(self, plan: "_Plan") -> "TrainedRun":
        """Run until the owner's rows find no node that harms; start over without one that does."""
        federation, spent = ExcludingFederation(self.federation), None
        while True:
            attempt = self._begin(plan, federation, spent)
            failure = trained = None
            try:
                trained = self._finish(plan, attempt)
            except DivergedError as error:
                failure = error
            if self._excludes_somebody(plan, attempt.state, federation, cap_in(attempt.parameters)):
                spent = attempt.state.cost
            elif trained is not None:
                return trained
            else:
                assert failure is not None
                raise failure

    def _excludes_somebody(
        self, plan: "_Plan", state: RunState, federation: ExcludingFederation, cap: Cap | None
    ) -> bool:
        """Judge the nodes of a run that has ended; exclude one that harms."""
        if isinstance(self.federation, AttendedFederation):
            self.federation.book.begin_step(len(state.history))  # as a step of its own
        start = self._first_model(federation)
        # Nodes are asked about other models each time, since others are left out.
        key = jax.random.fold_in(judging_key(self.seed), int(federation.excluded.sum()))
        excluded, notes = exclude_somebody(
            federation, self.center, state, start, cap or 1.0, key, plan.owner
        )
        if not excluded and state.history and (notes := federation.end_step() + notes):
            last = state.history[-1]
            state.history[-1] = replace(last, warnings=last.warnings + notes)
            for note in notes:
                plan.report(Warned(run=plan.name, message=note))
        return excluded


@dataclass(frozen=True)
class _Plan:
    """What `Problem.train` was asked for, with what is open chosen."""

    method: Method
    budget: Budget
    keep: Keep
    checkpoint: Path | None
    made_with: Mapping[str, Any]
    report: OnEvent
    after_step: Callable[[RunState], None] | None
    name: str
    owner: str


@dataclass(frozen=True)
class _Attempt:
    """A run that is ready to begin, or to continue."""

    algorithm: Any
    parameters: dict[str, Any]
    depends_on: dict[str, Any]
    """What its checkpoint is made with."""
    federation: Federation
    state: RunState


@dataclass(frozen=True)
class TrainedRun:
    """A run that came to its end."""

    method: Method
    parameters: dict[str, Any]
    """What the method ran with: what was given, and what was chosen where it was open."""
    state: RunState


def cap_in(parameters: Mapping[str, Any]) -> Cap | None:
    """Return the cap that an algorithm runs with, wherever it stands among its parameters."""
    return parameters.get("cap", (parameters.get("differentiation") or {}).get("cap"))


def make_model(
    model: Any,
    task: LearningTask,
    classes: np.ndarray | None,
    point_shape: tuple[int, ...],
    l2: float | None = None,
) -> Model:
    """Return the model that a name stands for, or a user's object as a model."""
    if isinstance(model, str):
        outputs = 1 if classes is None else len(classes)
        return named.named_model(model, task, outputs, point_shape, l2)
    if is_torch_module(model):
        return torch_model(model, task, named.checked_l2(l2) or 0.0)
    if l2 is not None:
        raise InputError(
            "l2 is a setting of the named models and of PyTorch modules: put it into your model's settings"
        )
    return as_model(model, task)


def check_outputs(objective: Objective, classes: np.ndarray | None) -> None:
    """Refuse a model whose outputs do not fit the labels."""
    shape = objective.output_shape()
    count = None if classes is None else len(classes)
    if shape != (() if count is None else (count,)):
        what = "one number" if count is None else f"{count} scores, one per class,"
        raise InputError(f"the model must give {what} for each point, but gives shape {shape}")


def prepare_points(model: Model, points: Points) -> Points:
    """Return points as the model takes them."""
    inputs, labels = points
    return Points(np.asarray(model.prepare(jnp.asarray(inputs))), np.asarray(labels))


def _parameters_in(checkpoint: Path | None) -> Mapping[str, Any] | None:
    if checkpoint is None or not checkpoint.exists():
        return None
    return (read_made_with(checkpoint) or {}).get("parameters")


def _limited(budget: Budget, method: Method, objective: Objective) -> Budget:
    """Give a run that nothing limits the method's own limit."""
    limits = (budget.steps, budget.synchronizations, budget.points)
    return Budget(method.steps_for(objective)) if limits == (None, None, None) else budget
