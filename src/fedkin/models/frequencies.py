r"""Convolutions in the frequency domain, with every transform written as a matrix product.

The transform of a convolution is the product of the transforms, frequency by frequency. So a window of 25
pixels costs one complex product per frequency in place of 25 products per place. Images are small here, and
there are many channels and points: then discrete Fourier transforms are best computed as products with
constant matrices, which run at full speed inside loops, and whose derivatives are such products again.

A complex product takes three real ones,

.. math::
    (a + bi)(c + di) = (ac - bd) + ((a + b)(c + d) - ac - bd)\,i,

so each frequency has three *planes*: a, b and a + b. The matrices that transform the columns make all three,
and the matrix that goes back combines the three products: no plane is read or written for that alone.

Images are real, so half of the frequencies of the rows are enough. Images have the axes (row, column, point,
channel) here.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from fedkin.models.windows import Geometry
from fedkin.types import Array


class _Axis(NamedTuple):
    """The complex matrices of one axis of places."""

    images: NDArray[np.complex128]
    """(frequency, pixel)."""
    kernel: NDArray[np.complex128]
    """(frequency, pixel of the window)."""
    outputs: NDArray[np.complex128]
    """(place, frequency): the way back, for those places alone that have a window."""


class _Transforms(NamedTuple):
    """The real matrices of a convolution: those of rows and columns for images, kernel and outputs."""

    image_rows: np.ndarray
    image_columns: np.ndarray
    kernel_rows: np.ndarray
    kernel_columns: np.ndarray
    output_columns: np.ndarray
    output_rows: np.ndarray


def transform_kernel(kernel: Array, geometry: Geometry, precision: Any = None) -> Array:
    """Transform a kernel (row of the window, column of the window, channel, output) for `convolve`."""
    matrices = _transforms(geometry)
    return _to_planes(kernel, matrices.kernel_rows, matrices.kernel_columns, precision)


def convolve(
    images: Array, kernel_planes: Array, geometry: Geometry, precision: Any = None
) -> Array:
    """Multiply every window of some images with a kernel.

    Args:
        images: (row, column, point, channel).
        kernel_planes: What `transform_kernel` returned.
        geometry: Where the windows lie; no border is negative.
        precision: That of the matrix products, as for `lax.dot_general`.

    Returns:
        (row, column, point, output).
    """
    matrices = _transforms(geometry)
    image_planes = _to_planes(images, matrices.image_rows, matrices.image_columns, precision)
    planes = _products(image_planes, kernel_planes, precision)
    return _from_planes(planes, geometry, matrices, precision)


def _to_planes(values: Array, rows: np.ndarray, columns: np.ndarray, precision: Any) -> Array:
    """Transform (row, column, …) to (plane, …)."""
    height, width, *rest = values.shape
    flat = values.reshape(height, -1)
    by_row = jnp.matmul(jnp.asarray(rows, values.dtype), flat, precision=precision)
    by_row = by_row.reshape(len(rows) // 2, 2 * width, -1)
    return _products(_repeated(columns, by_row), by_row, precision).reshape(-1, *rest)


def _from_planes(planes: Array, geometry: Geometry, matrices: _Transforms, precision: Any) -> Array:
    """Transform (plane, …) back to (row, column, …)."""
    rest = planes.shape[1:]
    frequencies = matrices.output_rows.shape[1] // 2
    planes = planes.reshape(frequencies, -1, math.prod(rest))
    by_row = _products(_repeated(matrices.output_columns, planes), planes, precision)
    rows = jnp.asarray(matrices.output_rows, planes.dtype)
    outputs = jnp.matmul(rows, by_row.reshape(2 * frequencies, -1), precision=precision)
    return outputs.reshape(*geometry.positions, *rest)


def _products(left: Array, right: Array, precision: Any) -> Array:
    """Multiply matrices pair by pair."""
    return lax.dot_general(left, right, (((2,), (1,)), ((0,), (0,))), precision=precision)


def _repeated(matrix: np.ndarray, batch: Array) -> Array:
    """Repeat a constant matrix for each of a batch: XLA's batched products are faster than those with one."""
    return jnp.asarray(np.broadcast_to(matrix, (len(batch), *matrix.shape)), batch.dtype)


