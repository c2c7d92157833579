"""What a node knows of its own loss: values, gradients, Hessian-vector products."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import sequential_vmap

from fedkin.data.batches import NodeData
from fedkin.models.base import LinearModel, as_float
from fedkin.models.objective import Batch, Objective
from fedkin.types import Array, Vector

POWER_ITERATIONS = 50


def batch_gradient(objective: Objective, theta: Vector, batch: Batch) -> Vector:
    """Return the gradient of one mini-batch's loss."""
    return jax.grad(objective.batch_loss)(theta, batch)


def batch_hessian_product(
    objective: Objective, theta: Vector, batch: Batch, vector: Vector
) -> Vector:
    """Return the Hessian of one mini-batch's loss times a vector, forward over reverse."""

    def gradient(point: Vector) -> Vector:
        return batch_gradient(objective, point, batch)

    return jax.jvp(gradient, (theta,), (vector,))[1]


def full_loss(objective: Objective, theta: Vector, data: NodeData) -> Array:
    """Return the node's loss L_k(θ)."""
    return _mean_over_batches(objective.batch_loss, (theta,), data)


def full_loss_and_gradient(
    objective: Objective, theta: Vector, data: NodeData
) -> tuple[Array, Vector]:
    """Return L_k(θ) and ∇L_k(θ) in one pass over the node's data."""
    return _mean_over_batches(jax.value_and_grad(objective.batch_loss), (theta,), data)


def full_hessian_product(
    objective: Objective, theta: Vector, data: NodeData, vector: Vector
) -> Vector:
    """Return ∇²L_k(θ) v in one pass over the node's data."""

    def product(theta: Vector, vector: Vector, batch: Batch) -> Vector:
        return batch_hessian_product(objective, theta, batch, vector)

    return _mean_over_batches(product, (theta, vector), data)


def smoothness(objective: Objective, data: NodeData) -> Array:
    """Bound the curvature of every mini-batch of a linear model, at every θ.

    The largest eigenvalue of the second moment of a mini-batch's features comes from power iteration;
    it is approached from below, so callers leave a margin.
    """
    model = objective.model
    assert isinstance(model, LinearModel)

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


def _mean_over_batches(function: Callable[..., Any], vectors: tuple[Vector, ...], data: NodeData):
    """Average a function of some vectors and a mini-batch over the node's own mini-batches.

    Some mini-batches are computed together: the fewer, larger operations take less time. For the same
    reason several nodes are passed through one after the other, not side by side.
    """
    together = data.together.shape[0]

    @sequential_vmap
    def mean(vectors: tuple[Vector, ...], data: NodeData) -> Any:
        # Each mini-batch gets its own copy of the vectors. If all shared one, a product of it with the
        # data would become one large product with the data rearranged first, which takes far longer.
        copies = [jnp.broadcast_to(vector, (together, *vector.shape)) for vector in vectors]

        def add(turn: Array, total: Any) -> Any:
            indices = turn * together + data.together
            batches = jax.vmap(data.batch)(jnp.minimum(indices, data.batches - 1))
            values = jax.vmap(function)(*copies, batches)
            own = indices < data.batches
            return jax.tree.map(
                lambda so_far, value: so_far + _sum_where(own, value), total, values
            )

        shapes = jax.eval_shape(function, *vectors, data.batch(jnp.zeros((), int)))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        total = lax.fori_loop(0, -(-data.batches // together), add, zeros)
        return jax.tree.map(lambda leaf: leaf / data.batches, total)

    return mean(vectors, data)


def _sum_where(chosen: Array, values: Array) -> Array:
    """Add up the chosen ones of some values."""
    return jnp.sum(values, axis=0, where=jnp.expand_dims(chosen, tuple(range(1, values.ndim))))
