r"""Each weighted node is left out once, and the owner's rows judge.

A node may lie about its slope, and get a weight that it does not deserve. What it cannot change is the
validation loss of a model that was trained without it. So the model is trained further with the weights w
and, in the same exchanges, once without each node that has a weight, the others sharing its weight within
the cap: equally long, with the same steps. A node harms if the owner's loss is clearly lower without it. If
its last slope said the contrary, it is named and gets no weight. If its slope said the same, the search for
weights had not come to its end, and nobody has lied.

Every one of these models starts from a point of its own. Sums over nearly the same nodes at the same point
would differ by a single node's vector, which the center is not to see.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.federation.base import Cost, Federation, PerNode, WeightedSum
from fedkin.federation.center import Center, Comparison
from fedkin.federation.secure.refusals import fewest_in_sum
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.methods.weights import SLACK, Cap, project_weights, raised_cap
from fedkin.models.base import LinearModel
from fedkin.types import Array, Key, Vector

ROUNDS = 10
"""The exchanges for which all models are trained."""

SHORTEST_ROUND, LONGEST_ROUND = 20, 100
"""The local steps of an exchange: one pass over the largest node's data, within these limits."""

HELPS = 0.02
"""A node harms if the owner's loss is lower by this share without it, at least."""

CERTAIN = 3.0
"""And if the rows' losses say so with this many standard errors: other rows of the owner might not agree."""

GROSS = 0.5
"""A node that harms by this share is named whatever it has reported."""

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
        loss: The loss of the owner's rows with all nodes; infinite where training has diverged.
        without: The same without each of them, by number.
        cost: What finding out has cost.
    """

    loss: float
    without: Mapping[int, Comparison]
    cost: Cost

    def gain(self, node: int) -> float:
        """Return the share of the owner's loss that is due to a node."""
        without = self.without[node].loss
        if not np.isfinite(self.loss):
            return float(np.isfinite(without))
        return float(1 - without / self.loss) if self.loss else 0.0

    def certainty(self, node: int) -> float:
        """Return by how many standard errors a node raises the loss."""
        difference = self.loss - self.without[node].loss
        if not np.isfinite(difference):
            return float("inf") * self.gain(node) if self.gain(node) else 0.0
        return difference / max(self.without[node].error, 1e-30)

    def harms(self, node: int) -> bool:
        """Tell whether the owner's loss is clearly lower without a node."""
        if node not in self.without:
            return False
        return self.gain(node) >= HELPS and self.certainty(node) >= CERTAIN

    def harmful(self, claims: np.ndarray) -> int | None:
        """Return the node that harms most, if one does that claims the contrary, or harms grossly.

        Args:
            claims: Which nodes have reported that more weight for them lowers the owner's loss.
        """
        found = [
            node
            for node in self.without
            if self.harms(node) and (claims[node] or self.gain(node) >= GROSS)
        ]
        return max(found, key=self.gain, default=None)

    def confirmed_by(self, other: "LeftOut") -> "LeftOut":
        """Return this with what both have cost, and only those nodes that harm by both."""
        both = {node: found for node, found in self.without.items() if other.harms(node)}
        return LeftOut(self.loss, both, self.cost + other.cost)

    def sentence(self, name: str, node: int, owner: str) -> str:
        """Say why a node gets no weight from an owner."""
        return (
            f"{name} gets no weight: trained equally long without it, the validation loss of {owner} is "
            f"{self.without[node].loss:.3g} and not {self.loss:.3g}; the run starts over without {name}"
        )


def judge(
    federation: Federation, center: Center, theta: Vector, weights: np.ndarray, cap: Cap, key: Key
) -> LeftOut:
    """Leave each weighted node out; twice where one seems to harm, since chance plays a part in training.

    For the arguments see `leave_each_out`.
    """
    first = leave_each_out(federation, center, theta, weights, cap, key)
    if not any(first.harms(node) for node in first.without):
        return first
    other_key = jax.random.fold_in(key, SECOND)
    again = leave_each_out(federation, center, theta, weights, cap, other_key)
    return first.confirmed_by(again)


