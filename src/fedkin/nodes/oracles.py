"""What a node knows of its own loss: values, gradients, Hessian-vector products."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap, sequential_vmap

from fedkin.data.batches import NodeData
from fedkin.errors import InputError
from fedkin.models.base import LinearModel, as_float
from fedkin.models.objective import Batch, Objective
from fedkin.nodes.foreign import for_any_model
from fedkin.types import Array, Vector

POWER_ITERATIONS = 50


# Tracing the model takes longer than all else before compilation, and each loop and `vmap` around it
# would trace it again. What is jitted by itself is traced once.
_jit = partial(jax.jit, static_argnums=0)


@for_any_model(lambda theta, batch: (theta[0], theta))
@_jit
def batch_loss_and_gradient(
    objective: Objective, theta: Vector, batch: Batch
) -> tuple[Array, Vector]:
    """Return one mini-batch's loss and its gradient."""
    return jax.value_and_grad(objective.batch_loss)(theta, batch)


@for_any_model(lambda point, reference, batch: (point[0], point))
@_jit
def batch_loss_and_difference(
    objective: Objective, point: Vector, reference: Vector, batch: Batch
) -> tuple[Array, Vector]:
    """Return one mini-batch's loss at a point, and its gradient there minus that at another point."""
    if objective.is_heavy(batch.labels.shape[-1]):
        # Subtracted part by part: XLA would put two vectors together and subtract them in one slow loop.
        of_parameters = jax.value_and_grad(objective.loss_of_parameters)
        loss, gradient = of_parameters(objective.unflatten(point), batch)
        _, other = of_parameters(objective.unflatten(reference), batch)
        return loss, objective.flatten(jax.tree.map(jnp.subtract, gradient, other))
    # Both points in one pass over the mini-batch.
    of_point = partial(batch_loss_and_gradient, objective)
    losses, gradients = jax.vmap(of_point, (0, None))(jnp.stack([point, reference]), batch)
    return losses[0], gradients[0] - gradients[1]


@for_any_model(lambda theta, batch, vector: theta)
@_jit
def batch_hessian_product(
    objective: Objective, theta: Vector, batch: Batch, vector: Vector
) -> Vector:
    """Return the Hessian of one mini-batch's loss times a vector, forward over reverse."""

    def gradient(point: Vector) -> Vector:
        return jax.grad(objective.batch_loss)(point, batch)

    return jax.jvp(gradient, (theta,), (vector,))[1]


@for_any_model(lambda theta, data: (theta[0], theta))
def full_loss_and_gradient(
    objective: Objective, theta: Vector, data: NodeData
) -> tuple[Array, Vector]:
    """Return L_k(θ) and ∇L_k(θ) in one pass over the node's data."""
    return mean_over_batches(objective, partial(batch_loss_and_gradient, objective), (theta,), data)


@for_any_model(lambda theta, data: (theta, jnp.tile(theta, (data.turns.size, 1))))
def full_and_batch_gradients(
    objective: Objective, theta: Vector, data: NodeData
) -> tuple[Vector, Array]:
    """Return ∇L_k(θ) and the gradients of the single mini-batches, in one pass.

    There are as many rows as the largest node has mini-batches (rounded up to whole turns); rows that
    are not the node's own mean nothing.
    """

    def gradient(theta: Vector, batch: Batch) -> Vector:
        return batch_loss_and_gradient(objective, theta, batch)[1]

    return mean_over_batches(objective, gradient, (theta,), data, keep=True)


@for_any_model(lambda theta, data, vector: theta)
def full_hessian_product(
    objective: Objective, theta: Vector, data: NodeData, vector: Vector
) -> Vector:
    """Return ∇²L_k(θ) v in one pass over the node's data."""

    def product(theta: Vector, vector: Vector, batch: Batch) -> Vector:
        return batch_hessian_product(objective, theta, batch, vector)

    return mean_over_batches(objective, product, (theta, vector), data)


def full_class_product(
    objective: Objective, theta: Vector, data: NodeData, vector: Vector
) -> Vector:
    r"""Return the product of a vector with what the Hessian would be without terms between classes.

    That is :math:`J^\top \operatorname{diag}(p(1 - p)) J v` with the scores' derivative J and the
    probabilities p of the classes, without the penalty.
    """

    def product(theta: Vector, vector: Vector, batch: Batch) -> Vector:
        return _batch_class_product(objective, theta, batch, vector)

    return mean_over_batches(objective, product, (theta, vector), data)


@_jit
def _batch_class_product(
    objective: Objective, theta: Vector, batch: Batch, vector: Vector
) -> Vector:
    def scores(point: Vector) -> Array:
        return objective.model.apply(objective.unflatten(point), batch.inputs)

    at, change = jax.jvp(scores, (theta,), (vector,))
    chances = jax.nn.softmax(at)
    points = 1 / len(at) if batch.weights is None else batch.weights[:, None]
    (result,) = jax.vjp(scores, theta)[1](points * chances * (1 - chances) * change)
    return result


@for_any_model(lambda theta, data, indices, vector: theta)
def drawn_hessian_product(
    objective: Objective, theta: Vector, data: NodeData, indices: Array, vector: Vector
) -> Vector:
    """Return the mean Hessian of some mini-batches times a vector.

    Args:
        objective: The model.
        theta: Where the Hessian is taken.
        data: The node's points.
        indices: The mini-batches; one may occur more than once.
        vector: The vector.
    """
    at_once = _batches_at_once(objective, data)

    @sequential_vmap
    def mean(theta: Vector, vector: Vector, indices: Array, data: NodeData) -> Vector:
        def product(index: Array) -> Vector:
            return batch_hessian_product(objective, theta, data.batch(index), vector)

        return jnp.mean(lax.map(product, indices, batch_size=at_once), axis=0)

    return mean(theta, vector, indices, data)


