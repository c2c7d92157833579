"""The weights of the nodes that take part. A node that has been dropped has the weight 0."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedkin.numerics.simplex import project_capped_simplex
from fedkin.types import Array

Cap = float | tuple[float, ...] | np.ndarray
"""The largest weight of a node: the same for all, or one for each."""

SLACK = 1e-6
"""A weight may exceed the cap by rounding."""


def equal_weights(present: np.ndarray) -> Array:
    """Return the same weight for each of the nodes that take part."""
    return jnp.where(jnp.asarray(present), 1 / np.count_nonzero(present), 0.0)


def raised_cap(cap: Cap, present: np.ndarray) -> float | np.ndarray:
    """Return the cap, raised where so few nodes take part that they could not have the whole weight.

    >>> float(raised_cap(0.4, np.array([True, True, False])))
    0.5
    >>> raised_cap((0.6, 0.3, 0.3), np.array([False, True, True])).tolist()
    [0.6, 0.5, 0.5]
    """
    equal = 1 / np.count_nonzero(present)
    if isinstance(cap, (int, float)):
        return max(cap, equal)
    caps = np.asarray(cap, np.float64)
    return caps if caps[present].sum() >= 1 - SLACK else np.maximum(caps, equal)


def cap_among(cap: Cap, present: np.ndarray) -> float | np.ndarray:
    """Return the raised cap of those nodes only that take part: one for all, or one for each."""
    raised = raised_cap(cap, present)
    return raised[present] if isinstance(raised, np.ndarray) else raised


def project_weights(weights: Array, cap: Cap, present: np.ndarray) -> Array:
    """Project onto the capped simplex of the nodes that take part; for few of them the cap is raised."""
    if present.all():
        return project_capped_simplex(weights, cap)
    among = project_capped_simplex(weights[present], np.minimum(cap_among(cap, present), 1.0))
    return jnp.zeros_like(weights).at[np.flatnonzero(present)].set(among)


def readmit(weights: Array, cap: Cap, present: np.ndarray) -> Array:
    """Return weights that suit the nodes that take part now: as they are, unless that has changed."""
    values = np.asarray(weights)
    if np.all(values <= np.where(present, raised_cap(cap, present) + SLACK, 0.0)):
        return weights
    return project_weights(weights, cap, present)


class Roster(NamedTuple):
    """Which nodes took part in the last step, and the weight of each when it last did.

    A node that was away gets its former weight back: that it failed says nothing about its data.
    """

    present: Array
    """Which nodes took part, as bools."""
    weights: Array
    """Their weights at the start of that step; of the others, when they last took part."""

    @classmethod
    def of_all(cls, weights: Array) -> "Roster":
        """Begin with all nodes."""
        return cls(jnp.ones(len(weights), bool), weights)

    def with_returned(self, weights: Array, cap: Cap, present: np.ndarray) -> Array:
        """Return weights in which nodes that are back have their former ones, and the others make room.

        >>> roster = Roster(jnp.array([True, True, False]), jnp.array([0.3, 0.3, 0.4]))
        >>> roster.with_returned(jnp.array([0.5, 0.5, 0.0]), 1.0, np.ones(3, bool)).tolist()
        [0.30000001192092896, 0.30000001192092896, 0.4000000059604645]
        """
        back = np.asarray(present) & ~np.asarray(self.present)
        former = np.where(back, np.asarray(self.weights), 0.0)
        if not former.any():
            return weights
        others = np.where(back, 0.0, np.asarray(weights)) * max(0.0, 1 - former.sum())
        return project_weights(jnp.asarray(others + former, weights.dtype), cap, present)

    def readmit(self, weights: Array, cap: Cap, present: np.ndarray) -> Array:
        """Return weights that suit the nodes that take part now: as they are, unless that has changed."""
        return readmit(self.with_returned(weights, cap, present), cap, present)

    def after(self, weights: Array, present: np.ndarray) -> "Roster":
        """Return the roster of a step that begins with these weights."""
        there = jnp.asarray(present)
        return Roster(there, jnp.where(there, weights, self.weights))


def fill_unknown(numbers: Array, weights: Array) -> Array:
    """Replace numbers that nodes did not report (NaN) by the weighted mean of the others.

    A step along slopes filled like this moves the weight of such a node neither up nor down.
    """
    known = np.isfinite(np.asarray(numbers))
    if known.all():
        return numbers
    shares = np.where(known, np.asarray(weights, np.float64), 0.0)
    if not shares.sum() > 0:
        shares = known.astype(np.float64)
    if not known.any():
        return numbers
    mean = float(np.average(np.asarray(numbers, np.float64)[known], weights=shares[known]))
    return jnp.where(jnp.asarray(known), numbers, mean)
