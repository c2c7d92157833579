"""The unit in which numbers are learned."""

from typing import NamedTuple

import numpy as np

from fedkin.data.preprocessing import Preprocessing, Quantity
from fedkin.types import LearningTask


class LabelUnit(NamedTuple):
    """Numbers are learned in units of the owner's own labels: centered, with deviation 1.

    Held-out rows are among those that decide the unit, which changes penalties a little and nothing else.
    """

    mean: float
    deviation: float

    @classmethod
    def of(cls, labels: np.ndarray, task: LearningTask) -> "LabelUnit":
        """Return the unit for the owner's labels; classes stay as they are."""
        if task == "classification":
            return cls(0.0, 1.0)
        return cls(float(np.mean(labels)), float(np.std(labels)))

    def reduce(self, labels: np.ndarray) -> np.ndarray:
        """Return labels in this unit.

        >>> LabelUnit(10.0, 2.0).reduce(np.array([12.0, 8.0])).tolist()
        [1.0, -1.0]
        """
        if self == (0.0, 1.0):
            return labels
        return ((labels - self.mean) / self.deviation).astype(np.float32)

    def restore(self, model: np.ndarray) -> np.ndarray:
        """Return a model whose outputs are in the labels' own unit."""
        restored = self.deviation * model
        if self.mean:
            restored[-1] += self.mean
        return restored

    def of_nodes(self, preprocessing: Preprocessing) -> Preprocessing:
        """Return the preprocessing with which nodes give their labels in this unit.

        Args:
            preprocessing: The agreed one, in whose unit the labels of this unit are.
        """
        label = preprocessing.label
        if not isinstance(label, Quantity):
            return preprocessing
        moved = {
            "mean": float(label.restore(np.asarray(self.mean))),
            "standard_deviation": label.standard_deviation * self.deviation,
        }
        return preprocessing.model_copy(update={"label": label.model_copy(update=moved)})
