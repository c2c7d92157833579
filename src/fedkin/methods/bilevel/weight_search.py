"""Moving the weights by slopes that are noisy: how far, and when a node comes back.

Slopes are sums over the validation points, so they have standard errors, and these are not small: once the
weights are right, what is left of the slopes is mostly chance. The same validation points come back in every
exchange, so an average over exchanges does not help; only what a slope has beyond its error counts.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedkin.methods.weights import SLACK, Cap, equal_weights, project_weights, readmit
from fedkin.types import Array

LONGEST_MOVE = 0.35
"""The largest part of the whole weight that one move may shift from some nodes to others."""
FIRST_MOVE = 0.2
"""The same for the first move: what the slopes of an untrained model say may not hold for long."""
SHORTEST_MOVE = 0.05
"""The bound on a move does not become smaller than this before the weights have arrived."""
SHORTEST_LATE_MOVE = 0.002
"""The same afterwards."""
ARRIVAL = 3
"""The weights have arrived when this many moves in a row have needed less than half of what they might."""
UNMOVED_ARRIVAL = 10
"""The same where no slope has been certain yet: an untrained model may not tell the nodes apart."""
MEMORY = 0.5
"""What an average over slopes keeps of its former value when a new slope comes in."""
WORTH_ASKING = 0.1
"""A weight below this part of an equal share becomes zero: the node would cost more than it adds."""
SCALE_DECAY = 0.98
"""What the scale of slopes keeps from one exchange to the next: slopes that are small beside former ones
move the weights little."""
EVIDENCE = 2.0
"""Only what a slope has beyond this many standard errors moves a weight."""
LATE_EVIDENCE = 3.0
"""The same after arrival."""
EVIDENCE_TO_CONTINUE = 1.0
"""The same for a weight that has moved that way before."""
RETURN = 2
"""A node without weight gets one when this many slopes in a row have spoken for it."""


class WeightSearch(NamedTuple):
    """The weights, and what the search for better ones remembers."""

    node_weights: Array
    """The weights w."""
    favorable: Array
    """How many slopes in a row have spoken for each node."""
    trends: Array
    """The average over the last slopes of each node, relative to those of the weighted nodes."""
    errors: Array
    """The average over their standard errors."""
    trust: Array
    """The total weight of the slopes in these averages, from 0 to 1."""
    direction: Array
    """The sum of the last moves, older ones counting less."""
    scale: float
    """The largest trend so far, former ones counting a little less with every exchange."""
    radius: float
    """The bound on the next move: the part of the whole weight that it may shift."""
    short_moves: int
    """How many moves in a row have needed less than half of that; counting ends at arrival."""

    @property
    def arrived(self) -> bool:
        """Whether the weights are where the slopes want them, up to noise."""
        return self.short_moves >= (ARRIVAL if self.scale > 0 else UNMOVED_ARRIVAL)

    @classmethod
    def begin(cls, node_weights: Array) -> "WeightSearch":
        """Begin at some weights, with everything to learn."""
        nothing = jnp.zeros_like(node_weights)
        return cls(node_weights, nothing, nothing, nothing, nothing, nothing, 0.0, FIRST_MOVE, 0)

    def among(self, present: np.ndarray, cap: Cap) -> "WeightSearch":
        """Return the search with weights that suit the nodes that take part now."""
        if np.array_equal(readmit(self.node_weights, cap, present), self.node_weights):
            return self
        left = np.where(present, np.asarray(self.node_weights), 0.0)
        # Nodes that have a weight share that of the others, unless they are so few that the cap forbids it.
        sharing = (
            left > 0 if np.broadcast_to(cap, left.shape)[left > 0].sum() >= 1 - SLACK else present
        )
        shares = jnp.asarray(left / left.sum()) if left.any() else equal_weights(present)
        search = self.restarted(project_weights(shares, cap, sharing))
        newly_weighted = (np.asarray(search.node_weights) > 0) & (left == 0)
        return search._replace(short_moves=0) if newly_weighted.any() else search

    def returned(self, node_weights: Array) -> "WeightSearch":
        """Return the search at weights in which nodes that were away have theirs again."""
        return self.restarted(node_weights)._replace(short_moves=0)

    def restarted(self, node_weights: Array, radius_factor: float = 1.0) -> "WeightSearch":
        """Return the search at other weights, or for another model: former slopes no longer count."""
        return WeightSearch.begin(node_weights)._replace(
            direction=self.direction,
            scale=self.scale,
            radius=max(self._shortest, radius_factor * self.radius),
            short_moves=self.short_moves,
        )

    def move(
        self, slopes: Array, errors: Array, *, cap: Cap, present: np.ndarray, improving: bool
    ) -> "WeightSearch":
        """Move the weights against what is certain of the slopes.

        The bound on a move shrinks before a move that turns back, and after one that needs less than it may.
        It grows where it was what limited a move in the former direction.

        Args:
            slopes: ∂F/∂w_k, in any unit; NaN of nodes that were not asked or did not answer: they
                count as nodes of mean slope.
            errors: The standard errors of the slopes.
            cap: The largest weight of a node.
            present: Which nodes take part.
            improving: Whether the validation loss has just reached a new minimum.
        """
        weights = np.asarray(self.node_weights, np.float64)
        numbers = np.asarray(slopes, np.float64)
        known = np.isfinite(numbers) & np.isfinite(np.asarray(errors)) & present
        shares = np.where(known, weights, 0.0)
        if not shares.sum() > 0:
            return self
        seen = self._average(numbers, np.asarray(errors, np.float64), known, shares)
        trend = np.where(known, seen.certain_trends, 0.0)
        favorable = np.where(known, (np.asarray(self.favorable) + 1) * (trend < 0), self.favorable)
        scale = max(SCALE_DECAY * self.scale, float(np.abs(trend).max()))
        seen = seen._replace(favorable=jnp.asarray(favorable), scale=scale)
        if scale == 0:
            return seen._moved(weights, self.radius, short=True)
        admitted = (weights > 0) | (favorable >= RETURN)
        wanted = np.where(admitted, weights - LONGEST_MOVE * trend / scale, -1.0)
        target = np.asarray(project_weights(jnp.asarray(wanted), cap, present), np.float64)
        radius = self.radius
        if self._agreement(target - weights) < -0.1:
            radius = max(radius * (0.3 if self.arrived else 0.5), self._shortest)
        part = min(1.0, radius / max(_shifted(target - weights), 1e-12))
        moved = weights + part * (target - weights)
        # What a node is given to return must be enough to keep, however small the bound.
        returning = (weights == 0) & (target > 0)
        moved = np.where(returning, np.maximum(moved, 2 * _smallest(present)), moved)
        moved = _without_crumbs(moved, cap, present)
        short = _shifted(moved - weights) < radius / 2
        if part < 1 and self._agreement(moved - weights) > 0.3:
            radius = min((1.7 if improving else 1.3) * radius, LONGEST_MOVE)
        if short and (moved != weights).any():
            radius /= 2
        return seen._moved(moved, max(radius, self._shortest), short=short)

    @property
    def certain_trends(self) -> np.ndarray:
        """The average slopes, less what may be chance."""
        trends, errors = np.asarray(self.trends), np.asarray(self.errors)
        continues = trends * np.asarray(self.direction) < 0
        evidence = LATE_EVIDENCE if self.arrived else EVIDENCE
        evidence = np.where(continues, EVIDENCE_TO_CONTINUE, evidence)
        certain = np.sign(trends) * np.maximum(np.abs(trends) - evidence * errors, 0.0)
        return certain / np.maximum(np.asarray(self.trust), MEMORY / 2)

    def _average(
        self, numbers: np.ndarray, errors: np.ndarray, known: np.ndarray, shares: np.ndarray
    ) -> "WeightSearch":
        """Return the search with new slopes in its averages."""
        mean = np.average(numbers[known], weights=shares[known])
        memory = np.where(known, MEMORY, 1.0)

        def average(former: Array, new: np.ndarray) -> Array:
            old = np.asarray(former, np.float64)
            return jnp.asarray(memory * old + (1 - memory) * np.where(known, new, 0.0))

        return self._replace(
            trends=average(self.trends, numbers - mean),
            errors=average(self.errors, errors),
            trust=average(self.trust, np.ones_like(numbers)),
        )

    def _agreement(self, move: np.ndarray) -> float:
        """Return the cosine of the angle between a move and the former ones."""
        before = np.asarray(self.direction, np.float64)
        lengths = float(np.linalg.norm(move) * np.linalg.norm(before))
        return float(move @ before) / lengths if lengths > 0 else 0.0

    def _moved(self, moved: np.ndarray, radius: float, *, short: bool) -> "WeightSearch":
        move = moved - np.asarray(self.node_weights, np.float64)
        return self._replace(
            node_weights=jnp.asarray(moved),
            direction=jnp.asarray(0.5 * np.asarray(self.direction, np.float64) + move),
            radius=radius,
            short_moves=self.short_moves if self.arrived else (self.short_moves + 1) * short,
        )

    @property
    def _shortest(self) -> float:
        return SHORTEST_LATE_MOVE if self.arrived else SHORTEST_MOVE


def shifted_weight(before: Array, after: Array) -> float:
    """Return the part of the whole weight that lies with other nodes than before.

    >>> shifted_weight(jnp.array([0.5, 0.5, 0.0]), jnp.array([0.5, 0.25, 0.25]))
    0.25
    """
    return _shifted(np.asarray(after, np.float64) - np.asarray(before, np.float64))


def _shifted(move: np.ndarray) -> float:
    return 0.5 * float(np.abs(move).sum())


def _smallest(present: np.ndarray) -> float:
    """Return the smallest weight that a node may have besides zero."""
    return WORTH_ASKING / np.count_nonzero(present)


def _without_crumbs(weights: np.ndarray, cap: Cap, present: np.ndarray) -> np.ndarray:
    """Give the weight of nodes that hardly count to the others."""
    kept = np.where(weights < _smallest(present), -1.0, weights)
    return np.asarray(project_weights(jnp.asarray(kept), cap, present), np.float64)
