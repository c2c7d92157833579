"""The node's part of IFCA: the loss of a cluster's model on its data. Training is `descent_round`."""

from fedkin.data.batches import NodeData
from fedkin.federation.task import NodeState, Task
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.types import Array, Key, Message


def cluster_loss(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Reply with the loss of a model on all of the node's data."""
    loss, _ = oracles.full_loss_and_gradient(objective, message["point"], data)
    return state, {"loss": loss, "evaluations": data.points}


CLUSTER_LOSS = Task(
    "cluster_loss",
    cluster_loss,
    vectors=("point",),
    number_replies=("loss",),
    reveals="How well a model does on all rows.",
)
