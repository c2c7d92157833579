"""Windows of images: cutting them out for a matrix product, and adding them up again.

Images have the axes (point, places…, channel), windows (point, places…, pixel of the window and channel),
for any number of axes of places. In `cut_windows_of_planes`, images and windows are transposed.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from fedkin.types import Array


@dataclass(frozen=True)
class Geometry:
    """Where the windows of an image lie.

    Args:
        image: The size of the image along each axis of places, without border.
        window: The size of a window.
        strides: The distance of neighboring windows.
        padding: The border before and after, along each axis; negative to cut off.

    >>> Geometry((28, 28), (5, 5), (2, 2), ((2, 2), (2, 2))).positions
    (14, 14)
    """

    image: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    @property
    def padded(self) -> tuple[int, ...]:
        """The size of the image with its border."""
        return tuple(n + sum(pad) for n, pad in zip(self.image, self.padding, strict=True))

    @property
    def positions(self) -> tuple[int, ...]:
        """The number of windows along each axis."""
        return tuple(
            (size - window) // stride + 1
            for size, window, stride in zip(self.padded, self.window, self.strides, strict=True)
        )

    @property
    def pixels(self) -> int:
        """The number of pixels of a window."""
        return math.prod(self.window)


def cut_windows(images: Array, geometry: Geometry) -> Array:
    """Cut out all windows: one slice of the images for each offset within a window, axis by axis."""
    cut = _with_border(images, geometry.padding)
    sizes = zip(geometry.window, geometry.strides, geometry.positions, strict=True)
    for axis, (window, stride, positions) in reversed(list(enumerate(sizes, start=1))):
        length = (positions - 1) * stride + 1
        pieces = [
            lax.slice_in_dim(cut, offset, offset + length, stride, axis=axis)
            for offset in range(window)
        ]
        cut = jnp.concatenate(pieces, axis=-1)
    return cut


def cut_windows_of_places(images: Array, geometry: Geometry) -> Array:
    """Cut out all windows of images with the axes (places…, point, channel).

    Returns:
        (places…, point, pixel of the window and channel).
    """
    axes = len(geometry.window)
    padded = _padded(images, [*geometry.padding, (0, 0), (0, 0)])
    steps = (*geometry.strides, 1, 1)
    slices = []
    for offsets in itertools.product(*map(range, geometry.window)):
        ends = [
            offset + (positions - 1) * stride + 1
            for offset, positions, stride in zip(
                offsets, geometry.positions, geometry.strides, strict=True
            )
        ]
        rest = padded.shape[axes:]
        slices.append(lax.slice(padded, (*offsets, 0, 0), (*ends, *rest), steps))
    return jnp.concatenate(slices, axis=-1)


def cut_windows_of_planes(planes: Array, geometry: Geometry) -> Array:
    """Cut out all windows of images with the axes (channel, places…, point).

    Every slice is a few long pieces, however few channels there are.

    Returns:
        (pixel of the window and channel, places and point).
    """
    cut = _with_border(planes, geometry.padding)[None]
    sizes = zip(geometry.window, geometry.strides, geometry.positions, strict=True)
    for axis, (window, stride, positions) in reversed(list(enumerate(sizes, start=2))):
        length = (positions - 1) * stride + 1
        pieces = [
            lax.slice_in_dim(cut, offset, offset + length, stride, axis=axis)
            for offset in range(window)
        ]
        cut = jnp.concatenate(pieces)
    return cut.reshape(geometry.pixels * len(planes), -1)


def add_windows(windows: Array, geometry: Geometry) -> Array:
    """Add up windows where they overlap: the transpose of `cut_windows`."""
    total, nothing = windows, jnp.zeros((), windows.dtype)
    sizes = zip(geometry.window, geometry.strides, geometry.padded, strict=True)
    for axis, (window, stride, size) in enumerate(sizes, start=1):
        length = (total.shape[axis] - 1) * stride + 1
        parts = []
        for offset, part in enumerate(jnp.split(total, window, axis=-1)):
            border = [(0, 0, 0)] * part.ndim
            border[axis] = (offset, size - offset - length, stride - 1)
            parts.append(lax.pad(part, nothing, border))
        total = sum(parts[1:], parts[0])
    return _with_border(total, tuple((-low, -high) for low, high in geometry.padding))


def _with_border(images: Array, padding: tuple[tuple[int, int], ...]) -> Array:
    """Add a border to the axes between the first and the last."""
    return _padded(images, [(0, 0), *padding, (0, 0)])


def _padded(images: Array, padding: Sequence[tuple[int, int]]) -> Array:
    """Add a border of zeros to each axis, or cut it off where its width is negative."""
    if not any(map(any, padding)):
        return images
    border = [(low, high, 0) for low, high in padding]
    return lax.pad(images, jnp.zeros((), images.dtype), border)
