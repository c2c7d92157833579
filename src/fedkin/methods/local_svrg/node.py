r"""The node's part of Local-SVRG (Algorithm 1, `alg:localsvrg`).

One set of functions serves both problems that the paper solves with it:

- *inner*: :math:`f_{k,i}(x) = l(x; z_i)`, the loss itself;
- *adjoint*: :math:`f_{k,i}(x) = \frac12 x^\top \nabla^2 l(\theta; z_i) x - x^\top \nabla L_0(\theta)`,
  whose gradient is linear in x, so that the difference of two gradients is one Hessian-vector product.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from fedkin.data.batches import NodeData
from fedkin.federation.task import RATE, SHARE, STEPS, NodeState, Slot, Task, zeros
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.nodes.draws import draw_batches_and_coins
from fedkin.types import Array, Key, Message, Vector

LEAST_RATIO = 4
"""Gradients of mini-batches are kept if the data take at least this many times as much memory."""


class ReferenceGradients(NamedTuple):
    """The gradients at a reference point."""

    full: Vector
    """The full gradient ∇f_k(y_k)."""
    of_batches: Array
    """The gradients ∇f_{k,i}(y_k) of the mini-batches, a row for each; no rows if they are not kept."""

    @classmethod
    def zeros(cls, point: Vector, kept: int) -> "ReferenceGradients":
        """Allocate zeros for the full gradient and for the gradients of `kept` mini-batches."""
        return cls(jnp.zeros_like(point), jnp.zeros((kept, *point.shape), point.dtype))


class SvrgState(NamedTuple):
    """What a node keeps from one round to the next."""

    reference: Vector
    """The reference point y_k."""
    gradients: ReferenceGradients
    """The gradients there."""
    due: Array
    """True if the reference point is new and its gradients are still to be computed."""
    average: Vector
    """The weighted average of the node's iterates so far."""
    average_mass: Array
    """The sum of the averaging weights so far, in units of the newest one: it cannot overflow."""


class SvrgProblem(NamedTuple):
    """The functions f_{k,i} of one node, as far as Local-SVRG needs them.

    `operands` are the arrays behind the functions, passed explicitly so that a simulation can pick
    out those of a single node.
    """

    operands: tuple
    step_gradients: Callable[[Vector, SvrgState, Array, tuple], tuple[Array, Vector]]
    """(x, state, i, operands) to the loss of mini-batch i at x and ∇f_i(x) − ∇f_i(y)."""
    reference_gradients: Callable[[Vector, tuple], ReferenceGradients]
    """(y, operands) to the gradients at y."""
    kept: int
    """How many gradients of mini-batches are kept with a reference point."""
    evaluations_per_point: int
    """How many gradients or Hessian-vector products of a point one step of Algorithm 1 takes."""


def gradients_to_keep(objective: Objective, data: NodeData) -> int:
    """Say how many gradients of mini-batches each of these nodes keeps with its reference point.

    A refresh passes through all mini-batches. The gradients it meets there are the ∇f_i(y) of every
    step until the next refresh, so keeping them spares half of the gradients of a step. All nodes get room
    for as many as the largest has; where that, or a large model, would take too much memory compared with the
    data, none are kept, and steps compute them again.
    """
    rows = data.turns.size
    gradient_bytes = objective.size * jnp.dtype(jnp.result_type(float)).itemsize
    return rows if data.batches.size * rows * gradient_bytes * LEAST_RATIO <= data.nbytes else 0


def inner_problem(objective: Objective, data: NodeData, kept: int) -> SvrgProblem:
    """State the node's part of `eq:blopt_inner`, with the gradients of `kept` mini-batches kept."""
    loss_and_gradient = partial(oracles.batch_loss_and_gradient, objective)

    def step_gradients(
        point: Vector, state: SvrgState, index: Array, operands: tuple
    ) -> tuple[Array, Vector]:
        (data,) = operands
        if kept:
            loss, gradient = loss_and_gradient(point, data.batch(index))
            return loss, gradient - state.gradients.of_batches[index]
        return oracles.batch_loss_and_difference(
            objective, point, state.reference, data.batch(index)
        )

    def reference_gradients(point: Vector, operands: tuple) -> ReferenceGradients:
        (data,) = operands
        if kept:
            return ReferenceGradients(*oracles.full_and_batch_gradients(objective, point, data))
        _, gradient = oracles.full_loss_and_gradient(objective, point, data)
        return ReferenceGradients.zeros(point, 0)._replace(full=gradient)

    return SvrgProblem((data,), step_gradients, reference_gradients, kept, evaluations_per_point=2)


