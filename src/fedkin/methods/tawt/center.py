"""The center's part of TAWT (Chen et al. 2021): mirror descent on the weights, without a Hessian."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedkin.federation.base import Cost, Federation, PerNode
from fedkin.federation.center import Center
from fedkin.methods.base import Info
from fedkin.methods.local_svrg.center import LocalSvrg, solve_inner
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.local_svrg.training import SvrgMethod, training_info
from fedkin.methods.settings import positive
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.methods.tawt.node import GRADIENT_COSINE
from fedkin.methods.weights import fill_unknown
from fedkin.types import Array, Key, Vector


@dataclass(frozen=True, kw_only=True)
class Tawt(SvrgMethod):
    """Learn weights from the angles between gradients. For the other settings see `SvrgMethod`.

    Args:
        outer_learning_rate: The step size η of mirror descent, once per step of the method; 1 if open.

    >>> Tawt(outer_learning_rate=2).outer_learning_rate
    2.0
    """

    name: ClassVar[str] = "tawt"
    title: ClassVar[str] = "TAWT"
    color: ClassVar[str] = "#7A2403"
    dark_color: ClassVar[str | None] = "#C39C8E"
    marker: ClassVar[str] = "<"
    dashes: ClassVar[tuple[float, ...]] = (1, 1)
    tasks = (INNER_SVRG_ROUND, GRADIENT_COSINE, SMOOTHNESS)
    weighs_nodes: ClassVar[bool] = True
    learning_rate_place: ClassVar[tuple[str, ...]] = ("training",)
    tuning_grid: ClassVar[Mapping[str, Sequence[Any]]] = {
        "learning_rate": (0.05, 0.02, 0.01),
        "outer_learning_rate": (0.1, 1.0),
    }

    outer_learning_rate: float | None = positive()

    def prepare(
        self, federation: Federation, center: Center, key: Key
    ) -> tuple["TawtAlgorithm", Cost]:
        """Choose step sizes and lengths."""
        training, cost = self.choose_training(federation, key)
        training = self.with_rounds_of_an_outer_step(training, federation)
        return TawtAlgorithm(training, self.outer_learning_rate or 1.0), cost


class TawtState(NamedTuple):
    """The model and the weights."""

    theta: Vector
    weights: Array
    rounds: int
    """Rounds of training so far."""


@dataclass(frozen=True)
class TawtAlgorithm:
    r"""A step moves the weights, then trains with them.

    .. math:: w_k \leftarrow w_k \exp(\eta \cos(\nabla L_0(\theta), \nabla L_k(\theta))) / Z

    Args:
        training: How the model is trained on the weighted nodes.
        outer_learning_rate: The step size η of mirror descent.
    """

    training: LocalSvrg
    outer_learning_rate: float = 1.0

    def init(self, theta: Vector, nodes: int) -> TawtState:
        """Begin at the initial model with equal weights."""
        return TawtState(theta, jnp.full(nodes, 1 / nodes), 0)

    def step(
        self, state: TawtState, key: Key, federation: Federation, center: Center
    ) -> tuple[TawtState, Info]:
        """Ask for the cosines, move the weights, and train for some rounds."""
        angles_key, training_key = jax.random.split(key)
        _, gradient = center.loss_and_gradient(state.theta)
        reply = federation.exchange(
            angles=PerNode(GRADIENT_COSINE, {"point": state.theta, "vector": gradient}),
            key=angles_key,
        )
        cosines = fill_unknown(reply.angles["cosine"], state.weights)
        weights = mirror_step(
            state.weights, self.outer_learning_rate * cosines, jnp.asarray(federation.present)
        )
        solution = solve_inner(
            federation, weights, state.theta, training_key, self.training, begin=state.rounds == 0
        )
        cost = reply.cost + solution.cost
        info = training_info(solution, state.theta, self.training, weights, cost)
        return TawtState(solution.point, weights, state.rounds + solution.rounds), info


def mirror_step(weights: Array, exponents: Array, present: Array) -> Array:
    """Multiply weights by exponentials and normalize them, over the nodes that take part.

    A node that has come back begins with the smallest weight of the others.
    """
    floor = jnp.finfo(weights.dtype).tiny
    logarithms = jnp.log(jnp.maximum(weights, floor)) + jnp.nan_to_num(exponents)
    return jax.nn.softmax(jnp.where(present, logarithms, -jnp.inf))
