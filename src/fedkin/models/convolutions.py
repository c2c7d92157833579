r"""Convolutions as matrix products of windows, a few points at a time.

XLA's own convolutions on CPUs are slow inside loops and under `vmap`, where all of fedkin's computation is.
A product of windows and kernel runs at the speed of matrix products, if the windows that it reads are still
in the core's cache: so a few points are cut into windows and multiplied, then the next ones.

A convolution is bilinear in images x and kernel K. So are its derivatives, and their derivatives are the same
three maps again:

- `convolve_windows`: :math:`y = x * K`,
- `_kernel_product`: the gradient with respect to K, given x and that of y,
- `_image_product`: the gradient with respect to x, given that of y and K.

Each is a primitive of JAX, so that every derivative runs in this form, and no windows are kept between
the pass forward and the one back.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad

from fedkin.models.bilinear import bilinear, one_by_one
from fedkin.models.windows import Geometry, add_windows, cut_windows
from fedkin.types import Array

BYTES_AT_ONCE = 1_100_000
"""The windows that are computed together take at most about this much memory: the cache of a core."""

FEW_WEIGHTS = 128
"""Kernels of fewer weights per output are multiplied as they lie; the gradient of others is computed
transposed, which XLA does faster."""


def convolve_windows(
    images: Array, kernel: Array, geometry: Geometry, precision: Any = None
) -> Array:
    """Multiply every window of some images with a kernel.

    Args:
        images: (point, places…, channel).
        kernel: (pixel of the window and channel, output).
        geometry: Where the windows lie.
        precision: That of the matrix product, as for `lax.dot_general`.

    Returns:
        (point, places…, output).
    """
    return _convolution.bind(images, kernel, geometry=geometry, precision=precision)


def _kernel_product(images: Array, outputs: Array, geometry: Geometry, precision: Any) -> Array:
    return _kernel_gradient.bind(images, outputs, geometry=geometry, precision=precision)


def _image_product(outputs: Array, kernel: Array, geometry: Geometry, precision: Any) -> Array:
    return _image_gradient.bind(outputs, kernel, geometry=geometry, precision=precision)


def _compute_outputs(images: Array, kernel: Array, *, geometry: Geometry, precision: Any) -> Array:
    def some(images: Array) -> Array:
        windows = cut_windows(images, geometry)
        product = _product(windows.reshape(-1, len(kernel)), kernel, 1, 0, precision)
        return product.reshape(*windows.shape[:-1], -1)

    return _in_parts(some, _points_at_once(images, geometry, images.shape[-1]), images)


def _compute_image_gradient(
    outputs: Array, kernel: Array, *, geometry: Geometry, precision: Any
) -> Array:
    def some(outputs: Array) -> Array:
        windows = _product(outputs.reshape(-1, outputs.shape[-1]), kernel, 1, 1, precision)
        return add_windows(windows.reshape(*outputs.shape[:-1], -1), geometry)

    channels = len(kernel) // geometry.pixels
    return _in_parts(some, _points_at_once(outputs, geometry, channels), outputs)


def _compute_kernel_gradient(
    images: Array, outputs: Array, *, geometry: Geometry, precision: Any
) -> Array:
    width = geometry.pixels * images.shape[-1]
    transposed = width >= FEW_WEIGHTS

    def some(images: Array, outputs: Array) -> Array:
        windows = cut_windows(images, geometry).reshape(-1, width)
        rows = outputs.reshape(-1, outputs.shape[-1])
        left, right = (rows, windows) if transposed else (windows, rows)
        return _product(left, right, 0, 0, precision)

    at_once = _points_at_once(images, geometry, images.shape[-1])
    if at_once >= len(images):
        total = some(images, outputs)
    else:
        parts = (_divide(images, at_once), _divide(outputs, at_once))
        shape = (outputs.shape[-1], width) if transposed else (width, outputs.shape[-1])
        total, _ = lax.scan(
            lambda total, part: (total + some(*part), None), jnp.zeros(shape, images.dtype), parts
        )
    return total.T if transposed else total


def _product(left: Array, right: Array, left_axis: int, right_axis: int, precision: Any) -> Array:
    return lax.dot_general(
        left, right, (((left_axis,), (right_axis,)), ((), ())), precision=precision
    )


def _points_at_once(images: Array, geometry: Geometry, channels: int) -> int:
    """Return how many points are computed together: parts of nearly equal size."""
    windows = 1
    for positions in geometry.positions:
        windows *= positions
    bytes_per_point = windows * geometry.pixels * channels * images.dtype.itemsize
    most = max(1, BYTES_AT_ONCE // max(1, bytes_per_point))
    parts = -(-len(images) // most)
    return -(-len(images) // parts)


def _in_parts(function: Callable[[Array], Array], at_once: int, points: Array) -> Array:
    """Compute something for all points, some at a time."""
    if at_once >= len(points):
        return function(points)
    found = lax.map(function, _divide(points, at_once))
    return found.reshape(-1, *found.shape[2:])[: len(points)]


def _divide(points: Array, at_once: int) -> Array:
    """Divide points into parts; zeros fill up the last one."""
    missing = -len(points) % at_once
    if missing:
        points = jnp.pad(points, ((0, missing), *[(0, 0)] * (points.ndim - 1)))
    return points.reshape(-1, at_once, *points.shape[1:])


_convolution = bilinear("convolution", _compute_outputs, one_by_one)
_kernel_gradient = bilinear("convolution_kernel_gradient", _compute_kernel_gradient, one_by_one)
_image_gradient = bilinear("convolution_image_gradient", _compute_image_gradient, one_by_one)

ad.defbilinear(
    _convolution,
    lambda outputs, images, kernel, **settings: _image_product(outputs, kernel, **settings),
    lambda outputs, images, kernel, **settings: _kernel_product(images, outputs, **settings),
)
ad.defbilinear(
    _kernel_gradient,
    lambda kernel, images, outputs, **settings: _image_product(outputs, kernel, **settings),
    lambda kernel, images, outputs, **settings: convolve_windows(images, kernel, **settings),
)
ad.defbilinear(
    _image_gradient,
    lambda images, outputs, kernel, **settings: convolve_windows(images, kernel, **settings),
    lambda images, outputs, kernel, **settings: _kernel_product(images, outputs, **settings),
)
