"""Who has begun what: the series of requests that the slots of nodes belong to.

A node that was not asked when a series began (its weight was zero, or it was away) begins when it is next
asked, with the vectors of that beginning. This is the center's record of it, the same for all engines.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedkin.errors import InputError
from fedkin.federation.base import Request, as_array
from fedkin.federation.item_table import ItemTable
from fedkin.federation.task import Slot
from fedkin.types import Array

Item = tuple[int, int]
"""A model and a node that works for it, by their numbers."""


class Beginning(NamedTuple):
    """The items of a request whose slot has to begin, and the vectors for it."""

    items: np.ndarray
    """Bools, one per item."""
    vectors: Mapping[str, Array]


class SeriesBook:
    """The current series of every slot, and the series that each item's slot was last begun in."""

    def __init__(self) -> None:
        self._current: dict[str, int] = {}
        self._begun: dict[str, ItemTable] = {}
        self._vectors: dict[str, dict[str, Array]] = {}

    def start(self, request: Request, started: set[str]) -> None:
        """Start new series for the slots of a request that says so.

        Args:
            request: The request.
            started: The slots that earlier requests of the same exchange have started; they share the
                series. The slots of this request are added.
        """
        if not request.begin:
            return
        for slot in request.task.slots:
            if slot.name not in started:
                self._current[slot.name] = self._current.get(slot.name, 0) + 1
                self._vectors[slot.name] = {
                    name: as_array(request.message[name]) for name in slot.vectors
                }
                started.add(slot.name)

    def number(self, slot: str) -> int:
        """Return the number of a slot's current series; 0 if none has begun."""
        return self._current.get(slot, 0)

    def beginnings(
        self, request: Request, items: Sequence[Item] | np.ndarray
    ) -> dict[str, Beginning]:
        """Return the slots of a request that have to begin for some items.

        Raises:
            InputError: If no request has begun the series.
        """
        found: dict[str, Beginning] = {}
        places = np.asarray(items, np.int64).reshape(-1, 2)
        for slot in request.task.slots:
            current = self.number(slot.name)
            missing = self._table(slot.name).get(places) != current
            if missing.any() or current == 0:
                vectors = self.vectors(slot)
                if current == 0 or set(vectors) != set(slot.vectors):
                    raise InputError(f"{request.task.name} was asked for before its series began")
                found[slot.name] = Beginning(missing, vectors)
        return found

    def vectors(self, slot: Slot) -> Mapping[str, Array]:
        """Return the vectors that the slot's current series began with."""
        return self._vectors.get(slot.name, {})

    def mark(self, slot: Slot, items: Sequence[Item] | np.ndarray) -> None:
        """Record that these items belong to the slot's current series."""
        places = np.asarray(items, np.int64).reshape(-1, 2)
        self._table(slot.name).set(places, self.number(slot.name))

    def _table(self, slot: str) -> ItemTable:
        return self._begun.setdefault(slot, ItemTable())

    def copy(self) -> "SeriesBook":
        """Return a record that continues by itself from here."""
        other = SeriesBook()
        other._current = dict(self._current)
        other._begun = {slot: begun.copy() for slot, begun in self._begun.items()}
        other._vectors = {slot: dict(vectors) for slot, vectors in self._vectors.items()}
        return other

    def forget_begun(self) -> None:
        """Let every item begin again when it is next asked: its node does not remember it."""
        self._begun.clear()

    def export_arrays(self) -> dict[str, np.ndarray]:
        """Return the whole record as named arrays."""
        arrays: dict[str, np.ndarray] = {}
        for name, number in self._current.items():
            items = self._table(name).items()
            series = self._table(name).get(items) if len(items) else np.zeros(0, int)
            rows = np.column_stack([items, series])
            arrays[f"series/{name}/number"] = np.array(number, np.int64)
            arrays[f"series/{name}/begun"] = rows.astype(np.int64)
            for vector, array in self._vectors[name].items():
                arrays[f"series/{name}/vector/{vector}"] = np.asarray(array)
        return arrays

    def import_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue with what `export_arrays` returned."""
        self.__init__()
        for name, array in arrays.items():
            kind, *rest = name.split("/")
            if kind != "series":
                continue
            if rest[1] == "number":
                self._current[rest[0]] = int(array)
                self._vectors.setdefault(rest[0], {})
            elif rest[1] == "begun":
                table = self._table(rest[0])
                for series in np.unique(array[:, 2]).tolist():
                    table.set(array[array[:, 2] == series][:, :2], int(series))
            else:
                self._vectors.setdefault(rest[0], {})[rest[2]] = jnp.asarray(array)
