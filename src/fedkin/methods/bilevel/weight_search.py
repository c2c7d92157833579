"""Moving the weights by slopes that are noisy: how far, and when a node comes back."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedkin.methods.weights import equal_weights, project_weights, readmit
from fedkin.types import Array

LONGEST_MOVE = 0.35
"""The largest part of the whole weight that one move may shift from some nodes to others."""
FIRST_MOVE = 0.1
"""The same for the first move: the slopes of an untrained model may point anywhere."""
SHORTEST_MOVE = 0.05
"""The bound on a move does not become smaller than this before the weights have arrived."""
SHORTEST_LATE_MOVE = 0.002
"""The same afterwards."""
ARRIVAL = 3
"""The weights have arrived when this many moves in a row have needed less than half of what they might."""
MEMORY = 0.5
"""What an average over slopes keeps of its former value when a new slope comes in."""
WORTH_ASKING = 0.1
"""A weight below this part of an equal share becomes zero: the node would cost more than it adds."""
SCALE_DECAY = 0.98
"""What the scale of slopes keeps from one exchange to the next: slopes that are small beside former ones
are mostly noise, and move the weights little."""
DEEPEST_SCORE = -0.05
"""How far below zero the score of a node without weight may fall: what it has to make up to return."""


class WeightSearch(NamedTuple):
    """The weights, and what the search for better ones remembers."""

    node_weights: Array
    """The weights w."""
    scores: Array
    """The weights before projection. A node without weight returns when its score is above zero again:
    slopes have to speak for it more than once."""
    trends: Array
    """The average over the last slopes of each node, relative to those of the weighted nodes."""
    trust: Array
    """The total weight of the slopes in that average, from 0 to 1."""
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
        return self.short_moves >= ARRIVAL

    @classmethod
    def begin(cls, node_weights: Array) -> "WeightSearch":
        """Begin at some weights, with everything to learn."""
        nothing = jnp.zeros_like(node_weights)
        return cls(node_weights, node_weights, nothing, nothing, nothing, 0.0, FIRST_MOVE, 0)

    def among(self, present: np.ndarray, cap: float) -> "WeightSearch":
        """Return the search with weights that suit the nodes that take part now."""
        weights = readmit(self.node_weights, cap, present)
        if weights is self.node_weights:
            return self
        if not np.asarray(weights).any():
            weights = project_weights(equal_weights(present), cap, present)
        return self.restarted(weights)

    def restarted(self, node_weights: Array, radius_factor: float = 1.0) -> "WeightSearch":
        """Return the search at other weights, or for another model: former slopes no longer count."""
        return WeightSearch.begin(node_weights)._replace(
            direction=self.direction,
            scale=self.scale,
            radius=max(self._shortest, radius_factor * self.radius),
            short_moves=self.short_moves,
        )

    def move(
        self, slopes: Array, *, cap: float, present: np.ndarray, improving: bool
    ) -> "WeightSearch":
        """Move the weights against the slopes.

        The bound on a move shrinks where moves turn back or need less than they may. It grows where it was
        what limited a move in the former direction; after arrival only while the validation loss falls,
        because what is left of the slopes is mostly noise of the validation data.

        Args:
            slopes: ∂F/∂w_k; NaN of nodes that were not asked or did not answer: they stay where they are.
            cap: The largest weight of a node.
            present: Which nodes take part.
            improving: Whether the validation loss has just reached a new minimum.
        """
        weights = np.asarray(self.node_weights, np.float64)
        numbers = np.asarray(slopes, np.float64)
        known = np.isfinite(numbers) & present
        shares = np.where(known, weights, 0.0)
        if not shares.sum() > 0:
            return self
        mean = np.average(numbers[known], weights=shares[known])
        relative = np.where(known, numbers - mean, 0.0)
        memory = np.where(known, MEMORY, 1.0)
        trends = memory * np.asarray(self.trends, np.float64) + (1 - memory) * relative
        trust = memory * np.asarray(self.trust, np.float64) + (1 - memory)
        trend = np.where(known, trends / np.maximum(trust, MEMORY / 2), 0.0)
        scale = max(SCALE_DECAY * self.scale, float(np.abs(trend).max()))
        if scale == 0:
            return self
        scores = np.asarray(self.scores, np.float64)
        wanted = scores - LONGEST_MOVE * trend / scale
        target = np.asarray(project_weights(jnp.asarray(wanted), cap, present), np.float64)
        part = min(1.0, self.radius / max(_shifted(target - weights), 1e-12))
        scores = scores + part * (wanted - scores)
        moved = _without_crumbs(weights + part * (target - weights), cap, present)
        move = moved - weights
        smallest = WORTH_ASKING / np.count_nonzero(present)
        scores = np.where(moved > 0, moved, np.clip(scores, DEEPEST_SCORE, smallest))
        radius, short = self._next_radius(move, limited=part < 1, improving=improving)
        return WeightSearch(
            node_weights=jnp.asarray(moved),
            scores=jnp.asarray(scores),
            trends=jnp.asarray(trends),
            trust=jnp.asarray(trust),
            direction=jnp.asarray(0.5 * np.asarray(self.direction, np.float64) + move),
            scale=scale,
            radius=radius,
            short_moves=self.short_moves if self.arrived else (self.short_moves + 1) * short,
        )

    def _next_radius(
        self, move: np.ndarray, *, limited: bool, improving: bool
    ) -> tuple[float, bool]:
        """Return the next bound, and whether this move was far below the present one."""
        radius, short = self.radius, _shifted(move) < self.radius / 2
        before = np.asarray(self.direction, np.float64)
        lengths = float(np.linalg.norm(move) * np.linalg.norm(before))
        cosine = float(move @ before) / lengths if lengths > 0 else 0.0
        if cosine < -0.1:
            radius *= 0.3 if self.arrived else 0.5
        elif cosine > 0.3 and limited and (improving or not self.arrived):
            radius = min((1.7 if improving else 1.3) * radius, LONGEST_MOVE)
        if short:
            radius /= 2
        return max(radius, self._shortest), short

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


def _without_crumbs(weights: np.ndarray, cap: float, present: np.ndarray) -> np.ndarray:
    """Give the weight of nodes that hardly count to the others."""
    smallest = WORTH_ASKING / np.count_nonzero(present)
    kept = np.where(weights < smallest, -1.0, weights)
    return np.asarray(project_weights(jnp.asarray(kept), cap, present), np.float64)
