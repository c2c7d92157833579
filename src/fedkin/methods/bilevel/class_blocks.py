r"""An approximation of the weighted Hessian of a multinomial model, class by class.

With :math:`S_i = \operatorname{diag}(p_i) - p_i p_i^\top` the Hessian is
:math:`\frac1n \sum_i x_i x_i^\top \otimes S_i` plus the penalty. Its blocks of one class each,
:math:`B_c = \frac1n \sum_i p_{ic} (1 - p_{ic})\, x_i x_i^\top`, are as many numbers as one product for every
feature. Applied to scores that sum to zero over the classes, C / (C − 1) times the blocks are near the
Hessian: exactly equal to it for two classes, and wherever all classes are equally likely.
"""

from typing import NamedTuple

import numpy as np

from fedkin.methods.bilevel.curvature import MOST_DIRECTIONS, Place, Solve
from fedkin.models.linear import Logistic
from fedkin.models.objective import Objective

STALE = 0.6
"""Blocks are asked for again when weights and scores together have changed by this much."""


class ClassBlocks(NamedTuple):
    """The blocks with their inverses, and where they were measured. Empty before the first exchange."""

    blocks: np.ndarray
    """(classes, features, features), where the constant counts as a feature."""
    inverses: np.ndarray
    """The inverse of each block, times C / (C − 1) and with the penalty."""
    together: np.ndarray
    """The inverse of their sum."""
    theta: np.ndarray
    weights: np.ndarray

    @classmethod
    def unknown(cls) -> "ClassBlocks":
        """Return what is known before the first exchange."""
        blocks = np.zeros((0, 0, 0))
        return cls(blocks, blocks, np.zeros((0, 0)), np.zeros(0), np.zeros(0))

    def are_stale(self, theta: np.ndarray, weights: np.ndarray) -> bool:
        """Tell whether the model or the weights have moved so far that the blocks should be renewed."""
        if len(self.blocks) == 0:
            return True
        classes, features, _ = self.blocks.shape
        change = (theta - self.theta).reshape(features, classes).T
        squares = np.sum(change * (self.blocks @ change[:, :, None])[:, :, 0])
        # Blocks of nodes that lie may be indefinite, and rounding may leave a little less than zero.
        moved = np.sqrt(abs(squares))
        return bool(np.abs(weights - self.weights).sum() / 2 + moved > STALE)

    @classmethod
    def measured(
        cls, products: np.ndarray, model: Logistic, theta: np.ndarray, weights: np.ndarray
    ) -> "ClassBlocks":
        """Return the blocks that have these products with `class_directions`."""
        classes = model.classes
        blocks = products.reshape(len(products), -1, classes).transpose(2, 0, 1)
        blocks = (blocks + blocks.transpose(0, 2, 1)) / 2
        inverses = np.linalg.inv(
            classes / (classes - 1) * blocks + model.l2 * np.eye(len(products))
        )
        return cls(blocks, inverses, np.linalg.inv(inverses.sum(axis=0)), theta, weights)

    def solver(self, place: Place) -> Solve:
        """Return the inverse of the approximation, as a function of a vector or of several, as rows."""
        classes, features, _ = self.blocks.shape
        penalty = place.penalty

        def solve(vectors: np.ndarray) -> np.ndarray:
            columns = vectors.reshape(-1, features, classes).transpose(2, 1, 0)
            common = columns.mean(axis=0)
            alone = self.inverses @ (columns - common)
            # The multiplier that makes the solution sum to zero over the classes.
            multiplier = self.together @ alone.sum(axis=0)
            solution = alone - self.inverses @ multiplier + common / penalty
            return solution.transpose(2, 1, 0).reshape(vectors.shape)

        return solve


def has_class_blocks(objective: Objective) -> bool:
    """Tell whether the blocks of a model are small enough to be sent."""
    model = objective.model
    if not isinstance(model, Logistic) or model.l2 <= 0:
        return False
    return objective.size // model.classes <= MOST_DIRECTIONS


def class_directions(objective: Objective) -> np.ndarray:
    """Return a direction for every feature, with the same score for all classes, as rows.

    >>> class_directions(Objective.create(Logistic(classes=3), np.zeros((10, 4)))).shape
    (5, 15)
    """
    model = objective.model
    assert isinstance(model, Logistic)
    return np.kron(np.eye(objective.size // model.classes), np.ones(model.classes))
