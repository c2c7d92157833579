"""The center: the owner's own data D_0, and what can be computed on it without asking anybody."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.data.batches import NodeData
from fedkin.federation.simulation import SimulatedFederation
from fedkin.models.base import Statistics
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.numerics.linear_solve import DampedSolution, damped_conjugate_gradients
from fedkin.types import Array, Vector

EVALUATION_CHUNK = 4096
"""Points evaluated at once: bounds the memory, and keeps the compiled code for any number of points."""


@dataclass(frozen=True)
class Score:
    """How well a model does on a set of points."""

    loss: float
    """The mean loss of the points, without the regularizer."""
    accuracy: float | None
    """The share of points classified correctly; None for regression."""


class Center:
    """The owner of the validation set D_0 (node 0 of the paper).

    Args:
        objective: The model that is trained.
        inputs: The prepared inputs of D_0.
        labels: The labels of D_0.
        batch_size: The number of points in a mini-batch.
        seed: Decides how D_0 is divided into mini-batches.
    """

    def __init__(
        self,
        objective: Objective,
        inputs: np.ndarray,
        labels: np.ndarray,
        *,
        batch_size: int = 50,
        seed: int,
    ) -> None:
        self.objective = objective
        self.alone = SimulatedFederation(
            objective, [(inputs, labels)], names=["center"], batch_size=batch_size, seed=seed
        )
        """D_0 as a federation of one node, for training on it alone."""
        self._inputs = jnp.asarray(inputs)
        self._labels = np.asarray(labels)

    @property
    def points(self) -> int:
        """How many points D_0 has."""
        return len(self._labels)

    def loss_and_gradient(self, theta: Vector) -> tuple[float, Vector]:
        """Return L_0(θ) and ∇L_0(θ)."""
        loss, gradient = self.alone.evaluate(_loss_and_gradient, theta)
        return float(loss), gradient

    def solve(
        self, theta: Vector, target: Vector, *, damping: float, iterations: int
    ) -> DampedSolution:
        """Solve (∇²L_0(θ) + λI) h = target by conjugate gradients."""
        return self.alone.evaluate(_solve, theta, target, damping, iterations=iterations)

    def hessian(self, theta: Vector) -> Array:
        """Return ∇²L_0(θ), for models of few parameters."""
        return self.alone.evaluate(_hessian, theta)

    def outputs(self, theta: Vector, inputs: np.ndarray) -> np.ndarray:
        """Return the model's outputs, normalized with the statistics of D_0."""
        return evaluate_in_chunks(self.objective, theta, inputs, self.statistics(theta))

    def statistics(self, theta: Vector) -> Statistics:
        """Return the normalization statistics of the model on D_0."""
        return normalization_statistics(self.objective, theta, self._inputs)

    def validate(self, theta: Vector) -> Score:
        """Score a model on D_0."""
        return self.score(theta, np.asarray(self._inputs), self._labels)

    def score(self, theta: Vector, inputs: np.ndarray, labels: np.ndarray) -> Score:
        """Score a model on any prepared points."""
        outputs = self.outputs(theta, inputs)
        model = self.objective.model
        loss = float(jnp.mean(model.loss(jnp.asarray(outputs), jnp.asarray(labels))))
        if model.task == "regression":
            return Score(loss, None)
        return Score(loss, float(np.mean(np.argmax(outputs, axis=1) == labels)))


def normalization_statistics(objective: Objective, theta: Vector, inputs: Array) -> Statistics:
    """Return the statistics of some prepared points, for evaluation with fixed normalization."""
    if not objective.in_jax:
        return objective.statistics(theta, inputs)
    return _statistics(objective, theta, inputs)


def evaluate_in_chunks(
    objective: Objective, theta: Vector, inputs: np.ndarray, statistics: Statistics
) -> np.ndarray:
    """Return the model's outputs for any number of prepared points, with fixed statistics."""
    outputs = []
    for begin in range(0, len(inputs), EVALUATION_CHUNK):
        chunk = np.asarray(inputs[begin : begin + EVALUATION_CHUNK])
        if not objective.in_jax:
            outputs.append(np.asarray(objective.outputs(theta, jnp.asarray(chunk), statistics)))
            continue
        size = len(chunk)
        # Filled up to a power of two, so that few shapes are ever compiled.
        filled = np.zeros((1 << (size - 1).bit_length(), *chunk.shape[1:]), chunk.dtype)
        filled[:size] = chunk
        outputs.append(
            np.asarray(_outputs(objective, theta, jnp.asarray(filled), statistics))[:size]
        )
    return np.concatenate(outputs)


@partial(jax.jit, static_argnums=0)
def _loss_and_gradient(objective: Objective, data: NodeData, theta: Vector) -> tuple[Array, Vector]:
    return oracles.full_loss_and_gradient(objective, theta, data)


@partial(jax.jit, static_argnums=0, static_argnames="iterations")
def _solve(
    objective: Objective,
    data: NodeData,
    theta: Vector,
    target: Vector,
    damping: Array,
    *,
    iterations: int,
) -> DampedSolution:
    def product(vector: Vector) -> Vector:
        return oracles.full_hessian_product(objective, theta, data, vector)

    return damped_conjugate_gradients(product, target, damping, iterations)


@partial(jax.jit, static_argnums=0)
def _hessian(objective: Objective, data: NodeData, theta: Vector) -> Array:
    def product(vector: Vector) -> Vector:
        return oracles.full_hessian_product(objective, theta, data, vector)

    return jax.lax.map(product, jnp.eye(objective.size))


@partial(jax.jit, static_argnums=0)
def _statistics(objective: Objective, theta: Vector, inputs: Array) -> Statistics:
    return objective.statistics(theta, inputs)


@partial(jax.jit, static_argnums=0)
def _outputs(objective: Objective, theta: Vector, inputs: Array, statistics: Statistics) -> Array:
    return objective.outputs(theta, inputs, statistics)
