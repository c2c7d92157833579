"""The center's part of pFedGraph (Ye et al. 2023): who learns with whom, by a quadratic program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Cost, Federation, PerNode
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.descent.center import (
    Descent,
    DescentMethod,
    Participants,
    PersonalModels,
    mixed_rounds,
)
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.methods.pfedgraph.node import NODE_SIZE
from fedkin.methods.settings import positive
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.methods.weights import project_weights
from fedkin.types import Array, Key, Vector


@dataclass(frozen=True, kw_only=True)
class PFedGraph(DescentMethod):
    """Personal models, mixed with those whose updates point the same way. See also `TrainedMethod`.

    Args:
        fidelity: How much it costs to leave weights by size, λ; 0.8 if open.

    >>> PFedGraph(fidelity=2).fidelity
    2.0
    """

    name: ClassVar[str] = "pfedgraph"
    title: ClassVar[str] = "pFedGraph"
    color: ClassVar[str] = "#2207A3"
    dark_color: ClassVar[str | None] = "#9C8FD6"
    marker: ClassVar[str] = "p"
    dashes: ClassVar[tuple[float, ...]] = (10, 2)
    tasks = (DESCENT_ROUND, NODE_SIZE, SMOOTHNESS)
    reveals_models: ClassVar[bool] = True
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "learning_rate": (0.05, 0.02, 0.01),
        "fidelity": (0.1, 0.8, 2.0),
    }

    fidelity: float | None = positive()

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["PFedGraphAlgorithm", Cost]:
        """Choose step size and lengths."""
        descent, cost = self.choose_descent(federation, center, key)
        return PFedGraphAlgorithm(descent, self.fidelity or 0.8), cost


class GraphState(NamedTuple):
    """Everybody's models, and what they are compared by."""

    personal: PersonalModels
    start: Vector
    """The initial model: updates are counted from it."""
    sizes: Array
    """The points of each node, and of an owner that is not a node."""


@dataclass(frozen=True)
class PFedGraphAlgorithm:
    r"""Everybody gets a mixture of all models, and trains from there.

    .. math:: w_i = \operatorname{argmin}_{w \in \Delta} \lambda \|w - p\|^2 + d_i^\top w, \qquad
              d_{ij} = -\cos(x_i - \theta_0, x_j - \theta_0)

    with the shares p of all points.

    Args:
        descent: How everybody trains.
        fidelity: How much it costs to leave weights by size, λ.
    """

    descent: Descent
    fidelity: float = 0.8

    def init(self, theta: Vector, nodes: int) -> GraphState:
        """Begin with the initial model for everybody; sizes are asked for in the first step."""
        return GraphState(PersonalModels.begin(theta, nodes), theta, jnp.ones(nodes + 1))

    def step(
        self, state: GraphState, key: Key, federation: Federation, center: Center
    ) -> tuple[GraphState, Info]:
        """Continue for as many synchronizations as the settings say."""
        everybody = Participants(federation, center)
        cost, sizes = Cost(), state.sizes
        if state.personal.rounds == 0:
            reply = federation.exchange(size=PerNode(NODE_SIZE), key=key)
            cost, sizes = reply.cost, jnp.append(reply.size["points"], float(center.points))
        known = np.asarray(sizes)[: everybody.count]

        def weigh(models: np.ndarray) -> np.ndarray:
            updates = models - np.asarray(state.start)
            return collaboration_graph(updates, known, everybody.present, self.fidelity)

        models, info = mixed_rounds(
            everybody, state.personal.of(everybody), key, self.descent, weigh
        )
        personal = state.personal.after(models, self.descent.rounds)
        return GraphState(personal, state.start, sizes), replace(info, cost=cost + info.cost)


def collaboration_graph(
    updates: np.ndarray, sizes: np.ndarray, present: np.ndarray, fidelity: float
) -> np.ndarray:
    """Return the weights of everybody for everybody: each row solves the quadratic program.

    Completing the square, a row is the projection of p − d / (2λ) onto the simplex.

    Args:
        updates: What leads from the initial model to each model. Without any, cosines are zero.
        sizes: The points of each; unknown ones (NaN) count as the mean of the others.
        present: Who takes part (bools); the others get no weight.
        fidelity: λ.
    """
    known = np.where(np.isfinite(sizes), sizes, np.nanmean(sizes)) * present
    norms = np.linalg.norm(updates.astype(np.float64), axis=1, keepdims=True)
    directions = updates / np.maximum(norms, np.finfo(np.float64).tiny)
    targets = known / known.sum() + directions @ directions.T / (2 * fidelity)
    return np.stack(
        [np.asarray(project_weights(jnp.asarray(row), 1.0, present)) for row in targets]
    )
