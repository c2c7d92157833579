r"""The node's part of Local-SVRG (Algorithm 1, `alg:localsvrg`).

One set of functions serves both problems that the paper solves with it:

- *inner*: :math:`f_{k,i}(x) = l(x; z_i)`, the loss itself;
- *adjoint*: :math:`f_{k,i}(x) = \frac12 x^\top \nabla^2 l(\theta; z_i) x - x^\top \nabla L_0(\theta)`,
  whose gradient is linear in x, so that the difference of two gradients is one Hessian-vector product.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from fedkin.data.batches import NodeData
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.nodes.draws import draw_batches_and_coins
from fedkin.types import Array, Key, Vector

LEAST_GAIN = 4
"""Gradients of mini-batches are kept where they take at most this part of the memory of the data."""


class SvrgState(NamedTuple):
    """What a node keeps from one round to the next."""

    reference: Vector
    """The reference point y_k."""
    reference_gradient: Vector
    """The full gradient ∇f_k(y_k)."""
    batch_gradients: Array
    """The gradients ∇f_{k,i}(y_k) of the mini-batches, a row for each; no rows if they are not kept."""
    average: Vector
    """The weighted average of the node's iterates so far."""
    average_mass: Array
    """The sum of the averaging weights so far, in units of the newest one: it cannot overflow."""


class Reference(NamedTuple):
    """What a refresh makes anew."""

    point: Vector
    gradient: Vector
    batch_gradients: Array

    @classmethod
    def of(cls, state: SvrgState) -> "Reference":
        """Take it out of a node's state."""
        return cls(state.reference, state.reference_gradient, state.batch_gradients)


class SvrgProblem(NamedTuple):
    """The functions f_{k,i} of one node, as far as Local-SVRG needs them.

    `operands` are the arrays behind the functions, passed explicitly so that a simulation can pick
    out those of a single node.
    """

    operands: tuple
    step_gradients: Callable[[Vector, SvrgState, Array, tuple], tuple[Array, Vector]]
    """(x, state, i, operands) to the loss of mini-batch i at x and ∇f_i(x) − ∇f_i(y)."""
    full_gradient: Callable[[Vector, tuple], tuple[Vector, Array]]
    """(y, operands) to ∇f_k(y) and the gradients ∇f_i(y) that are to be kept."""
    evaluations_a_point: int
    """How many gradients or Hessian-vector products of a point one step of Algorithm 1 takes."""


def remembered_gradients(objective: Objective, data: NodeData) -> int:
    """Say how many gradients of mini-batches a node keeps with its reference point: all or none.

    A refresh passes through all mini-batches. The gradients it meets there are the ∇f_i(y) of every
    step until the next refresh, so keeping them spares half of the gradients of a step. A model that is
    large beside a mini-batch would need more memory for them than for the data; there they are computed
    again in each step.
    """
    gradient_bytes = objective.size * jnp.dtype(jnp.result_type(float)).itemsize
    batch_bytes = data.inputs[0].size * data.inputs.dtype.itemsize
    return data.turns.size if gradient_bytes * LEAST_GAIN <= batch_bytes else 0


def inner_problem(objective: Objective, data: NodeData) -> SvrgProblem:
    """State the node's part of `eq:blopt_inner`."""
    remembers = remembered_gradients(objective, data) > 0
    loss_and_gradient = partial(oracles.batch_loss_and_gradient, objective)

    def step_gradients(
        point: Vector, state: SvrgState, index: Array, operands: tuple
    ) -> tuple[Array, Vector]:
        (data,) = operands
        if remembers:
            loss, gradient = loss_and_gradient(point, data.batch(index))
            return loss, gradient - state.batch_gradients[index]
        # Both points in one pass over the mini-batch.
        losses, gradients = jax.vmap(loss_and_gradient, (0, None))(
            jnp.stack([point, state.reference]), data.batch(index)
        )
        return losses[0], gradients[0] - gradients[1]

    def full_gradient(point: Vector, operands: tuple) -> tuple[Vector, Array]:
        (data,) = operands
        if remembers:
            return oracles.full_and_batch_gradients(objective, point, data)
        return oracles.full_loss_and_gradient(objective, point, data)[1], no_gradients(point)

    return SvrgProblem((data,), step_gradients, full_gradient, evaluations_a_point=2)


