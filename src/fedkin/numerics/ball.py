"""The exact maximum of a quadratic function on a ball: the trust-region problem with its sign changed."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

HARD_CASE_GAP = 1e-12
"""How far above the largest eigenvalue, relative to it, the search for the multiplier begins."""

ROOT_TOLERANCE = np.float64(1e-14)


class BallMaximum(NamedTuple):
    """The largest value of a function on a ball, and a point where the function takes it."""

    value: float
    point: np.ndarray


def maximize_quadratic(matrix: np.ndarray, vector: np.ndarray, radius: float) -> BallMaximum:
    r"""Maximize a quadratic function, convex or not, on the ball around zero.

    .. math:: \max_x\ \tfrac12 x^\top H x + v^\top x \quad\text{s.t.}\quad \|x\| \le r

    x is a global maximizer iff :math:`(\lambda I - H) x = v` with :math:`\lambda \ge 0`,
    :math:`\lambda I - H` positive semidefinite and :math:`\lambda (r - \|x\|) = 0`. In the basis of
    H's eigenvectors that is one equation in one unknown.

    >>> float(round(maximize_quadratic(np.diag([2.0, -1.0]), np.array([0.0, 1.0]), radius=1.0).value, 6))
    1.166667
    """
    matrix = np.asarray(matrix, dtype=np.float64)
    curvatures, basis = np.linalg.eigh((matrix + matrix.T) / 2)
    slopes = basis.T @ np.asarray(vector, dtype=np.float64)
    coordinates = _boundary_or_inside(curvatures, slopes, radius)
    value = 0.5 * curvatures @ coordinates**2 + slopes @ coordinates
    return BallMaximum(float(value), basis @ coordinates)


def _boundary_or_inside(curvatures: np.ndarray, slopes: np.ndarray, radius: float) -> np.ndarray:
    """Return the maximizer's coordinates along the eigenvectors; eigenvalues are in ascending order."""
    length = float(np.linalg.norm(slopes))
    if curvatures[-1] < 0 and np.linalg.norm(slopes / curvatures) <= radius:
        return -slopes / curvatures
    lowest = max(float(curvatures[-1]), 0.0)
    scale = max(abs(lowest), length / radius, np.finfo(float).tiny)
    lowest += HARD_CASE_GAP * scale

    def excess(multiplier: float) -> float:
        return float(np.linalg.norm(slopes / (multiplier - curvatures))) - radius

    if excess(lowest) <= 0:
        # The "hard case": the linear term has no part along the top eigenvector, so the point may move
        # to the boundary along it, in either direction.
        coordinates = slopes / (lowest - curvatures)
        if curvatures[-1] >= 0:
            others = float(coordinates[:-1] @ coordinates[:-1])
            coordinates[-1] = np.sqrt(max(radius**2 - others, 0.0))
        return coordinates
    multiplier = brentq(
        excess, lowest, lowest + length / radius + scale, xtol=1e-300, rtol=ROOT_TOLERANCE
    )
    return slopes / (multiplier - curvatures)
