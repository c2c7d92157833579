"""How much arithmetic a computation needs, and how much the machine can do at best."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from fedkin.models.cnn import CNN, PADDING

MATRIX = 1500
"""Rows and columns of the matrices of the matmul test."""

COPIED_BYTES = 200_000_000
"""Size of the arrays of the memory test: far beyond any cache."""


@dataclass(frozen=True)
class Limits:
    """What this machine does at best, as measured."""

    flops: float
    """Floating-point operations per second in a large float32 matrix product, all cores."""
    bandwidth: float
    """Bytes per second read or written while copying large arrays, all cores."""


def measure_limits(threads: int, repeats: int = 5) -> Limits:
    """Measure the limits; the fastest repetition counts."""
    left, right = np.random.default_rng(0).random((2, MATRIX, MATRIX), np.float32)
    source = [np.ones(COPIED_BYTES // threads, np.uint8) for _ in range(threads)]
    goal = [np.empty_like(part) for part in source]
    flops = bandwidth = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            begin = time.perf_counter()
            np.matmul(left, right)
            flops = max(flops, 2 * MATRIX**3 / (time.perf_counter() - begin))
            begin = time.perf_counter()
            list(pool.map(np.copyto, goal, source))
            bandwidth = max(bandwidth, 2 * COPIED_BYTES / (time.perf_counter() - begin))
    return Limits(flops, bandwidth)


def gradient_flops(model: CNN) -> int:
    """Count the operations of the matrix products of one point's gradient.

    Forward, for the weights, and for the activations below (not for the images).
    """
    first, rest = _multiplications(model)
    return 2 * (2 * first + 3 * rest)


def product_flops(model: CNN) -> int:
    """Count the operations of the matrix products of one point's Hessian-vector product.

    The first layer: forward, its tangent, and the tangent of the weights' gradient. The others: forward,
    two for its tangent (of a product of two variables), the activations' gradient, two for its tangent, and
    two for the tangent of the weights' gradient.
    """
    first, rest = _multiplications(model)
    return 2 * (3 * first + 8 * rest)


def _multiplications(model: CNN) -> tuple[int, int]:
    """Count the multiplications of a forward pass: in the first layer, and in the others."""
    height, width, channels = model.image_shape
    counts, inputs = [], channels
    for kernel, outputs in zip(model.kernels, (channels, model.channels), strict=True):
        height, width = (height + 2 * PADDING) // kernel, (width + 2 * PADDING) // kernel
        counts.append(height * width * kernel**2 * inputs * outputs)
        inputs = outputs
    return counts[0], counts[1] + height * width * model.channels * model.classes
