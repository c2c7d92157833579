r"""The node's part of FedALA (Zhang et al. 2023): mixing the global and the local model, element by element.

.. math:: \hat\theta = \theta_i + (\Theta - \theta_i) \odot W, \qquad
          W \leftarrow \operatorname{clip}(W - \eta \nabla F(\hat\theta) \odot (\Theta - \theta_i), 0, 1)
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from fedkin.data.batches import NodeData
from fedkin.federation.task import RATE, STEPS, NodeState, Slot, Task, zeros
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.nodes.draws import draw_batches
from fedkin.types import Array, Key, Message, Vector


class LocalModel(NamedTuple):
    """What a node keeps from one synchronization to the next."""

    point: Vector
    """Its local model θ_i."""
    mixing: Vector
    """How much of the global model each parameter takes over, W."""


def _begin_local_model(
    objective: Objective, data: NodeData, content: LocalModel, message: Message
) -> tuple[LocalModel, Array]:
    shared = message["shared"]
    return LocalModel(shared, jnp.ones_like(shared)), jnp.zeros_like(data.points)


LOCAL_MODEL = Slot(
    "fedala_local_model",
    empty=lambda objective, data: LocalModel(zeros(objective), zeros(objective)),
    begin=_begin_local_model,
    lasting=True,
)


def fedala_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    steps: int,
    mixing_steps: int,
) -> tuple[NodeState, dict[str, Array]]:
    """Learn how much of the global model to take over, then train from there."""
    before: LocalModel = state["fedala_local_model"]
    shared, difference = message["shared"], message["shared"] - before.point
    drawn = draw_batches(key, mixing_steps + steps, data.batches)

    def mix(mixing: Vector, index: Array) -> tuple[Vector, None]:
        point = before.point + difference * mixing
        _, gradient = oracles.batch_loss_and_gradient(objective, point, data.batch(index))
        return jnp.clip(mixing - message["mixing_rate"] * gradient * difference, 0.0, 1.0), None

    def train(point: Vector, index: Array) -> tuple[Vector, Array]:
        loss, gradient = oracles.batch_loss_and_gradient(objective, point, data.batch(index))
        return point - message["learning_rate"] * gradient, loss

    mixing, _ = lax.scan(mix, before.mixing, drawn[:mixing_steps])
    start = before.point + (shared - before.point) * mixing
    point, losses = lax.scan(train, start, drawn[mixing_steps:])
    return {"fedala_local_model": LocalModel(point, mixing)}, {
        "point": point,
        "loss": jnp.mean(losses),
        "mixing": jnp.mean(mixing),
        "evaluations": jnp.sum(data.batch_points(drawn)),
    }


FEDALA_ROUND = Task(
    "fedala_round",
    fedala_round,
    slots=(LOCAL_MODEL,),
    vectors=("shared",),
    numbers={"learning_rate": RATE, "mixing_rate": RATE},
    options={"steps": STEPS, "mixing_steps": STEPS},
    vector_replies=("point",),
    number_replies=("loss", "mixing"),
    reveals="The same as `descent_round`.",
)
