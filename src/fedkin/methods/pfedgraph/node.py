"""The node's part of pFedGraph: how many points it has. Training is `descent_round`."""

import jax.numpy as jnp

from fedkin.data.batches import NodeData
from fedkin.federation.task import NodeState, Task
from fedkin.models.objective import Objective
from fedkin.types import Array, Key, Message


def node_size(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Reply with the number of the node's points."""
    points = jnp.asarray(data.points)
    return state, {
        "points": points.astype(jnp.result_type(float)),
        "evaluations": jnp.zeros_like(points),
    }


NODE_SIZE = Task(
    "node_size",
    node_size,
    number_replies=("points",),
    reveals="The number of rows.",
)