def svrg_start(problem: SvrgProblem, point: Vector) -> SvrgState:
    """Begin at a point: it is the first reference point (Algorithm 1, line 2)."""
    gradients = ReferenceGradients.zeros(point, problem.kept)
    return SvrgState(point, gradients, jnp.ones((), bool), point, jnp.ones((), point.dtype))


class RoundResult(NamedTuple):
    """What a round of local steps leaves behind."""

    state: SvrgState
    point: Vector
    """The node's iterate before it is averaged with the others."""
    loss: Array
    """The mean loss of the mini-batches met, each at the iterate of its step."""
    evaluations: Array
    """Gradients or Hessian-vector products of single points, as Algorithm 1 counts them: the gradients
    at the reference point count in each step, also where they are kept."""


def svrg_round(
    problem: SvrgProblem,
    state: SvrgState,
    point: Vector,
    key: Key,
    *,
    steps: int,
    learning_rate: Array,
    refresh_probability: Array,
    averaging_rate: Array,
) -> RoundResult:
    r"""Take τ local steps from the point that the center sent (Algorithm 1, lines 4-12).

    A coin makes the iterate the reference point at once; the gradients there are computed when the next
    step needs them. So one piece of code serves the first reference point and all later ones, and what is
    kept is changed before it is read, without a copy.

    The result of Algorithm 1 weighs iterate t with :math:`u_t = (1-\rho)^{-(t+1)}`. In units of the
    newest weight the mass is :math:`r_t = 1 + (1-\rho) r_{t-1}`, and the average moves by
    :math:`(x - \bar x) / r_t`.

    Args:
        problem: The node's functions.
        state: Reference point and averages.
        point: The iterate x that all nodes start the round from.
        key: Decides the mini-batches and the coins of this node in this round.
        steps: The number τ of steps.
        learning_rate: The step size γ.
        refresh_probability: The probability q that a step makes its iterate the reference point.
        averaging_rate: The rate ρ = min{γμ, q/4}.
    """
    data: NodeData = problem.operands[0]
    batches, coins = draw_batches_and_coins(key, steps, data.batches, refresh_probability)
    refresh = _refresh(problem)

    def step(carry: tuple[Vector, SvrgState], draws: tuple[Array, Array]):
        point, state = carry
        batch_index, coin = draws
        gradients = refresh(state.due, state.reference, state.gradients, problem.operands)
        state = state._replace(gradients=gradients)
        loss, difference = problem.step_gradients(point, state, batch_index, problem.operands)
        moved = point - learning_rate * (difference + gradients.full)
        reference = jnp.where(coin, point, state.reference)
        mass = 1 + (1 - averaging_rate) * state.average_mass
        average = state.average + (moved - state.average) / mass
        return (moved, SvrgState(reference, gradients, coin, average, mass)), loss

    (point, state), losses = lax.scan(step, (point, state), (batches, coins))
    drawn = jnp.sum(data.batch_points(batches))
    evaluations = drawn * problem.evaluations_per_point + jnp.sum(coins) * data.points
    return RoundResult(state, point, jnp.mean(losses), evaluations)


