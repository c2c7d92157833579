"""A federation of made-up images in the shapes of the paper's data sets, and what is drawn on it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.data.batches import divide
from fedkin.models.cnn import CNN
from fedkin.models.objective import Objective
from fedkin.nodes.draws import draw_batches, draw_batches_and_coins
from fedkin.types import Key, Vector

NETWORKS = {
    "Fashion-MNIST": CNN((28, 28, 1), channels=2),
    "CIFAR-10": CNN((32, 32, 3), channels=5),
}
"""The paper's networks by the data set they are for."""

CLASSES = 10
BATCH_SIZE = 50
SEED = 0


@dataclass(frozen=True)
class BenchProblem:
    """The data of nodes and a center, random images: the time of a step does not depend on what they show.

    Args:
        network: A name in `NETWORKS`.
        nodes: The number K of nodes.
        points: Images per node.
        own_points: Images of the center.
        batch_size: Images per mini-batch.
    """

    network: str
    nodes: int = 15
    points: int = 4000
    own_points: int = 500
    batch_size: int = BATCH_SIZE

    @property
    def model(self) -> CNN:
        """The network."""
        return NETWORKS[self.network]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the images."""
        return self.model.image_shape

    @cached_property
    def objective(self) -> Objective:
        """The network on prepared images."""
        images, _ = self.raw(0, 2)
        return Objective.create(self.model, self.model.prepare(images))

    @cached_property
    def theta(self) -> Vector:
        """The initial model."""
        return self.objective.init(jax.random.key(SEED))

    def raw(self, node: int, points: int) -> tuple[np.ndarray, np.ndarray]:
        """Make up a node's images and labels: a class is a brightness of some of the pixels."""
        random = np.random.default_rng([SEED, node])
        labels = random.integers(0, CLASSES, points).astype(np.int32)
        images = random.integers(0, 128, (points, *self.image_shape), np.uint8)
        rows = np.arange(self.image_shape[0]) % CLASSES
        images += (100 * (rows[None, :] == labels[:, None])).astype(np.uint8)[:, :, None, None]
        return images, labels

    def prepared(self, node: int, points: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the same images in the form that fedkin's model takes."""
        images, labels = self.raw(node, points)
        return np.asarray(self.model.prepare(images)), labels

    def batched(self, node: int, points: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the same images, divided into the mini-batches that fedkin uses."""
        images, labels = self.raw(node, points)
        # The center is a federation of its own, whose only node has the number 0.
        rows = np.stack(divide(points, self.batch_size, SEED, node % self.nodes))
        return images[rows], labels[rows]

    def parameters(self, vector: Vector) -> Any:
        """Return a flat vector in the arrangement of the model, as NumPy arrays."""
        return jax.tree.map(np.asarray, self.objective.unflatten(vector))


def svrg_draws(
    key: Key, nodes: int, steps: int, batches: int, refresh_probability: float
) -> tuple[np.ndarray, np.ndarray]:
    """Draw what the nodes draw in a round of Local-SVRG (`nodes.svrg.svrg_round`)."""

    def one(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        own_key = jax.random.fold_in(key, number)
        return draw_batches_and_coins(own_key, steps, batches, refresh_probability)

    drawn, coins = jax.vmap(one)(jnp.arange(nodes))
    return np.asarray(drawn), np.asarray(coins)


def batch_draws(key: Key, nodes: int, steps: int, batches: int) -> np.ndarray:
    """Draw what the nodes draw in a round of Ditto or pFedMe."""

    def one(number: jax.Array) -> jax.Array:
        return draw_batches(jax.random.fold_in(key, number), steps, batches)

    return np.asarray(jax.vmap(one)(jnp.arange(nodes)))
