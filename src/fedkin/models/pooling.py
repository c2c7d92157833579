"""Pooling by comparisons or sums of slices, whose derivatives are cheap inside loops."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from fedkin.types import Array

MOST_SLICES = 16
"""Windows that are wider than this along an axis are left to XLA: each place in a window is a slice."""


def max_pool(images: Array, width: int) -> Array:
    """Take the maximum of square windows that do not overlap; what is left at the border does not count.

    Images have the axes (row, column, point, channel).

    >>> max_pool(jnp.arange(16.0).reshape(4, 4, 1, 1), 2)[:, :, 0, 0].tolist()
    [[5.0, 7.0], [13.0, 15.0]]
    """
    found = maximum_of_windows(
        images,
        window_dimensions=(width, width, 1, 1),
        window_strides=(width, width, 1, 1),
        padding=((0, 0),) * 4,
        base_dilation=(1,) * 4,
        window_dilation=(1,) * 4,
    )
    assert found is not None
    return found


def maximum_of_windows(images: Array, **settings: Any) -> Array | None:
    """Take the maximum of each window; of equal ones the first has the derivative, as in XLA.

    None for windows that are left to XLA.
    """
    if not jnp.issubdtype(images.dtype, jnp.floating):
        return None

    def larger(so_far: Array, other: Array) -> Array:
        return jnp.where((other > so_far) | jnp.isnan(other), other, so_far)

    return _pool(images, larger, -jnp.inf, **settings)


def sum_of_windows(images: Array, **settings: Any) -> Array | None:
    """Add up each window; None where that is left to XLA."""
    return _pool(images, lax.add, 0, **settings)


def _pool(
    images: Array,
    combine: Callable[[Array, Array], Array],
    border: float,
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> Array | None:
    """Combine the pixels of each window, axis by axis from the last: of equal maxima the first then wins."""
    unusual = {*base_dilation, *window_dilation} != {1} or not images.size
    if unusual or max(window_dimensions) > MOST_SLICES:
        return None
    if any(map(any, padding)):
        borders = [(int(low), int(high), 0) for low, high in padding]
        images = lax.pad(images, jnp.asarray(border, images.dtype), borders)
    for axis, (window, stride) in reversed(
        list(enumerate(zip(window_dimensions, window_strides, strict=True)))
    ):
        if window == stride == 1:
            continue
        length = (images.shape[axis] - window) // stride * stride + 1
        if length < 1:
            return None
        found = lax.slice_in_dim(images, 0, length, stride, axis=axis)
        for offset in range(1, window):
            other = lax.slice_in_dim(images, offset, offset + length, stride, axis=axis)
            found = combine(found, other)
        images = found
    return images
