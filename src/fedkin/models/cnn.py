"""The paper's convolutional network (`sec:detailexp`)."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedkin.errors import InputError
from fedkin.models.base import Statistics, point_loss, squared_norm
from fedkin.models.bilinear import multiply_columns
from fedkin.types import Array, Key, LearningTask, Params

PADDING = 1
VARIANCE_FLOOR = 1e-5  # as in PyTorch's BatchNorm2d


class Moments(NamedTuple):
    """Mean and variance of each channel."""

    mean: Array
    variance: Array


@dataclass(frozen=True)
class CNN:
    """Two convolutions, each with batch normalization and ReLU, then one fully connected layer.

    In both convolutions the kernel is as wide as the stride, so the windows do not overlap, and a
    convolution is a rearrangement of pixels followed by a matrix product. `prepare` does the first
    rearrangement once. Activations have the axes (channel, place, point): points are neighbors in
    memory, the products need no further rearrangement, and images stay bytes until they are
    multiplied.

    Args:
        image_shape: Height, width and channels of the images.
        classes: The number of classes.
        channels: Output channels of the second convolution (the paper: 2 for gray images, 5 for
            color). The first convolution has as many as the image.
        kernels: The kernel size, which is also the stride, of each convolution.
        l2: Adds ½·l2·‖θ‖² to the loss.

    >>> model, images = CNN((28, 28, 1)), np.zeros((5, 28, 28, 1), np.uint8)
    >>> prepared = jnp.asarray(model.prepare(images))
    >>> model.apply(model.init(jax.random.key(0), prepared), prepared).shape
    (5, 10)
    """

    image_shape: tuple[int, int, int]
    classes: int = 10
    channels: int = 2
    kernels: tuple[int, int] = (4, 2)
    l2: float = 0.0
    task: LearningTask = "classification"

    def __post_init__(self) -> None:
        if min(self._first_places() + self._second_places()) < 1:
            raise InputError(
                f"images of {self.image_shape[0]} x {self.image_shape[1]} are too small for kernels "
                f"of {self.kernels[0]} and {self.kernels[1]}: choose smaller kernels"
            )

    def prepare(self, inputs: Array | np.ndarray) -> np.ndarray:
        """Rearrange images (point, height, width, channel) to (point, pixel of a window, window)."""
        if inputs.shape[1:] != self.image_shape:
            raise InputError(
                f"the model needs images of shape {self.image_shape}, not {inputs.shape[1:]}"
            )
        kernel = self.kernels[0]
        rows, columns = self._first_places()
        border = ((0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0))
        # NumPy, because JAX would compile this for every number of points.
        padded = np.pad(np.asarray(inputs), border)[:, : rows * kernel, : columns * kernel]
        windows = padded.reshape(len(inputs), rows, kernel, columns, kernel, self.image_shape[2])
        return windows.transpose(0, 2, 4, 5, 1, 3).reshape(len(inputs), -1, rows * columns)

    def init(self, key: Key, inputs: Array) -> Params:
        """Draw weights and biases uniformly from ±1/√(inputs of a unit), as PyTorch does."""
        image_channels = self.image_shape[2]
        rows, columns = self._second_places()
        fan_ins = (
            self.kernels[0] ** 2 * image_channels,
            self.kernels[1] ** 2 * image_channels,
            rows * columns * self.channels,
        )
        widths = (image_channels, self.channels, self.classes)
        layers = [
            _uniform_layer(layer_key, fan_in, width)
            for layer_key, fan_in, width in zip(
                jax.random.split(key, 3), fan_ins, widths, strict=True
            )
        ]
        for layer, width in zip(layers[:2], widths[:2], strict=True):
            layer["scale"] = jnp.ones(width)
            layer["offset"] = jnp.zeros(width)
        return layers

    def apply(
        self,
        params: Params,
        inputs: Array,
        *,
        mask: Array | None = None,
        statistics: Statistics | None = None,
    ) -> Array:
        """Compute the score of each class."""
        return self._forward(params, inputs, mask, statistics)[0]

    def statistics(self, params: Params, inputs: Array) -> Statistics:
        """Return the moments of both normalizations over these inputs."""
        return self._forward(params, inputs, None, None)[1]

    def loss(self, outputs: Array, labels: Array) -> Array:
        """Return each point's cross-entropy."""
        return point_loss("classification", outputs, labels)

    def penalty(self, params: Params) -> Array:
        """Return ½·l2·‖θ‖²."""
        return 0.5 * self.l2 * squared_norm(params)

    def _first_places(self) -> tuple[int, int]:
        return _places(self.image_shape[0], self.image_shape[1], self.kernels[0])

    def _second_places(self) -> tuple[int, int]:
        return _places(*self._first_places(), self.kernels[1])

    def _forward(
        self, params: Params, inputs: Array, mask: Array | None, statistics: Statistics | None
    ) -> tuple[Array, Statistics]:
        first, second, last = params
        first_moments, second_moments = (None, None) if statistics is None else statistics
        kernel, pixels = first["kernel"], jnp.moveaxis(inputs, 0, -1)
        if inputs.dtype == jnp.uint8:
            # Pixels must go from 0 to 1. Scaling the few weights has the same effect.
            kernel, pixels = kernel / 255, pixels.astype(kernel.dtype)
        activations = _product(kernel, pixels)
        activations, first_moments = _normalize(activations, first, mask, first_moments)
        windows = self._second_windows(jax.nn.relu(activations))
        activations = _product(second["kernel"], windows)
        activations, second_moments = _normalize(activations, second, mask, second_moments)
        features = jax.nn.relu(activations).reshape(-1, len(inputs))
        outputs = _product(last["kernel"], features) + last["bias"][:, None]
        return outputs.T, (first_moments, second_moments)

    def _second_windows(self, activations: Array) -> Array:
        """Rearrange (channel, place, point) to (channel and pixel of a window, window, point)."""
        channels, _, points = activations.shape
        kernel = self.kernels[1]
        rows, columns = self._second_places()
        images = activations.reshape(channels, *self._first_places(), points)
        border = ((0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0))
        padded = jnp.pad(images, border)[:, : rows * kernel, : columns * kernel]
        tiles = padded.reshape(channels, rows, kernel, columns, kernel, points)
        # The derivative of a split is a concatenation. That of slices is a sum of images with gaps, which
        # takes several times as long.
        pixels = [
            pixel
            for line in lax.split(tiles, [1] * kernel, axis=2)
            for pixel in lax.split(line, [1] * kernel, axis=4)
        ]
        return jnp.stack(pixels, axis=1).reshape(channels * kernel**2, -1, points)


