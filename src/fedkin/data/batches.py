"""A node's points, parted once and for all into mini-batches.

A model with batch normalisation has no loss of single points, only of mini-batches. So a node's
points are divided into fixed mini-batches of (nearly) equal size; one step draws one of them, and the
full gradient is the mean over all of them. The variance-reduced gradient is then unbiased for every
model, exactly.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedkin.models.objective import Batch
from fedkin.types import Array


class NodeData(NamedTuple):
    """The points of one node, or of all nodes stacked, and their division into mini-batches.

    In a simulation all nodes share the pool of `inputs` and `labels`; the other fields then have a
    first axis that runs over nodes.
    """

    inputs: Array
    """A pool of prepared points, (points, …)."""
    labels: Array
    """The label of each point of the pool."""
    rows: Array
    """For each mini-batch, the places of its points in the pool: (batches, batch size)."""
    weights: Array | None
    """For each mini-batch, the weight of its points, zero for filling; None if all count alike."""
    batches: Array
    """How many of the mini-batches are the node's own; the rest is filling."""
    points: Array
    """The number of the node's points."""

    def batch(self, index: Array) -> Batch:
        """Fetch one mini-batch."""
        rows = self.rows[index]
        weights = None if self.weights is None else self.weights[index]
        return Batch(self.inputs[rows], self.labels[rows], weights)

    def batch_points(self, indices: Array) -> Array:
        """Count the points of mini-batches of one node, filling left out."""
        if self.weights is None:
            return jnp.full(indices.shape, self.rows.shape[-1])
        return jnp.sum(self.weights[indices] > 0, axis=-1)


OWN_FIELDS = NodeData(None, None, 0, 0, 0, 0)  # pyright: ignore[reportArgumentType]
"""Which fields differ from node to node in a stack: the `in_axes` of `vmap`."""


def stack_nodes(
    inputs: Sequence[np.ndarray], labels: Sequence[np.ndarray], batch_size: int, seed: int
) -> NodeData:
    """Put the points of all nodes into one pool and part each node's into mini-batches.

    A node of n points gets ⌈n / batch size⌉ mini-batches whose sizes differ by one at the most. Which
    points go together is drawn from the seed, the number of the node and nothing else, because files
    are often sorted.

    Args:
        inputs: Each node's prepared points.
        labels: Each node's labels.
        batch_size: The largest number of points in a mini-batch.
        seed: Decides which points go together.
    """
    counts = [len(own) for own in labels]
    offsets = np.cumsum([0, *counts])
    parts = [
        [part + offset for part in divide(count, batch_size, seed, node)]
        for node, (count, offset) in enumerate(zip(counts, offsets[:-1], strict=True))
    ]
    most = max(len(own) for own in parts)
    width = max(len(part) for own in parts for part in own)
    # Filling repeats a point of the node's own, so that no node ever touches another's.
    rows = np.tile(offsets[:-1, None, None], (1, most, width)).astype(np.int32)
    weights = np.zeros((len(parts), most, width), np.float64)
    for node, own in enumerate(parts):
        for index, part in enumerate(own):
            rows[node, index, : len(part)] = part
            weights[node, index, : len(part)] = len(own) / counts[node]
    alike = all(len(own) == most and all(len(part) == width for part in own) for own in parts)
    return NodeData(
        inputs=jnp.asarray(np.concatenate(inputs)),
        labels=jnp.asarray(np.concatenate(labels)),
        rows=jnp.asarray(rows),
        weights=None if alike else jnp.asarray(weights, jnp.result_type(float)),
        batches=jnp.asarray([len(own) for own in parts], jnp.int32),
        points=jnp.asarray(counts, jnp.int32),
    )


def divide(points: int, batch_size: int, seed: int, node: int) -> list[np.ndarray]:
    """Part the numbers 0 … points − 1 at random into as few equal mini-batches as possible."""
    order = np.random.default_rng([seed, node]).permutation(points)
    return np.array_split(order, -(-points // batch_size))
