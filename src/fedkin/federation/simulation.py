"""All nodes in one process: the node's function under `vmap`, one compiled call a communication."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.data.batches import OWN_FIELDS, NodeData, stack_nodes
from fedkin.errors import InputError
from fedkin.federation.base import Cost, Replies
from fedkin.models.objective import Objective
from fedkin.nodes.tasks import TASKS, empty_slot
from fedkin.types import Array, Key

TRACES: Counter[str] = Counter()
"""How often each task has been traced for compilation in this process."""


class SimulatedFederation:
    """Nodes whose data are all at hand.

    Args:
        objective: The model that the nodes train.
        nodes: Each node's prepared inputs and its labels.
        names: The names of the nodes; `node 1`, `node 2`, … if they are not given.
        batch_size: The number of points in a mini-batch.
        seed: Decides how each node's points are parted into mini-batches.
    """

    def __init__(
        self,
        objective: Objective,
        nodes: Sequence[tuple[np.ndarray, np.ndarray]],
        *,
        names: Sequence[str] | None = None,
        batch_size: int = 50,
        seed: int,
    ) -> None:
        if not nodes:
            raise InputError("a federation needs at least one node")
        self.objective = objective
        self.names = tuple(names or (f"node {number}" for number in range(1, len(nodes) + 1)))
        inputs, labels = zip(*nodes, strict=True)
        self.data = stack_nodes(inputs, labels, batch_size, seed)
        self.batches = int(self.data.batches.max())
        self._state: dict[str, Any] = {}

    def call(
        self,
        task: str,
        message: Mapping[str, Array | float],
        *,
        key: Key,
        start: bool = False,
        **options: Any,
    ) -> tuple[Replies, Cost]:
        """Run the task for all nodes at once. See `Federation.call`."""
        slots = {name: self._slot(name) for name in TASKS[task].slots}
        arrays = {name: jnp.asarray(value) for name, value in message.items()}
        bytes_down = len(self.names) * sum(array.nbytes for array in arrays.values())
        evaluations = np.zeros(len(self.names), int)
        if start:
            slots, begun = _begin(self.objective, task, self.data, slots, arrays)
            evaluations += np.asarray(begun)
            for name in TASKS[task].begin_only:
                del arrays[name]
        settings = tuple(sorted(options.items()))
        slots, replies = _run(self.objective, task, settings, self.data, slots, key, arrays)
        self._state.update(slots)
        evaluations += np.asarray(replies.pop("evaluations"))
        cost = Cost(
            synchronizations=1,
            bytes_up=sum(reply.nbytes for reply in replies.values()),
            bytes_down=bytes_down,
            points=int(evaluations.max()),
        )
        return replies, cost

    def export_state(self) -> dict[str, Any]:
        """Return a copy of all slots of all nodes, as NumPy arrays."""
        return jax.tree.map(np.array, self._state)

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Replace all slots of all nodes."""
        self._state = jax.tree.map(jnp.asarray, dict(state))

    def _slot(self, name: str) -> Any:
        if name not in self._state:
            one = empty_slot(name, self.objective)
            self._state[name] = jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf, (len(self.names), *leaf.shape)), one
            )
        return self._state[name]


@partial(jax.jit, static_argnums=(0, 1))
def _begin(
    objective: Objective,
    task: str,
    data: NodeData,
    slots: dict[str, Any],
    message: dict[str, Array],
) -> tuple[dict[str, Any], Array]:
    TRACES[f"{task}: begin"] += 1
    begin = TASKS[task].begin
    assert begin is not None, f"{task} has no beginning"
    return jax.vmap(
        lambda data, slots: begin(objective, data, slots, message), in_axes=(_own_fields(data), 0)
    )(data, slots)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _run(
    objective: Objective,
    task: str,
    settings: tuple[tuple[str, Any], ...],
    data: NodeData,
    slots: dict[str, Any],
    key: Key,
    message: dict[str, Array],
) -> tuple[dict[str, Any], Replies]:
    TRACES[task] += 1

    def one_node(data: NodeData, slots: dict[str, Any], number: Array):
        own_key = jax.random.fold_in(key, number)
        return TASKS[task].function(objective, data, slots, own_key, message, **dict(settings))

    numbers = jnp.arange(len(data.points))
    return jax.vmap(one_node, in_axes=(_own_fields(data), 0, 0))(data, slots, numbers)


def _own_fields(data: NodeData) -> NodeData:
    return OWN_FIELDS if data.weights is not None else OWN_FIELDS._replace(weights=None)
