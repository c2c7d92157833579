r"""Each weighted node is left out once, and the owner's rows judge.

A node may lie about its slope, and get a weight that it does not deserve. What it cannot change is the
validation loss of a model that was trained without it. So the model is trained further with the weights w
and, in the same exchanges, once without each node that has a weight, the others sharing its weight in
proportion: equally long, with the same steps. A node without which the owner's loss is clearly lower harms.

Every one of these models starts from a point of its own. Sums over nearly the same nodes at the same point
would differ by a single node's vector, which the center is not to see.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Cost, Federation, PerNode, WeightedSum
from fedkin.federation.center import Center
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.models.base import LinearModel
from fedkin.types import Array, Key, Vector

ROUNDS = 10
"""The exchanges for which all models are trained."""

SHORTEST_ROUND, LONGEST_ROUND = 20, 100
"""The local steps of an exchange: one pass over the largest node's data, within these limits."""

HELPS = 0.02
"""A node harms if the owner's loss is lower by this share without it, at least."""

CERTAIN = 2.5
"""And if the rows' losses say so with this many standard errors: other rows of the owner might not agree."""

APART = 0.05
"""How far from the model all others start, as a share of its norm."""

MOST_LEFT_OUT = 16
"""No more nodes than this are left out, those with the largest weights."""

NOTICEABLE = 0.005
"""Smaller weights do no harm that could be measured."""

STEP = 0.5
"""The step size times the largest curvature."""

ODD_CURVATURE = 10.0
"""A node's own word about its curvature is believed up to this multiple of the median."""

SECOND = 1_000
"""What the second judgment's key is folded with."""

REFRESH = 0.02
"""The probability of renewing a reference point in a step."""


@dataclass(frozen=True)
class LeftOut:
    """What the owner's rows say about nodes that have a weight.

    Args:
        with_all: The loss of each of the owner's rows with all of them; infinite where training has diverged.
        without: The same without each of them, by number.
        cost: What finding out has cost.
    """

    with_all: np.ndarray
    without: Mapping[int, np.ndarray]
    cost: Cost

    def gain(self, node: int) -> float:
        """Return the share of the owner's loss that is due to a node."""
        loss, without = self.with_all.mean(), self.without[node].mean()
        if not np.isfinite(loss):
            return float(np.isfinite(without))
        return float(1 - without / loss)

    def certainty(self, node: int) -> float:
        """Return by how many standard errors a node raises the loss of a row."""
        differences = self.with_all - self.without[node]
        if not np.isfinite(differences).all():
            return float("inf") * self.gain(node) if self.gain(node) else 0.0
        error = float(differences.std()) / np.sqrt(len(differences))
        return float(differences.mean()) / max(error, 1e-30)

    def harms(self, node: int) -> bool:
        """Tell whether the owner's loss is clearly lower without a node."""
        return self.gain(node) >= HELPS and self.certainty(node) >= CERTAIN

    @property
    def harmful(self) -> int | None:
        """The node that harms most, if one does."""
        found = [node for node in self.without if self.harms(node)]
        return max(found, key=self.gain, default=None)

    def confirmed_by(self, other: "LeftOut") -> "LeftOut":
        """Return this with what both have cost, and only those nodes that harm by both."""
        both = {node: rows for node, rows in self.without.items() if other.harms(node)}
        return LeftOut(self.with_all, both, self.cost + other.cost)

    def sentence(self, name: str, node: int) -> str:
        """Say why a node gets no weight."""
        return (
            f"{name} gets no weight: trained equally long without it, the owner's validation loss is "
            f"{self.without[node].mean():.3g} and not {self.with_all.mean():.3g}; the run starts over "
            f"without {name}"
        )


def judge(
    federation: Federation, center: Center, theta: Vector, weights: np.ndarray, key: Key
) -> LeftOut:
    """Leave each weighted node out; twice where one seems to harm, since chance plays a part in training.

    For the arguments see `leave_each_out`.
    """
    first = leave_each_out(federation, center, theta, weights, key)
    if first.harmful is None:
        return first
    again = leave_each_out(federation, center, theta, weights, jax.random.fold_in(key, SECOND))
    return first.confirmed_by(again)


def leave_each_out(
    federation: Federation, center: Center, theta: Vector, weights: np.ndarray, key: Key
) -> LeftOut:
    """Train further with all nodes that have a weight, and without each of them.

    Args:
        federation: The nodes.
        center: The owner's rows.
        theta: The model near which all models start.
        weights: The weights of the nodes.
        key: Where randomness comes from.
    """
    weights = np.where(federation.present, np.asarray(weights, np.float64), 0.0)
    judged = np.flatnonzero(weights >= NOTICEABLE)
    judged = judged[np.argsort(-weights[judged])][:MOST_LEFT_OUT]
    if np.count_nonzero(weights) < 2 or not len(judged):
        return LeftOut(np.zeros(0), {}, Cost())
    rows = np.tile(weights, (len(judged) + 1, 1))
    rows[np.arange(1, len(rows)), judged] = 0.0
    rows /= rows.sum(axis=1, keepdims=True)
    rate, cost = _step_size(federation, center, theta, weights, key)
    noise = jax.random.normal(jax.random.fold_in(key, ROUNDS), (len(rows), len(theta)))
    length = APART * max(float(jnp.linalg.norm(theta)), 1.0) / np.sqrt(len(theta))
    models, diverged = theta + length * noise, np.zeros(len(rows), bool)
    for number in range(ROUNDS):
        reply = federation.exchange(
            train=_round(federation, models, jnp.asarray(rows, theta.dtype), rate),
            key=jax.random.fold_in(key, number),
        )
        cost += reply.cost
        trained = reply.train["point"]
        good = np.isfinite(np.asarray(trained)).all(axis=1)
        diverged |= ~good
        models = jnp.where(good[:, None], trained, models)
    losses = np.stack([center.row_losses(model) for model in models]).astype(np.float64)
    losses[diverged | ~np.isfinite(losses).all(axis=1)] = np.inf
    without = {int(node): own for node, own in zip(judged, losses[1:], strict=True)}
    return LeftOut(losses[0], without, cost)


def _round(federation: Federation, models: Array, rows: Array, rate: float) -> WeightedSum:
    return WeightedSum(
        INNER_SVRG_ROUND,
        {
            "point": models,
            "learning_rate": rate,
            "refresh_probability": REFRESH,
            "averaging_rate": 0.0,
        },
        weights=rows,
        begin=True,
        steps=min(max(federation.batches, SHORTEST_ROUND), LONGEST_ROUND),
        reply="point",
    )


def _step_size(
    federation: Federation, center: Center, theta: Vector, weights: np.ndarray, key: Key
) -> tuple[float, Cost]:
    """Return a step size that suits the nodes' curvature, and what asking for it has cost."""
    if isinstance(center.objective.model, LinearModel):
        reply = federation.exchange(
            bound=PerNode(SMOOTHNESS, nodes=weights > 0), key=jax.random.fold_in(key, ROUNDS + 1)
        )
        bounds = np.asarray(reply.bound["smoothness"], np.float64)
        largest = min(np.nanmax(bounds), ODD_CURVATURE * np.nanmedian(bounds))
        return STEP / float(largest), reply.cost
    _, target = center.loss_and_gradient(theta)
    solution = center.solve(theta, target, damping=0.0, iterations=8)
    return STEP / max(float(solution.curvature), 1e-3), Cost()
