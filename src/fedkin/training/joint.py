"""Several owners with one federation and one model, who share their exchanges.

Owners are the nodes themselves (`fedkin.fit_all`), or anything else that asks the same nodes: the folds of a
cross-validation, say. Each gets what `Problem.train` would give it alone.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np

from fedkin.errors import FedkinError, InputError
from fedkin.events import Event, OnEvent
from fedkin.federation.base import Cost, Federation
from fedkin.federation.center import Center
from fedkin.federation.simulation import SimulatedFederation
from fedkin.federation.together import Meeting, SharedEngine
from fedkin.methods.base import Keep, Method
from fedkin.models.objective import Objective
from fedkin.training.keys import refit_key
from fedkin.training.problem import Problem, TrainedRun, check_outputs, make_model, prepare_points
from fedkin.training.refit import owner_share, refit
from fedkin.training.runner import Budget, RunState
from fedkin.types import LearningTask, Points, Vector


class OwnerData(NamedTuple):
    """The data of one owner. Inputs are raw, labels are numbers of classes."""

    validation: Points
    """What the weights are learned by."""
    own: Points | None = None
    """What the owner trains on where a method lets it train alone; None for the validation data. An owner
    whose own data are those of the node of its name is that node."""
    test: Points | None = None
    """Points to report on; they decide nothing."""
    nodes: Sequence[str] | None = None
    """The nodes that the owner may ask, in its own order; None for all."""


class SharedFederation(SharedEngine, Federation, Protocol):
    """An engine that serves one owner, or several in one exchange."""


@dataclass(frozen=True)
class JointRun:
    """What every owner has got, and what it has cost."""

    runs: dict[str, TrainedRun | FedkinError]
    """Each owner's finished run, or the error that ended it. The costs in a run are what it would have
    cost alone."""
    cost: Cost
    """What all of it has cost: an exchange that serves many owners is one synchronization."""


@dataclass(frozen=True, eq=False)
class JointProblem:
    """Everything that the training of several owners needs, except for the method.

    >>> import numpy as np
    >>> from fedkin.methods.fedavg import FedAvg
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> up, down = Points(x, (x[:, 0] > 0).astype(int)), Points(x, (x[:, 0] < 0).astype(int))
    >>> problem = JointProblem.build(
    ...     {"north": up, "south": down},
    ...     {"north": OwnerData(up), "south": OwnerData(down)},
    ...     model="logistic", classes=np.arange(2), batch_size=10,
    ... )
    >>> found = problem.train(FedAvg(rounds=3), budget=Budget(steps=2))
    >>> found.cost.synchronizations, found.runs["north"].state.cost.synchronizations
    (7, 7)
    """

    federation: SharedEngine
    alone: SharedEngine
    """What each owner trains on alone: one node per owner."""
    problems: dict[str, Problem]
    """Every owner's problem, as if it were the only one."""
    nodes: dict[str, list[int] | None]
    """The places of the nodes that each owner may ask; None for all."""

    @classmethod
    def build(
        cls,
        nodes: Mapping[str, Points],
        owners: Mapping[str, OwnerData],
        *,
        model: Any = "logistic",
        task: LearningTask = "classification",
        classes: np.ndarray | None,
        l2: float | None = None,
        batch_size: int = 50,
        seed: int = 0,
    ) -> "JointProblem":
        """Bind a model to the data of nodes and owners.

        Args:
            nodes: The raw inputs and labels of each node by name.
            owners: The data of each owner by name.
            model: The name of a model, a fedkin model, or any object with `init` and `apply`.
            task: Classification or regression.
            classes: The label of each class; None for regression.
            l2: The factor of ½‖θ‖² in the loss of a named model.
            batch_size: The number of points in a mini-batch.
            seed: Decides everything random, for every owner alike.
        """
        point_shape = tuple(next(iter(nodes.values())).inputs.shape[1:])
        chosen = make_model(model, task, classes, point_shape, l2)
        prepared = {name: prepare_points(chosen, points) for name, points in nodes.items()}
        example = next(iter(prepared.values())).inputs[:2]
        objective = Objective.create(chosen, jnp.asarray(example))
        check_outputs(objective, classes)
        places = {name: _places(owner.nodes, tuple(nodes)) for name, owner in owners.items()}
        federation = SimulatedFederation(
            objective,
            list(prepared.values()),
            names=tuple(nodes),
            batch_size=batch_size,
            seed=seed,
            numbers=_numbers(places.values(), len(nodes)),
        )
        found = cls.around(
            federation,
            owners,
            classes=classes,
            point_shape=point_shape,
            batch_size=batch_size,
            seed=seed,
        )
        problems = {
            name: replace(
                own, center=own.center.with_own_node(_own_node(name, owners[name], nodes))
            )
            for name, own in found.problems.items()
        }
        return replace(found, problems=problems)

    @classmethod
    def around(
        cls,
        federation: SharedFederation,
        owners: Mapping[str, OwnerData],
        *,
        classes: np.ndarray | None,
        point_shape: tuple[int, ...],
        batch_size: int,
        seed: int,
    ) -> "JointProblem":
        """Let owners, whose data are here, ask a federation, wherever its nodes are.

        Args:
            federation: The nodes, and the model that they train.
            owners: The data of each owner by name.
            classes: The label of each class; None for regression.
            point_shape: The shape of one raw input point.
            batch_size: The number of points in a mini-batch.
            seed: Decides everything random, for every owner alike.
        """
        objective = federation.objective
        chosen = objective.model
        validations = {
            name: prepare_points(chosen, owner.validation) for name, owner in owners.items()
        }
        alone = SimulatedFederation(
            objective,
            [
                validations[name] if owner.own is None else prepare_points(chosen, owner.own)
                for name, owner in owners.items()
            ],
            names=tuple(owners),
            batch_size=batch_size,
            seed=seed,
            numbers=[0] * len(owners),  # each is the only node of its own federation
        )
        centers = Center.of_many(
            objective, list(validations.values()), alone, batch_size=batch_size, seed=seed
        )
        problems = {
            name: Problem(
                federation=federation,
                center=center,
                test=None if owner.test is None else prepare_points(chosen, owner.test),
                seed=seed,
                classes=classes,
                point_shape=point_shape,
            )
            for (name, owner), center in zip(owners.items(), centers, strict=True)
        }
        places = {name: _places(owner.nodes, federation.names) for name, owner in owners.items()}
        return cls(federation, alone, problems, places)

    def train(
        self,
        method: Method | Mapping[str, Method],
        *,
        budget: Budget | None = None,
        keep: Keep | None = None,
        ask_all: bool | None = None,
        checkpoints: Mapping[str, Path] | None = None,
        made_with: Mapping[str, Any] | None = None,
        on_event: OnEvent | None = None,
        after_step: Callable[[str, RunState], None] | None = None,
        after_run: Callable[[str, Problem, TrainedRun], None] | None = None,
        run_name: Callable[[str], str] = str,
        leave_one_out: Collection[str] = (),
    ) -> JointRun:
        """Run a method to its end for every owner. For the arguments see `Problem.train`.

        Args:
            method: The method with its settings, the same for all, or each owner's own.
            budget: When each owner stops.
            keep: Which iterate is an owner's result.
            ask_all: Whether nodes of weight zero are asked too.
            checkpoints: Each owner's file to continue from, if it exists, and to write after every step.
            made_with: What else the runs depend on.
            on_event: Called with the events of all runs, one at a time.
            after_step: Called with an owner's name and state after each of its steps.
            after_run: Called with an owner's name, problem and run when it has come to its end; it may take
                part in exchanges.
            run_name: Returns the name of an owner's run in its events.
            leave_one_out: The owners whose rows judge, at the end, each node that has a weight. A node that
                one of them excludes still works for the others.
        """
        meeting = Meeting()
        speaking = threading.Lock()

        def report(event: Event) -> None:
            with speaking:
                if on_event is not None:
                    on_event(event)

        def job(name: str, problem: Problem) -> TrainedRun:
            trained = problem.train(
                method if isinstance(method, Method) else method[name],
                budget=budget,
                keep=keep,
                ask_all=ask_all,
                checkpoint=None if checkpoints is None else checkpoints[name],
                made_with=made_with,
                on_event=report,
                after_step=None if after_step is None else partial(after_step, name),
                run_name=run_name(name),
                leave_one_out=name in leave_one_out,
                owner=name,
            )
            if after_run is not None:
                after_run(name, problem, trained)
            return trained

        jobs = [partial(job, name, self.connect(meeting, name)) for name in self.problems]
        runs = dict(zip(self.problems, meeting.run(jobs), strict=True))
        return JointRun(runs, meeting.cost(self.federation))

    def connect(self, meeting: Meeting, name: str) -> Problem:
        """Return an owner's problem, with its own view of the federation in a meeting."""
        problem, place = self.problems[name], list(self.problems).index(name)
        center = problem.center.with_alone(meeting.view(self.alone, [place]))
        view = meeting.view(self.federation, self.nodes[name])
        if center.own_node is not None:
            place = view.names.index(name) if name in view.names else None
            center = center.with_own_node(place)
        return replace(problem, federation=view, center=center)

    def put_rows_back(
        self, models: Sequence[tuple[str, Vector, np.ndarray]], rows: np.ndarray
    ) -> tuple[list[Vector], Cost]:
        """Train models with their owners' rows as a node (see `refit`); all share their exchanges.

        Args:
            models: The owner, the model to begin with and the nodes' weights, each time.
            rows: The number of rows of each node.

        Returns:
            The models, and what all of it has cost.
        """
        meeting = Meeting()
        jobs = []
        for owner, theta, weights in models:
            problem = self.problems[owner]
            jobs.append(
                partial(
                    refit,
                    meeting.view(self.federation, self.nodes[owner]),
                    problem.center,
                    theta,
                    weights,
                    owner_share(weights, rows, problem.center.points),
                    refit_key(problem.seed),
                )
            )
        found = []
        for outcome in meeting.run(jobs):
            if isinstance(outcome, FedkinError):
                raise outcome
            found.append(outcome[0])
        return found, meeting.cost(self.federation)


def _own_node(name: str, owner: OwnerData, nodes: Mapping[str, Points]) -> int | None:
    """Return the place of the node that an owner is: the one of its name, if their data are the same."""
    if owner.own is None or owner.own is not nodes.get(name):
        return None
    return list(nodes).index(name)


def _places(asked: Sequence[str] | None, names: tuple[str, ...]) -> list[int] | None:
    if asked is None:
        return None
    unknown = [name for name in asked if name not in names]
    if unknown:
        raise InputError(f"an owner asks the node {unknown[0]!r}, which there is not")
    return [names.index(name) for name in asked]


def _numbers(views: Iterable[Sequence[int] | None], nodes: int) -> list[int]:
    """Give each node the number that it has for the first owner that may ask it."""
    numbers = list(range(nodes))
    seen: set[int] = set()
    for places in views:
        for number, place in enumerate(range(nodes) if places is None else places):
            if place not in seen:
                numbers[place] = number
                seen.add(place)
    return numbers
