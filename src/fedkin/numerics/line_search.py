"""How far to go along a line on which a function is convex."""

from collections.abc import Callable
from typing import NamedTuple

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


def search_by_slope(slope: Callable[[float], float], longest: float = 1.0) -> LineSearch:
    """Minimize a convex function along a line, by bisection.

    >>> round(search_by_slope(lambda share: share - 0.25).share, 3)
    0.25

    Args:
        slope: The derivative along the line, at a share of the step that has opened it.
        longest: How far the line may be followed, as a multiple of that step.
    """
    first, last = slope(0.0), slope(longest)
    curvature = (last - first) / longest
    if last <= 0:
        return LineSearch(longest, last, curvature)
    if first >= 0:
        return LineSearch(SIDESTEP, slope(SIDESTEP), curvature)
    low, high = 0.0, longest
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        if slope(middle) < 0:
            low = middle
        else:
            high = middle
    share = max(0.5 * (low + high), SIDESTEP)
    return LineSearch(share, slope(share), curvature)
