"""Steps on the capped simplex where a function of the weights is known by slopes and curvature.

All of it is small, and computed at the center in float64.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

ITERATIONS = 500
"""The most iterations for a quadratic; a few dozen are usual."""

MANY = 200
"""Up to this many nodes, the weights at a bound are found one by one. Beyond it that takes long, and so does
the largest eigenvalue: a bound of it is used."""

TURNS = 10
"""How often a node may come to a bound or leave it, on average, before the search is given up."""

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
        size = self.moves.shape[1]
        changes, signs = np.zeros((0, size)), np.zeros(0)

        def product(vector: np.ndarray) -> np.ndarray:
            return self.scale * vector + (signs * (changes @ vector)) @ changes

        for move, change in zip(self.moves, self.changes, strict=True):
            image = product(move)
            own, measured = move @ image, move @ change
            if measured < LEAST_CURVATURE * own:
                share = (1 - LEAST_CURVATURE) * own / (own - measured)
                change = share * change + (1 - share) * image
                measured = move @ change
            pair = [change / np.sqrt(measured), image / np.sqrt(own)]
            changes, signs = np.vstack([changes, *pair]), np.append(signs, [1.0, -1.0])
        return product


def project(point: np.ndarray, cap: float | np.ndarray) -> np.ndarray:
    """Project onto the capped simplex in float64; nodes may have different caps.

    >>> project(np.array([0.9, 0.4, -0.2]), 0.5).round(9).tolist()
    [0.5, 0.5, 0.0]
    >>> project(np.array([0.9, 0.4, -0.2]), np.array([0.8, 0.5, 0.5])).round(9).tolist()
    [0.75, 0.25, 0.0]
    """
    caps = np.broadcast_to(np.asarray(cap, np.float64), point.shape)
    largest = float(caps.max())
    # The caps of the largest entries, down to this one, sum to 1. Relative to it the multiplier is in
    # [-largest cap, 0], so entries beyond twice that end at a bound anyway; clipped, they swamp no sums.
    descending = np.argsort(-point)
    rank = int(np.searchsorted(np.cumsum(caps[descending]), 1 - 1e-9 * largest))
    pivot = point[descending[min(rank, len(point) - 1)]]
    shifted = np.clip(point - pivot, -2 * largest, 2 * largest)
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
    cap: float | np.ndarray,
) -> np.ndarray:
    r"""Minimize :math:`g^\top (w - w_0) + \frac12 (w - w_0)^\top B (w - w_0)` over the capped simplex.

    Few nodes: from face to face of the simplex, each time to the minimum on it. Many: by accelerated
    projected gradients that restart where they overshoot, until they have found which weights are at a
    bound; the others then follow from linear equations.

    Args:
        slopes: The gradient g at the start.
        curvature: The product with B.
        start: The weights w_0.
        cap: The largest weight, of all nodes or of each.
    """
    matrix = np.stack([curvature(row) for row in np.eye(len(start))])
    constant = slopes - matrix @ start
    if len(start) <= MANY:
        found = _minimum_by_faces(matrix, constant, start, np.broadcast_to(cap, start.shape))
        if found is not None:
            return found
    steepest = float(np.linalg.norm(matrix, 2 if len(start) <= MANY else "fro"))
    point, ahead, momentum = start, start, 1.0
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


def _minimum_by_faces(
    matrix: np.ndarray, constant: np.ndarray, start: np.ndarray, caps: np.ndarray
) -> np.ndarray | None:
    """Minimize a quadratic by walking over the faces of the capped simplex (active sets).

    Returns:
        The minimum; None where rounding keeps the walk from ending.
    """
    weights = project(start, caps)
    bounds = (weights >= caps).astype(int) - (weights <= 0)
    for _ in range(TURNS * len(weights)):
        gradient = constant + matrix @ weights
        free = np.flatnonzero(bounds == 0)
        try:
            move, multiplier = _step_on_face(matrix, gradient, free)
        except np.linalg.LinAlgError:
            return None
        room = np.where(move > 0, caps[free] - weights[free], weights[free])
        shares = np.full(len(free), np.inf)
        np.divide(room, np.abs(move), out=shares, where=move != 0)
        if len(free) and shares.min() < 1:
            first = int(np.argmin(shares))
            weights[free] += shares[first] * move
            bounds[free[first]] = 1 if move[first] > 0 else -1
            weights[free[first]] = caps[free[first]] if move[first] > 0 else 0.0
            continue
        weights[free] += move
        # The minimum on this face. Where a weight at a bound would rather leave it, the face is larger.
        gradient = constant + matrix @ weights
        if not len(free):
            taker, giver = _best_exchange(gradient, bounds)
            if taker is None or gradient[giver] <= gradient[taker]:
                return np.clip(weights, 0, caps)
            bounds[[taker, giver]] = 0
            continue
        pressure = bounds * (gradient - multiplier)
        worst = int(np.argmax(pressure))
        if pressure[worst] <= PRECISION * np.abs(gradient).max():
            return np.clip(weights, 0, caps)
        bounds[worst] = 0
    return None


def _step_on_face(
    matrix: np.ndarray, gradient: np.ndarray, free: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return the step of the free weights to the minimum on their face, and the gradient's value there."""
    if len(free) < 2:
        return np.zeros(len(free)), float(gradient[free].sum())
    ones = np.ones((len(free), 1))
    equations = np.block([[matrix[np.ix_(free, free)], -ones], [ones.T, np.zeros((1, 1))]])
    *move, multiplier = np.linalg.solve(equations, np.append(-gradient[free], 0.0))
    return np.array(move), float(multiplier)


def _best_exchange(gradient: np.ndarray, bounds: np.ndarray) -> tuple[int | None, int | None]:
    """Return which weight should grow and which should shrink, where all are at a bound."""
    low, high = np.flatnonzero(bounds < 0), np.flatnonzero(bounds > 0)
    if not len(low) or not len(high):
        return None, None
    return int(low[np.argmin(gradient[low])]), int(high[np.argmax(gradient[high])])


def _minimum_on_face(
    matrix: np.ndarray, constant: np.ndarray, bounds: np.ndarray, cap: float | np.ndarray
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
    inside = bool(((weights >= 0) & (weights <= cap))[free].all())
    excess = gradient - multiplier
    pressed = np.where(bounds == 0, np.abs(excess), bounds * excess) <= allowed
    return weights if inside and pressed.all() else None


def largest_decrease(
    slopes: np.ndarray,
    weights: np.ndarray,
    cap: float | np.ndarray,
    relative_error: float = 0.0,
) -> float:
    r"""Return :math:`\max_s\, g^\top (w - s)` over the capped simplex: the Frank-Wolfe gap.

    Where g is the gradient of a convex function, no weights give less than its value at w minus this.
    Weight goes from the nodes with the largest slopes to those with the smallest.

    >>> float(largest_decrease(np.array([1.0, 0.0, 3.0]), np.array([0.5, 0.5, 0.0]), 1.0).round(12))
    0.5

    Args:
        slopes: The gradient g.
        weights: The weights w.
        cap: The largest weight, of all nodes or of each.
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
