"""Folds of the owner's rows for cross-validation."""

import numpy as np

from fedkin.data.labels import shuffle_by_class


def draw_folds(
    labels: np.ndarray, folds: int, random: np.random.Generator, stratify: bool
) -> np.ndarray:
    """Return the fold of each row; with `stratify`, every fold has its share of each class.

    >>> of_rows = draw_folds(np.array([0, 0, 0, 0, 1, 1]), 2, np.random.default_rng(0), stratify=True)
    >>> sorted(of_rows[:4].tolist()), sorted(of_rows[4:].tolist())
    ([0, 0, 1, 1], [0, 1])
    """
    order = shuffle_by_class(labels, random) if stratify else random.permutation(len(labels))
    of_rows = np.empty(len(labels), dtype=int)
    for fold, rows in enumerate(np.array_split(order, folds)):
        of_rows[rows] = fold
    return of_rows
