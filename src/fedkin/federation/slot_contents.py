"""What nodes remember in one slot, for every model that they work for."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.series import Item


class SlotContents:
    """What the items of one slot hold, stacked share by share as it was computed.

    As long as the same items are computed together, nothing is copied.

    Args:
        empty: The content of an item before its first use.
    """

    def __init__(self, empty: Any) -> None:
        self._empty = empty
        self._empty_shares: dict[int, Any] = {}  # by their size
        self._chunks: dict[int, tuple[np.ndarray, Any]] = {}  # items and their stacked content
        self._places: dict[Item, tuple[int, int]] = {}  # for each item its chunk and its row there
        self._next = 0

    def of(self, share: np.ndarray) -> Any:
        """Return the content of a share of items, stacked."""
        items = [(int(model), int(node)) for model, node in share]
        places = [self._places.get(item) for item in items]
        if places[0] is not None:
            chunk = places[0][0]
            held, content = self._chunks[chunk]
            current = all(place is not None and place[0] == chunk for place in places)
            if current and np.array_equal(held, share):
                return content
        if not any(places):
            return self.empty_share(len(share))
        return self._gather(places)

    def empty_share(self, size: int) -> Any:
        """Return what items hold before their first use, stacked."""
        if size not in self._empty_shares:
            self._empty_shares[size] = jax.tree.map(
                lambda leaf: jnp.tile(leaf, (size, *[1] * jnp.ndim(leaf))), self._empty
            )
        return self._empty_shares[size]

    def _gather(self, places: list[tuple[int, int] | None]) -> Any:
        """Put rows of several chunks together: chunk by chunk, since there are far fewer of them."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for row, place in enumerate(places):
            if place is not None:
                wanted.setdefault(place[0], []).append((row, place[1]))
        empty, structure = jax.tree.flatten(self.empty_share(len(places)))
        leaves = [np.array(leaf) for leaf in empty]
        for chunk, pairs in wanted.items():
            rows, sources = map(list, zip(*pairs, strict=True))
            held = jax.tree.leaves(self._chunks[chunk][1])
            for leaf, source in zip(leaves, held, strict=True):
                leaf[rows] = np.asarray(source)[sources]
        return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])

    def replace(self, shares: list[np.ndarray], contents: list[Any]) -> None:
        """Replace the content of the items of some shares."""
        for share, content in zip(shares, contents, strict=True):
            self._chunks[self._next] = share, content
            for row in reversed(range(len(share))):  # of repeated items the first counts
                self._places[int(share[row, 0]), int(share[row, 1])] = (self._next, row)
            self._next += 1
        self._drop_unused()

    def copy(self, models: Mapping[int, int]) -> None:
        """Let further models hold what some models hold: `models` has the new number of each."""
        found = [
            ((models[item[0]], item[1]), place)
            for item, place in self._places.items()
            if item[0] in models
        ]
        self._places.update(found)

    def forget(self, models: Collection[int]) -> None:
        """Empty the content of all items of some models."""
        self._places = {
            item: place for item, place in self._places.items() if item[0] not in models
        }
        self._drop_unused()

    def _drop_unused(self) -> None:
        used = {chunk for chunk, _ in self._places.values()}
        for chunk in set(self._chunks) - used:
            del self._chunks[chunk]

    def export_arrays(self, models: Mapping[int, int] | None = None) -> dict[str, np.ndarray]:
        """Return the items and the leaves of their content.

        Args:
            models: The number that each model has in the arrays; None for all models with their own.
        """
        renamed = {
            ((item[0] if models is None else models[item[0]]), item[1]): place
            for item, place in self._places.items()
            if models is None or item[0] in models
        }
        items = sorted(renamed)
        rows = [
            [np.asarray(leaf)[row] for leaf in jax.tree.leaves(self._chunks[chunk][1])]
            for chunk, row in (renamed[item] for item in items)
        ]
        leaves = {
            str(place): np.stack(column) for place, column in enumerate(zip(*rows, strict=True))
        }
        return {"items": np.array(items, np.int32).reshape(-1, 2), **leaves}

    def import_arrays(
        self, arrays: Mapping[str, np.ndarray], models: Mapping[int, int] | None = None
    ) -> None:
        """Continue with what `export_arrays` returned.

        Args:
            arrays: The arrays.
            models: The number that each model of the arrays gets here; None if it is the same.
        """
        template, structure = jax.tree.flatten(self._empty)
        leaves = [jnp.asarray(arrays[str(place)]) for place in range(len(template))]
        items = np.array(arrays["items"], np.int32)
        if models is not None:
            items[:, 0] = [models[model] for model in items[:, 0].tolist()]
        for leaf, empty in zip(leaves, template, strict=True):
            if leaf.shape != (len(items), *jnp.shape(empty)):
                raise ValueError(
                    f"an array of shape {leaf.shape} where {jnp.shape(empty)} is expected"
                )
        self.replace([items], [jax.tree.unflatten(structure, leaves)])