def adjoint_problem(
    objective: Objective, data: NodeData, theta: Vector, target: Vector
) -> SvrgProblem:
    """State the node's part of `eq:QP_matrixinverse`; `target` is ∇L_0(θ)."""

    def step_gradients(
        point: Vector, state: SvrgState, index: Array, operands: tuple
    ) -> tuple[Array, Vector]:
        data, theta, _ = operands
        difference = oracles.batch_hessian_product(
            objective, theta, data.batch(index), point - state.reference
        )
        return jnp.zeros((), point.dtype), difference

    def full_gradient(point: Vector, operands: tuple) -> tuple[Vector, Array]:
        data, theta, target = operands
        gradient = oracles.full_hessian_product(objective, theta, data, point) - target
        return gradient, no_gradients(point)

    operands = (data, theta, target)
    return SvrgProblem(operands, step_gradients, full_gradient, evaluations_a_point=1)


def no_gradients(point: Vector) -> Array:
    """Return what stands for the gradients of mini-batches where none are kept."""
    return jnp.zeros((0, *point.shape), point.dtype)


def svrg_start(problem: SvrgProblem, point: Vector) -> SvrgState:
    """Begin at a point: it is the first reference point (Algorithm 1, line 2)."""
    gradient, batch_gradients = problem.full_gradient(point, problem.operands)
    return SvrgState(point, gradient, batch_gradients, point, jnp.ones((), point.dtype))


class RoundResult(NamedTuple):
    """What a round of local steps leaves behind."""

    state: SvrgState
    point: Vector
    """The node's iterate before it is averaged with the others."""
    loss: Array
    """The mean loss of the mini-batches met, each at the iterate of its step."""
    evaluations: Array
    """Gradients or Hessian-vector products of single points, as Algorithm 1 counts them: the gradients
    at the reference point count in each step, also where they are remembered."""


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
    r"""Take τ local steps from the point that the centre sent (Algorithm 1, lines 4-12).

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
        loss, difference = problem.step_gradients(point, state, batch_index, problem.operands)
        moved = point - learning_rate * (difference + state.reference_gradient)
        reference = refresh(coin, point, Reference.of(state), problem.operands)
        mass = 1 + (1 - averaging_rate) * state.average_mass
        average = state.average + (moved - state.average) / mass
        kept = SvrgState(
            reference.point, reference.gradient, reference.batch_gradients, average, mass
        )
        return (moved, kept), loss

    (point, state), losses = lax.scan(step, (point, state), (batches, coins))
    drawn = jnp.sum(data.batch_points(batches))
    evaluations = drawn * problem.evaluations_a_point + jnp.sum(coins) * data.points
    return RoundResult(state, point, jnp.mean(losses), evaluations)


def _refresh(problem: SvrgProblem) -> Callable:
    """Return the refresh of a reference point on a coin (Algorithm 1, line 7).

    For one node it is a `cond`. Under `vmap` a `cond` would compute the full gradient of every node
    at every step; so there the few nodes whose coin has come up are visited one after the other.
    """

    @custom_vmap
    def refresh(coin: Array, point: Vector, reference: Reference, operands: tuple) -> Reference:
        return lax.cond(
            coin,
            lambda: Reference(point, *problem.full_gradient(point, operands)),
            lambda: reference,
        )

    @refresh.def_vmap
    def visit_few(
        axis_size: int,
        in_batched: list,
        coins: Array,
        points: Vector,
        references: Reference,
        operands: tuple,
    ):
        order = jnp.argsort(~coins)

        def visit(position: Array, kept: Reference) -> Reference:
            node = order[position]
            own_operands = jax.tree.map(
                lambda leaf, batched: leaf[node] if batched else leaf, operands, in_batched[3]
            )
            own_point = points[node] if in_batched[1] else points
            own = Reference(own_point, *problem.full_gradient(own_point, own_operands))
            return jax.tree.map(lambda array, new: array.at[node].set(new), kept, own)

        kept = jax.tree.map(
            lambda array, batched: (
                array if batched else jnp.broadcast_to(array, (axis_size, *array.shape))
            ),
            references,
            in_batched[2],
        )
        return lax.fori_loop(0, jnp.sum(coins), visit, kept), jax.tree.map(lambda _: True, kept)

    return refresh
