r"""Many smooth convex functions minimized side by side, by L-BFGS: every evaluation is of all of them.

Where an evaluation is an exchange with nodes, as many functions as one likes cost the synchronizations of
the slowest (Nocedal and Wright 2006, Algorithm 7.4, with a line search that halves steps).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

PAIRS = 20
"""How many steps are remembered."""

ENOUGH = 1e-4
"""A step must lower a function by this share of what its slope promises."""

SHORTEST = 1e-4
"""A line search gives up below this share of a step: only rounding is left to gain."""

ROUNDING = 1e-6
"""Values of float32 differ by this share without a reason."""

Evaluate = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Returns values and gradients, given points and which functions they belong to."""


class Minima(NamedTuple):
    """Where the functions are smallest."""

    points: np.ndarray
    """(functions, d)."""
    settled: np.ndarray
    """Which have slopes small enough, or fall no further but for rounding."""


def minimize_many(
    evaluate: Evaluate, starts: np.ndarray, *, small_slope: float, most_evaluations: int
) -> Minima:
    r"""Return :math:`\arg\min_x f_c(x)` of every function c.

    >>> centers = np.array([[1.0, -2.0], [0.5, 3.0]])
    >>> curvatures = np.array([1.0, 10.0])
    >>> def evaluate(points, which):
    ...     away = points - centers[which]
    ...     return 0.5 * (curvatures * away**2).sum(axis=1), curvatures * away
    >>> found = minimize_many(evaluate, np.zeros((2, 2)), small_slope=1e-6, most_evaluations=50)
    >>> found.points.round(4).tolist(), found.settled.tolist()
    ([[1.0, -2.0], [0.5, 3.0]], [True, True])

    Args:
        evaluate: The functions.
        starts: Where to begin: (functions, d).
        small_slope: A function is done where no derivative is larger.
        most_evaluations: The most evaluations of a function.
    """
    points = np.array(starts, np.float64)
    every = np.arange(len(points))
    values, slopes = (np.array(each, np.float64) for each in evaluate(points, every))
    memory = _Memory(*points.shape)
    settled = np.abs(slopes).max(axis=1) <= small_slope
    directions = -slopes / np.maximum(np.linalg.norm(slopes, axis=1, keepdims=True), 1.0)
    lengths = np.ones(len(points))
    for _ in range(most_evaluations - 1):
        active = every[~settled]
        if not len(active):
            break
        tried = points[active] + lengths[active, None] * directions[active]
        found, gradients = (np.asarray(each, np.float64) for each in evaluate(tried, active))
        promised = lengths[active] * np.einsum("cd,cd->c", slopes[active], directions[active])
        slack = ROUNDING * np.abs(values[active])
        lower = found <= values[active] + ENOUGH * promised + slack
        lower &= np.isfinite(gradients).all(axis=1)
        taken, refused = active[lower], active[~lower]
        memory.add(taken, tried[lower] - points[taken], gradients[lower] - slopes[taken])
        points[taken], values[taken], slopes[taken] = tried[lower], found[lower], gradients[lower]
        directions[taken] = -memory.multiply(taken, slopes[taken])
        lengths[taken] = 1.0
        lengths[refused] /= 2
        settled[taken] = np.abs(slopes[taken]).max(axis=1) <= small_slope
        settled[refused] = lengths[refused] < SHORTEST
    return Minima(points, settled)


class _Memory:
    """The last steps of every function, and the changes of its gradient along them."""

    def __init__(self, functions: int, size: int) -> None:
        self._steps = np.zeros((PAIRS, functions, size))
        self._changes = np.zeros((PAIRS, functions, size))
        self._inverse = np.zeros((PAIRS, functions))
        """1 / sᵀy; 0 where there is no step, which then changes nothing."""
        self._scale = np.ones(functions)

    def add(self, rows: np.ndarray, steps: np.ndarray, changes: np.ndarray) -> None:
        """Remember a step of some functions, in place of the oldest."""
        curvature = np.einsum("cd,cd->c", steps, changes)
        sure = curvature > 1e-10 * np.einsum("cd,cd->c", steps, steps)
        rows, steps, changes, curvature = rows[sure], steps[sure], changes[sure], curvature[sure]
        for held, new in ((self._steps, steps), (self._changes, changes)):
            held[:-1, rows] = held[1:, rows]
            held[-1, rows] = new
        self._inverse[:-1, rows] = self._inverse[1:, rows]
        self._inverse[-1, rows] = 1 / curvature
        self._scale[rows] = curvature / np.einsum("cd,cd->c", changes, changes)

    def multiply(self, rows: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Return the inverse Hessians, as far as they are known, times vectors (the two-loop recursion)."""
        found, shares = vectors.copy(), np.zeros((PAIRS, len(rows)))
        for pair in reversed(range(PAIRS)):
            steps, changes = self._steps[pair, rows], self._changes[pair, rows]
            shares[pair] = self._inverse[pair, rows] * np.einsum("cd,cd->c", steps, found)
            found -= shares[pair][:, None] * changes
        found *= self._scale[rows, None]
        for pair in range(PAIRS):
            steps, changes = self._steps[pair, rows], self._changes[pair, rows]
            back = self._inverse[pair, rows] * np.einsum("cd,cd->c", changes, found)
            found += (shares[pair] - back)[:, None] * steps
        return found
