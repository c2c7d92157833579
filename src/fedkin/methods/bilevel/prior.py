r"""A prior on the weights: they leave it only as far as the owner's data demand.

What is minimized is :math:`F(w) + \frac s2 \sum_k (w_k - p_k)^2 / p_k` over the capped simplex. With few
validation rows F is mostly noise, and weights that follow it say little; the prior keeps them near p.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedkin.errors import InputError

PriorName = Literal["size", "equal"]


@dataclass(frozen=True)
class Prior:
    """Weights that are expected before the owner's data are seen.

    Args:
        weights: The weights p, all positive; they are normalized.
        strength: The factor s; infinite to keep the weights where they are.

    >>> prior = Prior((3.0, 1.0), strength=2.0)
    >>> prior.shares.tolist(), prior.loss(np.array([0.5, 0.5])), prior.slopes(prior.shares).tolist()
    ([0.75, 0.25], 0.3333333333333333, [0.0, 0.0])
    """

    weights: tuple[float, ...]
    strength: float

    @property
    def shares(self) -> np.ndarray:
        """The weights, with the sum 1."""
        weights = np.asarray(self.weights, np.float64)
        return weights / weights.sum()

    @property
    def is_fixed(self) -> bool:
        """Whether the weights stay where they are."""
        return bool(np.isinf(self.strength))

    def loss(self, weights: np.ndarray) -> float:
        """Return what the distance of some weights adds to the loss."""
        if self.is_fixed:
            return 0.0
        return float(0.5 * self.strength * np.sum((weights - self.shares) ** 2 / self.shares))

    def slopes(self, weights: np.ndarray) -> np.ndarray:
        """Return the gradient of that."""
        if self.is_fixed:
            return np.zeros_like(weights)
        return self.strength * (weights - self.shares) / self.shares


def prior_weights(name: str | None, rows: list[int]) -> tuple[float, ...] | None:
    """Return the weights that a name stands for.

    >>> prior_weights("size", [30, 10]), prior_weights("equal", [30, 10]), prior_weights(None, [3])
    ((0.75, 0.25), (0.5, 0.5), None)

    Args:
        name: `size`, `equal`, or None for no prior.
        rows: The number of rows of each node.
    """
    if name is None:
        return None
    if name == "size":
        return tuple(count / sum(rows) for count in rows)
    if name == "equal":
        return tuple(1 / len(rows) for _ in rows)
    raise InputError(f"prior={name!r} is unknown; choose 'size', 'equal' or None")
