"""What the center of methods has in common whose nodes train by mini-batch descent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Cost, Federation, RevealedEach, WeightedSum
from fedkin.federation.center import Center
from fedkin.federation.task import Task
from fedkin.methods.base import Info, Keep, TrainedMethod
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.methods.local_svrg.center import refuse_divergence
from fedkin.methods.local_svrg.training import SMOOTHNESS_MARGIN, paper_rounds_of_an_outer_step
from fedkin.methods.personalized import with_center
from fedkin.methods.step_size import largest_curvature
from fedkin.models.objective import Objective
from fedkin.types import Array, Key, Vector


@dataclass(frozen=True)
class Descent:
    """How nodes train.

    Args:
        learning_rate: The step size γ.
        period: The number τ of local steps between two synchronizations.
        rounds: The synchronizations of one step of the method.
        proximal: The strength λ of the pull toward the model that a round begins with.
    """

    learning_rate: float
    period: int = 20
    rounds: int = 20
    proximal: float = 0.0

    def message(self, point: Array) -> dict[str, Array | float]:
        """Return what a round needs to know, given its first iterate, or a row of them for each node."""
        return {"point": point, "learning_rate": self.learning_rate, "proximal": self.proximal}

    def for_each(self, models: Array) -> "Each":
        """Return a round in which everybody trains a model of their own."""
        return Each(DESCENT_ROUND, self.message(models), {"steps": self.period})

    def watch(self, what: str = "the models") -> "Watch":
        """Return what refuses training that leaves all bounds, for one step of a method."""
        return Watch(self.learning_rate, what)


class Watch:
    """Watches the training loss of the rounds of a step.

    Args:
        learning_rate: The step size to blame.
        what: What is trained, for the message.
    """

    def __init__(self, learning_rate: float, what: str) -> None:
        self.loss = float("nan")
        """The loss in the last round."""
        self._learning_rate, self._what = learning_rate, what
        self._losses: list[float] = []

    def see(self, models: Array, loss: float) -> None:
        """Take in the models and the loss of a round; refuse them if they have left all bounds."""
        self._losses.append(loss)
        self.loss = loss
        refuse_divergence(
            self._what,
            len(self._losses),
            models,
            self._losses[0],
            loss,
            learning_rate=self._learning_rate,
        )


@dataclass(frozen=True, kw_only=True)
class DescentMethod(TrainedMethod):
    """A method whose nodes train by mini-batch descent. For the settings see `TrainedMethod`."""

    learning_rate_place = ("descent",)

    def default_keep(self, objective: Objective) -> Keep:
        """The best: with steps of a fixed size, training hovers around its limit."""
        return "best"

    def choose_descent(
        self, federation: Federation, center: Center, key: Key, *, proximal: float = 0.0
    ) -> tuple[Descent, Cost]:
        """Choose step size and lengths, asking for the curvature where it is known.

        An open step size suits the nodes, the owner's own data, and the pull, which adds λ to the curvature.
        """
        cost = Cost()
        objective, learning_rate = federation.objective, self.learning_rate
        if learning_rate is None and self.is_convex(objective):
            curvature, cost = largest_curvature(federation, key)
            if center.own_node is None:
                curvature = max(curvature, largest_curvature(center.alone, key)[0])
            learning_rate = 1 / (SMOOTHNESS_MARGIN * (curvature + proximal))
        period, rounds = self.chosen_period(objective), self.chosen_rounds(objective)
        if self.preset == "paper" and self.rounds is None:
            rounds = paper_rounds_of_an_outer_step(federation, period)
        return Descent(learning_rate or self.usual_learning_rate, period, rounds, proximal), cost


@dataclass(frozen=True)
class Participants:
    """Everybody who has a personal model: the nodes, and the owner where it is not one of them.

    The owner is then the last, works at the same time as the nodes on its own data, and sends nothing.
    """

    federation: Federation
    center: Center

    @property
    def own(self) -> int:
        """The owner's place."""
        place = self.center.own_node
        return len(self.federation.names) if place is None else place

    @property
    def owner_is_node(self) -> bool:
        """Whether the owner is one of the nodes."""
        return self.own < len(self.federation.names)

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.federation.names) + (not self.owner_is_node)

    @property
    def present(self) -> np.ndarray:
        """Which of them take part (bools)."""
        nodes = self.federation.present
        return nodes if self.owner_is_node else np.append(nodes, True)

    def node_weights(self, weights: np.ndarray) -> Array:
        """Return what the owner's row of weights says of the nodes."""
        return jnp.asarray(weights[: len(self.federation.names)], jnp.result_type(float))


