"""FedFomo's rule (Zhang et al. 2021) for one owner. Nodes train with `descent_round`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Cost, Federation, Revealed
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.descent.center import Descent, DescentMethod, Trained
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.methods.local_svrg.training import TrainingState
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.types import Array, Key, Vector


@dataclass(frozen=True, kw_only=True)
class FedFomo(DescentMethod):
    """Move toward the nodes' models that do better on the owner's data. See `TrainedMethod`.

    >>> FedFomo(period=5).period
    5
    """

    name: ClassVar[str] = "fedfomo"
    title: ClassVar[str] = "FedFomo"
    color: ClassVar[str] = "#610B6A"
    dark_color: ClassVar[str | None] = "#B891BC"
    marker: ClassVar[str] = "*"
    dashes: ClassVar[tuple[float, ...]] = (8, 1.5, 1, 1.5)
    tasks = (DESCENT_ROUND, SMOOTHNESS)
    reveals_models: ClassVar[bool] = True
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "learning_rate": (0.05, 0.02, 0.01),
        "period": (10, 20),
    }

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["FedFomoAlgorithm", Cost]:
        """Choose step size and lengths."""
        descent, cost = self.choose_descent(federation, center, key)
        return FedFomoAlgorithm(descent), cost


@dataclass(frozen=True)
class FedFomoAlgorithm:
    r"""Nodes train the owner's model θ to x_n, and the owner moves toward those that it gains from.

    .. math:: w_n \propto \max\{(L_0(\theta) - L_0(x_n)) / \|x_n - \theta\|, 0\}, \qquad
              \theta \leftarrow \theta + \textstyle\sum_n w_n (x_n - \theta)

    Args:
        descent: How nodes train.
    """

    descent: Descent

    def init(self, theta: Vector, nodes: int) -> TrainingState:
        """Begin at the initial model."""
        return TrainingState(theta, 0)

    def step(
        self, state: TrainingState, key: Key, federation: Federation, center: Center
    ) -> tuple[TrainingState, Info]:
        """Continue for as many synchronizations as the settings say."""
        theta, cost, watch = state.theta, Cost(), self.descent.watch("the model")
        weights = np.zeros(len(federation.names))
        for number in range(self.descent.rounds):
            reply = federation.exchange(
                train=Revealed(
                    DESCENT_ROUND, self.descent.message(theta), steps=self.descent.period
                ),
                key=jax.random.fold_in(key, number),
            )
            cost += reply.cost
            trained = Trained.of(reply.train, jnp.tile(theta, (len(weights), 1)))
            own, *losses = center.losses([theta, *trained.models])
            weights = fomo_weights(own, np.array(losses), trained.models - theta)
            theta = theta + jnp.asarray(weights, theta.dtype) @ (trained.models - theta)
            watch.see(theta, trained.loss)
        info = Info(
            theta,
            jnp.asarray(weights, theta.dtype),
            cost,
            {"training_loss": watch.loss, "nodes_gained_from": float(np.count_nonzero(weights))},
        )
        return TrainingState(theta, state.rounds + self.descent.rounds), info


def fomo_weights(own: float, losses: np.ndarray, moves: Array) -> np.ndarray:
    """Weigh models by what the owner gains from each per unit of distance; all zero if from none.

    Args:
        own: The owner's loss of its own model.
        losses: The owner's loss of each other model.
        moves: What leads from its model to each other one; zero for nodes that did not answer.
    """
    distances = np.linalg.norm(np.asarray(moves, np.float64), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = np.where(distances > 0, (own - losses) / distances, 0.0)
    gains = np.maximum(np.nan_to_num(gains, nan=0.0, neginf=0.0), 0.0)
    return gains / gains.sum() if gains.sum() > 0 else gains
