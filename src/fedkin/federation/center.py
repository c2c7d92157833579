"""The center: the owner's own data D_0, and what can be computed on it without asking anybody."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.compilation import Call, compile_side_by_side
from fedkin.data.batches import NodeData, stack_nodes
from fedkin.federation.base import Federation
from fedkin.federation.simulation import SimulatedFederation
from fedkin.models.base import Statistics
from fedkin.models.named import BUILT_IN_MODELS
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


class Comparison(NamedTuple):
    """How well a model does on the owner's rows, in comparison with another one."""

    loss: float
    """Its mean loss, without the regularizer; infinite where it has diverged."""
    error: float
    """The standard error of the difference between both mean losses."""


class Center:
    """The owner of the validation set D_0 (node 0 of the paper).

    Args:
        objective: The model that is trained.
        inputs: The prepared inputs of D_0.
        labels: The labels of D_0.
        batch_size: The number of points in a mini-batch.
        seed: Decides how D_0 is divided into mini-batches.
        group: Mini-batches are made of groups of at least this many points. See `divide`.
    """

    def __init__(
        self,
        objective: Objective,
        inputs: np.ndarray,
        labels: np.ndarray,
        *,
        batch_size: int = 50,
        seed: int,
        group: int = 1,
    ) -> None:
        self.objective = objective
        own = SimulatedFederation(
            objective,
            [(inputs, labels)],
            names=["center"],
            batch_size=batch_size,
            seed=seed,
            group=group,
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
        self,
        theta: np.ndarray,
        direction: np.ndarray,
        offset: float,
        longest: float,
        bend: float = 0.0,
    ) -> LineSearch:
        """Minimize L_0(θ + αd) − α · offset + ½α² · bend over α, by bisection, for a loss that is convex.

        Args:
            theta: The model θ.
            direction: The step d.
            offset: What is taken from the derivative along d.
            longest: The largest α.
            bend: What is added to the second derivative.
        """
        sent, along = (jnp.asarray(each, jnp.result_type(float)) for each in (theta, direction))
        found = self._evaluate(_search_line, sent, along, offset, bend, longest)
        return LineSearch(*map(float, found))

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
            numbers = [jnp.asarray(each, jnp.result_type(float)) for each in arguments]
            own = partial(_of_only_node, function.__name__, self.objective, tuple(options.items()))
            lasting = type(self.objective.model) in BUILT_IN_MODELS
            call = Call(own, (self.data, *numbers), lasting, single_threaded=False)
            return compile_side_by_side([call])[0](*call.arguments)
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

    def score(self, theta: Vector, inputs: np.ndarray, labels: np.ndarray) -> Score:
        """Score a model on any prepared points."""
        losses, right = self._judge_all(theta, inputs, labels)
        loss = float(np.mean(losses, dtype=np.float64))
        if self.objective.model.task == "regression":
            return Score(loss, None)
        return Score(loss, float(np.mean(right)))

    def compare(
        self, reference: Vector, models: Sequence[Vector]
    ) -> tuple[float, list[Comparison]]:
        """Return the mean loss of a model, and how well others do in comparison with it."""
        rows = [self._row_losses(theta) for theta in (reference, *models)]
        return _mean(rows[0]), [_compare(rows[0], other) for other in rows[1:]]

    def _row_losses(self, theta: Vector) -> np.ndarray:
        """Return the loss of each row of D_0, without the regularizer."""
        found = self._judge_all(theta, np.asarray(self._inputs), self._labels)[0]
        return found.astype(np.float64)

    def _judge_all(
        self, theta: Vector, inputs: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the loss of each of any number of points, and whether its class is right."""
        statistics = self.statistics(theta)
        found = []
        for begin in range(0, len(labels), EVALUATION_CHUNK):
            chunk = slice(begin, begin + EVALUATION_CHUNK)
            own = np.asarray(labels[chunk])
            judged = self._score_points(theta, np.asarray(inputs[chunk]), own, statistics)
            found.append([np.asarray(each)[: len(own)] for each in judged])
        losses, right = (np.concatenate(each) for each in zip(*found, strict=True))
        return losses, right

    def _score_points(
        self, theta: Vector, inputs: np.ndarray, labels: np.ndarray, statistics: Statistics
    ) -> tuple[Array, Array]:
        """Return the loss of each point, and whether its class is right; what follows them is padding."""
        objective = self.objective
        if objective.in_jax:
            return _score_inputs(objective, theta, _filled(inputs), _filled(labels), statistics)
        outputs = np.asarray(objective.outputs(theta, jnp.asarray(inputs), statistics))
        return _score_outputs(objective, _filled(outputs), _filled(labels))


def _mean(losses: np.ndarray) -> float:
    """Return the mean loss; infinite where a row's is not finite."""
    return float(losses.mean()) if np.isfinite(losses).all() else float("inf")


def _compare(reference: np.ndarray, losses: np.ndarray) -> Comparison:
    if not (np.isfinite(reference).all() and np.isfinite(losses).all()):
        return Comparison(_mean(losses), 0.0)
    error = float((reference - losses).std()) / np.sqrt(len(losses))
    return Comparison(_mean(losses), error)


def _filled(rows: np.ndarray) -> np.ndarray:
    """Fill up to a power of two with zeros, so that few shapes are ever compiled."""
    filled = np.zeros((1 << (len(rows) - 1).bit_length(), *rows.shape[1:]), rows.dtype)
    filled[: len(rows)] = rows
    return filled


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
        found = _outputs(objective, theta, _filled(chunk), statistics)
        outputs.append(np.asarray(found)[: len(chunk)])
    return np.concatenate(outputs)


def _of_only_node(
    name: str, objective: Objective, options: tuple, data: NodeData, *arguments: Array
) -> Any:
    """Compute one of the functions below for the only node of a stack.

    It is named, so that its code is found again by other processes.
    """
    return globals()[name](objective, data.of_node(0), *arguments, **dict(options))


def _loss_and_gradient(objective: Objective, data: NodeData, theta: Vector) -> tuple[Array, Vector]:
    return oracles.full_loss_and_gradient(objective, theta, data)


def _search_line(
    objective: Objective,
    data: NodeData,
    theta: Vector,
    direction: Vector,
    offset: Array,
    bend: Array,
    longest: Array,
) -> tuple[Array, Array, Array]:
    def slope(share: Array) -> Array:
        point = theta + share * direction
        gradient = oracles.full_loss_and_gradient(objective, point, data)[1]
        return gradient @ direction - offset + bend * share

    return search_by_slope(slope, longest)


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
def _score_inputs(
    objective: Objective, theta: Vector, inputs: Array, labels: Array, statistics: Statistics
) -> tuple[Array, Array]:
    return _score_outputs(objective, objective.outputs(theta, inputs, statistics), labels)


@partial(jax.jit, static_argnums=0)
def _score_outputs(objective: Objective, outputs: Array, labels: Array) -> tuple[Array, Array]:
    losses = objective.model.loss(outputs, labels)
    if objective.model.task == "regression":
        return losses, jnp.zeros_like(losses)
    return losses, jnp.argmax(outputs, axis=1) == labels
