"""The operations of traced tasks, for tensors and for NumPy, by the names that JAX gives them.

A function that returns None leaves the case to JAX. Tensors hold numbers in floating point, or truth values:
whole numbers are NumPy's.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

Value = Any
"""A tensor, a NumPy array or number, or a JAX key."""


def tensor_type(dtype: Any) -> torch.dtype | None:
    """Return PyTorch's name of a type; None where no tensors are used, as for whole numbers and keys."""
    if np.issubdtype(dtype, np.floating) or np.issubdtype(dtype, np.bool_):
        return getattr(torch, np.dtype(dtype).name)
    return None


def _spread_tensor(value: Tensor, *, shape: tuple, broadcast_dimensions: tuple, **_: Any) -> Tensor:
    own = [1] * len(shape)
    for axis, place in enumerate(broadcast_dimensions):
        own[place] = value.shape[axis]
    return value.reshape(own).expand(shape)


def _spread_array(value: Value, *, shape: tuple, broadcast_dimensions: tuple, **_: Any) -> Value:
    own = [1] * len(shape)
    for axis, place in enumerate(broadcast_dimensions):
        own[place] = np.shape(value)[axis]
    return np.broadcast_to(np.reshape(value, own), shape)


def _product(first: Value, second: Value, *, dimension_numbers: tuple, **_: Any) -> Value:
    (own, other), (batch, _) = dimension_numbers
    if batch or not all(isinstance(v, Tensor) and v.is_floating_point() for v in (first, second)):
        return None
    return torch.tensordot(first, second, dims=(list(own), list(other)))  # pyright: ignore


def _part(
    value: Value, *, start_indices: tuple, limit_indices: tuple, strides: tuple | None, **_: Any
) -> Value:
    steps = strides or [1] * len(start_indices)
    return value[tuple(map(slice, start_indices, limit_indices, steps))]


def _without_axes(value: Value, *, dimensions: tuple, **_: Any) -> Value:
    kept = [size for axis, size in enumerate(value.shape) if axis not in dimensions]
    return value.reshape(kept)


def _reshaped(value: Value, *, new_sizes: tuple, dimensions: Any, **_: Any) -> Value:
    return value.reshape(new_sizes) if dimensions is None else None


def _place(value: Value, *begins: Value, slice_sizes: tuple, **_: Any) -> Value:
    firsts = [
        min(max(int(begin), 0), size - part)
        for begin, size, part in zip(begins, value.shape, slice_sizes, strict=True)
    ]
    return value[tuple(slice(f, f + part) for f, part in zip(firsts, slice_sizes, strict=True))]


def _sum_array(value: Value, *, axes: tuple, **_: Any) -> Value:
    return np.sum(value, axis=axes, dtype=value.dtype)


def _sum_tensor(value: Tensor, *, axes: tuple, **_: Any) -> Tensor:
    return torch.sum(value, dim=tuple(axes)) if axes else value


def _reals_only(function: Callable, *values: Value) -> Value:
    kind = values[0].dtype.kind if isinstance(values[0], (np.ndarray, np.generic)) else "f"
    return function(*values) if kind == "f" else None


def _converted(value: Value, dtype: Any) -> Value:
    """Convert to another type; leave to JAX what whole numbers of that type cannot hold."""
    if value.dtype.kind == "f" and np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        if not np.all((value >= limits.min) & (value < limits.max)):
            return None
    return value.astype(dtype)


def _plain(function: Callable) -> Callable:
    """Return a function of values alone, which have no further settings that matter."""
    return lambda *values, **_: function(*values)


def _both(function: Callable) -> tuple[Callable, Callable]:
    return _plain(function), _plain(function)


def _compared(first: Value, second: Value, function: Callable) -> Value:
    """Take the larger or smaller of tensors and numbers: PyTorch's functions take tensors only."""
    like = first if isinstance(first, Tensor) else second
    return function(torch.as_tensor(first).to(like), torch.as_tensor(second).to(like))


OPERATIONS: Mapping[str, tuple[Callable | None, Callable | None]] = {
    "add": _both(operator.add),
    "add_any": _both(operator.add),
    "sub": _both(operator.sub),
    "mul": _both(operator.mul),
    "div": (
        _plain(operator.truediv),
        _plain(lambda first, second: _reals_only(operator.truediv, first, second)),
    ),
    "neg": _both(operator.neg),
    "rem": (None, _plain(np.fmod)),
    "shift_right_logical": (
        None,
        _plain(lambda value, bits: value >> bits if value.dtype.kind == "u" else None),
    ),
    "max": (_plain(lambda a, b: _compared(a, b, torch.maximum)), _plain(np.maximum)),
    "min": (_plain(lambda a, b: _compared(a, b, torch.minimum)), _plain(np.minimum)),
    "eq": _both(operator.eq),
    "ne": _both(operator.ne),
    "lt": _both(operator.lt),
    "le": _both(operator.le),
    "gt": _both(operator.gt),
    "ge": _both(operator.ge),
    "and": _both(operator.and_),
    "or": _both(operator.or_),
    "not": (_plain(torch.logical_not), _plain(np.invert)),
    "square": _both(lambda value: value * value),
    "integer_pow": (lambda value, *, y: value**y, lambda value, *, y: value**y),
    "sqrt": (_plain(torch.sqrt), _plain(np.sqrt)),
    "abs": (_plain(torch.abs), _plain(np.abs)),
    "sign": (  # PyTorch's sign of NaN is 0
        _plain(lambda value: torch.where(torch.isnan(value), value, torch.sign(value))),
        _plain(np.sign),
    ),
    "exp": (_plain(torch.exp), _plain(np.exp)),
    "log": (_plain(torch.log), _plain(np.log)),
    "tanh": (_plain(torch.tanh), _plain(np.tanh)),
    "is_finite": (_plain(torch.isfinite), _plain(np.isfinite)),
    "copy": _both(lambda value: value),
    "convert_element_type": (
        lambda value, *, new_dtype, **_: value.to(tensor_type(new_dtype)),
        lambda value, *, new_dtype, **_: _converted(value, new_dtype),
    ),
    "broadcast_in_dim": (_spread_tensor, _spread_array),
    "reshape": (_reshaped, _reshaped),
    "squeeze": (_without_axes, _without_axes),
    "slice": (_part, _part),
    "dynamic_slice": (_place, _place),
    "stack": (
        lambda *values, axis, **_: (
            torch.stack(values, axis) if all(isinstance(v, Tensor) for v in values) else None
        ),
        lambda *values, axis, **_: np.stack(values, axis),
    ),
    "transpose": (
        lambda value, *, permutation: value.permute(permutation),
        lambda value, *, permutation: np.transpose(value, permutation),
    ),
    "dot_general": (_product, None),
    "reduce_sum": (_sum_tensor, _sum_array),
}
"""For each operation what PyTorch and what NumPy does; None where it is left to JAX."""
