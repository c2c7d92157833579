"""Networks for images of usual size: the one of federated averaging, and a small residual network."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from fedkin.errors import InputError
from fedkin.models.base import Statistics, as_float, point_loss, squared_norm
from fedkin.models.layers import convolve
from fedkin.models.pooling import max_pool
from fedkin.models.windows import Geometry
from fedkin.types import Array, Key, LearningTask, Params

VARIANCE_FLOOR = 1e-5


class _ImageNetwork:
    """What both networks have in common: they take images, and give scores of classes."""

    image_shape: tuple[int, int, int]
    l2: float

    def prepare(self, inputs: Array) -> Array:
        """Check the shape of the images, and return them unchanged."""
        if inputs.shape[1:] != self.image_shape:
            raise InputError(
                f"the model needs images of shape {self.image_shape}, not {inputs.shape[1:]}"
            )
        return inputs

    def statistics(self, params: Params, inputs: Array) -> Statistics:
        """Return nothing: this model does not normalize over points."""
        return ()

    def loss(self, outputs: Array, labels: Array) -> Array:
        """Return each point's cross-entropy."""
        return point_loss("classification", outputs, labels)

    def penalty(self, params: Params) -> Array:
        """Return ½·l2·‖θ‖²."""
        return 0.5 * self.l2 * squared_norm(params) if self.l2 else jnp.zeros(())


@dataclass(frozen=True)
class FedAvgCNN(_ImageNetwork):
    """The network with which federated averaging was introduced, and which most papers since compare with.

    Two convolutions of 5 x 5 pixels without border, with 32 and 64 channels, each followed by ReLU and 2 x 2
    pooling; then 512 hidden units. It has 582,026 parameters for gray images of 28 x 28 and ten classes.

    Args:
        image_shape: Height, width and channels of the images.
        classes: The number of classes.
        l2: Adds ½·l2·‖θ‖² to the loss.

    >>> model, images = FedAvgCNN((28, 28, 1)), jnp.zeros((2, 28, 28, 1), jnp.uint8)
    >>> params = model.init(jax.random.key(0), images)
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    582026
    """

    image_shape: tuple[int, int, int]
    classes: int = 10
    l2: float = 0.0
    task: LearningTask = "classification"

    def __post_init__(self) -> None:
        if min(self._places()[1]) < 1:
            raise InputError(
                f"images of {self.image_shape[0]} x {self.image_shape[1]} are too small for the model "
                "'cnn-fedavg', which needs at least 16 x 16: choose 'cnn' or 'mlp'"
            )

    def init(self, key: Key, inputs: Array) -> Params:
        """Draw weights with variance 2/(inputs of a unit), as for ReLU; set biases to zero."""
        rows, columns = self._places()[1]
        sizes = (
            (25 * self.image_shape[2], 32),
            (25 * 32, 64),
            (rows * columns * 64, 512),
            (512, self.classes),
        )
        return [
            _layer(own_key, *size)
            for own_key, size in zip(jax.random.split(key, len(sizes)), sizes, strict=True)
        ]

    def apply(
        self,
        params: Params,
        inputs: Array,
        *,
        mask: Array | None = None,
        statistics: Statistics | None = None,
    ) -> Array:
        """Compute the score of each class."""
        *convolutions, hidden, last = params
        activations = _places_first(inputs)
        for layer in convolutions:
            outputs = _convolve(activations, layer["kernel"], width=5, border=0)
            # Pooling first gives the same as ReLU first, for a quarter of the work.
            activations = jax.nn.relu(max_pool(outputs, 2) + layer["bias"])
        features = activations.transpose(2, 0, 1, 3).reshape(len(inputs), -1)
        activations = jax.nn.relu(features @ hidden["kernel"] + hidden["bias"])
        return activations @ last["kernel"] + last["bias"]

    def _places(self) -> list[tuple[int, int]]:
        """Return height and width after each of the two layers."""
        height, width, _ = self.image_shape
        found = []
        for _ in range(2):
            height, width = (height - 4) // 2, (width - 4) // 2
            found.append((height, width))
        return found


