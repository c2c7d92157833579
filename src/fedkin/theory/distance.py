r"""The statistical distance G between the center and the nodes (`eq:G`).

.. math:: G^2 = \max_{\theta\in\Theta} \sum_k \big(L_0(\theta) - L_k(\theta)\big)^2

Θ is a ball around zero. If the losses are quadratic with equal Hessians (linear regression with the same
distribution of inputs on every node), the differences are affine, their squares sum to one convex quadratic,
and G is exact. With different Hessians the sum is a quartic. Then G lies between the value at the best point
found and :math:`\sum_k \max_\theta (L_0 - L_k)^2`, whose terms are exact. For one dissimilar node both agree.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.models.base import as_float
from fedkin.models.linear import Ridge
from fedkin.models.objective import Batch, Objective
from fedkin.numerics.ball import maximize_quadratic
from fedkin.types import Array, Key, Vector

SAME_HESSIAN = 1e-9
"""Hessians that differ by less than this, relative to their size, count as equal."""

ASCENT_STEPS = 300


class Quadratic(NamedTuple):
    """The function ½ θᵀAθ − cᵀθ + a."""

    matrix: np.ndarray
    vector: np.ndarray
    constant: float

    def __call__(self, theta: np.ndarray) -> float:
        """Return the value at θ."""
        return float(0.5 * theta @ self.matrix @ theta - self.vector @ theta + self.constant)


class Distance(NamedTuple):
    """An interval that contains G."""

    lower: float
    upper: float
    """Infinite if only the lower bound is known (`estimate_distance`)."""

    @property
    def exact(self) -> bool:
        """Whether both ends agree to nine digits."""
        return self.upper - self.lower <= 1e-9 * self.upper


def ridge_quadratic(model: Ridge, inputs: Any, labels: Any) -> Quadratic:
    """Return a node's loss for ridge regression."""
    rows = np.asarray(as_float(model.prepare(jnp.asarray(inputs))), dtype=np.float64)
    if model.intercept:
        # The order of a flat vector: "bias" before "kernel".
        rows = np.insert(rows, 0, 1.0, axis=1)
    labels = np.asarray(labels, dtype=np.float64)
    return Quadratic(
        rows.T @ rows / len(rows) + model.l2 * np.eye(rows.shape[1]),
        rows.T @ labels / len(rows),
        float(0.5 * np.mean(labels**2)),
    )


def population_quadratic(moment: np.ndarray, truth: np.ndarray, noise: float) -> Quadratic:
    """Return the expected loss of linear regression (`sec:EBexampel`).

    Args:
        moment: E[xxᵀ].
        truth: θ_k*.
        noise: The standard deviation of the labels around xᵀθ_k*.
    """
    return Quadratic(moment, moment @ truth, float(0.5 * (truth @ moment @ truth + noise**2)))


def statistical_distance(target: Quadratic, nodes: Sequence[Quadratic], radius: float) -> Distance:
    """Return G of quadratic losses over the ball of this radius.

    >>> own = population_quadratic(np.eye(1), np.array([0.0]), noise=0.0)
    >>> other = population_quadratic(np.eye(1), np.array([1.0]), noise=0.0)
    >>> found = statistical_distance(own, [other], radius=1.0)  # at θ = −1: ½ against 2
    >>> round(found.lower, 6), found.exact
    (1.5, True)
    """
    differences = [
        Quadratic(
            target.matrix - node.matrix,
            target.vector - node.vector,
            target.constant - node.constant,
        )
        for node in nodes
    ]
    scale = max(np.abs(target.matrix).max(), np.finfo(float).tiny)
    if all(np.abs(each.matrix).max() <= SAME_HESSIAN * scale for each in differences):
        slopes = np.stack([-each.vector for each in differences])
        offsets = np.array([each.constant for each in differences])
        best = maximize_quadratic(2 * slopes.T @ slopes, 2 * offsets @ slopes, radius)
        exact = float(np.sqrt(best.value + offsets @ offsets))
        return Distance(exact, exact)
    extremes = [
        (maximize_quadratic(each.matrix, -each.vector, radius), each.constant)
        for each in differences
    ] + [
        (maximize_quadratic(-each.matrix, each.vector, radius), -each.constant)
        for each in differences
    ]
    values = np.array([best.value + constant for best, constant in extremes])
    upper = float(np.linalg.norm(np.maximum(values[: len(nodes)], values[len(nodes) :])))
    lower = max(_ascend(differences, best.point, radius) for best, _ in extremes)
    return Distance(min(lower, upper), upper)


def estimate_distance(
    objective: Objective,
    target: Batch,
    nodes: Sequence[Batch],
    radius: float,
    key: Key,
    *,
    starts: int = 16,
) -> Distance:
    """Estimate G for any loss by projected gradient ascent from several points; a lower bound."""

    def squares(theta: Vector) -> Array:
        own = objective.batch_loss(theta, target)
        others = jnp.stack([objective.batch_loss(theta, node) for node in nodes])
        return jnp.sum(jnp.square(own - others))

    def project(theta: Vector) -> Vector:
        return theta * jnp.minimum(1.0, radius / jnp.maximum(jnp.linalg.norm(theta), 1e-30))

    def climb(theta: Vector) -> Array:
        def step(number: Array, theta: Vector) -> Vector:
            slope = jax.grad(squares)(theta)
            length = radius / jnp.sqrt(number + 1.0)
            return project(theta + length * slope / (jnp.linalg.norm(slope) + 1e-30))

        return squares(jax.lax.fori_loop(0, ASCENT_STEPS, step, theta))

    directions = jax.random.normal(key, (starts, objective.size))
    first = jax.vmap(project)(directions * radius)
    found = jax.jit(lambda points: jnp.max(jax.vmap(climb)(points)))(first)
    return Distance(float(jnp.sqrt(found)), float("inf"))


def _ascend(differences: Sequence[Quadratic], point: np.ndarray, radius: float) -> float:
    """Maximize the sum of squares from a starting point; every value found is a lower bound of G."""
    matrices = np.stack([each.matrix for each in differences])
    vectors = np.stack([each.vector for each in differences])
    constants = np.array([each.constant for each in differences])

    def values(theta: np.ndarray) -> np.ndarray:
        return 0.5 * (matrices @ theta) @ theta - vectors @ theta + constants

    best = float(np.linalg.norm(values(point)))
    length = radius
    while length > 1e-7 * radius:
        slope = values(point) @ (matrices @ point - vectors)
        size = np.linalg.norm(slope)
        moved = point + length * slope / size if size > 0 else point
        moved = moved * min(1.0, radius / max(float(np.linalg.norm(moved)), 1e-300))
        value = float(np.linalg.norm(values(moved)))
        if value > best:
            best, point = value, moved
        else:
            length /= 2
    return best
