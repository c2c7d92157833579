"""Bilinear functions as primitives of JAX whose derivatives are primitives, too.

JAX's own derivative of a product is a product whose result is then transposed. XLA does that transposition
together with the product, but not where two products are added first, as in every Hessian-vector product.
A function that comes with its two derivatives, each in the order in which it is fast, avoids that.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fedkin.types import Array

FEW_SUMS = 8
"""A matrix product with at most this many numbers takes longer than as many sums."""

FEW_OUTPUTS = 16
"""Kernels with at most this many outputs are transposed by hand, output by output."""

Axes = tuple[int | None, int | None]
"""For each operand the axis along which it is stacked; None for one that is not."""


class Batching(Protocol):
    """Computes a primitive for stacked operands; the result is stacked along its first axis."""

    def __call__(
        self, primitive: Primitive, operands: tuple[Array, Array], axes: Axes, **settings: Any
    ) -> Array:
        """Return the stacked results."""
        ...


def bilinear(name: str, compute: Callable[..., Array], stacked: Batching) -> Primitive:
    """Make a primitive of a bilinear function, without its derivatives (`ad.defbilinear` adds them).

    Args:
        name: What it is called in traced code.
        compute: The function of two arrays, and of settings given by name.
        stacked: What it is under `vmap`.
    """
    primitive = Primitive(f"fedkin_{name}")

    def shape_of(first: ShapedArray, second: ShapedArray, **settings: Any) -> ShapedArray:
        operands = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in (first, second)]
        found = jax.eval_shape(lambda *both: compute(*both, **settings), *operands)
        return ShapedArray(found.shape, found.dtype)

    def batch(operands: tuple[Array, Array], axes: Axes, **settings: Any) -> tuple[Array, int]:
        return stacked(primitive, operands, axes, **settings), 0

    primitive.def_abstract_eval(shape_of)
    primitive.def_impl(lambda *both, **settings: compute(*both, **settings))
    mlir.register_lowering(primitive, mlir.lower_fun(compute, multiple_results=False))
    batching.primitive_batchers[primitive] = batch
    return primitive


def one_by_one(
    primitive: Primitive, operands: tuple[Array, Array], axes: Axes, **settings: Any
) -> Array:
    """Compute one after the other."""
    given = [
        jnp.moveaxis(operand, axis, 0)
        for operand, axis in zip(operands, axes, strict=True)
        if axis is not None
    ]

    def one(own: list[Array]) -> Array:
        rest = list(own)
        both = [
            operand if axis is None else rest.pop(0)
            for operand, axis in zip(operands, axes, strict=True)
        ]
        return primitive.bind(*both, **settings)

    return lax.map(one, given)


def side_by_side(
    primitive: Primitive, operands: tuple[Array, Array], axes: Axes, **settings: Any
) -> Array:
    """Compute all at once, by a function that takes operands with further axes in front."""
    size = next(
        operand.shape[axis]
        for operand, axis in zip(operands, axes, strict=True)
        if axis is not None
    )
    both = [
        jnp.broadcast_to(operand, (size, *operand.shape))
        if axis is None
        else jnp.moveaxis(operand, axis, 0)
        for operand, axis in zip(operands, axes, strict=True)
    ]
    return primitive.bind(*both, **settings)


def multiply_columns(kernel: Array, columns: Array) -> Array:
    """Multiply (…, input, output) with (…, input, column) to (…, output, column).

    >>> multiply_columns(jnp.ones((3, 2)), jnp.ones((3, 4))).shape
    (2, 4)
    """
    return _columns.bind(kernel, columns)


def _contracted(left_axis: int, right_axis: int) -> Callable[[Array, Array], Array]:
    """Return the product of matrices over one axis of each; axes in front are those of a stack."""

    def product(left: Array, right: Array) -> Array:
        front = left.ndim - 2
        stack = tuple(range(front))
        axes = ((front + left_axis,), (front + right_axis,))
        return lax.dot_general(left, right, (axes, (stack, stack)))

    return product


def _outputs(kernel: Array, columns: Array) -> Array:
    """Return (…, output, column)."""
    if kernel.shape[-1] > FEW_OUTPUTS:
        return _contracted(0, 0)(kernel, columns)
    # Transposed by hand, as XLA takes a small product with a transposed matrix half as fast.
    rows = [kernel[..., output] for output in range(kernel.shape[-1])]
    return _contracted(1, 0)(jnp.stack(rows, axis=-2), columns)


def _sums_of_products(columns: Array, outputs: Array) -> Array:
    """Return (…, input, output): products of rows, which are long."""
    if columns.shape[-2] * outputs.shape[-2] > FEW_SUMS:
        return _contracted(1, 1)(columns, outputs)
    return jnp.sum(columns[..., :, None, :] * outputs[..., None, :, :], axis=-1)


_columns = bilinear("columns", _outputs, side_by_side)
_columns_gradient = bilinear("columns_gradient", _contracted(1, 0), side_by_side)
_kernel_gradient = bilinear("kernel_gradient", _sums_of_products, side_by_side)

ad.defbilinear(
    _columns,
    lambda outputs, kernel, columns: _kernel_gradient.bind(columns, outputs),
    lambda outputs, kernel, columns: _columns_gradient.bind(kernel, outputs),
)
ad.defbilinear(  # (kernel, outputs) to columns
    _columns_gradient,
    lambda columns, kernel, outputs: _kernel_gradient.bind(columns, outputs),
    lambda columns, kernel, outputs: _columns.bind(kernel, columns),
)
ad.defbilinear(  # (columns, outputs) to kernel
    _kernel_gradient,
    lambda kernel, columns, outputs: _columns_gradient.bind(kernel, outputs),
    lambda kernel, columns, outputs: _columns.bind(kernel, columns),
)
