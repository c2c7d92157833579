"""Steps on the capped simplex where a function of the weights is known by slopes and curvature.

All of it is small, and computed at the center in float64.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

ITERATIONS = 500
"""The most iterations for a quadratic; a few dozen are usual."""

MANY = 200
"""Beyond this many nodes a bound of the largest eigenvalue is used, which takes no time."""

PRECISION = 1e-10
"""An iteration for a quadratic that moves no weight by more than this is the last."""

LEAST_CURVATURE = 0.1
"""The share of the model's own curvature along a move that a measured one must reach (Powell)."""


class Secants(NamedTuple):
    """What moves of the weights have shown of a function's curvature (BFGS)."""

    scale: float
    """The curvature where nothing has been seen."""
    moves: np.ndarray
    """The moves, oldest first."""
    changes: np.ndarray
    """The change of the gradient that each has caused."""

    def add(self, move: np.ndarray, change: np.ndarray, most: int) -> "Secants":
        """Return the model with one more pair; the oldest leave."""
        return Secants(
            self.scale,
            np.vstack([self.moves, move])[-most:],
            np.vstack([self.changes, change])[-most:],
        )

    def curvature(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return the product with the model's Hessian, which is positive definite."""
        added: list[np.ndarray] = []
        removed: list[np.ndarray] = []

        def product(vector: np.ndarray) -> np.ndarray:
            result = self.scale * vector
            for plus, minus in zip(added, removed, strict=True):
                result = result + plus * (plus @ vector) - minus * (minus @ vector)
            return result

        for move, change in zip(self.moves, self.changes, strict=True):
            image = product(move)
            own, measured = move @ image, move @ change
            if measured < LEAST_CURVATURE * own:
                share = (1 - LEAST_CURVATURE) * own / (own - measured)
                change = share * change + (1 - share) * image
                measured = move @ change
            added.append(change / np.sqrt(measured))
            removed.append(image / np.sqrt(own))
        return product


def project(point: np.ndarray, cap: float) -> np.ndarray:
    """Project onto the capped simplex in float64.

    >>> project(np.array([0.9, 0.4, -0.2]), 0.5).round(9).tolist()
    [0.5, 0.5, 0.0]
    """
    # Relative to the ⌈1/cap⌉-th largest entry the multiplier is in [-cap, 0], so entries beyond ±2 cap end
    # at a bound anyway; clipped, they do not swamp the sums.
    rank = min(max(int(np.ceil(1 / cap - 1e-9)), 1), len(point))
    shifted = np.clip(point - np.partition(point, -rank)[-rank], -2 * cap, 2 * cap)
    breakpoints = np.concatenate([shifted, shifted - cap])
    order = np.argsort(-breakpoints)
    breakpoints = breakpoints[order]
    free = np.cumsum(np.where(order < len(point), 1, -1))[:-1]
    sums = np.cumsum(free * (breakpoints[:-1] - breakpoints[1:]))
    place = int(np.searchsorted(sums, 1.0))
    if place == len(sums):  # rounding leaves even n times the cap a little short of one
        return np.clip(shifted - breakpoints[-1], 0, cap)
    before = sums[place - 1] if place else 0.0
    multiplier = breakpoints[place] - (1 - before) / max(free[place], 1)
    return np.clip(shifted - multiplier, 0, cap)


def minimize_quadratic(
    slopes: np.ndarray,
    curvature: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    cap: float,
) -> np.ndarray:
    r"""Minimize :math:`g^\top (w - w_0) + \frac12 (w - w_0)^\top B (w - w_0)` over the capped simplex.

    By accelerated projected gradients that restart where they overshoot. They soon find which weights are at
    a bound; the others then follow from linear equations.

    Args:
        slopes: The gradient g at the start.
        curvature: The product with B.
        start: The weights w_0.
        cap: The largest weight.
    """
    matrix = np.stack([curvature(row) for row in np.eye(len(start))])
    steepest = float(np.linalg.norm(matrix, 2 if len(start) <= MANY else "fro"))
    point, ahead, momentum = start, start, 1.0
    constant = slopes - matrix @ start
    tried: set[bytes] = set()
    for _ in range(ITERATIONS):
        following = project(ahead - (constant + matrix @ ahead) / steepest, cap)
        bounds = (following >= cap).astype(np.int8) - (following <= 0)
        if (face := bounds.tobytes()) not in tried:
            tried.add(face)
            if (found := _minimum_on_face(matrix, constant, bounds, cap)) is not None:
                return found
        if (ahead - following) @ (following - point) > 0:
            momentum = 1.0
        grown = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = following + (momentum - 1) / grown * (following - point)
        moved = np.abs(following - point).max()
        point, momentum = following, grown
        if moved < PRECISION:
            break
    return point


def _minimum_on_face(
    matrix: np.ndarray, constant: np.ndarray, bounds: np.ndarray, cap: float
) -> np.ndarray | None:
    """Minimize a quadratic where it is known which weights are zero (-1) or the cap (1).

    Returns:
        The minimum over the capped simplex; None if other weights are at a bound there.
    """
    weights = np.where(bounds > 0, cap, 0.0)
    free = np.flatnonzero(bounds == 0)
    if not len(free):
        return None
    ones = np.ones((len(free), 1))
    equations = np.block([[matrix[np.ix_(free, free)], -ones], [ones.T, np.zeros((1, 1))]])
    right = np.append(-constant[free] - matrix[free] @ weights, 1 - weights.sum())
    try:
        *solved, multiplier = np.linalg.solve(equations, right)
    except np.linalg.LinAlgError:
        return None
    weights[free] = solved
    gradient = constant + matrix @ weights
    allowed = PRECISION * np.abs(gradient).max()
    # Weights inside the bounds; and none at zero whose growth, or at the cap whose decline, would help.
    inside = weights[free].min() >= 0 and weights[free].max() <= cap
    excess = gradient - multiplier
    pressed = np.where(bounds == 0, np.abs(excess), bounds * excess) <= allowed
    return weights if inside and pressed.all() else None


def largest_decrease(
    slopes: np.ndarray, weights: np.ndarray, cap: float, relative_error: float = 0.0
) -> float:
    r"""Return :math:`\max_s\, g^\top (w - s)` over the capped simplex: the Frank-Wolfe gap.

    Where g is the gradient of a convex function, no weights give less than its value at w minus this.
    Weight goes from the nodes with the largest slopes to those with the smallest.

    >>> float(largest_decrease(np.array([1.0, 0.0, 3.0]), np.array([0.5, 0.5, 0.0]), 1.0).round(12))
    0.5

    Args:
        slopes: The gradient g.
        weights: The weights w.
        cap: The largest weight.
        relative_error: How far each slope may be off, as a share of it; the result is a bound of what
            the worst such slopes would allow.
    """
    error = relative_error * np.abs(slopes)
    givers = sorted(np.flatnonzero(weights > 0), key=lambda k: -(slopes[k] + error[k]))
    takers = sorted(np.flatnonzero(weights < cap), key=lambda k: slopes[k] - error[k])
    held, room = weights.astype(float), cap - weights.astype(float)
    total, place = 0.0, 0
    for giver in givers:
        while held[giver] > 0 and place < len(takers):
            taker = takers[place]
            gain = slopes[giver] + error[giver] - slopes[taker] + error[taker]
            if gain <= 0:
                return total
            amount = min(held[giver], room[taker])
            # A node that gives and takes gains nothing by it, but for the doubt about its slope.
            total += amount * gain
            held[giver] -= amount
            room[taker] -= amount
            if room[taker] <= 0:
                place += 1
    return total
