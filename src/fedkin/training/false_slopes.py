r"""Whose slopes are not those of its gradients, where it is known that somebody's are not.

Slopes and the sum of gradients have to agree (`methods.bilevel.mismatch`) for all weights. So the center asks
for both, in one exchange, with all nodes and without each of them: without the node that lies, they agree.
This says who it is by arithmetic; the owner's rows need not tell, and may be few.

As where nodes are left out by the owner's loss, every sum is at a model of its own, and slopes are asked for
there. A node that knew which sum lacks another one could tell the truth in that one, and have the other
blamed. So models and order are drawn from the operating system's randomness, which nodes cannot repeat as
they can repeat a run's own, and two exchanges have to agree.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.attendance import STRIKES
from fedkin.federation.base import Cost, Federation, PerNode, WeightedSum
from fedkin.federation.center import Center
from fedkin.methods.bilevel.mismatch import difference_of
from fedkin.methods.bilevel.node import GRADIENT, SLOPE
from fedkin.methods.weights import Cap
from fedkin.training.leave_out import models_apart, rows_without_each
from fedkin.types import Key, Vector

CLEARLY = 0.9
"""Without the node that lies, or one of several, the difference is below this share of that with all.

Without an honest node it is larger than with all, since those who lie have more of the weight.
"""

BEYOND_ROUNDING = 0.01
"""Here a difference above this share of what a search allows is a lie: what is left is rounding."""

TIMES = 2
"""How many exchanges have to agree."""


def find_false_slope(
    federation: Federation, center: Center, theta: Vector, weights: np.ndarray, cap: Cap, key: Key
) -> tuple[int | None, Cost]:
    """Return the node that lies, or the one of several that lies most, and what finding out has cost.

    None if that cannot be told.

    Args:
        federation: The nodes.
        center: The owner's rows.
        theta: The model near which all nodes are asked.
        weights: The weights of the nodes.
        cap: The largest weight of a node.
        key: Where randomness comes from.
    """
    named, cost, answered = set[int | None](), Cost(), 0
    for time in range(TIMES + STRIKES):
        own_key = jax.random.fold_in(key, time)
        asked = _ask_without_each(federation, center, theta, weights, cap, own_key)
        if asked is None:
            return None, cost
        differences, spent = asked
        cost += spent
        if not np.isfinite([each for each, _ in differences.values()]).all():
            continue  # an answer was missing, or out of all range: three times, and the node is dropped
        named.add(_clearly_least(differences))
        answered += 1
        if answered == TIMES:
            break
    return (named.pop() if answered == TIMES and len(named) == 1 else None), cost


def _clearly_least(differences: dict[int | None, tuple[float, float]]) -> int | None:
    """Return the node without which slopes and gradients agree best, if they do clearly better than with all.

    Args:
        differences: With all nodes (None) and without each, by how much they differ, and what is allowed.
    """
    with_all, allowed = differences[None]
    best = min(differences, key=lambda node: differences[node][0])
    if with_all <= BEYOND_ROUNDING * allowed or differences[best][0] >= CLEARLY * with_all:
        return None
    return best


def _ask_without_each(
    federation: Federation, center: Center, theta: Vector, weights: np.ndarray, cap: Cap, key: Key
) -> tuple[dict[int | None, tuple[float, float]], Cost] | None:
    """Return by how much slopes and gradients differ, with all nodes (None) and without each, by number.

    If no node can be left out, nobody is asked.
    """
    judged, rows = rows_without_each(federation, center, weights, cap)
    if not len(judged):
        return None
    loss, target = center.loss_and_gradient(theta)
    random = np.random.default_rng()
    rows = rows[order := random.permutation(len(rows))]
    noise = jnp.asarray(random.normal(size=(len(rows), len(theta))), theta.dtype)
    models = models_apart(theta, noise)
    vectors = jnp.tile(target, (len(rows), 1))
    weighted = (rows != 0).any(axis=0)
    reply = federation.exchange(
        gradient=WeightedSum(
            GRADIENT, {"theta": models}, weights=jnp.asarray(rows, theta.dtype), begin=True
        ),
        slope=PerNode(SLOPE, {"theta": models, "vector": vectors}, nodes=weighted, begin=True),
        key=key,
    )
    gradients = np.asarray(reply.gradient["gradient"], np.float64)
    slopes = np.asarray(reply.slope["slope"], np.float64)
    left_out = [None, *judged.tolist()]
    found = {
        left_out[number]: difference_of(own, row, gradient, np.asarray(target, np.float64), loss)
        for number, own, row, gradient in zip(order, slopes, rows, gradients, strict=True)
    }
    return found, reply.cost


def false_slope_sentence(name: str) -> str:
    """Say why a node gets no weight."""
    return (
        f"{name} gets no weight: without it, the slopes that nodes report are those of their gradients; the "
        f"run starts over without {name}"
    )
