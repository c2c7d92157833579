r"""The node's part of pFedMe (Dinh et al. 2020, its Algorithm 1).

The shared model is trained on the Moreau envelopes of the nodes' losses, whose gradient is
:math:`\lambda (w - \hat\theta(w))` with the personal model

.. math:: \hat\theta(w) = \operatorname{argmin}_\theta\; f(\theta) + \frac{\lambda}{2} \|\theta - w\|^2 .
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from fedkin.data.batches import NodeData
from fedkin.federation.task import RATE, STEPS, NodeState, Task
from fedkin.models.objective import Batch, Objective
from fedkin.nodes import oracles
from fedkin.nodes.draws import draw_batches
from fedkin.types import Array, Key, Message, Vector


class ProximalResult(NamedTuple):
    """An approximate solution of the proximal subproblem."""

    point: Vector
    loss: Array
    """The loss of the mini-batch where its gradient was last computed, without the pull."""
    iterations: Array
    """Gradients of the mini-batch that were computed."""


class RoundResult(NamedTuple):
    """What the R local rounds between two synchronizations leave behind."""

    shared: Vector
    """The node's version w_k of the shared model."""
    personal: Vector
    """The last solution of the proximal subproblem."""
    loss: Array
    """The mean loss of the subproblems' solutions on their mini-batches."""
    iterations: Array
    """The mean number of iterations that a subproblem took."""
    evaluations: Array
    """Gradients of single points that were computed."""


def solve_proximal(
    objective: Objective,
    batch: Batch,
    shared: Vector,
    *,
    learning_rate: Array,
    proximal: Array,
    tolerance: Array,
    iterations: int,
) -> ProximalResult:
    """Minimize f(θ; batch) + λ/2 ‖θ − w‖² by gradient descent from w (Algorithm 1, line 7).

    Each iteration computes a gradient, and moves unless that gradient is below the tolerance δ.

    Args:
        objective: The model.
        batch: The mini-batch of this local round.
        shared: The node's version w of the shared model.
        learning_rate: The step size γ.
        proximal: The strength λ of the pull.
        tolerance: The norm δ of the subproblem's gradient that is small enough.
        iterations: The largest number of iterations.
    """

    def unsolved(state: tuple[Vector, Array, Array, Array]) -> Array:
        _, _, solved, count = state
        return ~solved & (count < iterations)

    def improve(state: tuple[Vector, Array, Array, Array]) -> tuple[Vector, Array, Array, Array]:
        theta, _, _, count = state
        loss, gradient = oracles.batch_loss_and_gradient(objective, theta, batch)
        gradient = gradient + proximal * (theta - shared)
        solved = jnp.linalg.norm(gradient) < tolerance
        moved = jnp.where(solved, theta, theta - learning_rate * gradient)
        return moved, loss, solved, count + 1

    start = (shared, jnp.zeros((), shared.dtype), jnp.array(False), jnp.zeros((), jnp.int32))
    theta, loss, _, count = lax.while_loop(unsolved, improve, start)
    return ProximalResult(theta, loss, count)


def local_rounds(
    objective: Objective,
    data: NodeData,
    shared: Vector,
    key: Key,
    *,
    rounds: int,
    learning_rate: Array,
    proximal: Array,
    tolerance: Array,
    iterations: int,
) -> RoundResult:
    """Take R local rounds, w ← w − ηλ(w − θ̃(w)), from the broadcast (Algorithm 1, lines 5-8).

    The step size η of the local rounds and that of the subproblem are both γ.
    """
    batches = draw_batches(key, rounds, data.batches)

    def local_round(
        models: tuple[Vector, Vector], index: Array
    ) -> tuple[tuple[Vector, Vector], tuple[Array, Array]]:
        shared, _ = models
        solution = solve_proximal(
            objective,
            data.batch(index),
            shared,
            learning_rate=learning_rate,
            proximal=proximal,
            tolerance=tolerance,
            iterations=iterations,
        )
        moved = shared - learning_rate * proximal * (shared - solution.point)
        return (moved, solution.point), (solution.loss, solution.iterations)

    (shared, personal), (losses, counts) = lax.scan(local_round, (shared, shared), batches)
    return RoundResult(
        shared,
        personal,
        jnp.mean(losses),
        jnp.mean(counts, dtype=losses.dtype),
        jnp.sum(counts * data.batch_points(batches)),
    )


def pfedme_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    steps: int,
    iterations: int,
) -> tuple[NodeState, dict[str, Array]]:
    """Take pFedMe's R local rounds; reply with the node's version of the shared model."""
    result = _asked_rounds(objective, data, key, message, steps, iterations)
    return state, _reply(result, result.shared)


def pfedme_personal_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    steps: int,
    iterations: int,
) -> tuple[NodeState, dict[str, Array]]:
    """Take the same rounds, and reply with the personal model: for the owner's own data only."""
    result = _asked_rounds(objective, data, key, message, steps, iterations)
    return state, _reply(result, result.personal)


def _asked_rounds(
    objective: Objective, data: NodeData, key: Key, message: Message, steps: int, iterations: int
) -> RoundResult:
    return local_rounds(
        objective,
        data,
        message["shared"],
        key,
        rounds=steps,
        learning_rate=message["learning_rate"],
        proximal=message["proximal"],
        tolerance=message["tolerance"],
        iterations=iterations,
    )


def _reply(result: RoundResult, point: Vector) -> dict[str, Array]:
    return {
        "point": point,
        "loss": result.loss,
        "iterations": result.iterations,
        "evaluations": result.evaluations,
    }


_FORM: dict[str, Any] = {
    "vectors": ("shared",),
    "numbers": {"learning_rate": RATE, "proximal": (0.0, 1e6), "tolerance": (0.0, 1e6)},
    "options": {"steps": STEPS, "iterations": STEPS},
    "vector_replies": ("point",),
    "number_replies": ("loss", "iterations"),
}

PFEDME_ROUND = Task(
    "pfedme_round",
    pfedme_round,
    **_FORM,
    reveals="The same as `descent_round`.",
)
PFEDME_PERSONAL_ROUND = Task("pfedme_personal_round", pfedme_personal_round, **_FORM, remote=False)
