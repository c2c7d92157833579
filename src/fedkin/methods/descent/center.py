"""What the center of methods has in common whose nodes train by mini-batch descent."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Cost, Federation, RevealedEach, WeightedSum
from fedkin.federation.center import Center
from fedkin.methods.base import Keep, TrainedMethod
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

    def check(
        self, number: int, models: Array, losses: tuple[float, float], what: str = "the models"
    ) -> None:
        """Refuse training that has left all bounds.

        Args:
            number: The round within a step, from 0 on.
            models: The models after it.
            losses: The loss in the first round of the step, and in this one.
            what: What is trained, for the message.
        """
        refuse_divergence(what, number + 1, models, *losses, learning_rate=self.learning_rate)


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
        names = self.federation.names
        node = self.center.own_node
        return names.index(node) if node in names else len(names)

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


class Trained(NamedTuple):
    """What a round of training has brought to everybody's models."""

    models: Array
    """A row for each; a model that did not arrive is as before."""
    loss: float
    """The mean loss of those who answered."""
    cost: Cost


def train_each(everybody: Participants, models: Array, key: Key, descent: Descent) -> Trained:
    """Let everybody train the model of their own for a round: one synchronization."""
    nodes = len(everybody.federation.names)
    nodes_key, own_key = jax.random.split(key)
    reply = everybody.federation.exchange(
        train=RevealedEach(DESCENT_ROUND, descent.message(models[:nodes]), steps=descent.period),
        key=nodes_key,
    )
    trained, losses, cost = reply.train["point"], np.asarray(reply.train["loss"]), reply.cost
    if not everybody.owner_is_node:
        own = everybody.center.alone.exchange(
            train=WeightedSum(
                DESCENT_ROUND,
                descent.message(models[nodes]),
                weights=jnp.ones(1),
                steps=descent.period,
            ),
            key=own_key,
        )
        trained = jnp.concatenate([trained, own.train["point"][None]])
        losses = np.append(losses, own.train["loss"])
        cost = with_center(cost, own.cost)
    answered = np.isfinite(losses)
    loss = float(np.mean(losses[answered])) if answered.any() else float("nan")
    return Trained(jnp.where(jnp.asarray(answered)[:, None], trained, models), loss, cost)


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
