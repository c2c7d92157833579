"""Fine-tuning on the owner's own data: how long is decided by mini-batches that are held out."""

import jax.numpy as jnp
from jax import lax

from fedkin.data.batches import NodeData
from fedkin.federation.task import RATE, STEPS, NodeState, Task
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.nodes.draws import draw_batches
from fedkin.types import Array, Key, Message, Vector

HELD_OUT = 4
"""One mini-batch of this many is held out, and at least one."""


def held_out_loss(objective: Objective, data: NodeData, point: Vector, first: Array) -> Array:
    """Return the mean loss of the mini-batches from a place on."""

    def add(index: Array, total: Array) -> Array:
        return total + oracles.batch_loss_and_gradient(objective, point, data.batch(index))[0]

    total = lax.fori_loop(first, data.batches, add, jnp.zeros((), point.dtype))
    return total / (data.batches - first)


def fine_tuning(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    steps: int,
    choices: int,
) -> tuple[NodeState, dict[str, Array]]:
    """Train from the shared model on the owner's own rows, for as long as held-out rows gain from it.

    A trial on the other mini-batches measures the held-out loss after 0, s, 2s, … steps. Then all of them
    train from the start, for the number of steps that was best. With a single mini-batch there is nothing
    to hold out: it takes s steps.
    """
    start, rate = message["point"], message["learning_rate"]
    alone = data.batches < 2
    first = jnp.where(alone, data.batches, data.batches - jnp.maximum(data.batches // HELD_OUT, 1))
    on_trial = draw_batches(key, steps * choices, first).reshape(choices, steps)
    finally_drawn = draw_batches(key, steps * choices, data.batches)

    def step(point: Vector, index: Array) -> Vector:
        _, gradient = oracles.batch_loss_and_gradient(objective, point, data.batch(index))
        return point - rate * gradient

    def try_steps(point: Vector, indices: Array) -> tuple[Vector, Array]:
        point, _ = lax.scan(lambda at, index: (step(at, index), None), point, indices)
        return point, held_out_loss(objective, data, point, first)

    _, losses = lax.scan(try_steps, start, on_trial)
    losses = jnp.append(held_out_loss(objective, data, start, first), losses)
    losses = jnp.where(jnp.isfinite(losses), losses, jnp.inf)
    best = jnp.where(alone, 1, jnp.argmin(losses)) * steps

    def train(at: tuple[Vector, Array], index: Array) -> tuple[tuple[Vector, Array], None]:
        point, number = at
        return (jnp.where(number < best, step(point, index), point), number + 1), None

    (point, _), _ = lax.scan(train, (start, jnp.zeros_like(best)), finally_drawn)
    drawn = jnp.where(jnp.arange(steps * choices) < best, data.batch_points(finally_drawn), 0)
    evaluations = jnp.sum(data.batch_points(on_trial.reshape(-1))) + jnp.sum(drawn)
    return state, {
        "point": point,
        "gain": jnp.where(alone, 0.0, losses[0] - jnp.min(losses)),
        "taken": best.astype(point.dtype),
        "evaluations": evaluations,
    }


FINE_TUNING = Task(
    "fine_tuning",
    fine_tuning,
    vectors=("point",),
    numbers={"learning_rate": RATE},
    options={"steps": STEPS, "choices": STEPS},
    vector_replies=("point",),
    number_replies=("gain", "taken"),
    remote=False,
)
