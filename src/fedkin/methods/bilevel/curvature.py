r"""The weighted Hessian of a linear model at the center, from products with a basis.

A multinomial model does not change if all classes get the same scores on top: along such directions the
Hessian is that of the penalty, exactly, and no products are needed.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedkin.models.base import LinearModel
from fedkin.models.linear import Logistic
from fedkin.models.objective import Objective

MOST_DIRECTIONS = 128
"""The largest basis: a model with more directions would send too much for its Hessian."""

FLOOR = 3e-7
"""Eigenvalues below this share of the largest are rounding errors of float32."""


class Curvature(NamedTuple):
    """A symmetric positive definite matrix: known on the span of a basis, and a multiple of I elsewhere."""

    matrix: np.ndarray
    """The matrix in the coordinates of the basis; empty before the first exchange."""
    elsewhere: float
    """The curvature outside the span; 0 if nothing happens there."""

    @classmethod
    def unknown(cls) -> "Curvature":
        """Return what is known before the first exchange."""
        return cls(np.zeros((0, 0)), 0.0)

    @classmethod
    def measured(cls, basis: np.ndarray, products: np.ndarray, elsewhere: float) -> "Curvature":
        """Make the matrix from its products with an orthonormal basis, a row each."""
        matrix = basis @ products.T
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        least = max(elsewhere, FLOOR * max(float(values[-1]), 1e-30))
        return cls((vectors * np.maximum(values, least)) @ vectors.T, elsewhere)

    def solve(self, vector: np.ndarray, basis: np.ndarray) -> np.ndarray:
        """Return the inverse of the matrix times a vector."""
        inside = basis @ vector
        solution = basis.T @ np.linalg.solve(self.matrix, inside)
        if self.elsewhere > 0:
            solution = solution + (vector - basis.T @ inside) / self.elsewhere
        return solution

    def apply(self, vector: np.ndarray, basis: np.ndarray) -> np.ndarray:
        """Return the matrix times a vector."""
        inside = basis @ vector
        return basis.T @ (self.matrix @ inside) + self.elsewhere * (vector - basis.T @ inside)

    def relative_error(self, solution: np.ndarray, target: np.ndarray, basis: np.ndarray) -> float:
        """Return how far a vector is from the solution for a target, in the norm of the matrix."""
        residual = target - self.apply(solution, basis)
        whole = float(target @ self.solve(target, basis))
        return float(np.sqrt(max(residual @ self.solve(residual, basis), 0.0) / max(whole, 1e-30)))


def is_small(objective: Objective) -> bool:
    """Tell whether a model is linear and its Hessian small enough to be sent."""
    if not isinstance(objective.model, LinearModel):
        return False
    return len(curvature_basis(objective)) <= MOST_DIRECTIONS


@lru_cache(maxsize=16)
def curvature_basis(objective: Objective) -> np.ndarray:
    """Return orthonormal directions, as rows, on whose span the Hessian has to be measured.

    >>> from fedkin.models.linear import Logistic, Ridge
    >>> curvature_basis(Objective.create(Logistic(classes=3), np.zeros((10, 4)))).shape
    (10, 15)
    >>> curvature_basis(Objective.create(Ridge(), np.zeros((10, 4)))).shape
    (5, 5)
    """
    model = objective.model
    if not isinstance(model, Logistic):
        return np.eye(objective.size)
    # The scores of a feature's classes lie next to each other in the vector of parameters.
    columns = np.column_stack([np.ones(model.classes), np.eye(model.classes)[:, 1:]])
    contrasts = np.linalg.qr(columns)[0][:, 1:]
    return np.kron(np.eye(objective.size // model.classes), contrasts.T)
