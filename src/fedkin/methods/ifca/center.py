"""The center's part of IFCA (Ghosh et al. 2020, its Algorithm 1, model averaging)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Cost, Federation, PerNode, WeightedSum
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.descent.center import Descent, DescentMethod
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.methods.ifca.node import CLUSTER_LOSS
from fedkin.methods.settings import count
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.types import Array, Key, Vector


@dataclass(frozen=True, kw_only=True)
class Ifca(DescentMethod):
    """Some models; every node trains the one that suits its data best. See also `TrainedMethod`.

    Args:
        clusters: The number C of models; 2 if open.

    >>> Ifca(clusters=3).clusters
    3
    """

    name: ClassVar[str] = "ifca"
    title: ClassVar[str] = "IFCA"
    color: ClassVar[str] = "#AD9158"
    dark_color: ClassVar[str | None] = "#DACEB4"
    marker: ClassVar[str] = "H"
    dashes: ClassVar[tuple[float, ...]] = (2, 2)
    tasks = (DESCENT_ROUND, CLUSTER_LOSS, SMOOTHNESS)
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "learning_rate": (0.05, 0.02, 0.01),
        "clusters": (2, 4),
    }

    clusters: int | None = count()

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["IfcaAlgorithm", Cost]:
        """Choose step size and lengths."""
        descent, cost = self.choose_descent(federation, center, key)
        return IfcaAlgorithm(descent, self.clusters or 2), cost


class IfcaState(NamedTuple):
    """The models of the clusters, and who is in which."""

    models: Array
    """A row for each cluster."""
    members: Array
    """The cluster of each node."""
    rounds: int


@dataclass(frozen=True)
class IfcaAlgorithm:
    """Nodes join the model with the lowest loss on their data, and average within clusters.

    An exchange trains every model with its members, and asks all nodes for the losses of the models it began
    with. These decide who belongs where in the next one. In the first two exchanges, clusters of equal size
    are drawn at random: models that begin alike tell nothing, and of models that begin at random, one suits
    everybody best, and the others are never trained.

    Args:
        descent: How nodes train.
        clusters: The number of models.
    """

    descent: Descent
    clusters: int = 2

    def init(self, theta: Vector, nodes: int) -> IfcaState:
        """Begin with the initial model everywhere; the first step draws the clusters."""
        return IfcaState(jnp.tile(theta, (self.clusters, 1)), jnp.zeros(nodes, int), 0)

    def step(
        self, state: IfcaState, key: Key, federation: Federation, center: Center
    ) -> tuple[IfcaState, Info]:
        """Continue for as many synchronizations as the settings say."""
        models, members, cost = state.models, np.asarray(state.members), Cost()
        watch = self.descent.watch()
        if state.rounds == 0:
            members = np.asarray(jax.random.permutation(key, len(members)) % self.clusters)
        for number in range(self.descent.rounds):
            weights = cluster_weights(members, self.clusters, federation.present)
            trained = np.flatnonzero(weights.any(axis=1))
            reply = federation.exchange(
                train=WeightedSum(
                    DESCENT_ROUND,
                    self.descent.message(models[trained]),
                    weights=jnp.asarray(weights[trained]),
                    steps=self.descent.period,
                ),
                losses=PerNode(CLUSTER_LOSS, {"point": models}),
                key=jax.random.fold_in(key, number),
            )
            cost += reply.cost
            models = models.at[trained].set(reply.train["point"])
            if state.rounds + number > 0:  # in the first exchange, all models are the same
                members = join_clusters(reply.losses["loss"], members)
            watch.see(models, float(jnp.mean(reply.train["loss"])))
        own = int(np.argmin(center.losses(list(models))))
        weights = cluster_weights(members, self.clusters, federation.present)[own]
        sizes = np.bincount(members, minlength=self.clusters)
        diagnostics = {"training_loss": watch.loss, "cluster": float(own)}
        diagnostics |= {f"cluster_{place}_size": float(size) for place, size in enumerate(sizes)}
        rounds = state.rounds + self.descent.rounds
        return IfcaState(models, jnp.asarray(members), rounds), Info(
            models[own], jnp.asarray(weights), cost, diagnostics
        )


def join_clusters(losses: Array, members: np.ndarray) -> np.ndarray:
    """Return for each node the model with the lowest loss; who has not answered stays where it is."""
    found = np.asarray(losses, np.float64)
    answered = np.isfinite(found).any(axis=0)
    best = np.argmin(np.where(np.isfinite(found), found, np.inf), axis=0)
    return np.where(answered, best, members)


def cluster_weights(members: np.ndarray, clusters: int, present: np.ndarray) -> np.ndarray:
    """Return a row for each cluster: equal weights of its members that take part."""
    counted = (members == np.arange(clusters)[:, None]) & present
    sizes = np.maximum(counted.sum(axis=1, keepdims=True), 1)
    return (counted / sizes).astype(jnp.result_type(float))
