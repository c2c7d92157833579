"""A node's points, parted once and for all into mini-batches.

A model with batch normalization has no loss of single points, only of mini-batches. So a node's
points are divided into fixed mini-batches of (nearly) equal size; one step draws one of them, and the
full gradient is the mean over all of them. The variance-reduced gradient is then unbiased for every
model, exactly.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.models.objective import Batch
from fedkin.types import Array


class NodeData(NamedTuple):
    """The points of one node, or of all nodes stacked, and their division into mini-batches.

    Points lie in memory as they are used: mini-batch by mini-batch, and within one the points run
    along the *last* axis, so that what is computed for each point alike is computed for neighbors
    in memory, and fetching a mini-batch copies one piece of memory. In a simulation all nodes share
    the pool of mini-batches; only `first`, `batches` and `points` then have an axis of nodes.
    """

    inputs: Array
    """A pool of mini-batches of prepared points: (mini-batches, …, batch size)."""
    labels: Array
    """The labels of these points: (mini-batches, batch size)."""
    weights: Array | None
    """The weights of these points, zero for filling; None if all count alike."""
    first: Array
    """Where in the pool the node's mini-batches begin."""
    batches: Array
    """How many mini-batches the node has."""
    points: Array
    """The number of the node's points."""
    turns: Array
    """0, 1, …: the mini-batches that a pass over all points takes in each turn, (turns, at once). It is
    the same for all nodes; a smaller node leaves out numbers that it does not have."""

    def batch(self, index: Array) -> Batch:
        """Fetch one mini-batch, points along the first axis."""
        place = self.first + index
        weights = None if self.weights is None else self.weights[place]
        # Fetched as one row: with its axes kept apart each number would have its place computed anew.
        row = self.inputs.reshape(len(self.inputs), -1)[place]
        inputs = jnp.moveaxis(row.reshape(self.inputs.shape[1:]), -1, 0)
        return Batch(inputs, self.labels[place], weights)

    def batch_points(self, indices: Array) -> Array:
        """Count the points of mini-batches of one node, filling left out."""
        if self.weights is None:
            return jnp.full(indices.shape, self.labels.shape[-1])
        return jnp.sum(self.weights[self.first + indices] > 0, axis=-1)

    def of_node(self, node: Array | int) -> "NodeData":
        """Pick one node out of a stack."""
        return self._replace(
            first=self.first[node], batches=self.batches[node], points=self.points[node]
        )


OWN_FIELDS = NodeData(None, None, None, 0, 0, 0, None)  # pyright: ignore[reportArgumentType]
"""Which fields differ from node to node in a stack: the `in_axes` of `vmap`."""

NUMBERS_AT_ONCE = 630_000
"""Mini-batches of so many pixels or features are computed together: few enough for a core's cache as
floats, enough to make the cost of starting an operation small."""

ALIGNMENT = 64
"""Bytes: JAX adopts a NumPy array that begins at a multiple of this, and copies any other."""


def stack_nodes(
    inputs: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    batch_size: int,
    seed: int,
    first_number: int = 0,
) -> NodeData:
    """Part each node's points into mini-batches, and put the mini-batches of all nodes into one pool.

    A node of n points gets ⌈n / batch size⌉ mini-batches whose sizes differ by one at the most. Which
    points go together is drawn from the seed, the number of the node and nothing else, because files
    are often sorted.

    Args:
        inputs: Each node's prepared points.
        labels: Each node's labels.
        batch_size: The largest number of points in a mini-batch.
        seed: Decides which points go together.
        first_number: The number of the first node.
    """
    counts = [len(own) for own in labels]
    parts = [
        divide(count, batch_size, seed, number) for number, count in enumerate(counts, first_number)
    ]
    batches = [len(own) for own in parts]
    width = max(len(part) for own in parts for part in own)
    total = sum(batches)
    pool = _aligned((total, *inputs[0].shape[1:], width), np.result_type(*inputs))
    label_pool = np.zeros((total, width), np.result_type(*labels))
    weights = np.zeros((total, width), np.float64)
    place = 0
    for node, own in enumerate(parts):
        own_inputs, own_labels = np.asarray(inputs[node]), np.asarray(labels[node])
        for part in own:
            # Filling repeats a point of the node's own, so that no node ever touches another's.
            rows = np.append(part, np.repeat(part[:1], width - len(part)))
            pool[place] = np.moveaxis(own_inputs[rows], 0, -1)
            label_pool[place] = own_labels[rows]
            weights[place, : len(part)] = len(own) / counts[node]
            place += 1
    alike = all(len(part) == width for own in parts for part in own)
    return NodeData(
        inputs=jax.device_put(pool, may_alias=True),  # not copied
        labels=jnp.asarray(label_pool),
        weights=None if alike else jnp.asarray(weights, jnp.result_type(float)),
        first=jnp.asarray(np.cumsum([0, *batches[:-1]]), jnp.int32),
        batches=jnp.asarray(batches, jnp.int32),
        points=jnp.asarray(counts, jnp.int32),
        turns=_turns(max(batches), pool[0].size),
    )


def _turns(batches: int, numbers: int) -> Array:
    """Choose which of a node's mini-batches to compute together, so that few are wasted.

    Args:
        batches: The mini-batches of the largest node.
        numbers: Numbers in a mini-batch.
    """
    most = max(1, NUMBERS_AT_ONCE // numbers)
    turns = -(-batches // most)
    at_once = -(-batches // turns)
    return jnp.arange(turns * at_once, dtype=jnp.int32).reshape(turns, at_once)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate an array that JAX will adopt as it is: the pool may be most of the memory there is."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)


def divide(points: int, batch_size: int, seed: int, node: int) -> list[np.ndarray]:
    """Part the numbers 0 … points − 1 at random into as few equal mini-batches as possible."""
    order = np.random.default_rng([seed, node]).permutation(points)
    return np.array_split(order, -(-points // batch_size))
