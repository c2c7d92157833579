r"""The weighted Hessian of a linear model at the center, from products with a basis.

A multinomial model does not change if all classes get the same scores on top: along such directions the
Hessian is that of the penalty, exactly, and no products are needed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from fedkin.federation.center import Center
from fedkin.models.base import LinearModel
from fedkin.models.linear import Logistic
from fedkin.models.objective import Objective
from fedkin.types import Key, Vector

MOST_DIRECTIONS = 128
"""The largest basis: a model with more directions would send too much for its Hessian."""

FLOOR = 3e-7
"""Eigenvalues below this share of the largest are rounding errors of float32."""


Solve = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Place:
    """A model, and what the center can compute there without asking anybody.

    Args:
        objective: The model's loss.
        center: The owner's data.
        theta: The parameters.
    """

    objective: Objective
    center: Center
    theta: Vector

    @property
    def penalty(self) -> float:
        """The curvature of the penalty, in every direction."""
        model = self.objective.model
        assert isinstance(model, LinearModel)
        return model.l2

    @cached_property
    def hessian(self) -> np.ndarray:
        """The Hessian of the validation loss."""
        hessian = np.asarray(self.center.hessian(self.theta), np.float64)
        return (hessian + hessian.T) / 2


class Curvature(NamedTuple):
    """The weighted Hessian: known on the span of a basis, and the penalty's elsewhere."""

    matrix: np.ndarray
    """The Hessian in the coordinates of the basis; empty before the first exchange."""

    @classmethod
    def unknown(cls) -> "Curvature":
        """Return what is known before the first exchange."""
        return cls(np.zeros((0, 0)))

    def questions(self, place: Place, known: list[np.ndarray], key: Key) -> np.ndarray:
        """Return the directions of the next exchange: the whole basis."""
        return curvature_basis(place.objective)

    def class_questions(self, place: Place, weights: np.ndarray) -> None:
        """Return nothing: the matrix has the blocks of single classes."""

    def learn_classes(self, place: Place, weights: np.ndarray, products: np.ndarray) -> "Curvature":
        """Nothing changes: there is nothing to add."""
        return self

    def learn(self, place: Place, directions: np.ndarray, products: np.ndarray) -> "Curvature":
        """Return the matrix that has these products."""
        matrix = directions @ products.T
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        least = max(place.penalty, FLOOR * max(float(values[-1]), 1e-30))
        return Curvature((vectors * np.maximum(values, least)) @ vectors.T)

    def solver(self, place: Place) -> Solve:
        """Return the inverse of the Hessian, as a function of a vector."""
        basis, penalty = curvature_basis(place.objective), place.penalty

        def solve(vector: np.ndarray) -> np.ndarray:
            inside = basis @ vector
            solution = basis.T @ np.linalg.solve(self.matrix, inside)
            return solution + (vector - basis.T @ inside) / penalty if penalty > 0 else solution

        return solve

    def image(self, place: Place, vector: np.ndarray) -> np.ndarray:
        """Return the Hessian times a vector."""
        basis = curvature_basis(place.objective)
        inside = basis @ vector
        outside = vector - basis.T @ inside
        return basis.T @ (self.matrix @ inside) + place.penalty * outside

    def doubt(self) -> "Curvature":
        """Nothing changes after a step that was too long: the next exchange returns a new matrix."""
        return self


def is_small(objective: Objective) -> bool:
    """Tell whether the Hessian of a linear model is small enough to be sent."""
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
