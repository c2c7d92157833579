"""What some nodes are asked for, by one owner or by several at once, arranged for compiled code.

Each owner's message has its own vectors, numbers and key. Stacked, every item (a model and a node that works
for it) knows the row of each that is meant for it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedkin.federation.series import Beginning
from fedkin.federation.task import Slot, Task
from fedkin.types import Array, Key


class Portion(NamedTuple):
    """What one message asks of some items."""

    items: np.ndarray
    """The model and the node of each item, by numbers that no other message uses for other models."""
    rows: np.ndarray
    """For each item, the row of the message's vectors of two axes that is meant for it."""
    numbers: np.ndarray
    """For each item, the number of the node as the sender knows it: what it draws depends on it."""
    message: Mapping[str, Array]
    """Numbers and vectors; vectors of two axes have a row per model."""
    key: Key
    """Node k uses `fold_in(key, k)`."""
    beginnings: Mapping[str, Beginning]
    """For each slot that begins somewhere, where, and its vectors."""


class Column(NamedTuple):
    """One vector or number of all messages, and which row of it each item gets."""

    table: np.ndarray
    row: np.ndarray

    def of(self, places: np.ndarray) -> np.ndarray:
        """Return what some items get, a row for each."""
        # NumPy picks rows faster than JAX does outside compiled code, which takes NumPy's arrays as they are.
        return self.table[self.row[places]]


class Stack:
    """The items of several portions, one after the other."""

    def __init__(self, portions: Sequence[Portion]) -> None:
        self._portions = portions
        ends = np.cumsum([len(portion.items) for portion in portions])
        self.slices = [
            slice(int(end) - len(portion.items), int(end))
            for end, portion in zip(ends, portions, strict=True)
        ]
        """Where each portion's items are."""
        self.items = np.concatenate([portion.items for portion in portions])
        self.numbers = np.concatenate([portion.numbers for portion in portions]).astype(np.int32)
        keys = np.stack([np.asarray(jax.random.key_data(portion.key)) for portion in portions])
        self.owners = np.repeat(np.arange(len(portions)), [len(own.items) for own in portions])
        """Which portion each item is of."""
        self.keys = Column(keys, self.owners)
        self._columns: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self.items)

    def message(self, task: Task, places: np.ndarray) -> dict[str, np.ndarray]:
        """Return the vectors and numbers of a task for some items."""
        for name in (*task.vectors, *task.numbers):
            if name not in self._columns:
                arrays = [portion.message[name] for portion in self._portions]
                self._columns[name] = self._stack(arrays, rank=1 if name in task.vectors else 0)
        return {name: self._columns[name].of(places) for name in (*task.vectors, *task.numbers)}

    def begin_vectors(self, slots: Sequence[Slot], places: np.ndarray) -> dict[str, np.ndarray]:
        """Return the vectors that slots begin with, for items whose slots do."""
        found = {}
        for slot in slots:
            for name in slot.vectors:
                known = f"{slot.name}/{name}"
                if known not in self._columns:
                    arrays = [
                        begins.vectors[name]
                        if (begins := portion.beginnings.get(slot.name)) is not None
                        else None
                        for portion in self._portions
                    ]
                    self._columns[known] = self._stack(arrays, rank=1)
                found[name] = self._columns[known].of(places)
        return found

    def alike(self, slots: Sequence[Slot], places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find items whose slots begin alike: of the same node, with the same vectors.

        Returns:
            The first of each, among the places, and for every place which of these it is like.
        """
        if not all(slot.shared for slot in slots):
            return np.arange(len(places)), np.arange(len(places))
        self.begin_vectors(slots, places[:1])  # makes the columns
        columns = [self._columns[f"{slot.name}/{name}"] for slot in slots for name in slot.vectors]
        rows = [self.items[places, 1], *(column.row[places] for column in columns)]
        codes = np.ravel_multi_index(rows, [int(row.max()) + 1 for row in rows])
        _, first, like = np.unique(codes, return_index=True, return_inverse=True)
        return first, like

    def patterns(self, task: Task) -> list[tuple[tuple[Slot, ...], np.ndarray]]:
        """Group the items by the slots that have to begin: usually all slots of all items, or none."""
        concerned = [
            slot
            for slot in task.slots
            if any(slot.name in portion.beginnings for portion in self._portions)
        ]
        if not concerned or not len(self):
            return []
        table = np.stack([self._begins(slot) for slot in concerned], axis=1)
        return [
            (
                tuple(slot for slot, begins in zip(concerned, pattern, strict=True) if begins),
                np.flatnonzero((table == pattern).all(axis=1)),
            )
            for pattern in np.unique(table, axis=0)
            if pattern.any()
        ]

    def _begins(self, slot: Slot) -> np.ndarray:
        return np.concatenate(
            [
                np.asarray(begins.items, bool)
                if (begins := portion.beginnings.get(slot.name)) is not None
                else np.zeros(len(portion.items), bool)
                for portion in self._portions
            ]
        )

    def _stack(self, arrays: Sequence[Array | None], rank: int) -> Column:
        """Stack one array per portion; an array of more axes than `rank` has a row per model.

        Items of portions without an array get a row that is not theirs: they have no use for it.
        """
        tables, rows, offset = [], [], 0
        for array, portion in zip(arrays, self._portions, strict=True):
            if array is None:
                rows.append(np.zeros(len(portion.items), int))
                continue
            own = np.asarray(array)
            several = own.ndim > rank
            tables.append(own if several else own[None])
            rows.append(offset + (portion.rows if several else np.zeros(len(portion.items), int)))
            offset += len(tables[-1])
        table = np.concatenate(tables)
        # Whole numbers of some owners and real ones of others make double precision.
        table = table.astype(jax.dtypes.canonicalize_dtype(table.dtype), copy=False)
        return Column(table, np.concatenate(rows))
