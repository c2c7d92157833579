"""What nodes remember in one slot, for every model that they work for."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.item_table import ItemTable


class SlotContents:
    """What the items of one slot hold, stacked share by share as it was computed.

    As long as the same items are computed together, nothing is copied.

    Args:
        empty: The content of an item before its first use.
    """

    def __init__(self, empty: Any) -> None:
        self._empty = empty
        self._empty_shares: dict[int, Any] = {}  # by their size
        self._chunks: dict[int, Any] = {}  # the stacked content of shares
        self._users: dict[int, int] = {}  # how many items have their content in a chunk
        self._chunk, self._row = ItemTable(), ItemTable()  # where each item's content is
        self._next = 0

    def of(self, share: np.ndarray) -> Any:
        """Return the content of a share of items, stacked."""
        chunks = self._chunk.get(share)
        first = int(chunks[0])
        if (chunks == first).all():
            if first < 0:
                return self.empty_share(len(share))
            content = self._chunks[first]
            rows = self._row.get(share)
            size = len(jax.tree.leaves(content)[0])
            # What fills up a share repeats its last item, whose first row counts.
            expected = np.minimum(np.arange(size), rows.max())
            if size == len(share) and np.array_equal(rows, expected):
                return content
        return self._gather(share, chunks)

    def are_one(self, teams: np.ndarray) -> bool:
        """Tell whether the items of each team, a row of them per team, have one content between them."""
        flat = teams.reshape(-1, 2)
        places = np.stack([self._chunk.get(flat), self._row.get(flat)])
        return not np.ptp(places.reshape(2, *teams.shape[:2]), axis=2).any()

    def empty_share(self, size: int) -> Any:
        """Return what items hold before their first use, stacked."""
        if size not in self._empty_shares:
            self._empty_shares[size] = jax.tree.map(
                lambda leaf: np.tile(leaf, (size, *[1] * np.ndim(leaf))), self._empty
            )
        return self._empty_shares[size]

    def _gather(self, share: np.ndarray, chunks: np.ndarray) -> Any:
        """Put rows of several chunks together: chunk by chunk, since there are far fewer of them."""
        sources = self._row.get(share)
        empty, structure = jax.tree.flatten(self.empty_share(len(share)))
        leaves = [np.array(leaf) for leaf in empty]
        for chunk in np.unique(chunks[chunks >= 0]).tolist():
            rows = np.flatnonzero(chunks == chunk)
            for leaf, source in zip(leaves, jax.tree.leaves(self._chunks[chunk]), strict=True):
                leaf[rows] = np.asarray(source)[sources[rows]]
        return jax.tree.unflatten(structure, leaves)

    def replace(self, shares: list[np.ndarray], contents: list[Any]) -> None:
        """Replace the content of the items of some shares; what fills up a share repeats one of its items."""
        items = np.concatenate(shares)
        sizes = [len(share) for share in shares]
        codes = items[:, 0].astype(np.int64) * (int(items[:, 1].max()) + 1) + items[:, 1]
        _, first = np.unique(codes, return_index=True)
        self._leave(items[first])
        chunks = self._next + np.repeat(np.arange(len(shares)), sizes)
        numbers, users = np.unique(chunks[first], return_counts=True)
        self._chunks |= dict(
            zip(range(self._next, self._next + len(shares)), contents, strict=True)
        )
        self._users |= dict(zip(numbers.tolist(), users.tolist(), strict=True))
        self._next += len(shares)
        self._row.set(items, np.concatenate([np.arange(size) for size in sizes]))
        self._chunk.set(items, chunks)

    def share(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Let items hold what others hold; each target is given once, and may be its own source."""
        others = (sources != targets).any(axis=1)
        if not others.any():
            return
        sources, targets = sources[others], targets[others]
        self._leave(targets)
        self._point(targets, self._chunk.get(sources), self._row.get(sources))

    def copy(self, models: Mapping[int, int]) -> None:
        """Let further models hold what some models hold: `models` has the new number of each."""
        items = self._chunk.models_among(list(models))
        if not len(items):
            return
        chunks, rows = self._chunk.get(items), self._row.get(items)
        further = np.stack([[models[model] for model in items[:, 0].tolist()], items[:, 1]], axis=1)
        self._point(further, chunks, rows)

    def forget(self, models: Collection[int]) -> None:
        """Empty the content of all items of some models."""
        items = self._chunk.models_among(list(models))
        self._leave(items)
        self._chunk.set(items, -1)

    def _point(self, items: np.ndarray, chunks: np.ndarray, rows: np.ndarray) -> None:
        """Let items, each given once, have their content in rows of chunks that others use."""
        for chunk, count in zip(*np.unique(chunks, return_counts=True), strict=True):
            self._users[int(chunk)] += int(count)
        self._chunk.set(items, chunks)
        self._row.set(items, rows)

    def _leave(self, items: np.ndarray) -> None:
        """Take items, each given once, off their chunks; drop chunks that nobody uses any more."""
        before = self._chunk.get(items)
        for chunk, count in zip(*np.unique(before[before >= 0], return_counts=True), strict=True):
            self._users[int(chunk)] -= int(count)
            if self._users[int(chunk)] == 0:
                del self._users[int(chunk)], self._chunks[int(chunk)]

    def export_arrays(self, models: Mapping[int, int] | None = None) -> dict[str, np.ndarray]:
        """Return the items and the leaves of their content.

        Args:
            models: The number that each model has in the arrays; None for all models with their own.
        """
        held = self._chunk.items() if models is None else self._chunk.models_among(list(models))
        items = held.copy()
        if models is not None:
            items[:, 0] = [models[model] for model in held[:, 0].tolist()]
        order = np.lexsort((items[:, 1], items[:, 0]))
        held, items = held[order], items[order]
        content = self._gather(held, self._chunk.get(held)) if len(held) else None
        leaves = {
            str(place): np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(content))
        }
        return {"items": items.astype(np.int32).reshape(-1, 2), **leaves}

    def import_arrays(
        self, arrays: Mapping[str, np.ndarray], models: Mapping[int, int] | None = None
    ) -> None:
        """Continue with what `export_arrays` returned.

        Args:
            arrays: The arrays.
            models: The number that each model of the arrays gets here; None if it is the same.
        """
        items = np.array(arrays["items"], np.int32)
        if not len(items):
            return
        template, structure = jax.tree.flatten(self._empty)
        leaves = [jnp.asarray(arrays[str(place)]) for place in range(len(template))]
        if models is not None:
            items[:, 0] = [models[model] for model in items[:, 0].tolist()]
        for leaf, empty in zip(leaves, template, strict=True):
            if leaf.shape != (len(items), *jnp.shape(empty)):
                raise ValueError(
                    f"an array of shape {leaf.shape} where {jnp.shape(empty)} is expected"
                )
        self.replace([items], [jax.tree.unflatten(structure, leaves)])
