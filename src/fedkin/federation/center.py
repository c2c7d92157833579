"""The center: the owner's own data D_0, and what can be computed on it without asking anybody."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.data.batches import NodeData, stack_nodes
from fedkin.federation.base import Federation
from fedkin.federation.simulation import SimulatedFederation
from fedkin.models.base import Statistics
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.numerics.line_search import LineSearch, search_by_slope
from fedkin.numerics.linear_solve import DampedSolution, damped_conjugate_gradients
from fedkin.types import Array, Points, Vector

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
        own = SimulatedFederation(
            objective, [(inputs, labels)], names=["center"], batch_size=batch_size, seed=seed
        )
        self.alone: Federation = own
        """What the owner trains on alone, as a federation of one node: D_0, unless other data are given."""
        self.own_node: int | None = None
        """The owner's place among the nodes that it asks, if it trains alone on such a node's data."""
        self.data = own.data
        """D_0 in mini-batches, as those of the only node in a stack."""
        self._foreign = own.evaluate_foreign
        self._inputs = jnp.asarray(inputs)
        self._labels = np.asarray(labels)

    @classmethod
    def of_many(
        cls,
        objective: Objective,
        owners: Sequence[Points],
        alone: Federation,
        *,
        batch_size: int,
        seed: int,
    ) -> list["Center"]:
        """Return the centers of several owners.

        Their data lie in one pool, so that all owners share compiled code, however many points each has.

        Args:
            objective: The model that is trained.
            owners: The prepared inputs and the labels of each D_0.
            alone: What they train on alone, one node each; `with_alone` gives each its own.
            batch_size: The number of points in a mini-batch.
            seed: Decides how each D_0 is divided into mini-batches.
        """
        if not objective.in_jax:
            own = [cls(objective, *each, batch_size=batch_size, seed=seed) for each in owners]
            return [center.with_alone(alone) for center in own]
        inputs, labels = zip(*owners, strict=True)
        pool = stack_nodes(inputs, labels, batch_size, seed, [0] * len(owners))
        centers = []
        for place, own in enumerate(owners):
            center = cls.__new__(cls)
            center.objective = objective
            center.alone = alone
            center.data = pool.of_node(slice(place, place + 1))
            center.own_node = None
            center._foreign = None
            center._inputs = jnp.asarray(own.inputs)
            center._labels = np.asarray(own.labels)
            centers.append(center)
        return centers

    def with_alone(self, alone: Federation) -> "Center":
        """Return the same center whose owner trains alone on other data: a federation of one node."""
        other = copy.copy(self)
        other.alone = alone
        return other

    def with_own_node(self, place: int | None) -> "Center":
        """Return the same center whose owner is one of the nodes that it asks."""
        other = copy.copy(self)
        other.own_node = place
        return other

    @property
    def points(self) -> int:
        """How many points D_0 has."""
        return len(self._labels)

    @property
    def rows(self) -> Points | None:
        """D_0: the prepared inputs and the labels; None where they stay elsewhere."""
        return Points(np.asarray(self._inputs), self._labels)

    @property
    def loss_unit(self) -> float:
        """What one row's loss is measured in: 1 for classes, the variance of the labels for numbers."""
        if self.objective.model.task == "classification":
            return 1.0
        return float(np.var(self._labels)) or 1.0

    def loss_and_gradient(self, theta: Vector) -> tuple[float, Vector]:
        """Return L_0(θ) and ∇L_0(θ)."""
        loss, gradient = self._evaluate(_loss_and_gradient, theta)
        return float(loss), gradient

    def losses(self, models: Sequence[Vector]) -> list[float]:
        """Return L_0 of each of several models."""
        return [self.loss_and_gradient(theta)[0] for theta in models]

    def search_line(
        self, theta: np.ndarray, direction: np.ndarray, offset: float, longest: float
    ) -> LineSearch:
        """Minimize L_0(θ + αd) − α · offset over α, by bisection, for a loss that is convex.

        Args:
            theta: The model θ, in double precision.
            direction: The step d.
            offset: What is taken from the derivative along d.
            longest: The largest α.
        """

        def slope(share: float) -> float:
            point = jnp.asarray(theta + share * direction, jnp.result_type(float))
            gradient = np.asarray(self.loss_and_gradient(point)[1], np.float64)
            return float(gradient @ direction) - offset

        return search_by_slope(slope, longest)

    def solve(
        self, theta: Vector, target: Vector, *, damping: float, iterations: int
    ) -> DampedSolution:
        """Solve (∇²L_0(θ) + λI) h = target by conjugate gradients."""
        return self._evaluate(_solve, theta, target, damping, iterations=iterations)

    def hessian_product(self, theta: Vector, vector: Vector) -> Vector:
        """Return ∇²L_0(θ) v."""
        return self._evaluate(_hessian_product, theta, vector)

    def hessian(self, theta: Vector) -> Array:
        """Return ∇²L_0(θ), for models of few parameters."""
        return self._evaluate(_hessian, theta)

    def _evaluate(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return what a function makes of the model and D_0.

        Args:
            function: A function `(objective, data, *arguments, **options)` of pure JAX.
            *arguments: Vectors and numbers.
            **options: Settings that are part of the compiled code.
        """
        if self.objective.in_jax:
            compiled = _compiled(function, *options)
            return compiled(self.objective, self.data, *arguments, **options)
        assert self._foreign is not None
        return self._foreign(function, *arguments, **options)

    def outputs(self, theta: Vector, inputs: np.ndarray) -> np.ndarray:
        """Return the model's outputs, normalized with the statistics of D_0."""
        return evaluate_in_chunks(self.objective, theta, inputs, self.statistics(theta))

    def statistics(self, theta: Vector) -> Statistics:
        """Return the normalization statistics of the model on D_0."""
        return normalization_statistics(self.objective, theta, self._inputs)

    def validate(self, theta: Vector) -> Score:
        """Score a model on D_0."""
        return self.score(theta, np.asarray(self._inputs), self._labels)

    def row_losses(self, theta: Vector) -> np.ndarray:
        """Return the loss of each row of D_0, without the regularizer."""
        outputs = self.outputs(theta, np.asarray(self._inputs))
        return _row_losses(self.objective, outputs, self._labels)

    def score(self, theta: Vector, inputs: np.ndarray, labels: np.ndarray) -> Score:
        """Score a model on any prepared points."""
        outputs = self.outputs(theta, inputs)
        model = self.objective.model
        loss = _mean_loss(self.objective, outputs, np.asarray(labels))
        if model.task == "regression":
            return Score(loss, None)
        return Score(loss, float(np.mean(np.argmax(outputs, axis=1) == labels)))


def _mean_loss(objective: Objective, outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean loss of points, given the model's outputs for them."""
    return float(np.mean(_row_losses(objective, outputs, labels), dtype=np.float64))


def _row_losses(objective: Objective, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the loss of each point, given the model's outputs for them."""
    size = _filled_size(len(labels))
    filled = np.zeros((size, *outputs.shape[1:]), outputs.dtype)
    filled[: len(labels)] = outputs
    filled_labels = np.zeros(size, labels.dtype)
    filled_labels[: len(labels)] = labels
    losses = _losses(objective, jnp.asarray(filled), jnp.asarray(filled_labels))
    return np.asarray(losses)[: len(labels)]


def _filled_size(points: int) -> int:
    """Fill up to a power of two, so that few shapes are ever compiled."""
    return 1 << (points - 1).bit_length()


def normalization_statistics(objective: Objective, theta: Vector, inputs: Array) -> Statistics:
    """Return the statistics of some prepared points, for evaluation with fixed normalization."""
    if not objective.in_jax:
        return objective.statistics(theta, inputs)
    empty = empty_statistics(objective)
    return _statistics(objective, theta, inputs) if empty is None else empty


def evaluate_in_chunks(
    objective: Objective, theta: Vector, inputs: np.ndarray, statistics: Statistics
) -> np.ndarray:
    """Return the model's outputs for any number of prepared points, with fixed statistics."""
    if len(inputs) == 0:
        return np.zeros((0, *objective.output_shape()), jnp.result_type(float))
    outputs = []
    for begin in range(0, len(inputs), EVALUATION_CHUNK):
        chunk = np.asarray(inputs[begin : begin + EVALUATION_CHUNK])
        if not objective.in_jax:
            outputs.append(np.asarray(objective.outputs(theta, jnp.asarray(chunk), statistics)))
            continue
        size = len(chunk)
        filled = np.zeros((_filled_size(size), *chunk.shape[1:]), chunk.dtype)
        filled[:size] = chunk
        outputs.append(
            np.asarray(_outputs(objective, theta, jnp.asarray(filled), statistics))[:size]
        )
    return np.concatenate(outputs)


@cache
def _compiled(function: Callable[..., Any], *options: str) -> Callable[..., Any]:
    """Compile a function of the model and a node's data, for the only node of a stack."""

    def of_only_node(objective: Objective, data: NodeData, *arguments: Any, **given: Any) -> Any:
        return function(objective, data.of_node(0), *arguments, **given)

    return jax.jit(of_only_node, static_argnums=0, static_argnames=options)


def _loss_and_gradient(objective: Objective, data: NodeData, theta: Vector) -> tuple[Array, Vector]:
    return oracles.full_loss_and_gradient(objective, theta, data)


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


def _hessian_product(objective: Objective, data: NodeData, theta: Vector, vector: Vector) -> Vector:
    return oracles.full_hessian_product(objective, theta, data, vector)


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


@cache
def empty_statistics(objective: Objective) -> Statistics | None:
    """Return the statistics of a model that needs none, or None for one that does."""
    theta = jax.ShapeDtypeStruct((objective.size,), jnp.result_type(float))
    inputs = jax.ShapeDtypeStruct((2, *objective.point_shape), objective.point_dtype)
    found = jax.eval_shape(objective.statistics, theta, inputs)
    return None if jax.tree.leaves(found) else found


@partial(jax.jit, static_argnums=0)
def _losses(objective: Objective, outputs: Array, labels: Array) -> Array:
    return objective.model.loss(outputs, labels)
