"""Aliases shared by all of fedkin."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

Array = jax.Array
"""A JAX array."""

Key = jax.Array
"""A typed JAX random key. Never defaulted: whoever needs randomness is given a key."""

Params = Any
"""A model's parameters as the model itself arranges them: any pytree of arrays."""

Vector = jax.Array
"""All parameters of a model in one flat array of shape `(d,)`: what crosses the seam."""

Message = Mapping[str, jax.Array]
"""Named arrays sent to a node or answered by it. In replies the first axis runs over nodes."""

Examples = tuple[np.ndarray, np.ndarray]
"""Inputs and labels of the same length."""