def leave_each_out(
    federation: Federation, center: Center, theta: Vector, weights: np.ndarray, cap: Cap, key: Key
) -> LeftOut:
    """Train further with all nodes that have a weight, and without each of them.

    Args:
        federation: The nodes.
        center: The owner's rows.
        theta: The model near which all models start.
        weights: The weights of the nodes.
        cap: The largest weight of a node.
        key: Where randomness comes from.
    """
    judged, rows = rows_without_each(federation, center, weights, cap)
    if not len(judged):
        return LeftOut(float("nan"), {}, Cost())
    rate, cost = _step_size(federation, center, theta, rows[0], key)
    noise = jax.random.normal(jax.random.fold_in(key, ROUNDS), (len(rows), len(theta)))
    models = models_apart(theta, noise)
    diverged = np.zeros(len(rows), bool)
    for number in range(ROUNDS):
        reply = federation.exchange(
            train=_round(federation, models, jnp.asarray(rows, theta.dtype), rate),
            key=jax.random.fold_in(key, number),
        )
        cost += reply.cost
        trained = reply.train["point"]
        good = np.asarray(np.isfinite(np.asarray(trained)).all(axis=1))
        diverged |= ~good
        models = jnp.where(good[:, None], trained, models)
    loss, compared = center.compare(models[0], list(models[1:]))
    nothing = Comparison(float("inf"), 0.0)
    without = {
        int(node): nothing if lost else found
        for node, lost, found in zip(judged, diverged[1:], compared, strict=True)
    }
    return LeftOut(float("inf") if diverged[0] else loss, without, cost)


def rows_without_each(
    federation: Federation, center: Center, weights: np.ndarray, cap: Cap
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes that can be left out, and rows of weights: with all nodes, and without each."""
    present = federation.present
    weights = np.where(present, np.asarray(weights, np.float64), 0.0)
    judged = np.flatnonzero(weights >= NOTICEABLE)
    judged = judged[judged != center.own_node]  # an owner does not lie to itself
    judged = judged[np.argsort(-weights[judged])][:MOST_LEFT_OUT]
    if np.count_nonzero(present) < 2:
        judged = judged[:0]
    # Without one of three, a secure sum would be of two, and give their vectors away.
    left = [weights_without(int(node), weights, cap, present) for node in judged]
    enough = [np.count_nonzero(own) >= fewest_in_sum(federation) for own in left]
    rows = [own for own, is_enough in zip(left, enough, strict=True) if is_enough]
    return judged[np.array(enough, bool)], np.stack([weights / max(weights.sum(), 1e-30), *rows])


def models_apart(theta: Vector, noise: Array) -> Array:
    """Return models near one, all different: one for each row of standard noise."""
    length = APART * max(float(jnp.linalg.norm(theta)), 1.0) / np.sqrt(len(theta))
    return theta + length * noise


def claims_of(slopes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return which nodes claim that more weight for them lowers the owner's loss; unknown counts as a claim.

    >>> claims_of(np.array([-1.0, 0.2, np.nan, 0.1]), np.array([0.2, 0.4, 0.2, 0.2])).tolist()
    [True, False, True, False]
    """
    known = np.isfinite(slopes) & (weights > 0)
    if not known.any():
        return np.ones(len(weights), bool)
    mean = np.average(slopes[known], weights=weights[known])
    return ~np.isfinite(slopes) | (slopes < mean)


def weights_without(node: int, weights: np.ndarray, cap: Cap, present: np.ndarray) -> np.ndarray:
    """Share a node's weight out among the others that have one, or among all where the cap forbids that.

    >>> here = np.ones(4, bool)
    >>> weights_without(0, np.array([0.5, 0.3, 0.2, 0.0]), 0.5, here).round(3).tolist()
    [0.0, 0.5, 0.5, 0.0]
    >>> weights_without(0, np.array([0.4, 0.4, 0.2, 0.0]), 0.4, here).round(3).tolist()
    [0.0, 0.4, 0.4, 0.2]
    """
    others = np.asarray(present) & (np.arange(len(weights)) != node)
    left = np.where(others, weights, 0.0)
    caps = np.broadcast_to(raised_cap(cap, others), left.shape)
    sharing = left > 0 if caps[left > 0].sum() >= 1 - SLACK else others
    shares = left / left.sum() if left.any() else others / np.count_nonzero(others)
    return np.asarray(project_weights(jnp.asarray(shares), cap, sharing), np.float64)


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
        # Near the model of most nodes these hardly move it, and an honest one that is unlike them does. What
        # a long move does to the models is what is judged here.
        compares_moves=False,
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