def _refresh(problem: SvrgProblem) -> Callable:
    """Return the computation of a new reference point's gradients, where it is due (line 7).

    For one node it is a `cond`. Under `vmap` a `cond` would compute the full gradient of every node
    at every step; so there the few nodes with a new reference point are visited one after the other.
    """

    @custom_vmap
    def refresh(
        due: Array, reference: Vector, gradients: ReferenceGradients, operands: tuple
    ) -> ReferenceGradients:
        return lax.cond(
            due, lambda: problem.reference_gradients(reference, operands), lambda: gradients
        )

    @refresh.def_vmap
    def visit_few(
        axis_size: int,
        in_batched: list,
        due: Array,
        references: Vector,
        gradients: ReferenceGradients,
        operands: tuple,
    ):
        def for_each_node(array: Array, batched: bool) -> Array:
            return array if batched else jnp.broadcast_to(array, (axis_size, *array.shape))

        due = for_each_node(due, in_batched[0])
        references = for_each_node(references, in_batched[1])
        kept = jax.tree.map(for_each_node, gradients, in_batched[2])
        order = jnp.argsort(~due)

        def visit(position: Array, kept: ReferenceGradients) -> ReferenceGradients:
            node = order[position]
            own_operands = jax.tree.map(
                lambda leaf, batched: leaf[node] if batched else leaf, operands, in_batched[3]
            )
            own = problem.reference_gradients(references[node], own_operands)
            return jax.tree.map(lambda array, new: array.at[node].set(new), kept, own)

        return lax.fori_loop(0, jnp.sum(due), visit, kept), jax.tree.map(lambda _: True, kept)

    return refresh


SVRG_NUMBERS = {"learning_rate": RATE, "refresh_probability": SHARE, "averaging_rate": SHARE}
SVRG_OPTIONS = {"steps": STEPS, "reply": ("point", "average")}


def empty_svrg_state(objective: Objective, kept: int) -> SvrgState:
    """Return the state before a first solve, with room for the gradients of `kept` mini-batches."""
    point = zeros(objective)
    no, nothing = jnp.zeros((), bool), jnp.zeros((), point.dtype)
    return SvrgState(point, ReferenceGradients.zeros(point, kept), no, point, nothing)


def _begin_inner(
    objective: Objective, data: NodeData, state: SvrgState, message: Message
) -> tuple[SvrgState, Array]:
    problem = inner_problem(objective, data, len(state.gradients.of_batches))
    return svrg_start(problem, message["point"]), data.points


INNER = Slot(
    "inner",
    empty=lambda objective, data: empty_svrg_state(objective, gradients_to_keep(objective, data)),
    begin=_begin_inner,
    lasting=True,  # FedAvg continues its one solve from step to step
)


def inner_svrg_round(
    objective: Objective,
    data: NodeData,
    state: NodeState,
    key: Key,
    message: Message,
    *,
    steps: int,
    reply: Literal["point", "average"],
) -> tuple[NodeState, dict[str, Array]]:
    """Take τ steps of Local-SVRG on the node's loss; reply with the iterate or the running average."""
    own: SvrgState = state["inner"]
    problem = inner_problem(objective, data, len(own.gradients.of_batches))
    result = run_task_round(problem, own, key, message, steps)
    answer = reply_of(result, reply) | {"loss": result.loss}
    return {"inner": result.state}, answer


def run_task_round(
    problem: SvrgProblem, state: SvrgState, key: Key, message: Message, steps: int
) -> RoundResult:
    """Take the steps that a message asks for."""
    return svrg_round(
        problem,
        state,
        message["point"],
        key,
        steps=steps,
        learning_rate=message["learning_rate"],
        refresh_probability=message["refresh_probability"],
        averaging_rate=message["averaging_rate"],
    )


def reply_of(result: RoundResult, reply: Literal["point", "average"]) -> dict[str, Array]:
    """Return what both problems reply with; the last round of a solve may ask for the average."""
    point = result.state.average if reply == "average" else result.point
    return {"point": point, "evaluations": result.evaluations}


INNER_SVRG_ROUND = Task(
    "inner_svrg_round",
    inner_svrg_round,
    slots=(INNER,),
    vectors=("point",),
    numbers=SVRG_NUMBERS,
    options=SVRG_OPTIONS,
    vector_replies=("point",),
    number_replies=("loss",),
    reveals="The gradient over all rows at the model sent (one step), or where training leads from it.",
)
