r"""The node's part of Ditto (Li et al. 2021, its Algorithm 2).

A node takes mini-batch steps on two models: on the shared one, as in federated averaging, and on a
personal one that is pulled toward the shared one,

.. math:: \min_v\; F_k(v) + \frac{\lambda}{2} \|v - w^t\|^2 .
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


class DescentResult(NamedTuple):
    """What some mini-batch steps leave behind."""

    point: Vector
    loss: Array
    """The mean loss of the mini-batches met, each at the iterate of its step, without the pull."""
    evaluations: Array
    """Gradients of single points that were computed."""


def shared_round(
    objective: Objective,
    data: NodeData,
    shared: Vector,
    key: Key,
    *,
    steps: int,
    learning_rate: Array,
) -> DescentResult:
    """Train the shared model for r steps, w_k ← w_k − η_g ∇F_k(w_k; batch), from the broadcast."""
    # The personal model's steps, without their pull.
    return personal_round(
        objective,
        data,
        shared,
        shared,
        key,
        steps=steps,
        learning_rate=learning_rate,
        proximal=jnp.zeros_like(learning_rate),
    )


def personal_round(
    objective: Objective,
    data: NodeData,
    personal: Vector,
    shared: Vector,
    key: Key,
    *,
    steps: int,
    learning_rate: Array,
    proximal: Array,
) -> DescentResult:
    """Train the personal model for s steps, v ← v − η_l (∇F_k(v; batch) + λ(v − w^t)).

    Args:
        objective: The model.
        data: The node's points.
        personal: The personal model v as it stands.
        shared: The shared model w^t as it was broadcast in this round.
        key: Decides the mini-batches.
        steps: The number s of steps.
        learning_rate: The step size η_l.
        proximal: The strength λ of the pull.
    """
    batches = draw_batches(key, steps, data.batches)

    def step(point: Vector, index: Array) -> tuple[Vector, Array]:
        loss, gradient = oracles.batch_loss_and_gradient(objective, point, data.batch(index))
        return point - learning_rate * (gradient + proximal * (point - shared)), loss

    point, losses = lax.scan(step, personal, batches)
    return DescentResult(point, jnp.mean(losses), jnp.sum(data.batch_points(batches)))


def ditto_shared_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    steps: int,
) -> tuple[NodeState, dict[str, Array]]:
    """Take Ditto's r steps on the shared model."""
    result = shared_round(
        objective, data, message["shared"], key, steps=steps, learning_rate=message["learning_rate"]
    )
    return state, result._asdict()


def _begin_personal(
    objective: Objective, data: NodeData, content: Vector, message: Message
) -> tuple[Vector, Array]:
    return message["personal"], jnp.zeros_like(data.points)


LARGEST_PULL = 1e6
"""The largest strength of a pull toward the model that a node is sent."""

PERSONAL = Slot(
    "personal",
    empty=lambda objective, data: zeros(objective),
    begin=_begin_personal,
    vectors=("personal",),
)


def ditto_personal_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    steps: int,
) -> tuple[NodeState, dict[str, Array]]:
    """Take Ditto's s steps on the personal model, and reply with it: for the owner's own data only."""
    result = personal_round(
        objective,
        data,
        state["personal"],
        message["shared"],
        key,
        steps=steps,
        learning_rate=message["learning_rate"],
        proximal=message["proximal"],
    )
    return {"personal": result.point}, result._asdict()


DITTO_SHARED_ROUND = Task(
    "ditto_shared_round",
    ditto_shared_round,
    vectors=("shared",),
    numbers={"learning_rate": RATE},
    options={"steps": STEPS},
    vector_replies=("point",),
    number_replies=("loss",),
    reveals="The same as `descent_round`.",
)
DITTO_PERSONAL_ROUND = Task(
    "ditto_personal_round",
    ditto_personal_round,
    slots=(PERSONAL,),
    vectors=("shared",),
    numbers={"learning_rate": RATE, "proximal": (0.0, LARGEST_PULL)},
    options={"steps": STEPS},
    vector_replies=("point",),
    number_replies=("loss",),
    remote=False,
)
