"""Linear systems whose matrix is distributed over nodes: each product is one communication.

The solvers are plain Python loops around `product`, a function that may communicate. Besides the
matrix-vector product it returns a *companion*: any array that is also linear in the vector. The solver
combines the companions as it combines the vectors, so it ends with the companion of the solution and
needs no further communication for it.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import lax

from fedkin.types import Array, Vector

Product = Callable[[Vector], tuple[Vector, Array]]
"""Maps a vector v to (A v, companion of v)."""

Reason = Literal[
    "converged", "iteration limit", "negative curvature", "residual grew", "not finite"
]


RESIDUAL_CEILING = 10.0
"""Residuals of conjugate gradients go up and down. This many times the first one is too much for that."""


class LinearSolution(NamedTuple):
    """The solution that a linear solver found, and why it stopped."""

    solution: Vector
    companion: Array
    products: int
    """How many matrix-vector products were used."""
    residual: float
    """Norm of b - (A + damping I) x, relative to the norm of b."""
    reason: Reason


def conjugate_gradients(
    product: Product,
    target: Vector,
    *,
    damping: float = 0.0,
    iterations: int = 100,
    tolerance: float = 1e-10,
    start: Vector | None = None,
) -> LinearSolution:
    r"""Solve :math:`(A + \lambda I) x = b` for a symmetric positive definite matrix.

    An indefinite matrix (a network's Hessian with too little damping) shows as a direction of
    non-positive curvature, or as a residual far above the first one. Then the last good iterate is
    returned, with the reason.

    >>> matrix = jnp.diag(jnp.array([1.0, 4.0]))
    >>> product = lambda vector: (matrix @ vector, vector.sum())
    >>> found = conjugate_gradients(product, jnp.array([1.0, 2.0]), tolerance=1e-5)
    >>> found.solution.round(4).tolist(), float(found.companion.round(4)), found.products
    ([1.0, 0.5], 1.5, 2)

    Args:
        product: Maps v to (A v, companion); called once per iteration, and once more for a `start`.
        target: The right-hand side b.
        damping: The number λ ≥ 0 added to the diagonal.
        iterations: The largest number of iterations.
        tolerance: Stop when the residual is below this fraction of the norm of b.
        start: The first iterate; by default zero, which saves one product.
    """
    target_norm = float(jnp.linalg.norm(target))
    if start is None:
        solution, residual, products = jnp.zeros_like(target), target, 0
        companion = jnp.zeros(())
    else:
        image, companion = product(start)
        solution, residual, products = start, target - image - damping * start, 1
    residual_square = float(residual @ residual)
    highest_square = RESIDUAL_CEILING**2 * residual_square
    good = _Iterate(solution, companion, residual_square)
    direction = residual
    reason: Reason = "iteration limit"
    for _ in range(iterations):
        if residual_square <= (tolerance * target_norm) ** 2:
            reason = "converged"
            break
        image, direction_companion = product(direction)
        products += 1
        image = image + damping * direction
        curvature = float(direction @ image)
        if not jnp.isfinite(curvature):
            reason = "not finite"
            break
        if curvature <= 0.0:
            reason = "negative curvature"
            break
        length = residual_square / curvature
        solution = solution + length * direction
        companion = companion + length * direction_companion
        residual = residual - length * image
        previous_square, residual_square = residual_square, float(residual @ residual)
        if not residual_square <= highest_square:
            reason = "residual grew"
            break
        good = _Iterate(solution, companion, residual_square)
        direction = residual + (residual_square / previous_square) * direction
    else:
        if residual_square <= (tolerance * target_norm) ** 2:
            reason = "converged"
    return _finish(good, products, target_norm, reason)


def neumann_series(
    product: Product,
    target: Vector,
    *,
    step: float,
    terms: int,
    damping: float = 0.0,
    tolerance: float = 1e-10,
) -> LinearSolution:
    r"""Sum :math:`x = \alpha \sum_{j<m} (I - \alpha (A + \lambda I))^j b`, which tends to the solution.

    The sum converges for :math:`0 < \alpha < 2 / \|A + \lambda I\|`. A growing residual means that α is
    too large or the matrix is indefinite. Then the partial sum with the smallest residual is returned.

    >>> found = neumann_series(lambda v: (2 * v, v), jnp.array([1.0]), step=0.25, terms=3)
    >>> found.solution.tolist(), found.residual, found.reason
    ([0.4375], 0.125, 'iteration limit')

    Args:
        product: Maps v to (A v, companion); called once per term.
        target: The right-hand side b.
        step: The number α.
        terms: The largest number m of terms.
        damping: The number λ ≥ 0 added to the diagonal.
        tolerance: Stop when the residual is below this fraction of the norm of b.
    """
    target_norm = float(jnp.linalg.norm(target))
    # The residual of the partial sum of m terms is (I - α(A + λI))^m b: it is also the next term / α.
    solution, residual, companion = jnp.zeros_like(target), target, jnp.zeros(())
    best = _Iterate(solution, companion, float(target @ target))
    reason: Reason = "iteration limit"
    products = 0
    for _ in range(terms):
        image, residual_companion = product(residual)
        products += 1
        solution = solution + step * residual
        companion = companion + step * residual_companion
        residual = residual - step * (image + damping * residual)
        residual_square = float(residual @ residual)
        if not jnp.isfinite(residual_square):
            reason = "not finite"
            break
        if residual_square <= best.residual_square:
            best = _Iterate(solution, companion, residual_square)
        elif residual_square > 4.0 * best.residual_square:
            reason = "residual grew"
            break
        if residual_square <= (tolerance * target_norm) ** 2:
            reason = "converged"
            break
    return _finish(best, products, target_norm, reason)


class DampedSolution(NamedTuple):
    """What `damped_conjugate_gradients` found, as arrays."""

    solution: Vector
    curvature: Array
    """The largest ‖A v‖ / ‖v‖ met: a lower bound on the largest eigenvalue of A, usually close to it."""
    convex: Array
    """Whether the curvature of the damped matrix was positive in every direction."""
    residual: Array
    """Norm of b - (A + damping I) x, relative to the norm of b."""


def damped_conjugate_gradients(
    product: Callable[[Vector], Vector], target: Vector, damping: Array | float, iterations: int
) -> DampedSolution:
    r"""Solve :math:`(A + \lambda I) x = b` with a fixed number of iterations, inside compiled code.

    Nothing communicates here. A direction in which the damped matrix has no positive curvature ends the
    iterations; if it is the first one, the solution is a step along b of the length that the size of
    its curvature suggests, or zero if there is no curvature at all. A residual that is nothing but
    rounding ends them too.

    >>> matrix = jnp.diag(jnp.array([1.0, 4.0]))
    >>> found = damped_conjugate_gradients(lambda v: matrix @ v, jnp.array([2.0, 10.0]), 1.0, 2)
    >>> found.solution.round(4).tolist(), bool(found.convex)
    ([1.0, 2.0], True)

    Args:
        product: Maps v to A v.
        target: The right-hand side b.
        damping: The number λ ≥ 0.
        iterations: The number of iterations.
    """
    tiny = jnp.finfo(target.dtype).tiny
    rounding = (jnp.finfo(target.dtype).eps ** 2) * (target @ target)

    def iterate(number: Array, carry: tuple) -> tuple:
        solution, residual, direction, square, curvature, convex = carry
        image = product(direction)
        length = direction @ direction
        curvature = jnp.maximum(curvature, jnp.linalg.norm(image) / jnp.sqrt(length + tiny))
        image = image + damping * direction
        curved = direction @ image
        unfinished = square > rounding
        convex = convex & ((curved > 0) | ~unfinished)
        size = jnp.abs(curved) + damping * length
        first_step = jnp.where((number == 0) & (size > 0), square / (size + tiny), 0.0)
        step = unfinished * jnp.where(convex, square / (curved + tiny), first_step)
        solution = solution + step * direction
        residual = residual - step * image
        following = residual @ residual
        direction = jnp.where(convex, residual + following / (square + tiny) * direction, direction)
        return solution, residual, direction, following, curvature, convex

    square = target @ target
    zero = jnp.zeros((), target.dtype)
    start = (jnp.zeros_like(target), target, target, square, zero, jnp.ones((), bool))
    solution, residual, *_, curvature, convex = lax.fori_loop(0, iterations, iterate, start)
    norm = jnp.linalg.norm(residual) / (jnp.sqrt(square) + tiny)
    return DampedSolution(solution, curvature, convex, norm)


class _Iterate(NamedTuple):
    solution: Vector
    companion: Array
    residual_square: float


def _finish(found: _Iterate, products: int, target_norm: float, reason: Reason) -> LinearSolution:
    residual = found.residual_square**0.5 / target_norm if target_norm > 0.0 else 0.0
    return LinearSolution(found.solution, found.companion, products, residual, reason)
