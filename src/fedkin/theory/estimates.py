"""Estimates of the theory's constants for models without a closed form, such as networks.

The estimates come from power iteration and the Lanczos method near one set of parameters. The true
constants are suprema over all parameters and can be larger; `Constants.estimated` says so.
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
"""A symmetric matrix, given as the function that multiplies a vector by it."""

ITERATIONS = 100
"""Steps of power iteration. In d dimensions the relative error is at most about ln(d)/200, however close
the eigenvalues are."""


class Spectrum(NamedTuple):
    """Estimates of the extreme eigenvalues of a symmetric matrix; both lie inside the true interval."""

    smallest: float
    largest: float


def power_iteration(product: Product, start: Vector, iterations: int = ITERATIONS) -> float:
    """Estimate the largest absolute eigenvalue; the estimate never exceeds it.

    >>> round(power_iteration(lambda vector: vector * jnp.array([1.0, -3.0]), jnp.ones(2)), 4)
    3.0
    """
    return float(_power_iteration(product, start, iterations))


def _power_iteration(product: Product, start: Vector, iterations: int) -> Array:
    def improve(_: Array, vector: Vector) -> Vector:
        image = product(vector)
        return image / jnp.maximum(jnp.linalg.norm(image), jnp.finfo(image.dtype).tiny)

    vector = jax.lax.fori_loop(0, iterations, improve, start / jnp.linalg.norm(start))
    return jnp.linalg.norm(product(vector))


def lanczos(product: Product, start: Vector, iterations: int = 30) -> Spectrum:
    """Estimate both ends of the spectrum; with as many iterations as dimensions the result is exact.

    Every new direction is made orthogonal to all earlier ones twice: otherwise rounding errors make
    the same eigenvalues appear repeatedly.

    >>> spectrum = lanczos(lambda vector: vector * jnp.array([1.0, -3.0]), jnp.ones(2))
    >>> round(spectrum.smallest, 4), round(spectrum.largest, 4)
    (-3.0, 1.0)
    """
    size = start.size
    basis = [np.asarray(start / jnp.linalg.norm(start), dtype=np.float64)]
    diagonal, off_diagonal = [], []
    for _ in range(min(iterations, size)):
        image = np.asarray(product(jnp.asarray(basis[-1], start.dtype)), dtype=np.float64)
        diagonal.append(float(basis[-1] @ image))
        known = np.stack(basis)
        for _ in range(2):
            image = image - known.T @ (known @ image)
        length = float(np.linalg.norm(image))
        if len(basis) == size or length <= 1e-6 * max(1e-30, *np.abs(diagonal)):
            break
        off_diagonal.append(length)
        basis.append(image / length)
    off_diagonal = off_diagonal[: len(diagonal) - 1]
    above = np.diag(off_diagonal, 1)
    values = np.linalg.eigvalsh(np.diag(diagonal) + above + above.T)
    return Spectrum(float(values[0]), float(values[-1]))


def estimate_constants(
    objective: Objective,
    nodes: Sequence[Sequence[Batch]],
    validation: Batch,
    theta: Vector,
    key: Key,
    *,
    spread: float = 0.1,
    samples: int = 4,
) -> Constants:
    """Estimate the constants at θ and at a few random points around it.

    ℓ_1 is the largest curvature of a mini-batch's loss, since a step of Local-SVRG draws one mini-batch.
    The other constants belong to a node's whole loss, the mean over its mini-batches. The center's loss is
    one batch.

    Args:
        objective: The model.
        nodes: The mini-batches of each node that training draws from. All mini-batches of a node must
            have one size; pad the last with points of weight zero. A single batch with all points
            means exact gradients: its ℓ_1 is too small for training with mini-batches.
        validation: The center's points.
        theta: The parameters to estimate at, such as a trained model's.
        key: Draws the points around θ and the first vector of the iterations.
        spread: The distance of the other points from θ, relative to max(‖θ‖, 1).
        samples: The number of other points.

    Raises:
        InputError: If a node's loss is not convex at one of these points, so that there is no μ.
    """
    own = [_stacked(batches) for batches in nodes]
    reach = spread * max(1.0, float(jnp.linalg.norm(theta)))
    keys = jax.random.split(key, samples + 1)
    points = [theta] + [
        theta + reach * each / jnp.linalg.norm(each)
        for each in (jax.random.normal(one, theta.shape) for one in keys[1:])
    ]
    start = jax.random.normal(keys[0], theta.shape)

    slopes, curvatures, lowest, bends = [], [], [], []
    for batches in (*own, _stacked([validation])):
        for point in points:
            slopes.append(float(_slope(objective, point, batches)))
            curvatures.append(float(_curvature(objective, point, batches, start)))
            if point is not theta:
                bends.append(float(_bend(objective, theta, point, batches, start)) / reach)
    for batches in own:
        for point in points:
            product = partial(_hessian_product, objective, point, batches)
            lowest.append(lanczos(product, start).smallest)
    if min(lowest) <= 0:
        raise InputError(
            f"the theory needs strongly convex losses, but a node's Hessian near these parameters has "
            f"the eigenvalue {min(lowest):.3g}; increase l2 until it is positive"
        )
    return Constants(
        lipschitz=max(slopes),
        smoothness=max(curvatures),
        hessian_lipschitz=max(bends, default=0.0),
        strong_convexity=min(lowest),
        radius=float(jnp.linalg.norm(theta)) + reach,
        estimated=True,
    )


def _stacked(batches: Sequence[Batch]) -> Batch:
    """Stack a node's mini-batches along a new first axis."""
    if (
        len({jax.tree.structure(each) for each in batches}) != 1
        or len({tuple(leaf.shape for leaf in jax.tree.leaves(each)) for each in batches}) != 1
    ):
        raise InputError(
            "to estimate constants, every node needs at least one mini-batch, and all its mini-batches "
            "must have one size: pad the last with points of weight zero"
        )
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)


@partial(jax.jit, static_argnums=0)
def _slope(objective: Objective, point: Vector, batches: Batch) -> Array:
    """Return ‖∇L‖."""
    return jnp.linalg.norm(jax.grad(partial(_loss, objective))(point, batches))


@partial(jax.jit, static_argnums=0)
def _curvature(objective: Objective, point: Vector, batches: Batch, start: Vector) -> Array:
    """Return the largest |eigenvalue| of a mini-batch's Hessian."""

    def largest(batch: Batch) -> Array:
        one = jax.tree.map(lambda leaf: leaf[None], batch)
        return _power_iteration(partial(_hessian_product, objective, point, one), start, ITERATIONS)

    return jnp.max(jax.lax.map(largest, batches))


@partial(jax.jit, static_argnums=0)
def _bend(
    objective: Objective, theta: Vector, point: Vector, batches: Batch, start: Vector
) -> Array:
    """Return the norm of the difference of the Hessians at two points."""

    def change(vector: Vector) -> Vector:
        there = _hessian_product(objective, point, batches, vector)
        return there - _hessian_product(objective, theta, batches, vector)

    return _power_iteration(change, start, ITERATIONS)


@partial(jax.jit, static_argnums=0)
def _hessian_product(objective: Objective, theta: Vector, batches: Batch, vector: Vector) -> Vector:
    def gradient(point: Vector) -> Vector:
        return jax.grad(partial(_loss, objective))(point, batches)

    return jax.jvp(gradient, (theta,), (vector,))[1]


def _loss(objective: Objective, theta: Vector, batches: Batch) -> Array:
    """Return the node's loss: the mean over its mini-batches."""
    return jnp.mean(jax.vmap(lambda batch: objective.batch_loss(theta, batch))(batches))