def smoothness(objective: Objective, data: NodeData) -> Array:
    """Bound the curvature of every mini-batch of a linear model, at every θ.

    The largest eigenvalue of the second moment of a mini-batch's features comes from power iteration;
    it is approached from below, so callers leave a margin.
    """
    model = objective.model
    if not isinstance(model, LinearModel):
        raise InputError("only fedkin's own linear models have a known bound on their curvature")

    def largest_eigenvalue(batch: Batch) -> Array:
        features = as_float(batch.inputs)
        if model.intercept:
            features = jnp.append(features, jnp.ones((len(features), 1), features.dtype), axis=1)
        if batch.weights is None:
            features = features / len(features) ** 0.5
        else:
            features = features * jnp.sqrt(batch.weights)[:, None]

        def improve(_: Array, vector: Vector) -> Vector:
            image = features.T @ (features @ vector)
            return image / (jnp.linalg.norm(image) + jnp.finfo(image.dtype).tiny)

        # Starting from the sum of absolute features: almost never orthogonal to the answer.
        start = jnp.sum(jnp.abs(features), axis=0)
        vector = lax.fori_loop(0, POWER_ITERATIONS, improve, start)
        return jnp.sum(jnp.square(features @ vector))

    largest = lax.fori_loop(
        0,
        data.batches,
        lambda index, so_far: jnp.maximum(so_far, largest_eigenvalue(data.batch(index))),
        jnp.zeros((), jnp.result_type(float)),
    )
    return model.curvature_bound * largest + model.l2


def _batches_at_once(objective: Objective, data: NodeData) -> int:
    """Return how many of a node's mini-batches are computed together."""
    return 1 if objective.is_heavy(data.labels.shape[-1]) else data.turns.shape[1]


def mean_over_batches(
    objective: Objective,
    function: Callable[..., Any],
    vectors: tuple[Vector, ...],
    data: NodeData,
    *,
    keep: bool = False,
) -> Any:
    """Average a function of some vectors and a mini-batch over the node's own mini-batches.

    Some mini-batches are computed together: the fewer, larger operations take less time. For the same
    reason several nodes are passed through one after the other, not side by side, and several vectors pass
    the data of one node together.

    Args:
        objective: The model.
        function: Maps the vectors and a mini-batch to arrays.
        vectors: The vectors.
        data: The node's points.
        keep: Return the mean and also the values of the single mini-batches.
    """
    at_once = _batches_at_once(objective, data)

    @_one_node_after_the_other
    def mean(vectors: tuple[Vector, ...], data: NodeData) -> Any:
        # Of these data, and not of those outside: what is traced there must not be used under `vmap` here.
        turns = data.turns.reshape(-1, at_once)
        # Each mini-batch gets its own copy of the vectors. If all shared one, a product of it with the
        # data would become one large product with the data rearranged first, which takes far longer.
        copies = [jnp.broadcast_to(vector, (at_once, *vector.shape)) for vector in vectors]

        def compute(indices: Array) -> Any:
            if at_once == 1:
                value = function(*vectors, data.batch(indices[0]))
                return jax.tree.map(lambda leaf: leaf[None], value)
            return jax.vmap(function)(*copies, jax.vmap(data.batch)(indices))

        def add(turn: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            total, kept = carry
            indices = turns[turn]
            values = compute(jnp.minimum(indices, data.batches - 1))
            own = indices < data.batches
            total = jax.tree.map(
                lambda so_far, value: so_far + _sum_where(own, value), total, values
            )
            if keep:
                kept = jax.tree.map(lambda rows, value: rows.at[turn].set(value), kept, values)
            return total, kept

        shapes = jax.eval_shape(function, *vectors, data.batch(jnp.zeros((), int)))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        rows = jax.tree.map(lambda leaf: jnp.zeros((*turns.shape, *leaf.shape), leaf.dtype), zeros)
        needed = -(-data.batches // at_once)
        total, kept = lax.fori_loop(0, needed, add, (zeros, rows if keep else None))
        average = jax.tree.map(lambda leaf: leaf / data.batches, total)
        if not keep:
            return average
        return average, jax.tree.map(lambda rows: rows.reshape(-1, *rows.shape[2:]), kept)

    return mean(vectors, data)


def _sum_where(chosen: Array, values: Array) -> Array:
    """Add up the chosen ones of some values."""
    return jnp.sum(values, axis=0, where=jnp.expand_dims(chosen, tuple(range(1, values.ndim))))


def _one_node_after_the_other(
    function: Callable[[tuple[Vector, ...], NodeData], Any],
) -> Callable[[tuple[Vector, ...], NodeData], Any]:
    """Let `vmap` go through nodes one after the other, and through vectors for one node side by side."""
    alone = custom_vmap(function)

    @alone.def_vmap
    def over(
        size: int, mapped: tuple[Any, Any], vectors: tuple[Vector, ...], data: NodeData
    ) -> tuple[Any, Any]:
        axes = jax.tree.map(lambda has_axis: 0 if has_axis else None, mapped)
        if any(jax.tree.leaves(mapped[1])):
            found = jax.vmap(sequential_vmap(function), axes)(vectors, data)
        else:
            together = sequential_vmap(
                lambda vectors, data: jax.vmap(function, (axes[0], None))(vectors, data)
            )
            found = together(vectors, data)
        return found, jax.tree.map(lambda leaf: True, found)

    return alone
