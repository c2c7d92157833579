r"""The node's part of Local-SVRG (Algorithm 1, `alg:localsvrg`).

One set of functions serves both problems that the paper solves with it:

- *inner*: :math:`f_{k,i}(x) = l(x; z_i)`, the loss itself;
- *adjoint*: :math:`f_{k,i}(x) = \frac12 x^\top \nabla^2 l(\theta; z_i) x - x^\top \nabla L_0(\theta)`,
  whose gradient is linear in x, so that the difference of two gradients is one Hessian-vector product.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from fedkin.data.batches import NodeData
from fedkin.models.objective import Batch, Objective
from fedkin.nodes import oracles
from fedkin.types import Array, Key, Vector


class SvrgState(NamedTuple):
    """What a node keeps from one round to the next."""

    reference: Vector
    """The reference point y_k."""
    reference_gradient: Vector
    """The full gradient ∇f_k(y_k)."""
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
    step_gradients: Callable[[Vector, Vector, Batch, tuple], tuple[Array, Vector]]
    """(x, y, batch, operands) to the loss at x and ∇f_i(x) − ∇f_i(y)."""
    full_gradient: Callable[[Vector, tuple], Vector]
    """(y, operands) to ∇f_k(y)."""
    evaluations_a_point: int
    """How many gradients or Hessian-vector products of a point one step takes."""


def inner_problem(objective: Objective, data: NodeData) -> SvrgProblem:
    """State the node's part of `eq:blopt_inner`."""

    def step_gradients(
        point: Vector, reference: Vector, batch: Batch, operands: tuple
    ) -> tuple[Array, Vector]:
        # Both points in one pass over the mini-batch.
        losses, gradients = jax.vmap(jax.value_and_grad(objective.batch_loss), (0, None))(
            jnp.stack([point, reference]), batch
        )
        return losses[0], gradients[0] - gradients[1]

    def full_gradient(point: Vector, operands: tuple) -> Vector:
        (data,) = operands
        return oracles.full_loss_and_gradient(objective, point, data)[1]

    return SvrgProblem((data,), step_gradients, full_gradient, evaluations_a_point=2)


def adjoint_problem(
    objective: Objective, data: NodeData, theta: Vector, target: Vector
) -> SvrgProblem:
    """State the node's part of `eq:QP_matrixinverse`; `target` is ∇L_0(θ)."""

    def step_gradients(
        point: Vector, reference: Vector, batch: Batch, operands: tuple
    ) -> tuple[Array, Vector]:
        _, theta, _ = operands
        difference = oracles.batch_hessian_product(objective, theta, batch, point - reference)
        return jnp.zeros((), point.dtype), difference

    def full_gradient(point: Vector, operands: tuple) -> Vector:
        data, theta, target = operands
        return oracles.full_hessian_product(objective, theta, data, point) - target

    operands = (data, theta, target)
    return SvrgProblem(operands, step_gradients, full_gradient, evaluations_a_point=1)


def svrg_start(problem: SvrgProblem, point: Vector) -> SvrgState:
    """Begin at a point: it is the first reference point (Algorithm 1, line 2)."""
    gradient = problem.full_gradient(point, problem.operands)
    return SvrgState(point, gradient, point, jnp.ones((), point.dtype))


class RoundResult(NamedTuple):
    """What a round of local steps leaves behind."""

    state: SvrgState
    point: Vector
    """The node's iterate before it is averaged with the others."""
    loss: Array
    """The mean loss of the mini-batches met, each at the iterate of its step."""
    evaluations: Array
    """Gradients or Hessian-vector products of single points that were computed."""


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
    batch_key, coin_key = jax.random.split(key)
    batches = jax.random.randint(batch_key, (steps,), 0, data.batches)
    coins = jax.random.bernoulli(coin_key, refresh_probability, (steps,))
    refresh = _refresh(problem)

    def step(carry: tuple[Vector, SvrgState], draws: tuple[Array, Array]):
        point, state = carry
        batch_index, coin = draws
        loss, difference = problem.step_gradients(
            point, state.reference, data.batch(batch_index), problem.operands
        )
        moved = point - learning_rate * (difference + state.reference_gradient)
        reference, reference_gradient = refresh(
            coin, point, state.reference, state.reference_gradient, problem.operands
        )
        mass = 1 + (1 - averaging_rate) * state.average_mass
        average = state.average + (moved - state.average) / mass
        return (moved, SvrgState(reference, reference_gradient, average, mass)), loss

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
    def refresh(
        coin: Array, point: Vector, reference: Vector, gradient: Vector, operands: tuple
    ) -> tuple[Vector, Vector]:
        return lax.cond(
            coin,
            lambda: (point, problem.full_gradient(point, operands)),
            lambda: (reference, gradient),
        )

    @refresh.def_vmap
    def visit_few(
        axis_size: int,
        in_batched: list,
        coins: Array,
        points: Vector,
        references: Vector,
        gradients: Vector,
        operands: tuple,
    ):
        order = jnp.argsort(~coins)

        def visit(position: Array, kept: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
            node = order[position]
            own_operands = jax.tree.map(
                lambda leaf, batched: leaf[node] if batched else leaf, operands, in_batched[4]
            )
            references, gradients = kept
            own_point = points[node] if in_batched[1] else points
            own_gradient = problem.full_gradient(own_point, own_operands)
            return references.at[node].set(own_point), gradients.at[node].set(own_gradient)

        kept = tuple(
            array if batched else jnp.broadcast_to(array, (axis_size, *array.shape))
            for array, batched in zip((references, gradients), in_batched[2:4], strict=True)
        )
        return lax.fori_loop(0, jnp.sum(coins), visit, kept), (True, True)

    return refresh
