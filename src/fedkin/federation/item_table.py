"""Numbers that belong to items: one for each model and node, in arrays that grow as needed."""

import numpy as np


class ItemTable:
    """A whole number for every item (a model and a node); −1 where there is none yet.

    >>> table = ItemTable()
    >>> table.set(np.array([[0, 1], [0, 2], [0, 2]]), np.array([5, 6, 7]))
    >>> table.get(np.array([[0, 1], [0, 2], [3, 0]])).tolist()
    [5, 6, -1]
    """

    def __init__(self) -> None:
        self._values = np.full((0, 0), -1, np.int64)

    def get(self, items: np.ndarray) -> np.ndarray:
        """Return the numbers of some items, given as rows of model and node."""
        self._make_room(items)
        return self._values[items[:, 0], items[:, 1]]

    def set(self, items: np.ndarray, values: np.ndarray | int) -> None:
        """Set the numbers of some items; of one that occurs several times, the first counts."""
        self._make_room(items)
        # Of repeated indices NumPy assigns the last, but it walks through reversed views forward: copy them.
        models, nodes = items[::-1].T.copy()
        given = values if isinstance(values, int) else values[::-1].copy()
        self._values[models, nodes] = given

    def items(self) -> np.ndarray:
        """Return all items that have a number, in order, as rows of model and node."""
        return np.argwhere(self._values >= 0)

    def models_among(self, models: list[int]) -> np.ndarray:
        """Return the items of some models that have a number."""
        known = [model for model in models if model < len(self._values)]
        found = np.argwhere(self._values[known] >= 0)
        found[:, 0] = np.array(known, int)[found[:, 0]]
        return found

    def copy(self) -> "ItemTable":
        """Return a table that changes by itself from here on."""
        other = ItemTable()
        other._values = self._values.copy()
        return other

    def _make_room(self, items: np.ndarray) -> None:
        if not len(items):
            return
        models, nodes = self._values.shape
        rows, columns = (
            _grown(size, needed)
            for size, needed in zip((models, nodes), items.max(axis=0) + 1, strict=True)
        )
        if (rows, columns) != (models, nodes):
            larger = np.full((rows, columns), -1, np.int64)
            larger[:models, :nodes] = self._values
            self._values = larger


def _grown(size: int, needed: int) -> int:
    """Return at least twice the size where more is needed, so that growing one by one takes few copies."""
    return size if needed <= size else max(int(needed), 2 * size)
