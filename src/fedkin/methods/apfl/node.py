r"""The owner's part of APFL (Deng et al. 2020, its Algorithm 1): a mixture of two models.

The mixture is :math:`\bar v = \alpha v + (1 - \alpha) w`, with the owner's version w of the shared model. The
nodes train w with `descent_round`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from fedkin.data.batches import NodeData
from fedkin.federation.task import RATE, SHARE, STEPS, NodeState, Slot, Task, zeros
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.nodes.draws import draw_batches
from fedkin.types import Array, Key, Message, Vector


class Mixture(NamedTuple):
    """What the owner keeps from one synchronization to the next."""

    personal: Vector
    """The personal model v."""
    mixing: Array
    """Its share α of the mixture."""


def _begin_mixture(
    objective: Objective, data: NodeData, content: Mixture, message: Message
) -> tuple[Mixture, Array]:
    return Mixture(message["shared"], message["mixing"]), jnp.zeros_like(data.points)


MIXTURE = Slot(
    "apfl_mixture",
    empty=lambda objective, data: Mixture(zeros(objective), jnp.zeros((), jnp.result_type(float))),
    begin=_begin_mixture,
    lasting=True,
)


def apfl_personal_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    steps: int,
) -> tuple[NodeState, dict[str, Array]]:
    """Take APFL's steps on the shared model, the personal one and their shares; reply with the mixture."""
    rate, batches = message["learning_rate"], draw_batches(key, steps, data.batches)

    def step(models: tuple[Vector, Mixture], index: Array) -> tuple[tuple[Vector, Mixture], Array]:
        shared, (personal, mixing) = models
        batch = data.batch(index)
        mixed = mixing * personal + (1 - mixing) * shared
        _, of_shared = oracles.batch_loss_and_gradient(objective, shared, batch)
        loss, of_mixed = oracles.batch_loss_and_gradient(objective, mixed, batch)
        slope = jnp.vdot(of_mixed, personal - shared)
        moved = Mixture(
            personal - rate * mixing * of_mixed,
            jnp.clip(mixing - message["mixing_rate"] * slope, 0.0, 1.0),
        )
        return (shared - rate * of_shared, moved), loss

    (shared, kept), losses = lax.scan(step, (message["shared"], state["apfl_mixture"]), batches)
    mixed = kept.mixing * kept.personal + (1 - kept.mixing) * shared
    return {"apfl_mixture": kept}, {
        "point": mixed,
        "loss": jnp.mean(losses),
        "share": kept.mixing,
        "evaluations": 2 * jnp.sum(data.batch_points(batches)),
    }


APFL_PERSONAL_ROUND = Task(
    "apfl_personal_round",
    apfl_personal_round,
    slots=(MIXTURE,),
    vectors=("shared",),
    numbers={"learning_rate": RATE, "mixing": SHARE, "mixing_rate": RATE},
    options={"steps": STEPS},
    vector_replies=("point",),
    number_replies=("loss", "share"),
    remote=False,
)
