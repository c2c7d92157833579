r"""The constants of the paper's Assumption 1 for linear models, computed from data.

=====  ==============================================================================================
ℓ_0    Lipschitz constant of every node's loss (of the center's too) on a ball of parameters
ℓ_1    Lipschitz constant of the gradient of every mini-batch's loss; a step draws one mini-batch
ℓ_2    Lipschitz constant of the Hessian of every node's loss
μ      strong convexity of every node's loss
R      a bound on the norm of θ(w), over all weights
=====  ==============================================================================================

No strongly convex loss is Lipschitz everywhere, so ℓ_0 holds on the ball of radius 2R. *Exact* gradient
descent from zero cannot leave that ball, since it never moves away from θ(w). Local-SVRG can, because of
its noise; outside the ball nothing guarantees ℓ_0.

A node reports the five numbers of `NodeSummary` and nothing else; the constants follow from them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedkin.errors import InputError
from fedkin.models.base import LinearModel, as_float
from fedkin.models.linear import Logistic, Ridge
from fedkin.models.objective import Batch, Objective
from fedkin.types import Array

ROUNDING = 1e-5
"""The error of eigenvalues in single precision, relative to the largest; bounds are widened by it."""

SOFTMAX_CUBE = math.sqrt(2) ** 3 / (6 * math.sqrt(3))
"""No third derivative of log-sum-exp along a unit vector is larger. It is the third central moment of a
variable whose range is at most √2, and r³/(6√3) bounds that moment for a variable of range r."""


@dataclass(frozen=True)
class Constants:
    """The constants of Assumption 1 for one federation.

    Args:
        lipschitz: ℓ_0.
        smoothness: ℓ_1.
        hessian_lipschitz: ℓ_2.
        strong_convexity: μ.
        radius: R.
        estimated: False for proven bounds; True for values found by sampling
            (`fedkin.theory.estimates`), which other parameters may exceed.
    """

    lipschitz: float
    smoothness: float
    hessian_lipschitz: float
    strong_convexity: float
    radius: float
    estimated: bool = False

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise InputError(
                    f"the constant {name} must be a number of at least 0, not {value!r}"
                )
        if not 0 < self.strong_convexity <= self.smoothness:
            raise InputError(
                f"the theory needs 0 < μ ≤ ℓ_1, but μ = {self.strong_convexity:g} and "
                f"ℓ_1 = {self.smoothness:g}; a larger l2 makes the loss strongly convex"
            )


class NodeSummary(NamedTuple):
    """What the constants need to know of a node: five numbers, or arrays of them for several nodes."""

    batch_smoothness: Array
    """The largest curvature of a mini-batch's loss."""
    smoothness: Array
    """The largest curvature of the node's loss."""
    strong_convexity: Array
    """The smallest curvature of the node's loss."""
    hessian_lipschitz: Array
    """A Lipschitz constant of the Hessian of the node's loss."""
    gradient_at_zero: Array
    """‖∇L_k(0)‖."""


def summarize(
    objective: Objective, fetch: Callable[[Array], Batch], batches: Array | int
) -> NodeSummary:
    """Summarize a node's data for a linear model.

    Args:
        objective: Ridge or logistic regression.
        fetch: Returns one of the node's mini-batches, points along the first axis.
        batches: The number of the node's mini-batches.
    """
    model = _linear(objective)
    features = math.prod(objective.point_shape) + model.intercept
    dtype = jnp.result_type(float)

    class Sums(NamedTuple):
        moment: Array
        cubed_norm: Array
        largest: Array
        gradient: Array

    def add(index: Array, sums: Sums) -> Sums:
        batch = fetch(index)
        rows = _completed(model, batch)
        count = len(rows)
        shares = jnp.full(count, 1 / count, dtype) if batch.weights is None else batch.weights
        norms = jnp.linalg.norm(rows, axis=1)
        rows = rows * jnp.sqrt(shares)[:, None]
        own = rows.T @ rows
        small = own if features <= len(rows) else rows @ rows.T
        largest = jnp.linalg.eigvalsh(small)[-1]
        gradient = jax.grad(objective.batch_loss)(jnp.zeros(objective.size, dtype), batch)
        return Sums(
            sums.moment + own,
            sums.cubed_norm + shares @ norms**3,
            jnp.maximum(sums.largest, largest),
            sums.gradient + gradient,
        )

    zero = jnp.zeros((), dtype)
    sums = lax.fori_loop(
        0,
        batches,
        add,
        Sums(
            jnp.zeros((features, features), dtype),
            zero,
            zero,
            jnp.zeros(objective.size, dtype),
        ),
    )
    curvatures = jnp.linalg.eigvalsh(sums.moment / batches)
    largest = curvatures[-1] * (1 + ROUNDING)
    smallest = jnp.maximum(curvatures[0] - ROUNDING * curvatures[-1], 0)
    return NodeSummary(
        model.curvature_bound * sums.largest * (1 + ROUNDING) + model.l2,
        model.curvature_bound * largest + model.l2,
        # A saturated logistic loss has the regularizer's curvature only.
        (smallest if isinstance(model, Ridge) else 0.0) + jnp.asarray(model.l2, dtype),
        SOFTMAX_CUBE * sums.cubed_norm / batches * (0 if isinstance(model, Ridge) else 1),
        jnp.linalg.norm(sums.gradient / batches) * (1 + ROUNDING),
    )