def _places(height: int, width: int, kernel: int) -> tuple[int, int]:
    """Count the windows that fit vertically and horizontally, with the border of zeros."""
    return (height + 2 * PADDING) // kernel, (width + 2 * PADDING) // kernel


def _uniform_layer(key: Key, fan_in: int, width: int) -> dict[str, Array]:
    kernel_key, bias_key = jax.random.split(key)
    bound = fan_in**-0.5
    return {
        "kernel": jax.random.uniform(kernel_key, (fan_in, width), minval=-bound, maxval=bound),
        "bias": jax.random.uniform(bias_key, (width,), minval=-bound, maxval=bound),
    }


def _product(kernel: Array, activations: Array) -> Array:
    """Multiply (input, output) with (input, …) to (output, …)."""
    flat = activations.reshape(len(activations), -1)
    product = multiply_columns(kernel, flat)
    return product.reshape(-1, *activations.shape[1:])


def _normalize(
    activations: Array, layer: dict[str, Array], mask: Array | None, moments: Moments | None
) -> tuple[Array, Moments]:
    """Add the bias and normalize each channel over places and points, then scale and shift.

    If the channel's own mean is subtracted, the bias would cancel and is not added.
    """
    if moments is None:
        mean = _channel_mean(activations, mask)
        centered = activations - mean[:, None, None]
        variance = _channel_mean(jnp.square(centered), mask)
        moments = Moments(mean + layer["bias"], variance)
    else:
        centered = activations + (layer["bias"] - moments.mean)[:, None, None]
    factor = layer["scale"] / jnp.sqrt(moments.variance + VARIANCE_FLOOR)
    return centered * factor[:, None, None] + layer["offset"][:, None, None], moments


def _channel_mean(activations: Array, mask: Array | None) -> Array:
    """Average over places, then over points: the first sum then reads memory in order."""
    _, places, points = activations.shape
    sums = jnp.sum(activations, axis=1)
    if mask is None:
        return jnp.sum(sums, axis=1) / (places * points)
    return jnp.sum(jnp.where(mask, sums, 0), axis=1) / (places * jnp.sum(mask))
