"""Oracles of models that JAX cannot differentiate, such as PyTorch modules.

Tasks are written once, for JAX, and ask `nodes.oracles` for all that concerns the model. Where the model is
not written in JAX, such a call becomes a placeholder in the traced task. The engine that runs the task
(`federation/torch_work.py`) puts the model's own computation in its place.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching

from fedkin.types import Array

Numbers = Any
"""Whole numbers: a JAX array while a task is traced, NumPy's otherwise."""


class BatchPlace(NamedTuple):
    """A mini-batch, by its place in a pool that an engine keeps."""

    place: Numbers


class NodePlaces(NamedTuple):
    """What `NodeData` is where the points themselves lie elsewhere: one node, or all nodes stacked.

    It has what tasks use of `NodeData`; its mini-batches are nothing but places in the engine's pool.
    """

    sizes: Numbers
    """How many points each mini-batch of the pool has."""
    first: Numbers
    """The position in the pool of the node's first mini-batch."""
    batches: Numbers
    """The number of the node's mini-batches."""
    points: Numbers
    """The number of the node's points."""
    turns: Numbers
    """0, 1, …, one row: `NodeData.turns` for mini-batches that are computed one after the other."""
    nbytes: Numbers
    """The memory of all points in the pool, in bytes."""

    def batch(self, index: Numbers) -> BatchPlace:
        """Name one mini-batch."""
        return BatchPlace(self.first + index)

    def batch_points(self, indices: Numbers) -> Numbers:
        """Count the points of one node's mini-batches."""
        return self.sizes[self.first + indices]

    def of_node(self, node: Numbers) -> "NodePlaces":
        """Pick one node out of a stack."""
        return self._replace(
            first=self.first[node], batches=self.batches[node], points=self.points[node]
        )


Shapes = Callable[..., Any]
"""Takes the arguments of an oracle but for the model; returns arrays that look like its result."""

placeholder = Primitive("oracle_of_a_foreign_model")
placeholder.multiple_results = True


def for_any_model(shapes: Shapes) -> Callable[[Callable], Callable]:
    """Let an oracle leave a placeholder where the model is not written in JAX.

    Args:
        shapes: What the result looks like.
    """

    def decorate(function: Callable) -> Callable:
        @wraps(function)
        def oracle(objective: Any, *arguments: Any) -> Any:
            if objective.in_jax:
                return function(objective, *arguments)
            leaves, structure = jax.tree.flatten(arguments)
            found = jax.eval_shape(shapes, *arguments)
            results, form = jax.tree.flatten(found)
            found = placeholder.bind(
                *leaves,
                name=function.__name__,
                structure=structure,
                results=tuple((each.shape, each.dtype) for each in results),
                mapped=(),
            )
            return jax.tree.unflatten(form, found)

        return oracle

    return decorate


def _abstract(*arguments: Any, results: tuple, **_: Any) -> list[ShapedArray]:
    return [ShapedArray(shape, dtype) for shape, dtype in results]


def _map(
    arguments: Sequence[Array],
    axes: Sequence[int | None],
    *,
    results: tuple,
    mapped: tuple,
    **rest: Any,
) -> tuple[list[Array], list[int]]:
    """Note which arguments have one more axis: the engine goes through it, one after the other."""
    has_axis = tuple(axis is not None for axis in axes)
    moved = [
        array if axis is None else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(arguments, axes, strict=True)
    ]
    size = next(len(array) for array, own in zip(moved, has_axis, strict=True) if own)
    longer = tuple(((size, *shape), dtype) for shape, dtype in results)
    found = placeholder.bind(*moved, results=longer, mapped=(*mapped, has_axis), **rest)
    return found, [0] * len(found)


placeholder.def_abstract_eval(_abstract)
batching.primitive_batchers[placeholder] = _map
