r"""Algorithm 1 on ridge regression, for many runs at once.

The studies need millions of steps of tiny problems, many times over. For quadratic losses the gradient of a
point is :math:`x_i (x_i^\top \theta) + \lambda\theta - c_i`, so a whole step of all runs and nodes is a few
operations on one array, and a node's full gradient one product. The same algorithm as in
`fedkin.methods.local_svrg.node`, step by step and draw by draw; a test compares the two.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedkin.types import Array, Key

RANDOM_BITS = "rbg"
"""The generator of random numbers: on CPUs about twice as fast as the usual one in loops of tiny steps."""


class QuadraticNodes(NamedTuple):
    """Nodes of equal size under ridge regression without intercept."""

    rows: Array
    """The features: (nodes, points, features)."""
    moment: Array
    """Σ_i x_i x_iᵀ / n + λI of each node: (nodes, features, features)."""
    l2: Array
    """λ."""


class Draws(NamedTuple):
    """What is random in a round: (steps, runs, nodes) each."""

    points: Array
    """The point that a node draws in a step."""
    coins: Array
    """Whether it renews its reference point."""


class _Carry(NamedTuple):
    point: Array
    reference: Array
    reference_gradient: Array
    average: Array
    mass: Array


def quadratic_nodes(rows: Array, l2: float) -> QuadraticNodes:
    """Prepare nodes from their features."""
    features = rows.shape[-1]
    moment = jnp.einsum("kni,knj->kij", rows, rows) / rows.shape[1] + l2 * jnp.eye(features)
    return QuadraticNodes(rows, moment, jnp.asarray(l2))


def draw(key: Key, nodes: QuadraticNodes, runs: int, period: int, chance: Array | float) -> Draws:
    """Draw the points and coins of one round of all runs."""
    shape = (period, runs, nodes.rows.shape[0])
    point_key, coin_key = jax.random.split(key)
    points = jax.random.randint(point_key, shape, 0, nodes.rows.shape[1])
    return Draws(points, jax.random.bernoulli(coin_key, jnp.asarray(chance), shape))


@partial(jax.jit, static_argnames=("period", "keep"))
def local_svrg(
    nodes: QuadraticNodes,
    targets: Array,
    node_weights: Array,
    key: Key,
    *,
    learning_rate: Array | float,
    refresh_probability: Array | float,
    averaging_rate: Array | float,
    period: int,
    rounds: Array | int,
    every: Array | int = 1,
    keep: int = 1,
) -> Array:
    r"""Minimize :math:`\sum_k w_k (\frac12 x^\top A_k x - c_k^\top x)` from zero in every run.

    Args:
        nodes: The matrices A_k, as means over points.
        targets: The vectors c_k: (runs, nodes, features).
        node_weights: (runs, nodes).
        key: Decides all draws.
        learning_rate: γ.
        refresh_probability: q.
        averaging_rate: ρ = min{γμ, q/4}.
        period: τ.
        rounds: The number of synchronizations; no other number asks for other compiled code.
        every: The number of rounds between two averages that are kept.
        keep: The number of averages kept, from the first on; the last one is the result if the rounds
            reach it.

    Returns:
        The weighted averages x̄: (keep, runs, features).
    """
    runs, _, features = targets.shape

    def one_step(carry: _Carry, draws: Draws) -> tuple[_Carry, None]:
        moved = carry.point - learning_rate * (
            _difference(nodes, draws.points, carry.point - carry.reference)
            + carry.reference_gradient
        )
        coin = draws.coins[..., None]
        full = _full_gradient(nodes, targets, carry.point)
        mass = 1 + (1 - averaging_rate) * carry.mass
        return _Carry(
            moved,
            jnp.where(coin, carry.point, carry.reference),
            jnp.where(coin, full, carry.reference_gradient),
            carry.average + (moved - carry.average) / mass,
            mass,
        ), None

    def one_round(number: Array, state: tuple[_Carry, Array]) -> tuple[_Carry, Array]:
        carry, kept = state
        draws = draw(jax.random.fold_in(key, number), nodes, runs, period, refresh_probability)
        carry, _ = lax.scan(one_step, carry, draws)
        mean = jnp.sum(node_weights[..., None] * carry.point, axis=1)
        carry = carry._replace(point=jnp.broadcast_to(mean[:, None], carry.point.shape))
        result = jnp.sum(node_weights[..., None] * carry.average, axis=1)
        place = jnp.minimum(number // every, keep - 1)
        return carry, kept.at[place].set(result)

    zeros = jnp.zeros_like(targets)
    start = _Carry(
        zeros, zeros, _full_gradient(nodes, targets, zeros), zeros, jnp.ones((), targets.dtype)
    )
    kept = jnp.zeros((keep, runs, features), targets.dtype)
    return lax.fori_loop(0, rounds, one_round, (start, kept))[1]


def _difference(nodes: QuadraticNodes, drawn: Array, vector: Array) -> Array:
    """Return the drawn points' Hessians times a vector of each run and node."""
    rows = nodes.rows[jnp.arange(nodes.rows.shape[0]), drawn]
    return rows * jnp.sum(rows * vector, axis=-1, keepdims=True) + nodes.l2 * vector


def _full_gradient(nodes: QuadraticNodes, targets: Array, point: Array) -> Array:
    # Written out, not as a product of matrices: so small ones cost less inside a fused loop.
    return jnp.sum(nodes.moment * point[..., None, :], axis=-1) - targets
