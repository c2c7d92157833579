"""A model's loss as a function of one flat vector, which is what training optimizes."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedkin.errors import InputError
from fedkin.models.base import Model, Statistics
from fedkin.models.operations import count_operations
from fedkin.types import Array, Key, Params, Vector

OPERATIONS_FOR_ONE_NODE = 10_000_000
"""From this many multiplications and additions in the loss of a mini-batch on, nodes and mini-batches are
computed one after the other. Below that, starting an operation costs more than the operation, so several are
computed at once."""

PARAMETERS_FOR_ONE_NODE = 100_000
"""Likewise from this many parameters on: a table of that size takes no multiplications, but several copies of
it would fill the memory."""


class Batch(NamedTuple):
    """Some points of one node, with the weight of each in the node's loss.

    `weights` is None if all points count equally. A weight of zero marks padding.
    """

    inputs: Array
    labels: Array
    weights: Array | None


@runtime_checkable
class ForeignModel(Protocol):
    """A model that is not written in JAX, and makes its own objective."""

    def objective_for(self, inputs: Array | np.ndarray) -> "Objective":
        """Bind the model to the shape of its (prepared) inputs."""
        ...


@dataclass(frozen=True)
class Objective:
    """A model whose parameters are one flat vector of length `size`.

    It is hashable, so that all objectives with the same model and shapes share compiled code.

    >>> from fedkin.models.linear import Logistic
    >>> objective = Objective.create(Logistic(classes=3), np.zeros((10, 4)))
    >>> objective.size  # a kernel of shape (4, 3) and three intercepts
    15
    """

    model: Model
    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    point_shape: tuple[int, ...]
    point_dtype: str

    in_jax: ClassVar[bool] = True
    """Whether the model is written in JAX; if not, `nodes/foreign.py` says what tasks make of it."""

    @classmethod
    def create(cls, model: Model, inputs: Array | np.ndarray) -> "Objective":
        """Bind a model to the shape of its (prepared) inputs."""
        if isinstance(model, ForeignModel):
            return model.objective_for(inputs)
        example = jax.ShapeDtypeStruct((2, *inputs.shape[1:]), inputs.dtype)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            params = jax.eval_shape(model.init, jax.random.key(0), example)
        leaves, structure = jax.tree.flatten(params)
        _check_parameters(leaves, [str(warning.message) for warning in caught])
        shapes = tuple(leaf.shape for leaf in leaves)
        return cls(model, structure, shapes, tuple(inputs.shape[1:]), str(inputs.dtype))

    @property
    def size(self) -> int:
        """The number d of parameters."""
        return sum(math.prod(shape) for shape in self.shapes)

    def init(self, key: Key) -> Vector:
        """Draw the initial parameters. Do not call this inside compiled code."""
        return _init(self, key)

    def start(self, key: Key) -> Vector:
        """Return the parameters that training starts from. Do not call this inside compiled code."""
        return self.init(key)

    def unflatten(self, vector: Vector) -> Params:
        """Return the parameters as the model arranges them."""
        # The gradient of one split is one concatenation. With a slice per parameter it is a sum of padded
        # arrays, which XLA (of jaxlib 0.10.2) miscompiles in `resnet`: one bias had the gradient zero.
        parts = lax.split(vector, [math.prod(shape) for shape in self.shapes])
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)

    def flatten(self, params: Params) -> Vector:
        """Return parameters as one vector."""
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])

    def batch_loss(self, vector: Vector, batch: Batch) -> Array:
        """Return the loss of one mini-batch. A node's loss is the mean over its mini-batches."""
        return self.loss_of_parameters(self.unflatten(vector), batch)

    def loss_of_parameters(self, params: Params, batch: Batch) -> Array:
        """Return the loss of one mini-batch, given the parameters as the model arranges them."""
        mask = None if batch.weights is None else batch.weights > 0
        losses = self.model.loss(self.model.apply(params, batch.inputs, mask=mask), batch.labels)
        data_loss = jnp.mean(losses) if batch.weights is None else batch.weights @ losses
        return data_loss + self.model.penalty(params)

    def is_heavy(self, points: int) -> bool:
        """Return whether one mini-batch of this many points is enough work for a core at a time."""
        if self.size >= PARAMETERS_FOR_ONE_NODE:
            return True
        return self._loss_operations(points) >= OPERATIONS_FOR_ONE_NODE

    def _loss_operations(self, points: int) -> int:
        """Count the multiplications and additions in the loss of a mini-batch."""
        return _loss_operations(self, points)

    def outputs(self, vector: Vector, inputs: Array, statistics: Statistics) -> Array:
        """Return the outputs for evaluation, normalized with fixed statistics."""
        return self.model.apply(self.unflatten(vector), inputs, statistics=statistics)

    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of the outputs for one point."""
        outputs = jax.eval_shape(
            lambda vector, inputs: self.model.apply(self.unflatten(vector), inputs),
            jax.ShapeDtypeStruct((self.size,), jnp.result_type(float)),
            jax.ShapeDtypeStruct((2, *self.point_shape), self.point_dtype),
        )
        return tuple(outputs.shape[1:])

    def statistics(self, vector: Vector, inputs: Array) -> Statistics:
        """Return the normalization statistics of these inputs."""
        return self.model.statistics(self.unflatten(vector), inputs)

    def arrange_statistics(self, leaves: Sequence[np.ndarray]) -> Statistics:
        """Return statistics as the model arranges them, given their arrays in one list."""
        shapes = jax.eval_shape(
            self.statistics,
            jax.ShapeDtypeStruct((self.size,), jnp.result_type(float)),
            jax.ShapeDtypeStruct((2, *self.point_shape), self.point_dtype),
        )
        expected = [leaf.shape for leaf in jax.tree.leaves(shapes)]
        if (found := [leaf.shape for leaf in leaves]) != expected:
            raise InputError(
                f"the statistics have the shapes {found}, but the model needs {expected}"
            )
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _check_parameters(leaves: list[Any], warned: list[str]) -> None:
    """Refuse a model without parameters, or with parameters that are no single-precision numbers."""
    if not sum(math.prod(leaf.shape) for leaf in leaves):
        raise InputError("the model has no parameters: there is nothing to train")
    own = jnp.result_type(float)
    kinds = sorted({str(leaf.dtype) for leaf in leaves} - {"float32", str(own)})
    if any("dtype float64" in message for message in warned):
        kinds.append("float64")
    if kinds:
        raise InputError(
            f"the model has parameters of type {', '.join(kinds)}; fedkin computes in {own}: "
            "make all parameters float32"
        )


@cache
def _loss_operations(objective: Objective, points: int) -> int:
    """Count what the loss of a mini-batch takes."""
    traced = jax.make_jaxpr(
        lambda vector, inputs: objective.model.apply(objective.unflatten(vector), inputs)
    )(
        jax.ShapeDtypeStruct((objective.size,), jnp.result_type(float)),
        jax.ShapeDtypeStruct((points, *objective.point_shape), objective.point_dtype),
    )
    return count_operations(traced.jaxpr)


# This runs once. Optimized compilation would take two seconds and save none.
@partial(jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
def _init(objective: Objective, key: Key) -> Vector:
    params = objective.model.init(
        key, jnp.zeros((2, *objective.point_shape), objective.point_dtype)
    )
    return objective.flatten(params)