@cache
def _transforms(geometry: Geometry) -> _Transforms:
    rows, columns = (_axis(geometry, axis) for axis in range(2))
    size = len(rows.images)
    half = size // 2 + 1
    # The other half of the frequencies are conjugates: they double the real part of the sum.
    twice = np.where((np.arange(half) == 0) | (2 * np.arange(half) == size), 1, 2)
    back: NDArray[np.complex128] = rows.outputs[:, :half] * twice
    real, imaginary = np.real(columns.outputs), np.imag(columns.outputs)
    combined_real = _alternate(real + imaginary, imaginary - real, -imaginary)
    combined_imaginary = _alternate(imaginary - real, -real - imaginary, real)
    return _Transforms(
        image_rows=_alternate(np.real(rows.images[:half]).T, np.imag(rows.images[:half]).T).T,
        image_columns=_column_planes(columns.images),
        kernel_rows=_alternate(np.real(rows.kernel[:half]).T, np.imag(rows.kernel[:half]).T).T,
        kernel_columns=_column_planes(columns.kernel),
        output_columns=np.concatenate([combined_real, combined_imaginary]),
        output_rows=_alternate(np.real(back), -np.imag(back)),
    )


def _axis(geometry: Geometry, axis: int) -> _Axis:
    """Return the matrices of one axis.

    The transform sees images as cyclic. So it is longer than the image by the wider border: a window that
    reaches beyond the one end of the image finds zeros before it finds the other end.
    """
    size, window = geometry.image[axis], geometry.window[axis]
    length, (border, _) = _length(geometry, axis), geometry.padding[axis]
    frequencies = np.arange(length)
    places = geometry.strides[axis] * np.arange(geometry.positions[axis])

    def waves(of: np.ndarray) -> NDArray[np.complex128]:
        # Whole turns are taken off, so that the angles are exact.
        return np.exp(2j * np.pi * (np.outer(frequencies, of) % length) / length)

    return _Axis(
        waves(-np.arange(size)), waves(np.arange(window) - border), waves(places).T / length
    )


def _length(geometry: Geometry, axis: int) -> int:
    return geometry.image[axis] + max(geometry.padding[axis])


def _column_planes(matrix: NDArray[np.complex128]) -> np.ndarray:
    """Return the real matrix from (real parts, imaginary parts) to the three planes of each frequency."""
    real = np.concatenate([np.real(matrix), -np.imag(matrix)], axis=1)
    imaginary = np.concatenate([np.imag(matrix), np.real(matrix)], axis=1)
    return _alternate(real.T, imaginary.T, (real + imaginary).T).T


def _alternate(*matrices: np.ndarray) -> np.ndarray:
    """Put matrices together so that their columns take turns."""
    return np.stack(matrices, axis=2).reshape(len(matrices[0]), -1)


def count_multiplications(points: int, channels: int, outputs: int, geometry: Geometry) -> int:
    """Count the real multiplications of `transform_kernel` and `convolve`."""
    matrices = _transforms(geometry)
    half = matrices.output_rows.shape[1] // 2
    planes = half * len(matrices.image_columns)

    def to_planes(rows: np.ndarray, columns: np.ndarray) -> int:
        return rows.size * columns.shape[1] // 2 + half * columns.size

    return (
        points * channels * to_planes(matrices.image_rows, matrices.image_columns)
        + channels * outputs * to_planes(matrices.kernel_rows, matrices.kernel_columns)
        + planes * points * channels * outputs
        + points * outputs * to_planes(matrices.output_rows.T, matrices.output_columns.T)
    )
