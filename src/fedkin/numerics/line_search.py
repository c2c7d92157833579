"""How far to go along a line on which a function is convex."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from fedkin.types import Array

SIDESTEP = 0.02
"""The share of the way taken where the search finds no decrease: no model is asked about twice."""

BISECTIONS = 12
"""Halvings of the search."""


class LineSearch(NamedTuple):
    """How far to go along a line."""

    share: float
    slope: float
    """The derivative along the whole line, where the search ended."""
    curvature: float
    """How much that derivative changes from one end of the line to the other."""


def search_by_slope(
    slope: Callable[[Array], Array], longest: float | Array = 1.0
) -> tuple[Array, Array, Array]:
    """Minimize a convex function along a line, by bisection. This may be compiled.

    >>> LineSearch(*map(float, search_by_slope(lambda share: 4 * share - 1)))
    LineSearch(share=0.2498779296875, slope=-0.00048828125, curvature=4.0)

    Args:
        slope: The derivative along the line, at a share of the step that has opened it.
        longest: How far the line may be followed, as a multiple of that step.

    Returns:
        The parts of a `LineSearch`.
    """
    longest = jnp.asarray(longest, jnp.result_type(float))
    nowhere = jnp.zeros_like(longest)
    first, last = slope(nowhere), slope(longest)

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        falls = slope(middle) < 0
        return jnp.where(falls, middle, low), jnp.where(falls, high, middle)

    low, high = lax.fori_loop(0, BISECTIONS, halve, (nowhere, longest))
    between = jnp.maximum(0.5 * (low + high), SIDESTEP)
    share = jnp.where(last <= 0, longest, jnp.where(first >= 0, SIDESTEP, between))
    return share, slope(share), (last - first) / longest
