"""Types that every layer shares."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

Array = jax.Array
"""A JAX array."""

Key = jax.Array
"""A typed JAX random key. It never has a default: whoever needs randomness is given a key."""

Params = Any
"""A model's parameters as the model arranges them: any pytree of arrays."""

Vector = jax.Array
"""All parameters of a model in one flat array of shape `(d,)`. Nodes and center exchange vectors."""

Message = Mapping[str, jax.Array]
"""Named arrays sent to a node."""

LearningTask = Literal["classification", "regression"]
"""What a model predicts: a class or a number."""


class Points(NamedTuple):
    """Inputs and their labels, with the points along the first axis of both."""

    inputs: np.ndarray
    labels: np.ndarray
