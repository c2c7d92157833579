"""The center's part of FedALA (Zhang et al. 2023): the average of the nodes' local models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedkin.federation.base import Cost, Federation, Reply, WeightedSum
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.descent.center import Descent, DescentMethod
from fedkin.methods.fedala.node import FEDALA_ROUND
from fedkin.methods.personalized import PersonalizedState, with_center
from fedkin.methods.settings import count, positive
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.methods.weights import equal_weights
from fedkin.types import Array, Key, Vector


@dataclass(frozen=True, kw_only=True)
class FedAla(DescentMethod):
    """Local models that take over as much of the global one as their data like. See `TrainedMethod`.

    Args:
        mixing_rate: The step size η of the mixing weights; 1 if open, as in the paper.
        mixing_steps: Steps on the mixing weights per synchronization; 10 if open.

    >>> FedAla(mixing_steps=5).mixing_steps
    5
    """

    name: ClassVar[str] = "fedala"
    title: ClassVar[str] = "FedALA"
    color: ClassVar[str] = "#724732"
    dark_color: ClassVar[str | None] = "#C0ACA3"
    marker: ClassVar[str] = "d"
    dashes: ClassVar[tuple[float, ...]] = (6, 2, 2, 2)
    tasks = (FEDALA_ROUND, SMOOTHNESS)
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "learning_rate": (0.05, 0.02, 0.01),
        "mixing_rate": (0.1, 1.0, 10.0),
    }

    mixing_rate: float | None = positive()
    mixing_steps: int | None = count()

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["FedAlaAlgorithm", Cost]:
        """Choose step sizes and lengths."""
        descent, cost = self.choose_descent(federation, center, key)
        return FedAlaAlgorithm(descent, self.mixing_rate or 1.0, self.mixing_steps or 10), cost


@dataclass(frozen=True)
class FedAlaAlgorithm:
    """All nodes, and the owner on its own data, mix the global model in, train, and keep the result.

    The global model is the average of the nodes' local models. The owner sends nothing.

    Args:
        descent: How everybody trains.
        mixing_rate: The step size of the mixing weights.
        mixing_steps: Steps on them per synchronization.
    """

    descent: Descent
    mixing_rate: float = 1.0
    mixing_steps: int = 10

    def init(self, theta: Vector, nodes: int) -> PersonalizedState:
        """Begin at the initial model."""
        return PersonalizedState(theta, 0)

    def step(
        self, state: PersonalizedState, key: Key, federation: Federation, center: Center
    ) -> tuple[PersonalizedState, Info]:
        """Continue for as many synchronizations as the settings say."""
        node_weights = equal_weights(federation.present)
        shared = local = state.shared
        cost, watch, diagnostics = Cost(), self.descent.watch(), {}
        for number in range(self.descent.rounds):
            nodes_key, own_key = jax.random.split(jax.random.fold_in(key, number))
            begin = state.rounds + number == 0
            nodes = self._round(federation, shared, node_weights, nodes_key, begin=begin)
            own = self._round(center.alone, shared, jnp.ones(1), own_key, begin=begin)
            cost += with_center(nodes.cost, own.cost)
            shared, local = nodes.train["point"], own.train["point"]
            watch.see(jnp.append(shared, local), float(nodes.train["loss"]))
            diagnostics = {
                "training_loss": watch.loss,
                "personal_loss": float(own.train["loss"]),
                "taken_over": float(own.train["mixing"]),
            }
        rounds = state.rounds + self.descent.rounds
        return PersonalizedState(shared, rounds), Info(local, node_weights, cost, diagnostics)

    def _round(
        self, learners: Federation, shared: Vector, weights: Array, key: Key, *, begin: bool
    ) -> Reply:
        message = {
            "shared": shared,
            "learning_rate": self.descent.learning_rate,
            "mixing_rate": self.mixing_rate,
        }
        request = WeightedSum(
            FEDALA_ROUND,
            message,
            weights=weights,
            begin=begin,
            steps=self.descent.period,
            mixing_steps=self.mixing_steps,
        )
        return learners.exchange(train=request, key=key)