@dataclass(frozen=True)
class ResNet(_ImageNetwork):
    """A small residual network with group normalization, which needs no statistics of other points.

    One convolution that halves height and width, then stages of two blocks; a block is two convolutions of
    3 x 3 pixels with normalization, and a way around them. From the second stage on, the first block halves
    height and width, too. It has 169,770 parameters for gray images and ten classes.

    Args:
        image_shape: Height, width and channels of the images.
        classes: The number of classes.
        channels: The channels of each stage.
        groups: The groups of channels that are normalized together.
        l2: Adds ½·l2·‖θ‖² to the loss.

    >>> model, images = ResNet((28, 28, 1)), jnp.zeros((2, 28, 28, 1), jnp.uint8)
    >>> params = model.init(jax.random.key(0), images)
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    169770
    """

    image_shape: tuple[int, int, int]
    classes: int = 10
    channels: tuple[int, ...] = (32, 64)
    groups: int = 8
    l2: float = 0.0
    task: LearningTask = "classification"

    def __post_init__(self) -> None:
        if any(width % self.groups for width in self.channels):
            raise InputError(
                f"the {self.groups} groups of the model 'resnet' must divide its channels "
                f"{self.channels}"
            )
        if min(self.image_shape[:2]) < 8:
            raise InputError(
                f"images of {self.image_shape[0]} x {self.image_shape[1]} are too small for the model "
                "'resnet', which needs at least 8 x 8: choose 'cnn' or 'mlp'"
            )

    def init(self, key: Key, inputs: Array) -> Params:
        """Draw weights with variance 2/(inputs of a unit); every block begins as its way around."""
        keys = iter(jax.random.split(key, 3 * 2 * len(self.channels) + 2))
        first = self.channels[0]
        params = {"first": _normalized_layer(next(keys), 9 * self.image_shape[2], first)}
        before, blocks = first, []
        for width in self.channels:
            for _ in range(2):
                block = {
                    "first": _normalized_layer(next(keys), 9 * before, width),
                    "second": _normalized_layer(next(keys), 9 * width, width, scale=0.0),
                }
                if before != width:
                    block["around"] = _layer(next(keys), before, width)
                blocks.append(block)
                before = width
        return params | {"blocks": blocks, "last": _layer(next(keys), before, self.classes)}

    def apply(
        self,
        params: Params,
        inputs: Array,
        *,
        mask: Array | None = None,
        statistics: Statistics | None = None,
    ) -> Array:
        """Compute the score of each class."""
        activations = jax.nn.relu(self._normalized(_places_first(inputs), params["first"], 2))
        for number, block in enumerate(params["blocks"]):
            stride = 2 if number and number % 2 == 0 else 1
            inner = jax.nn.relu(self._normalized(activations, block["first"], stride))
            inner = self._normalized(inner, block["second"], 1)
            around = activations[::stride, ::stride]
            if "around" in block:
                around = around @ block["around"]["kernel"] + block["around"]["bias"]
            activations = jax.nn.relu(inner + around)
        features = jnp.mean(activations, axis=(0, 1))
        return features @ params["last"]["kernel"] + params["last"]["bias"]

    def _normalized(self, images: Array, layer: dict[str, Array], stride: int) -> Array:
        """Convolve, and normalize every group of channels of each point."""
        outputs = _convolve(images, layer["kernel"], width=3, border=1, stride=stride)
        centered = outputs - self._group_mean(jnp.mean(outputs, axis=(0, 1)))
        variance = self._group_mean(jnp.mean(jnp.square(centered), axis=(0, 1)))
        factor = layer["scale"] * lax.rsqrt(variance + VARIANCE_FLOOR)
        return centered * factor + layer["offset"]

    def _group_mean(self, channel_means: Array) -> Array:
        """Average the means of the channels (point, channel) over each group of channels."""
        points, channels = channel_means.shape
        means = jnp.mean(channel_means.reshape(points, self.groups, -1), axis=-1)
        return jnp.repeat(means, channels // self.groups, axis=1)


def _places_first(inputs: Array) -> Array:
    """Return images with the axes (row, column, point, channel), as `convolve` takes them."""
    return as_float(inputs).transpose(1, 2, 0, 3)


def _convolve(images: Array, kernel: Array, *, width: int, border: int, stride: int = 1) -> Array:
    """Convolve with a square kernel that is a matrix (pixel of the window and channel, output)."""
    geometry = Geometry(
        images.shape[:2],
        (width, width),
        (stride, stride),
        ((border, border), (border, border)),
    )
    return convolve(images, kernel, geometry)


def _layer(key: Key, inputs: int, outputs: int) -> dict[str, Array]:
    kernel = jax.random.normal(key, (inputs, outputs)) * math.sqrt(2 / inputs)
    return {"kernel": kernel, "bias": jnp.zeros(outputs)}


def _normalized_layer(key: Key, inputs: int, outputs: int, scale: float = 1.0) -> dict[str, Array]:
    """Draw a convolution that is normalized: the normalization has scale and offset, so it needs no bias."""
    kernel = _layer(key, inputs, outputs)["kernel"]
    return {"kernel": kernel, "scale": jnp.full(outputs, scale), "offset": jnp.zeros(outputs)}
