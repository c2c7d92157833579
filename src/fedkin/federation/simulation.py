"""All nodes in one process: the node's function under `vmap`, one compiled call a communication.

The nodes are shared out, a few to a share, and threads run the shares with single-threaded code.
Nodes need nothing of each other between two synchronizations, and the arrays of a step are so small
that splitting each single operation among cores costs more than it brings. The shares do not depend on
the number of cores, so neither do the numbers, to the last bit.
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
from fedkin.data.batches import OWN_FIELDS, NodeData, stack_nodes
from fedkin.errors import InputError
from fedkin.federation.base import Cost, Replies
from fedkin.methods.local_svrg.node import gradients_to_keep
from fedkin.methods.tasks import TASKS, empty_slot
from fedkin.models.named import BUILT_IN_MODELS
from fedkin.models.objective import Objective
from fedkin.types import Array, Key

LEAST_SHARES = 4
"""So that two cores have work however small the data are (five, six and nine nodes make three); more
nodes or larger data make more shares."""

BYTES_AT_ONCE = 1_300_000
"""The mini-batches of the nodes that are computed together may take this much memory as floats: few
enough for a core's cache, enough to make the cost of starting an operation small."""


class SimulatedFederation:
    """Nodes whose data are all at hand.

    Args:
        objective: The model that the nodes train.
        nodes: Each node's prepared inputs and its labels.
        names: The names of the nodes; `node 1`, `node 2`, … if they are not given.
        batch_size: The number of points in a mini-batch.
        seed: Decides how each node's points are parted into mini-batches.
        threads: How many threads run the shares of the nodes; None for one a core.
        first_number: The number of the first node, where these are some of the nodes of a larger
            federation: it decides, with the seed and the key, what a node draws.
    """

    def __init__(
        self,
        objective: Objective,
        nodes: Sequence[tuple[np.ndarray, np.ndarray]],
        *,
        names: Sequence[str] | None = None,
        batch_size: int = 50,
        seed: int,
        threads: int | None = None,
        first_number: int = 0,
    ) -> None:
        if not nodes:
            raise InputError("a federation needs at least one node")
        self.objective = objective
        self.names = tuple(names or (f"node {number}" for number in range(1, len(nodes) + 1)))
        inputs, labels = zip(*nodes, strict=True)
        self.data = stack_nodes(inputs, labels, batch_size, seed, first_number)
        self.present = np.ones(len(nodes), bool)
        self.batches = int(self.data.batches.max())
        self._shares = _share_out(len(nodes), _nodes_at_once(self.data))
        self._first_number = np.int32(first_number)
        self._kept = gradients_to_keep(objective, self.data)
        self._state: dict[str, list[Any]] = {}  # for each slot, what each share of the nodes keeps
        threads = min(threads or _cores(), len(self._shares))
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def call(
        self,
        task: str,
        message: Mapping[str, Array | float],
        *,
        key: Key,
        node_weights: Array | None = None,
        start: bool = False,
        **options: Any,
    ) -> tuple[Replies, Cost]:
        """Run the task for all nodes at once. See `Federation.call`; here every node answers."""
        names = TASKS[task].slots
        slots = [
            {name: self._slot(name)[share] for name in names} for share in range(len(self._shares))
        ]
        arrays = {name: _as_array(value) for name, value in message.items()}
        bytes_down = len(self.names) * sum(array.nbytes for array in arrays.values())
        evaluations = np.zeros(len(self.names), int)
        begin = partial(_begin, self.objective, task)
        work = partial(_task, self.objective, task, tuple(sorted(options.items())))
        later = {
            name: array for name, array in arrays.items() if name not in TASKS[task].begin_only
        }

        def own_arguments(numbers: np.ndarray, own: Any) -> tuple:
            return (self.data, numbers, numbers + self._first_number, own, key, later)

        if start:
            begin_arguments = [
                (self.data, numbers, own, arrays)
                for numbers, own in zip(self._shares, slots, strict=True)
            ]
            compile_side_by_side(
                [
                    self._code(begin, begin_arguments[0]),
                    self._code(work, own_arguments(self._shares[0], slots[0])),
                ]
            )
            begun = self._run(begin, begin_arguments)
            slots = [own for own, _ in begun]
            evaluations += self._join([count for _, count in begun])
        done = self._run(work, list(map(own_arguments, self._shares, slots)))
        self._state |= {name: [own[name] for own, _ in done] for name in names}
        replies = {name: self._join([reply[name] for _, reply in done]) for name in done[0][1]}
        evaluations += replies.pop("evaluations")
        cost = Cost(
            synchronizations=1,
            bytes_up=sum(reply.nbytes for reply in replies.values()),
            bytes_down=bytes_down,
            node_points=tuple(evaluations.tolist()),
        )
        return {name: jnp.asarray(reply) for name, reply in replies.items()}, cost

    def begin_step(self, step: int) -> None:
        """Nothing to get ready: all nodes are at hand."""

    def end_step(self) -> tuple[str, ...]:
        """Return nothing: nothing goes wrong with nodes at hand."""
        return ()

    def export_state(self) -> dict[str, Any]:
        """Return a copy of all slots of all nodes, as NumPy arrays."""
        return {
            name: jax.tree.map(lambda *leaves: self._join(leaves), *shares)
            for name, shares in self._state.items()
        }

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Replace all slots of all nodes."""
        self._state = {
            name: [_pick(slot, numbers) for numbers in self._shares] for name, slot in state.items()
        }

    def _slot(self, name: str) -> list[Any]:
        if name not in self._state:
            one = empty_slot(name, self.objective, self._kept)
            size = len(self._shares[0])
            stacked = jax.tree.map(lambda leaf: jnp.tile(leaf, (size, *[1] * leaf.ndim)), one)
            self._state[name] = [stacked] * len(self._shares)
        return self._state[name]

    def _run(self, function: partial, shares: list[tuple]) -> list[Any]:
        """Call a function once for each share of the nodes, each in its own thread."""
        (compiled,) = compile_side_by_side([self._code(function, shares[0])])
        if self._pool is None:
            return [compiled(*arguments) for arguments in shares]
        return list(self._pool.map(lambda arguments: _wait(compiled(*arguments)), shares))

    def _code(self, function: partial, arguments: tuple) -> Call:
        """Say which code is needed."""
        return Call(function, arguments, lasting=type(self.objective.model) in BUILT_IN_MODELS)

    def _join(self, shares: Sequence[Array]) -> np.ndarray:
        """Put together what the shares have brought; the last nodes may be filling."""
        return np.concatenate([np.asarray(share) for share in shares])[: len(self.names)]


def _cores() -> int:
    """Count the cores this process may use; other devices than CPUs need no sharing out."""
    if jax.default_backend() != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _nodes_at_once(data: NodeData) -> int:
    floats = math.prod(data.inputs.shape[1:])
    return max(1, BYTES_AT_ONCE // (floats * jnp.dtype(jnp.result_type(float)).itemsize))


def _share_out(nodes: int, at_once: int) -> list[np.ndarray]:
    """Share the nodes out; the last share is filled up by repeating the last node."""
    size = min(-(-nodes // LEAST_SHARES), at_once)
    return [
        np.minimum(np.arange(begin, begin + size), nodes - 1).astype(np.int32)
        for begin in range(0, nodes, size)
    ]


def _pick(slot: Any, numbers: np.ndarray) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[numbers]), slot)


def _as_array(value: Array | float) -> Array:
    """Give a plain number the type of all others, so that it never asks for other compiled code."""
    return value if isinstance(value, jax.Array) else jnp.asarray(np.asarray(value))


def _wait(result: Any) -> Any:
    return jax.block_until_ready(result)


def _begin(
    objective: Objective,
    task: str,
    data: NodeData,
    numbers: Array,
    slots: dict[str, Any],
    message: dict[str, Array],
) -> tuple[dict[str, Any], Array]:
    begin = TASKS[task].begin
    assert begin is not None, f"{task} has no beginning"
    return jax.vmap(partial(begin, objective), in_axes=(OWN_FIELDS, 0, 0))(
        data.of_node(numbers), slots, _copies(message, len(numbers))
    )


def _task(
    objective: Objective,
    task: str,
    settings: tuple[tuple[str, Any], ...],
    data: NodeData,
    places: Array,
    numbers: Array,
    slots: dict[str, Any],
    key: Key,
    message: dict[str, Array],
) -> tuple[dict[str, Any], Replies]:
    function = partial(TASKS[task].function, objective, **dict(settings))
    keys = jax.vmap(partial(jax.random.fold_in, key))(numbers)
    return jax.vmap(function, in_axes=(OWN_FIELDS, 0, 0, 0))(
        data.of_node(places), slots, keys, _copies(message, len(places))
    )


def _copies(message: dict[str, Array], nodes: int) -> dict[str, Array]:
    """Give each node its own copy of a message.

    If all nodes shared one, a product of it with the nodes' data would become one large product with
    the data rearranged first, which takes far longer than the product.
    """
    return {name: jnp.broadcast_to(array, (nodes, *array.shape)) for name, array in message.items()}
