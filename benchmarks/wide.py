"""A network with about as many parameters as one asks for, which a federation's nodes can load."""

import math
import os
from typing import Any

import jax
import jax.numpy as jnp

PARAMETERS = "FEDKIN_BENCHMARK_PARAMETERS"
"""The environment variable with the number of parameters."""


class Wide:
    """One hidden layer, whose width gives the number of parameters."""

    def __init__(self, inputs: int, classes: int, parameters: int) -> None:
        self.inputs, self.classes = inputs, classes
        self.hidden = max(1, round((parameters - classes) / (inputs + 1 + classes)))

    def init(self, key: jax.Array, inputs: Any) -> dict[str, jax.Array]:
        """Draw small weights: a model's norm must not be above what owners accept."""
        first, second = jax.random.split(key)
        scale = 1 / math.sqrt(self.inputs * self.hidden)
        return {
            "first": scale * jax.random.normal(first, (self.inputs, self.hidden)),
            "bias": jnp.zeros(self.hidden),
            "second": scale * jax.random.normal(second, (self.hidden, self.classes)),
            "offset": jnp.zeros(self.classes),
        }

    def apply(self, params: dict[str, jax.Array], inputs: jax.Array) -> jax.Array:
        """Return the scores of the classes."""
        points = jnp.reshape(inputs, (inputs.shape[0], -1))
        hidden = jax.nn.relu(points @ params["first"] + params["bias"])
        return hidden @ params["second"] + params["offset"]


def model(classes: int, point_shape: tuple[int, ...]) -> Wide:
    """Return the network; fedkin calls this with the shape of the data."""
    return Wide(math.prod(point_shape), classes, int(os.environ[PARAMETERS]))
