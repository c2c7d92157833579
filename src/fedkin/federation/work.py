"""The work of nodes whose data are in this process: a task for some nodes, as compiled code.

The nodes that have something to do are divided into shares, a few nodes per share, and threads run the
shares with single-threaded code. Nodes need nothing of each other between two synchronizations, and the
arrays of a step are so small that splitting each operation among cores costs more than it saves. The
shares do not depend on the number of cores, so the numbers do not either, to the last bit.
"""

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.compilation import Call, compile_side_by_side
from fedkin.data.batches import OWN_FIELDS, NodeData
from fedkin.federation.series import Beginning, Item
from fedkin.federation.task import EVALUATIONS, Slot, Task
from fedkin.models.named import BUILT_IN_MODELS
from fedkin.models.objective import Objective
from fedkin.types import Array, Key

SHARES_AIMED_FOR = 4
"""So that two cores have work however small the data are (five, six and nine nodes make three shares);
more nodes or larger data make more shares."""

SMALLEST_SHARE = 4
"""Shares are not made smaller than this for the sake of a few nodes."""

BYTES_AT_ONCE = 1_300_000
"""The mini-batches of the nodes that are computed together may take this much memory as floats: few
enough for a core's cache, enough to make the cost of starting an operation small."""


class LocalWork:
    """Runs tasks on the data of some nodes, and remembers their state.

    Args:
        objective: The model that the nodes train.
        data: The points of all these nodes.
        threads: How many threads run the shares; None for one per core.
        first_number: The number of the first node, where these are some of the nodes of a larger
            federation. With the seed and the key it decides what a node draws.
    """

    def __init__(
        self,
        objective: Objective,
        data: NodeData,
        *,
        threads: int | None = None,
        first_number: int = 0,
    ) -> None:
        self._objective = objective
        self._data = data
        self._first_number = np.int32(first_number)
        nodes = data.batches.size
        self._share_sizes = share_sizes(nodes, _nodes_at_once(data))
        self._contents: dict[str, SlotContents] = {}
        threads = threads or available_cores()
        self._pool = ThreadPoolExecutor(threads) if threads > 1 and nodes > 1 else None

    def compute(
        self,
        task: Task,
        options: Mapping[str, Any],
        items: Sequence[Item],
        message: Mapping[str, Array],
        key: Key,
        beginnings: Mapping[str, Beginning],
        models: Sequence[int] | None = None,
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Run a task for some items.

        Args:
            task: The task.
            options: Its options.
            items: Which nodes work for which models.
            message: Numbers and vectors; vectors of two axes have a row per model.
            key: Node k uses `fold_in(key, k)`.
            beginnings: For each slot that begins somewhere, where, and its vectors.
            models: The models that the rows of vectors are for, in increasing order; None if row m is for
                model m.

        Returns:
            The replies with a row per item, and the evaluations of each item.
        """
        every = np.asarray(items, np.int32).reshape(-1, 2)
        evaluations = np.zeros(len(every), int)
        message = {name: message[name] for name in (*task.vectors, *task.numbers)}
        shares = self._share_out(every)
        work = partial(_run_task, self._objective, task, tuple(sorted(options.items())))
        for slots, chosen in _patterns(task, beginnings, len(every)):
            vectors = {n: v for slot in slots for n, v in beginnings[slot.name].vectors.items()}
            begin = partial(_run_begin, self._objective, slots)
            some = self._share_out(every[chosen])
            needed = {**message, **vectors}
            calls = [self._begin_arguments(slots, share, needed, models) for share in some]
            # Compiled at the same time as what follows, which takes the longest.
            following = self._task_arguments(task, shares[0], key, message, models)
            own = task.is_fedkins_own
            compile_side_by_side(
                [self._code(begin, calls[0], own), self._code(work, following, own)]
            )
            begun = self._run(begin, calls, own)
            self._keep(slots, some, [contents for contents, _ in begun])
            evaluations[chosen] += self._join([count for _, count in begun], len(chosen))
        calls = [self._task_arguments(task, share, key, message, models) for share in shares]
        done = self._run(work, calls, task.is_fedkins_own)
        self._keep(task.slots, shares, [contents for contents, _ in done])
        replies = {
            name: self._join([reply[name] for _, reply in done], len(every)) for name in done[0][1]
        }
        return replies, evaluations + replies.pop(EVALUATIONS)

    def export_arrays(self) -> dict[str, np.ndarray]:
        """Return the content of all slots of all items as named arrays."""
        return {
            f"slot/{name}/{part}": array
            for name, contents in self._contents.items()
            for part, array in contents.export_arrays().items()
        }

    def import_arrays(self, arrays: Mapping[str, np.ndarray], slots: Mapping[str, Slot]) -> None:
        """Replace the content of all slots by what `export_arrays` returned.

        Raises:
            KeyError: If a slot is not among those given, or an array is missing.
        """
        self._contents.clear()
        names = {name.split("/")[1] for name in arrays if name.startswith("slot/")}
        for name in sorted(names):
            prefix = f"slot/{name}/"
            own = {
                key.removeprefix(prefix): array
                for key, array in arrays.items()
                if key.startswith(prefix)
            }
            self._slot(slots[name]).import_arrays(own)

    def _slot(self, slot: Slot) -> "SlotContents":
        if slot.name not in self._contents:
            empty = slot.empty(self._objective, self._data)
            self._contents[slot.name] = SlotContents(empty)
        return self._contents[slot.name]

    def _share_out(self, items: np.ndarray) -> list[np.ndarray]:
        """Divide items into shares of equal size; the last is filled up by repeating the last item."""
        # Few items get small shares: a large one would mostly repeat an item.
        enough = (size for size in self._share_sizes if len(items) > (SHARES_AIMED_FOR - 1) * size)
        size = next(enough, self._share_sizes[-1])
        return [
            items[np.minimum(np.arange(begin, begin + size), len(items) - 1)]
            for begin in range(0, len(items), size)
        ]

    def _begin_arguments(
        self,
        slots: tuple[Slot, ...],
        share: np.ndarray,
        message: Mapping[str, Array],
        models: Sequence[int] | None,
    ) -> tuple:
        contents = {slot.name: self._slot(slot).of(share) for slot in slots}
        return (self._data, share[:, 1], contents, *_divide(message, share, models))

    def _task_arguments(
        self,
        task: Task,
        share: np.ndarray,
        key: Key,
        message: Mapping[str, Array],
        models: Sequence[int] | None,
    ) -> tuple:
        contents = {slot.name: self._slot(slot).of(share) for slot in task.slots}
        places = share[:, 1]
        numbers = places + self._first_number
        return (self._data, places, numbers, contents, key, *_divide(message, share, models))

    def _keep(
        self, slots: Sequence[Slot], shares: list[np.ndarray], contents: list[dict[str, Any]]
    ) -> None:
        for slot in slots:
            self._slot(slot).replace(shares, [own[slot.name] for own in contents])

    def _run(self, function: partial, calls: list[tuple], own: bool) -> list[Any]:
        """Call a function once for each share, each in a thread."""
        (compiled,) = compile_side_by_side([self._code(function, calls[0], own)])
        if self._pool is None or len(calls) == 1:
            return [compiled(*arguments) for arguments in calls]
        return list(
            self._pool.map(lambda arguments: jax.block_until_ready(compiled(*arguments)), calls)
        )

    def _code(self, function: partial, arguments: tuple, own: bool) -> Call:
        """Say which code is needed."""
        lasting = own and type(self._objective.model) in BUILT_IN_MODELS
        return Call(function, arguments, lasting=lasting)

    @staticmethod
    def _join(shares: Sequence[Array], count: int) -> np.ndarray:
        """Put the results of the shares together; what filled up the last one is left out."""
        return np.concatenate([np.asarray(share) for share in shares])[:count]


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
            return self._empty_share(len(share))
        return self._gather(places)

    def _empty_share(self, size: int) -> Any:
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
        empty, structure = jax.tree.flatten(self._empty_share(len(places)))
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
        used = {chunk for chunk, _ in self._places.values()}
        for chunk in set(self._chunks) - used:
            del self._chunks[chunk]

    def export_arrays(self) -> dict[str, np.ndarray]:
        """Return the items and the leaves of their content."""
        items = sorted(self._places)
        rows = [
            [np.asarray(leaf)[row] for leaf in jax.tree.leaves(self._chunks[chunk][1])]
            for chunk, row in (self._places[item] for item in items)
        ]
        leaves = {
            str(place): np.stack(column) for place, column in enumerate(zip(*rows, strict=True))
        }
        return {"items": np.array(items, np.int32).reshape(-1, 2), **leaves}

    def import_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue with what `export_arrays` returned."""
        template, structure = jax.tree.flatten(self._empty)
        leaves = [jnp.asarray(arrays[str(place)]) for place in range(len(template))]
        items = np.asarray(arrays["items"], np.int32)
        for leaf, empty in zip(leaves, template, strict=True):
            if leaf.shape != (len(items), *jnp.shape(empty)):
                raise ValueError(
                    f"an array of shape {leaf.shape} where {jnp.shape(empty)} is expected"
                )
        self.replace([items], [jax.tree.unflatten(structure, leaves)])


def share_sizes(nodes: int, at_once: int) -> tuple[int, ...]:
    """Return the sizes that shares may have, from the largest: few, since each needs its own code.

    No share has more nodes than may be computed at once. A federation of the paper's size has one size.

    >>> share_sizes(15, 100), share_sizes(1500, 100), share_sizes(1500, 2)
    ((4,), (100, 25, 6), (2,))
    """
    sizes = [min(-(-nodes // SHARES_AIMED_FOR), at_once)]
    while sizes[-1] >= 4 * SMALLEST_SHARE:
        sizes.append(sizes[-1] // 4)
    return tuple(sizes)


def _patterns(
    task: Task, beginnings: Mapping[str, Beginning], count: int
) -> list[tuple[tuple[Slot, ...], np.ndarray]]:
    """Group the items by the slots that have to begin: usually all slots of all items, or none."""
    concerned = [slot for slot in task.slots if slot.name in beginnings]
    if not concerned or not count:
        return []
    table = np.stack([beginnings[slot.name].items for slot in concerned], axis=1)
    patterns = np.unique(table, axis=0)
    return [
        (
            tuple(slot for slot, begins in zip(concerned, pattern, strict=True) if begins),
            np.flatnonzero((table == pattern).all(axis=1)),
        )
        for pattern in patterns
        if pattern.any()
    ]


def _divide(
    message: Mapping[str, Array], share: np.ndarray, models: Sequence[int] | None
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Divide a message into what all items of a share get, and what has a row for each."""
    rows = share[:, 0] if models is None else np.searchsorted(models, share[:, 0])
    common = {name: array for name, array in message.items() if array.ndim < 2}
    # NumPy picks rows faster than JAX does outside compiled code.
    own = {
        name: jnp.asarray(np.asarray(array)[rows])
        for name, array in message.items()
        if array.ndim == 2
    }
    return common, own


def available_cores() -> int:
    """Count the cores this process may use; other devices than CPUs need no division of work."""
    if jax.default_backend() != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _nodes_at_once(data: NodeData) -> int:
    floats = math.prod(data.inputs.shape[1:])
    return max(1, BYTES_AT_ONCE // (floats * jnp.dtype(jnp.result_type(float)).itemsize))


def _run_begin(
    objective: Objective,
    slots: tuple[Slot, ...],
    data: NodeData,
    places: Array,
    contents: dict[str, Any],
    common: dict[str, Array],
    own: dict[str, Array],
) -> tuple[dict[str, Any], Array]:
    def begin(
        data: NodeData, contents: dict[str, Any], message: dict[str, Array]
    ) -> tuple[dict[str, Any], Array]:
        begun, evaluations = {}, jnp.zeros_like(data.points)
        for slot in slots:
            begun[slot.name], count = slot.begin(objective, data, contents[slot.name], message)
            evaluations = evaluations + count
        return begun, evaluations

    message = _copies(common, len(places)) | own
    return jax.vmap(begin, in_axes=(OWN_FIELDS, 0, 0))(data.of_node(places), contents, message)


def _run_task(
    objective: Objective,
    task: Task,
    options: tuple[tuple[str, Any], ...],
    data: NodeData,
    places: Array,
    numbers: Array,
    contents: dict[str, Any],
    key: Key,
    common: dict[str, Array],
    own: dict[str, Array],
) -> tuple[dict[str, Any], dict[str, Array]]:
    function = partial(task.function, objective, **dict(options))
    keys = jax.vmap(partial(jax.random.fold_in, key))(numbers)
    message = _copies(common, len(places)) | own
    return jax.vmap(function, in_axes=(OWN_FIELDS, 0, 0, 0))(
        data.of_node(places), contents, keys, message
    )


def _copies(message: dict[str, Array], nodes: int) -> dict[str, Array]:
    """Give each node its own copy of a message.

    If all nodes shared one, a product of it with the nodes' data would become one large product with
    the data rearranged first, which takes far longer than the product.
    """
    return {name: jnp.broadcast_to(array, (nodes, *array.shape)) for name, array in message.items()}
