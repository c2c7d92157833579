"""How several models become one when some of them may be bad."""

import numpy as np


def coordinate_median(models: np.ndarray) -> np.ndarray:
    """Return the median of every coordinate over the rows (Yin et al. 2018, Definition 1)."""
    return np.median(models, axis=0)


def trimmed_mean(models: np.ndarray, share: float) -> np.ndarray:
    """Return the mean of every coordinate without its smallest and largest values.

    Args:
        models: A row per node.
        share: The share β < 1/2 of the values that is left out at either end (Yin et al. 2018, Definition 2).

    >>> trimmed_mean(np.array([[1.0], [2.0], [3.0], [90.0]]), 0.25).tolist()
    [2.5]
    """
    left_out = int(share * len(models))
    return np.sort(models, axis=0)[left_out : len(models) - left_out].mean(axis=0)


def krum(models: np.ndarray, bad: int) -> int:
    """Return the row whose sum of squared distances to its m − f − 2 nearest others is the smallest.

    Args:
        models: A row for each of m nodes.
        bad: How many of them may be bad, f (Blanchard et al. 2017, Section 4). At least one neighbor counts.

    >>> krum(np.array([[0.0], [0.1], [0.3], [9.0]]), 1)
    0
    """
    rows = models.astype(np.float64)
    squares = np.sum(rows**2, axis=1)
    distances = np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0.0)
    neighbors = max(len(rows) - bad - 2, 1)
    nearest = np.sort(distances, axis=1)[:, 1 : 1 + neighbors]  # the first is the row itself
    return int(np.argmin(nearest.sum(axis=1)))
