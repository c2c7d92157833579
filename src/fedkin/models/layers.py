"""Convolutions in the form that takes the least time: windows, windows of planes, or frequencies.

Images have the axes (places…, point, channel): then what is done for all points and channels alike is
done for long rows of neighbors in memory.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from fedkin.models import frequencies
from fedkin.models.convolutions import convolve_windows
from fedkin.models.windows import Geometry, cut_windows_of_places, cut_windows_of_planes
from fedkin.types import Array

FEW_CHANNELS = 4
"""Windows of images with at most this many channels are cut out plane by plane: the pieces that are
copied for all channels of a pixel would be too short."""

COPY = 16
"""Copying a number into a window takes as long as this many multiplications."""

NUMBERS_IN_WINDOWS = 1_000_000
"""Windows with at most this many numbers are cut out at once: a few megabytes, which are still in a cache
when they are multiplied. More are cut out a few points at a time."""

POINTS_AT_ONCE = 128
"""The transforms or windows of at most this many points are in memory together."""


def convolve(images: Array, kernel: Array, geometry: Geometry, precision: Any = None) -> Array:
    """Multiply every window of some images with a kernel.

    Args:
        images: (places…, point, channel).
        kernel: (pixel of the window and channel, output).
        geometry: Where the windows lie.
        precision: That of the matrix products, as for `lax.dot_general`.

    Returns:
        (places…, point, output).
    """
    if images.shape[-1] <= FEW_CHANNELS:
        return _in_parts(lambda some: _convolve_planes(some, kernel, geometry, precision), images)
    if frequencies_are_faster(images, kernel.shape[1], geometry):
        transformed = frequencies.transform_kernel(
            kernel.reshape(*geometry.window, images.shape[-1], -1), geometry, precision
        )
        return _in_parts(
            lambda some: frequencies.convolve(some, transformed, geometry, precision), images
        )
    if len(kernel) * math.prod(geometry.positions) * images.shape[-2] <= NUMBERS_IN_WINDOWS:
        windows = cut_windows_of_places(images, geometry)
        return jnp.matmul(windows, kernel, precision=precision)
    found = convolve_windows(jnp.moveaxis(images, -2, 0), kernel, geometry, precision)
    return jnp.moveaxis(found, 0, -2)


def frequencies_are_faster(images: Any, outputs: int, geometry: Geometry) -> bool:
    """Return whether the frequency domain takes less than windows: counted, with the copies of windows."""
    *_, points, channels = images.shape
    possible = len(geometry.image) == 2 and images.dtype in (jnp.float32, jnp.float64)
    if not possible or min(map(min, geometry.padding)) < 0:
        return False
    copied = math.prod(geometry.positions) * geometry.pixels * points * channels
    by_windows = copied * (outputs + COPY)
    return frequencies.count_multiplications(points, channels, outputs, geometry) < by_windows


def _convolve_planes(images: Array, kernel: Array, geometry: Geometry, precision: Any) -> Array:
    """Multiply windows of images with few channels."""
    points = images.shape[-2]
    windows = cut_windows_of_planes(jnp.moveaxis(images, -1, 0), geometry)
    found = lax.dot_general(windows, kernel, (((0,), (0,)), ((), ())), precision=precision)
    return found.reshape(*geometry.positions, points, -1)


def _in_parts(function: Callable[[Array], Array], images: Array) -> Array:
    """Compute something for all points, some at a time."""
    axis = images.ndim - 2
    points = images.shape[axis]
    if points <= POINTS_AT_ONCE:
        return function(images)
    missing = -points % POINTS_AT_ONCE
    filled = jnp.pad(images, [(0, missing if each == axis else 0) for each in range(images.ndim)])
    parts = filled.reshape(*images.shape[:axis], -1, POINTS_AT_ONCE, images.shape[-1])
    found = jnp.moveaxis(lax.map(function, jnp.moveaxis(parts, axis, 0)), 0, axis)
    joined = found.reshape(*found.shape[:axis], -1, found.shape[-1])
    return lax.slice_in_dim(joined, 0, points, axis=axis)
