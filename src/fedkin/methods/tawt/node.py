"""The node's part of TAWT: how well its gradient agrees with the owner's."""

import jax.numpy as jnp

from fedkin.data.batches import NodeData
from fedkin.federation.task import NodeState, Task
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.types import Array, Key, Message


def gradient_cosine(
    objective: Objective, data: NodeData, state: NodeState, key: Key, message: Message
) -> tuple[NodeState, dict[str, Array]]:
    """Reply with the cosine of the angle between a vector and the gradient of the node's loss."""
    _, gradient = oracles.full_loss_and_gradient(objective, message["point"], data)
    norms = jnp.linalg.norm(gradient) * jnp.linalg.norm(message["vector"])
    cosine = jnp.vdot(gradient, message["vector"]) / jnp.maximum(norms, jnp.finfo(norms.dtype).tiny)
    return state, {"cosine": cosine, "evaluations": data.points}


GRADIENT_COSINE = Task(
    "gradient_cosine",
    gradient_cosine,
    vectors=("point", "vector"),
    number_replies=("cosine",),
    reveals="The direction of the gradient over all rows, one number at a time.",
)
