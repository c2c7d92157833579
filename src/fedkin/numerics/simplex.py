"""Euclidean projection onto the capped simplex."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from fedkin.errors import InputError
from fedkin.types import Array

CLEANING_STEPS = 4
"""Newton steps on the multiplier after the exact search; they remove rounding errors only."""


def project_capped_simplex(
    point: Array | np.ndarray, cap: float | Array | np.ndarray | Sequence[float] = 1.0
) -> Array:
    r"""Project a point onto the capped simplex of the paper.

    .. math:: P(v) = \operatorname{argmin}_w \|w - v\|^2
              \quad\text{s.t.}\quad \textstyle\sum_k w_k = 1,\ 0 \le w_k \le b

    The solution is :math:`\operatorname{clip}(v - \tau, 0, b)`; the multiplier :math:`\tau` is found by
    sorting the breakpoints :math:`v_k` and :math:`v_k - b`, in :math:`O(K \log K)`. The function works
    under `jit` and `vmap`, and has the right derivative wherever the projection is differentiable.

    >>> import fedkin
    >>> fedkin.project_capped_simplex([0.9, 0.4, -0.2], cap=0.5).tolist()
    [0.5, 0.5, 0.0]

    Args:
        point: The vector :math:`v` of K finite numbers.
        cap: The largest weight :math:`b` that one node may get, between 1/K and 1; or one for each node,
            whose sum is at least 1. A cap that JAX traces is not checked.

    Returns:
        The projection, in the floating-point type of `point`.

    Raises:
        InputError: If `point` is empty, not a vector or not finite, or if the cap is out of range.
    """
    point = jnp.asarray(point)
    if point.ndim != 1 or point.size == 0:
        raise InputError(
            f"the point to project must be a non-empty vector, not of shape {point.shape}"
        )
    if not jnp.issubdtype(point.dtype, jnp.floating):
        point = point.astype(jnp.result_type(float))
    if not isinstance(cap, Tracer):
        cap = np.asarray(cap)
        if cap.ndim == 0:
            check_cap(float(cap), point.size)
        else:
            check_caps(cap, point.size)
    if not isinstance(point, Tracer) and not np.isfinite(point).all():
        raise InputError(
            "the point to project has entries that are NaN or infinite; remove or replace them"
        )
    # The explicit type gives weakly and strongly typed arrays the same compiled code.
    return _project(lax.convert_element_type(point, point.dtype), jnp.asarray(cap, point.dtype))


def check_cap(cap: float, size: int) -> None:
    """Refuse a cap outside [1/K, 1], with a message that says what the range is."""
    # 1/K is rarely a binary fraction: accept 1/15 as computed, and 0.0666667.
    if not (math.isfinite(cap) and (1.0 - 1e-6) / size <= cap <= 1.0):
        raise InputError(
            f"the cap on a node's weight is {cap:g}, but with {size} nodes it must be between "
            f"1/{size} = {1 / size:.6g} and 1"
        )


def check_caps(caps: np.ndarray, size: int) -> None:
    """Refuse caps of single nodes that are out of range, or leave no weights that sum to 1."""
    fits = caps.shape == (size,) and bool(((caps >= 0) & (caps <= 1)).all())
    if not fits or caps.sum() < 1 - 1e-6:
        raise InputError(
            f"the caps on {size} nodes' weights must be {size} numbers between 0 and 1 whose sum is at "
            "least 1"
        )


@jax.jit
def _project(point: Array, cap: Array) -> Array:
    shifted = point - lax.stop_gradient(_pivot(point, cap))
    # The multiplier is now in [-cap, 0]. Entries outside [-cap, cap] end at a bound anyway; clipping them
    # keeps huge entries from swamping the sums. Twice the cap leaves room for rounding.
    largest = jnp.max(cap)
    shifted = jnp.clip(shifted, -2 * largest, 2 * largest)
    shifted = shifted - lax.stop_gradient(_multiplier(shifted, cap))
    for _ in range(CLEANING_STEPS - 1):
        shifted = shifted - lax.stop_gradient(_newton_step(shifted, cap))
    shifted = shifted - _newton_step(shifted, cap)  # also carries the derivative of the multiplier
    return jnp.clip(shifted, 0, cap)


def _pivot(point: Array, cap: Array) -> Array:
    """Return the ceil(1/b)-th largest entry. The multiplier is never above it, and at most `cap` below.

    Of several caps, those of the entries down to this one sum to 1, and the largest takes the place of b.
    """
    if cap.ndim:
        order = jnp.argsort(point, descending=True)
        # Rounding only: of caps that sum to a little less than 1, the rest goes to the entry below them.
        rounding = min(1e-5, 8 * point.size * float(jnp.finfo(point.dtype).eps))
        reached = jnp.searchsorted(jnp.cumsum(cap[order]), 1 - rounding)
        return point[order][jnp.clip(reached, 0, point.size - 1)]
    rank = jnp.ceil(1 / cap - 1e-5).astype(int)
    return jnp.sort(point, descending=True)[jnp.clip(rank, 1, point.size) - 1]


def _multiplier(shifted: Array, cap: Array) -> Array:
    """Find the multiplier by walking down the sorted breakpoints of the sum of clipped entries.

    Between two breakpoints the sum grows by (number of free entries) x (distance): only non-negative
    terms are added, so nothing cancels.
    """
    breakpoints = jnp.concatenate([shifted, shifted - cap])
    order = jnp.argsort(breakpoints, descending=True)
    breakpoints = breakpoints[order]
    free = jnp.cumsum(jnp.where(order < shifted.size, 1, -1))[:-1]
    sums = jnp.cumsum(free * (breakpoints[:-1] - breakpoints[1:]))
    reached = jnp.searchsorted(sums, jnp.ones((), sums.dtype))
    before = jnp.where(reached > 0, sums[reached - 1], 0)
    inside = breakpoints[reached] - (1 - before) / jnp.maximum(free[reached], 1)
    # Rounding can leave even K times the cap a little short of one: then every entry is at the cap.
    return jnp.where(reached < sums.size, inside, breakpoints[-1])


def _newton_step(shifted: Array, cap: Array) -> Array:
    free = jnp.sum((shifted > 0) & (shifted < cap))
    excess = _accurate_sum(jnp.clip(shifted, 0, cap)) - 1
    return jnp.where(free > 0, excess / jnp.maximum(free, 1), 0)


def _accurate_sum(terms: Array) -> Array:
    """Sum along a binary tree: the error grows with log K, which float32 needs for 100,000 nodes."""
    while terms.size > 1:
        if terms.size % 2:
            terms = jnp.append(terms, jnp.zeros((), terms.dtype))
        terms = terms[: terms.size // 2] + terms[terms.size // 2 :]
    return terms[0]