def constants(nodes: NodeSummary, validation: NodeSummary) -> Constants:
    r"""Compute the constants from the summaries.

    - :math:`\mu\|\hat\theta(w)\| \le \|\sum_k w_k \nabla L_k(0)\|` by strong convexity, so
      :math:`R = \max_k \|\nabla L_k(0)\| / \mu` (weights are at least zero and sum to one).
    - :math:`\|\nabla L_k(\theta)\| \le \|\nabla L_k(0)\| + \lambda_{\max}\|\theta\|`, for k = 0 too: the
      paper's Assumption 1 omits the center, but its proofs need it.

    Args:
        nodes: The nodes' summaries, stacked.
        validation: The center's summary. Its loss is only the outer loss, so it does not affect μ. Its
            curvature enters ℓ_F, which has one ℓ_1 for both levels.
    """
    own = {name: np.asarray(value, np.float64) for name, value in nodes._asdict().items()}
    center = {name: float(value) for name, value in validation._asdict().items()}
    strong_convexity = float(np.min(own["strong_convexity"]))
    if strong_convexity <= 0:
        raise InputError("the theory needs a strongly convex loss: give the model an l2 above 0")
    radius = float(np.max(own["gradient_at_zero"])) / strong_convexity
    reach = 2 * radius
    lipschitz = max(
        float(np.max(own["gradient_at_zero"] + own["smoothness"] * reach)),
        center["gradient_at_zero"] + center["smoothness"] * reach,
    )
    return Constants(
        lipschitz=lipschitz,
        smoothness=max(float(np.max(own["batch_smoothness"])), center["smoothness"]),
        hessian_lipschitz=max(float(np.max(own["hessian_lipschitz"])), center["hessian_lipschitz"]),
        strong_convexity=strong_convexity,
        radius=radius,
    )


def constants_of_data(
    model: LinearModel, nodes: Sequence[tuple[Any, Any]], validation: tuple[Any, Any]
) -> Constants:
    """Compute the constants from (X, y) of every node, for steps that draw single points.

    They hold for mini-batches too: the mean of several points curves no more than the worst of them.

    >>> points = (np.array([[1.0], [2.0]]), np.array([1.0, 0.0]))
    >>> found = constants_of_data(Ridge(l2=0.1, intercept=False), [points], points)
    >>> round(found.strong_convexity, 3), round(found.smoothness, 3)  # 5/2 + l2 and 4 + l2
    (2.6, 4.1)
    """
    stacked = [_summary_of_points(model, *points) for points in (*nodes, validation)]
    *own, center = stacked
    return constants(NodeSummary(*(jnp.stack(column) for column in zip(*own, strict=True))), center)


def _summary_of_points(model: LinearModel, inputs: Any, labels: Any) -> NodeSummary:
    inputs = model.prepare(jnp.asarray(inputs))
    return _summarize_points(Objective.create(model, inputs), inputs, jnp.asarray(labels))


@partial(jax.jit, static_argnums=0)
def _summarize_points(objective: Objective, inputs: Array, labels: Array) -> NodeSummary:
    def fetch(index: Array) -> Batch:
        return Batch(inputs[index][None], labels[index][None], None)

    return summarize(objective, fetch, len(labels))


def _completed(model: LinearModel, batch: Batch) -> Array:
    """Return the features of each point, with a constant feature if the model has an intercept."""
    features = as_float(batch.inputs).astype(jnp.result_type(float))
    if model.intercept:
        return jnp.append(features, jnp.ones((len(features), 1), features.dtype), axis=1)
    return features


def _linear(objective: Objective) -> LinearModel:
    model = objective.model
    if not isinstance(model, (Ridge, Logistic)):
        raise InputError(
            f"the constants of {type(model).__name__} cannot be computed from the data, only those of "
            "ridge and logistic regression; fedkin.theory.estimates estimates those of other models"
        )
    return model