class Each(NamedTuple):
    """What everybody computes in an exchange, each with vectors of their own."""

    task: Task
    message: Mapping[str, Array | float]
    """Numbers, and vectors with a row for each."""
    options: Mapping[str, Any]

    def for_nodes(self, nodes: int) -> RevealedEach:
        """Return what is asked of the nodes, which are the first rows."""
        return RevealedEach(self.task, self._rows(slice(nodes)), **self.options)

    def for_owner(self) -> WeightedSum:
        """Return what is asked of the owner, who is the last row."""
        return WeightedSum(self.task, self._rows(-1), weights=jnp.ones(1), **self.options)

    def _rows(self, chosen: slice | int) -> dict[str, Array | float]:
        vectors = self.task.vectors
        return {
            name: jnp.asarray(value)[chosen] if name in vectors else value
            for name, value in self.message.items()
        }


def exchange_each(
    everybody: Participants, key: Key, **requests: Each
) -> tuple[dict[str, dict[str, Array]], Cost]:
    """Let everybody compute something with vectors of their own: one synchronization.

    Returns:
        The replies by the names of the requests, with a row for each participant (NaN for what did not
        arrive), and the cost.
    """
    nodes = len(everybody.federation.names)
    nodes_key, own_key = jax.random.split(key)
    asked: dict[str, Any] = {name: each.for_nodes(nodes) for name, each in requests.items()}
    reply = everybody.federation.exchange(key=nodes_key, **asked)
    found = {name: dict(reply.replies[name]) for name in requests}
    if everybody.owner_is_node:
        return found, reply.cost
    asked = {name: each.for_owner() for name, each in requests.items()}
    own = everybody.center.alone.exchange(key=own_key, **asked)
    for name, replies in found.items():
        for part, array in replies.items():
            replies[part] = jnp.concatenate([array, own.replies[name][part][None]])
    return found, with_center(reply.cost, own.cost)


class Trained(NamedTuple):
    """What a round of training makes of everybody's models."""

    models: Array
    """A row for each; a model that did not arrive is as before."""
    loss: float
    """The mean loss of those who answered."""

    @classmethod
    def of(cls, replies: Mapping[str, Array], before: Array) -> "Trained":
        """Read the replies to `descent_round`."""
        losses = np.asarray(replies["loss"])
        answered = np.isfinite(losses)
        loss = float(np.mean(losses[answered])) if answered.any() else float("nan")
        models = jnp.where(jnp.asarray(answered)[:, None], replies["point"], before)
        return cls(models, loss)


def train_each(
    everybody: Participants, models: Array, key: Key, descent: Descent
) -> tuple[Trained, Cost]:
    """Let everybody train the model of their own for a round: one synchronization."""
    replies, cost = exchange_each(everybody, key, train=descent.for_each(models))
    return Trained.of(replies["train"], models), cost


class PersonalModels(NamedTuple):
    """State of methods that keep a model for everybody."""

    models: Array
    """A row for each node, and one for an owner that is not a node."""
    rounds: int
    """Synchronizations so far."""

    @classmethod
    def begin(cls, start: Vector, nodes: int) -> "PersonalModels":
        """Begin with the same model for everybody."""
        return cls(jnp.tile(start, (nodes + 1, 1)), 0)

    def of(self, everybody: Participants) -> Array:
        """Return the models of those who take part."""
        return self.models[: everybody.count]

    def after(self, models: Array, rounds: int) -> "PersonalModels":
        """Return the state some synchronizations later."""
        return PersonalModels(self.models.at[: len(models)].set(models), self.rounds + rounds)


def mixed_rounds(
    everybody: Participants,
    models: Array,
    key: Key,
    descent: Descent,
    weigh: Callable[[np.ndarray], np.ndarray],
) -> tuple[Array, Info]:
    """Let everybody train from a mixture of all models, round after round.

    Args:
        everybody: Who takes part.
        models: Their models.
        key: Decides the mini-batches.
        descent: How they train, and for how many rounds.
        weigh: Returns the matrix of weights for some models; row i makes the mixture of i.

    Returns:
        The models, and what to report of the owner's.
    """
    cost, weights, watch = Cost(), np.eye(everybody.count), descent.watch()
    for number in range(descent.rounds):
        weights = weigh(np.asarray(models))
        mixed = jnp.asarray(weights, models.dtype) @ models
        trained, round_cost = train_each(everybody, mixed, jax.random.fold_in(key, number), descent)
        cost, models = cost + round_cost, trained.models
        watch.see(models, trained.loss)
    own = everybody.own
    return models, Info(
        models[own],
        everybody.node_weights(weights[own]),
        cost,
        {"training_loss": watch.loss, "own_weight": float(weights[own, own])},
    )
