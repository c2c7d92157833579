"""The weights of the nodes that take part. A node that has been dropped has the weight 0."""

import jax.numpy as jnp
import numpy as np

from fedkin.numerics.simplex import project_capped_simplex
from fedkin.types import Array

SLACK = 1e-6
"""A weight may exceed the cap by rounding."""


def equal_weights(present: np.ndarray) -> Array:
    """Return the same weight for each of the nodes that take part."""
    return jnp.where(jnp.asarray(present), 1 / np.count_nonzero(present), 0.0)


def project_weights(weights: Array, cap: float, present: np.ndarray) -> Array:
    """Project onto the capped simplex of the nodes that take part.

    Where these are so few that they could not have the whole weight, the cap is raised to an equal
    share of it.
    """
    if present.all():
        return project_capped_simplex(weights, cap)
    cap = max(cap, 1 / np.count_nonzero(present))
    among = project_capped_simplex(weights[present], min(cap, 1.0))
    return jnp.zeros_like(weights).at[np.flatnonzero(present)].set(among)


def readmit(weights: Array, cap: float, present: np.ndarray) -> Array:
    """Return weights that suit the nodes that take part now: as they are, unless that has changed."""
    cap = max(cap, 1 / np.count_nonzero(present))
    values = np.asarray(weights)
    if np.all(values <= np.where(present, cap + SLACK, 0.0)):
        return weights
    return project_weights(weights, cap, present)


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
