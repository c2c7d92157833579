"""The gradient of a node's loss in which no row counts for more than a fixed amount."""

import jax
import jax.numpy as jnp

from fedkin.data.batches import NodeData
from fedkin.models.objective import Batch, Objective
from fedkin.nodes.oracles import mean_over_batches
from fedkin.types import Array, Vector

LARGEST_ROW_LOSS = 4.0
"""The loss of a single row is cut off here: that of a row whose label has the probability 1/55."""


def clipped_loss_and_gradient(
    objective: Objective, theta: Vector, data: NodeData, clip: Array
) -> tuple[Array, Vector]:
    r"""Return the clipped loss and gradient :math:`\frac1n \sum_i g_i \min(1, C / \|g_i\|)`.

    :math:`g_i` is the gradient of row i's loss without the penalty, which knows nothing of the rows. If one
    of n rows is replaced by another, the gradient changes by at most 2C/n and the loss by at most its
    largest value over n. See `penalty_gradient` for the rest.

    Args:
        objective: The model. It must compute each row by itself, without batch normalization.
        theta: Where the gradient is taken.
        data: The node's points.
        clip: The largest norm C of a row's gradient.
    """
    model = objective.model

    def row_loss(theta: Vector, inputs: Array, label: Array) -> Array:
        outputs = model.apply(objective.unflatten(theta), inputs[None])
        return model.loss(outputs, label[None])[0]

    def of_batch(theta: Vector, clip: Array, batch: Batch) -> tuple[Array, Vector]:
        rows = jax.vmap(jax.value_and_grad(row_loss), (None, 0, 0))
        losses, gradients = rows(theta, batch.inputs, batch.labels)
        norms = jnp.linalg.norm(gradients, axis=1)
        # A row whose gradient is not finite would otherwise count for more than it may.
        finite = jnp.isfinite(norms)[:, None]
        shares = jnp.minimum(1.0, clip / jnp.maximum(norms, jnp.finfo(norms.dtype).tiny))
        clipped = jnp.where(finite, shares[:, None] * gradients, 0.0)
        weights = batch.weights
        if weights is None:
            weights = jnp.full(len(norms), 1 / len(norms), norms.dtype)
        kept = jnp.clip(jnp.nan_to_num(losses), 0.0, LARGEST_ROW_LOSS)
        return weights @ kept, weights @ clipped

    return mean_over_batches(objective, of_batch, (theta, clip), data)


def penalty_gradient(objective: Objective, theta: Vector) -> Vector:
    """Return the gradient of the penalty, which is added *after* the noise.

    Whoever asks chooses its size. In one floating-point number with a large penalty, the rows' part would be
    rounded to steps that are far larger than what the noise is for.
    """
    return jax.grad(lambda point: objective.model.penalty(objective.unflatten(point)))(theta)
