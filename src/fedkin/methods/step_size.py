"""A step size from the data: below the curvature of every mini-batch (linear models only)."""

import jax.numpy as jnp
import numpy as np

from fedkin.data.batches import NodeData
from fedkin.federation.base import Cost, Federation, PerNode
from fedkin.federation.task import NodeState, Task
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.types import Array, Key, Message


def smoothness(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Reply with a bound on the curvature of the node's mini-batches (linear models only)."""
    bound = oracles.smoothness(objective, data)
    return state, {"smoothness": bound, "evaluations": jnp.zeros_like(data.points)}


SMOOTHNESS = Task(
    "smoothness",
    smoothness,
    number_replies=("smoothness",),
    reveals="How large the rows of the largest mini-batch are.",
)


def largest_curvature(learners: Federation, key: Key) -> tuple[float, Cost]:
    """Ask for the largest curvature of a mini-batch, of the nodes that answer."""
    reply = learners.exchange(bound=PerNode(SMOOTHNESS), key=key)
    return float(np.nanmax(np.asarray(reply.bound["smoothness"]))), reply.cost
