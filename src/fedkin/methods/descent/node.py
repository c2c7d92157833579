"""The node's part of methods that train by mini-batch descent: some steps from the model that it is sent."""

from fedkin.data.batches import NodeData
from fedkin.federation.task import RATE, STEPS, NodeState, Task
from fedkin.methods.ditto.node import LARGEST_PULL, personal_round
from fedkin.models.objective import Objective
from fedkin.types import Array, Key, Message


def descent_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    steps: int,
) -> tuple[NodeState, dict[str, Array]]:
    """Take mini-batch steps from a model, pulled back toward it with a strength λ that may be zero."""
    result = personal_round(
        objective,
        data,
        message["point"],
        message["point"],
        key,
        steps=steps,
        learning_rate=message["learning_rate"],
        proximal=message["proximal"],
    )
    return state, result._asdict()


DESCENT_ROUND = Task(
    "descent_round",
    descent_round,
    vectors=("point",),
    numbers={"learning_rate": RATE, "proximal": (0.0, LARGEST_PULL)},
    options={"steps": STEPS},
    vector_replies=("point",),
    number_replies=("loss",),
    reveals="The gradient over a mini-batch (one step), or where training leads from the model sent.",
)
