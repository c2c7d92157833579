r"""Whose slopes are not those of its gradients, where it is known that somebody's are not.

Slopes and the sum of gradients have to agree (`methods.bilevel.mismatch`) for all weights. So the center asks
for both, in one exchange, with all nodes and without each of them: without the node that lies, they agree.
If several lie, the differences say by how much each does: they are sums of what is false, with known weights.
This is arithmetic; the owner's rows need not tell, and may be few.

As where nodes are left out by the owner's loss, every sum is at a model of its own, and slopes are asked for
there. Nodes that knew which sum lacks another one could tell the truth in that one, and have the other
blamed. So models and order are drawn from the operating system's randomness, which nodes cannot repeat as
they can repeat a run's own, and several exchanges have to agree.
"""

from typing import NamedTuple

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

BEYOND_ROUNDING = 0.01
"""Here a difference above this share of what a search allows is a lie: what is left is rounding."""

TIMES = 3
"""How many exchanges have to agree."""

CLEARLY = 10.0
"""Of several that lie, the worst is named if it is this many times as far off as the node in the middle."""

STEADY = 2.0
"""And if exchanges differ by no more than this factor in how far off it is."""


class Differences(NamedTuple):
    """By how much slopes and gradients differ, with all nodes and without each that can be left out."""

    nodes: np.ndarray
    """The nodes that can be left out."""
    weights: np.ndarray
    """Their weights, with all of them and without each: (1 + nodes, nodes)."""
    values: np.ndarray
    """The differences: (1 + nodes)."""
    allowed: np.ndarray
    """How much of them is rounding."""

    @property
    def beyond(self) -> np.ndarray:
        """Which differences are more than rounding."""
        return np.abs(self.values) > self.allowed

    @property
    def by_node(self) -> np.ndarray:
        """How far off each node is."""
        return np.linalg.lstsq(self.weights, self.values, rcond=None)[0]


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
    seen: list[Differences] = []
    cost = Cost()
    for time in range(TIMES + STRIKES):
        own_key = jax.random.fold_in(key, time)
        found, spent = _ask_without_each(federation, center, theta, weights, cap, own_key)
        cost += spent
        if found is None:
            return None, cost
        # An answer that is missing, or out of all range, says nothing: after three, the node is dropped.
        if np.isfinite(found.values).all():
            seen.append(found)
        if len(seen) == TIMES:
            return _worst(seen), cost
    return None, cost


def _worst(seen: list[Differences]) -> int | None:
    """Return the node that lies, or lies most, if all exchanges say so."""
    nodes = seen[0].nodes
    if not all(np.array_equal(own.nodes, nodes) and own.beyond.any() for own in seen):
        return None
    agree = ~np.any([own.beyond[1:] for own in seen], axis=0)
    if agree.any():  # there is one liar, and without it nothing is wrong
        only = np.count_nonzero(agree) == 1
        return int(nodes[np.argmax(agree)]) if only else None
    far = np.stack([own.by_node for own in seen])
    least = np.abs(far).min(axis=0)
    worst = int(np.argmax(least))
    steady = np.abs(far[:, worst]).max() <= STEADY * least[worst]
    one_sign = abs(np.sign(far[:, worst]).sum()) == len(far)
    middle = np.sort(least)[(len(least) - 1) // 2]
    clear = steady and one_sign and len(nodes) > 1 and least[worst] > CLEARLY * middle
    return int(nodes[worst]) if clear else None


def _ask_without_each(
    federation: Federation, center: Center, theta: Vector, weights: np.ndarray, cap: Cap, key: Key
) -> tuple[Differences | None, Cost]:
    """Ask for slopes and gradients with all nodes and without each; if none can be left out, ask nobody."""
    judged, rows = rows_without_each(federation, center, weights, cap)
    if not len(judged):
        return None, Cost()
    loss, target = center.loss_and_gradient(theta)
    random = np.random.default_rng()
    order = random.permutation(len(rows))
    noise = jnp.asarray(random.normal(size=(len(rows), len(theta))), theta.dtype)
    models = models_apart(theta, noise)
    vectors = jnp.tile(target, (len(rows), 1))
    sent = jnp.asarray(rows[order], theta.dtype)
    weighted = (rows != 0).any(axis=0)
    reply = federation.exchange(
        gradient=WeightedSum(GRADIENT, {"theta": models}, weights=sent, begin=True),
        slope=PerNode(SLOPE, {"theta": models, "vector": vectors}, nodes=weighted, begin=True),
        key=key,
    )
    gradients = np.asarray(reply.gradient["gradient"], np.float64)
    slopes = np.asarray(reply.slope["slope"], np.float64)
    found = np.empty((len(rows), 2))
    for place, number in enumerate(order):
        found[number] = difference_of(
            slopes[place], rows[number], gradients[place], np.asarray(target, np.float64), loss
        )
    values, allowed = found.T
    return Differences(judged, rows[:, judged], values, BEYOND_ROUNDING * allowed), reply.cost


def false_slope_sentence(name: str, owner: str) -> str:
    """Say why a node gets no weight from an owner."""
    return (
        f"{name} gets no weight from {owner}: the slopes that it reports are not those of its gradients; "
        f"the run starts over without {name}"
    )
