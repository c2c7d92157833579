"""Estimates of the theory's constants for models whose data do not tell them: networks, for one.

They are what was found near one set of parameters, by power iteration and the Lanczos method. The true
constants are suprema over all parameters and can be larger; everything returned here says so
(`Constants.estimated`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.errors import InputError
from fedkin.models.objective import Batch, Objective
from fedkin.theory.constants import Constants
from fedkin.types import Array, Key, Vector

Product = Callable[[Vector], Vector]
"""A symmetric matrix, as the function that multiplies with it."""

ITERATIONS = 50
"""Steps of power iteration."""


class Spectrum(NamedTuple):
    """The extreme eigenvalues of a symmetric matrix: estimates that lie inside the true interval."""

    smallest: float
    largest: float


def power_iteration(product: Product, start: Vector, iterations: int = ITERATIONS) -> float:
    """Estimate the largest absolute eigenvalue; the estimate never exceeds it."""
    return float(_power_iteration(product, start, iterations))


def _power_iteration(product: Product, start: Vector, iterations: int) -> Array:
    def improve(_: Array, vector: Vector) -> Vector:
        image = product(vector)
        return image / jnp.maximum(jnp.linalg.norm(image), jnp.finfo(image.dtype).tiny)

    vector = jax.lax.fori_loop(0, iterations, improve, start / jnp.linalg.norm(start))
    return jnp.linalg.norm(product(vector))


def lanczos(product: Product, start: Vector, iterations: int = 30) -> Spectrum:
    """Estimate both ends of the spectrum; after as many iterations as dimensions they are exact.

    Every new direction is made orthogonal to all earlier ones, twice: without that, rounding lets the
    same eigenvalues come up again and again.
    """
    size = start.size
    basis = [np.asarray(start / jnp.linalg.norm(start), dtype=np.float64)]
    diagonal, beside = [], []
    for _ in range(min(iterations, size)):
        image = np.asarray(product(jnp.asarray(basis[-1], start.dtype)), dtype=np.float64)
        diagonal.append(float(basis[-1] @ image))
        known = np.stack(basis)
        for _ in range(2):
            image = image - known.T @ (known @ image)
        length = float(np.linalg.norm(image))
        if len(basis) == size or length <= 1e-6 * max(1e-30, *np.abs(diagonal)):
            break
        beside.append(length)
        basis.append(image / length)
    beside = beside[: len(diagonal) - 1]
    values = np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
    return Spectrum(float(values[0]), float(values[-1]))


def estimate_constants(
    objective: Objective,
    nodes: Sequence[Batch],
    validation: Batch,
    theta: Vector,
    key: Key,
    *,
    spread: float = 0.1,
    samples: int = 4,
) -> Constants:
    """Estimate the constants near θ: at θ and at a few random points around it.

    Args:
        objective: The model.
        nodes: Each node's points as one batch.
        validation: The centre's points.
        theta: Where to look, such as a trained model.
        key: Draws the points around θ and the first vectors of the iterations.
        spread: How far around θ to look, relative to ‖θ‖ (or to 1 where θ is shorter).
        samples: How many points around θ.

    Raises:
        InputError: If a node's loss is not convex at one of these points: then there is no μ.
    """
    reach = spread * max(1.0, float(jnp.linalg.norm(theta)))
    keys = jax.random.split(key, samples + 1)
    offsets = [jnp.zeros_like(theta)] + [
        reach * each / jnp.linalg.norm(each)
        for each in (jax.random.normal(one, theta.shape) for one in keys[1:])
    ]
    start = jax.random.normal(keys[0], theta.shape)

    slopes, curvatures, lowest, bends = [], [], [], []
    for batch in (*nodes, validation):
        for offset in offsets:
            slope, curvature, bend = _look(objective, theta, offset, batch, start)
            slopes.append(float(slope))
            curvatures.append(float(curvature))
            if offset is not offsets[0]:
                bends.append(float(bend) / reach)
            if batch is not validation:
                point = theta + offset
                here = lanczos(
                    lambda v, p=point, b=batch: _hessian_product(objective, p, b, v), start
                )
                lowest.append(here.smallest)
    if min(lowest) <= 0:
        raise InputError(
            f"the theory needs strongly convex losses, but a node's Hessian near these parameters has "
            f"the eigenvalue {min(lowest):.3g}; add at least that much l2"
        )
    return Constants(
        lipschitz=max(slopes),
        smoothness=max(curvatures),
        hessian_lipschitz=max(bends, default=0.0),
        strong_convexity=min(lowest),
        radius=float(jnp.linalg.norm(theta)) + reach,
        estimated=True,
    )


@partial(jax.jit, static_argnums=0)
def _look(
    objective: Objective, theta: Vector, offset: Vector, batch: Batch, start: Vector
) -> tuple[Array, Array, Array]:
    """Return ‖∇L‖, the largest |curvature| at θ + offset, and how much the Hessian differs from θ's."""
    point = theta + offset

    def change(vector: Vector) -> Vector:
        there = _hessian_product(objective, point, batch, vector)
        return there - _hessian_product(objective, theta, batch, vector)

    return (
        jnp.linalg.norm(jax.grad(objective.batch_loss)(point, batch)),
        _power_iteration(
            lambda vector: _hessian_product(objective, point, batch, vector), start, ITERATIONS
        ),
        _power_iteration(change, start, ITERATIONS),
    )


@partial(jax.jit, static_argnums=0)
def _hessian_product(objective: Objective, theta: Vector, batch: Batch, vector: Vector) -> Vector:
    def gradient(point: Vector) -> Vector:
        return jax.grad(objective.batch_loss)(point, batch)

    return jax.jvp(gradient, (theta,), (vector,))[1]
