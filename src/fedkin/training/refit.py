r"""After the weights are chosen: the owner's rows join as a node, and the model is trained once more.

The model minimizes :math:`(1 - v) \sum_k w_k L_k + v L_0` with :math:`v = n_0 / (n_0 + n_w)`, where
:math:`n_w = 1 / \sum_k w_k^2 / n_k` is what the weighted nodes' rows are worth. An exchange brings the nodes'
gradient and Hessian; the owner's are at hand. For linear models of at most 600 parameters.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.errors import InputError
from fedkin.federation.base import Cost, Federation, WeightedSum
from fedkin.federation.center import Center
from fedkin.methods.bilevel.curvature import curvature_basis, is_small
from fedkin.methods.bilevel.node import GRADIENT, HESSIAN_PRODUCT
from fedkin.models.base import LinearModel
from fedkin.types import Key, Vector

MOST_PARAMETERS = 600
"""Of a model that is refitted: nodes send its Hessian, and the center solves systems of this size."""

MOST_STEPS = 12
DONE = 1e-7
"""The Newton decrement at which the model is trained."""

MOST_HALVINGS = 3
"""After this many in a row it is not the step that is at fault: other nodes have answered than before, and
the loss is another one."""


def can_refit(center: Center) -> bool:
    """Tell whether a model can be refitted: linear, with a Hessian that can be sent."""
    objective = center.objective
    return isinstance(objective.model, LinearModel) and objective.size <= MOST_PARAMETERS


def refits_cheaply(center: Center) -> bool:
    """Tell whether a refit sends no more than steps of Newton's method, and so needs no asking for."""
    return can_refit(center) and is_small(center.objective)


def owner_share(weights: np.ndarray, rows: np.ndarray, own: int) -> float:
    """Return the weight v of the owner's rows.

    >>> round(owner_share(np.array([0.5, 0.5]), np.array([100, 100]), 50), 9)
    0.2
    """
    worth = 1 / float(np.sum(np.asarray(weights, np.float64) ** 2 / rows))
    return own / (own + worth)


def refit(
    federation: Federation,
    center: Center,
    theta: Vector,
    weights: np.ndarray,
    share: float,
    key: Key,
) -> tuple[Vector, Cost]:
    """Train with the owner's rows as a node, from a model that was trained without them.

    Args:
        federation: The nodes.
        center: The owner's rows.
        theta: The model to begin with.
        weights: The weights of the nodes.
        share: The weight v of the owner's rows.
        key: Where randomness comes from.
    """
    if not can_refit(center):
        raise InputError(
            "refit is for linear models (logistic, ridge) of at most "
            f"{MOST_PARAMETERS} parameters: leave it out"
        )
    basis = curvature_basis(center.objective)
    sent = jnp.asarray(weights, jnp.result_type(float))
    point, before, loss_before = theta, theta, np.inf
    cost, halvings = Cost(), 0
    for step in range(MOST_STEPS):
        reply = federation.exchange(
            key=jax.random.fold_in(key, step),
            hessian=WeightedSum(
                HESSIAN_PRODUCT,
                {"vector": jnp.asarray(basis, sent.dtype)},
                weights=jnp.tile(sent, (len(basis), 1)),
            ),
            gradient=WeightedSum(GRADIENT, {"theta": point}, weights=sent, begin=True),
        )
        cost += reply.cost
        own_loss, own_gradient = center.loss_and_gradient(point)
        loss = (1 - share) * float(reply.gradient["loss"]) + share * own_loss
        if loss > loss_before + 1e-6 * abs(loss_before) and halvings < MOST_HALVINGS:
            point = (point + before) / 2  # the step was too long: halve it
            halvings += 1
            continue
        halvings = 0
        gradient = (1 - share) * np.asarray(reply.gradient["gradient"], np.float64)
        gradient = gradient + share * np.asarray(own_gradient, np.float64)
        products = np.asarray(reply.hessian["product"], np.float64)
        hessian = (1 - share) * basis @ products.T
        hessian = hessian + share * basis @ np.asarray(center.hessian(point), np.float64) @ basis.T
        inside = np.linalg.solve((hessian + hessian.T) / 2, basis @ gradient)
        decrement = float((basis @ gradient) @ inside)
        before, loss_before = point, loss
        point = point - jnp.asarray(basis.T @ inside, point.dtype)
        if decrement < DONE:
            break
    return point, cost
