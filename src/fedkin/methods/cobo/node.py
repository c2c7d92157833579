"""The node's part of CoBo: its gradient between two models. Training is `descent_round`."""

from fedkin.data.batches import NodeData
from fedkin.federation.task import NodeState, Task
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.types import Array, Key, Message


def midpoint_gradient(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Reply with the gradient of the node's loss at a model."""
    _, gradient = oracles.full_loss_and_gradient(objective, message["point"], data)
    return state, {"gradient": gradient, "evaluations": data.points}


MIDPOINT_GRADIENT = Task(
    "midpoint_gradient",
    midpoint_gradient,
    vectors=("point",),
    vector_replies=("gradient",),
    reveals="The same as `gradient`.",
)
