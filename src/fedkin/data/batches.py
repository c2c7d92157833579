"""A node's points, divided into fixed mini-batches.

A model with batch normalization has a loss per mini-batch, not per point. So every node divides its
points once into mini-batches of nearly equal size. A step draws one of them, and the full gradient is
the mean over all of them. This makes the variance-reduced gradient exactly unbiased for every model.
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

    Points lie in memory in the order of use: one mini-batch after the other, and the points of a
    mini-batch along the *last* axis. So a computation that is the same for every point runs over
    neighbors in memory, and fetching a mini-batch copies one piece of memory. In a simulation all
    nodes share the pool of mini-batches; only `first`, `batches` and `points` have an axis of nodes.
    """

    inputs: Array
    """A pool of mini-batches of prepared points: (mini-batches, …, batch size)."""
    labels: Array
    """The labels of these points: (mini-batches, batch size)."""
    weights: Array | None
    """The weights of these points, zero for padding; None if all count equally."""
    first: Array
    """The position in the pool of the node's first mini-batch."""
    batches: Array
    """The number of the node's mini-batches."""
    points: Array
    """The number of the node's points."""
    turns: Array
    """0, 1, …: which mini-batches a pass over all points computes together, (turns, at once). All nodes
    share this array; a smaller node skips the numbers that it does not have."""

    @property
    def nbytes(self) -> int:
        """The memory of all points in the pool, in bytes."""
        return self.inputs.nbytes

    def batch(self, index: Array) -> Batch:
        """Fetch one mini-batch, points along the first axis."""
        place = self.first + index
        weights = None if self.weights is None else self.weights[place]
        # Fetch it as one row: with several axes, XLA would compute the place of every number.
        row = self.inputs.reshape(len(self.inputs), -1)[place]
        inputs = jnp.moveaxis(row.reshape(self.inputs.shape[1:]), -1, 0)
        return Batch(inputs, self.labels[place], weights)

    def batch_points(self, indices: Array) -> Array:
        """Count the points of one node's mini-batches, without padding."""
        if self.weights is None:
            return jnp.full(indices.shape, self.labels.shape[-1])
        return jnp.sum(self.weights[self.first + indices] > 0, axis=-1)

    def of_node(self, node: Array | int | slice) -> "NodeData":
        """Pick one node, or some, out of a stack."""
        return self._replace(
            first=self.first[node], batches=self.batches[node], points=self.points[node]
        )


OWN_FIELDS = NodeData(None, None, None, 0, 0, 0, None)  # pyright: ignore[reportArgumentType]
"""Which fields differ from node to node in a stack: the `in_axes` of `vmap`."""

NUMBERS_AT_ONCE = 630_000
"""Mini-batches with about this many pixels or features in total are computed together: few enough to fit
a core's cache as floats, and enough to make the overhead of an operation small."""

ALIGNMENT = 64
"""Bytes: JAX uses a NumPy array in place if it begins at a multiple of this, and copies any other."""


def stack_nodes(
    inputs: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    batch_size: int,
    seed: int,
    numbers: Sequence[int] | None = None,
    group: int = 1,
) -> NodeData:
    """Divide each node's points into mini-batches, and put the mini-batches of all nodes into one pool.

    A node with n points gets ⌈n / batch size⌉ mini-batches whose sizes differ by at most one. The
    division is random, because files are often sorted. It depends only on the seed and the number of
    the node.

    >>> data = stack_nodes([np.ones((5, 2)), np.ones((3, 2))], [np.zeros(5), np.zeros(3)], 2, seed=0)
    >>> data.batches.tolist(), data.points.tolist(), data.inputs.shape
    ([3, 2], [5, 3], (5, 2, 2))

    Args:
        inputs: Each node's prepared points.
        labels: Each node's labels.
        batch_size: The largest number of points in a mini-batch.
        seed: Determines which points share a mini-batch.
        numbers: The number of each node; 0, 1, … if they are not given.
        group: Mini-batches of every size are made of the same groups of at least this many points.
    """
    counts = [len(own) for own in labels]
    parts = [
        divide(count, batch_size, seed, number, group)
        for number, count in zip(numbers or range(len(counts)), counts, strict=True)
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
            # Padding repeats one of the node's own points, so that no node uses another's.
            rows = np.append(part, np.repeat(part[:1], width - len(part)))
            pool[place] = np.moveaxis(own_inputs[rows], 0, -1)
            label_pool[place] = own_labels[rows]
            weights[place, : len(part)] = len(own) / counts[node]
            place += 1
    alike = all(len(part) == width for own in parts for part in own)
    return NodeData(
        inputs=jax.device_put(pool, may_alias=True),  # does not copy
        labels=jnp.asarray(label_pool),
        weights=None if alike else jnp.asarray(weights, jnp.result_type(float)),
        first=jnp.asarray(np.cumsum([0, *batches[:-1]]), jnp.int32),
        batches=jnp.asarray(batches, jnp.int32),
        points=jnp.asarray(counts, jnp.int32),
        turns=_turns(max(batches), pool[0].size),
    )


def _turns(batches: int, numbers: int) -> Array:
    """Choose which of a node's mini-batches are computed together, so that few places are empty.

    Args:
        batches: The number of mini-batches of the largest node.
        numbers: How many numbers a mini-batch has.
    """
    most = max(1, NUMBERS_AT_ONCE // numbers)
    turns = -(-batches // most)
    at_once = -(-batches // turns)
    return jnp.asarray(np.arange(turns * at_once, dtype=np.int32).reshape(turns, at_once))


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate an array that JAX uses in place: the pool may take most of the memory."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)


def divide(points: int, batch_size: int, seed: int, node: int, group: int = 1) -> list[np.ndarray]:
    """Divide 0 … points - 1 at random into as few mini-batches of nearly equal size as possible.

    With `group`, the points are first divided into groups of at least that many, and every mini-batch is made
    of whole groups. Whatever batch sizes somebody asks for, sums over mini-batches then never differ by fewer
    points than a group has.

    >>> sizes = [[len(part) for part in divide(60, size, seed=0, node=0, group=7)] for size in (50, 20, 1)]
    >>> sizes
    [[32, 28], [16, 16, 14, 14], [8, 8, 8, 8, 7, 7, 7, 7]]

    Args:
        points: How many points there are.
        batch_size: The largest number of points in a mini-batch, if a group is not larger.
        seed: Determines the division, with the number of the node.
        node: The number of the node.
        group: The least number of points in a group.
    """
    order = np.random.default_rng([seed, node]).permutation(points)
    groups = max(1, points // group)
    at_once = max(1, batch_size // -(-points // groups))
    first_group = _begins(groups, -(-groups // at_once))
    return np.split(order, _begins(points, groups)[first_group][1:])


def _begins(length: int, parts: int) -> np.ndarray:
    """Return where each part begins if a length is divided into parts that differ by at most one."""
    places = np.arange(parts)
    return places * (length // parts) + np.minimum(places, length % parts)
