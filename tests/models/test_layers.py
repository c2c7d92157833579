"""Every form of a convolution against XLA's own, with first and second derivatives; which form is chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from fedkin.models import frequencies, layers
from fedkin.models.image_networks import FedAvgCNN, ResNet
from fedkin.models.operations import count_operations
from fedkin.models.rewriting import with_fast_layers
from fedkin.models.windows import Geometry


def _random(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def _xla(images, kernel, geometry):
    """Convolve images (row, column, point, channel) by XLA's own convolution."""
    return lax.conv_general_dilated(
        images,
        kernel.reshape(*geometry.window, images.shape[-1], -1),
        geometry.strides,
        geometry.padding,
        dimension_numbers=("HWNC", "HWIO", "HWNC"),
    )


def _by_frequencies(images, kernel, geometry):
    kernel = kernel.reshape(*geometry.window, images.shape[-1], -1)
    return frequencies.convolve(images, frequencies.transform_kernel(kernel, geometry), geometry)


def _differences(function, images, kernel, geometry):
    """Return how far outputs, gradients and Hessian products are from XLA's, relative to the largest."""

    def values(function):
        def loss(images, kernel):
            return jnp.sum(jnp.sin(function(images, kernel, geometry)))

        gradient = jax.grad(loss, (0, 1))
        _, product = jax.jvp(gradient, (images, kernel), (images + 1, kernel - 1))
        return function(images, kernel, geometry), gradient(images, kernel), product

    ours, theirs = (
        jax.tree.leaves(jax.jit(lambda own=own: values(own))()) for own in (function, _xla)
    )
    return [
        float(jnp.max(jnp.abs(own - other)) / (1e-3 + jnp.max(jnp.abs(other))))
        for own, other in zip(ours, theirs, strict=True)
    ]


@st.composite
def geometries(draw):
    """Images, windows, strides and borders of all kinds; windows may be larger than images."""
    axes = []
    for _ in range(2):
        size, window = draw(st.integers(1, 7)), draw(st.integers(1, 5))
        low, high = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        missing = max(0, window - size - low - high)
        axes.append((size, window, draw(st.integers(1, 3)), (low + missing, high)))
    return Geometry(*zip(*axes, strict=True))


@pytest.mark.usefixtures("float64")
@given(geometries(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=10, deadline=None)
def test_frequencies_give_the_convolution(geometry, points, channels, outputs):
    images = jnp.asarray(_random(0, *geometry.image, points, channels))
    kernel = jnp.asarray(_random(1, geometry.pixels * channels, outputs))
    differences = _differences(_by_frequencies, images, kernel, geometry)
    assert max(differences) < 1e-11, differences


LAYERS = {
    "cnn-fedavg, first": (Geometry((28, 28), (5, 5), (1, 1), ((0, 0), (0, 0))), 1, 32),
    "cnn-fedavg, second": (Geometry((12, 12), (5, 5), (1, 1), ((0, 0), (0, 0))), 32, 64),
    "resnet, first": (Geometry((28, 28), (3, 3), (2, 2), ((1, 1), (1, 1))), 1, 32),
    "resnet, 14 x 14": (Geometry((14, 14), (3, 3), (1, 1), ((1, 1), (1, 1))), 32, 32),
    "resnet, halved": (Geometry((14, 14), (3, 3), (2, 2), ((1, 1), (1, 1))), 32, 64),
    "resnet, 7 x 7": (Geometry((7, 7), (3, 3), (1, 1), ((1, 1), (1, 1))), 64, 64),
    "color": (Geometry((16, 16), (3, 3), (1, 1), ((1, 1), (1, 1))), 3, 16),
    "cut off": (Geometry((9, 9), (3, 3), (1, 1), ((-1, 0), (1, 1))), 8, 8),
}


@pytest.mark.parametrize("name", LAYERS)
def test_single_precision(name, monkeypatch):
    """All forms, as they are chosen, with the points in two parts of which the second is not full."""
    monkeypatch.setattr(layers, "POINTS_AT_ONCE", 3)
    geometry, channels, outputs = LAYERS[name]
    images = jnp.asarray(_random(0, *geometry.image, 5, channels), jnp.float32)
    scale = np.sqrt(geometry.pixels * channels)
    kernel = jnp.asarray(_random(1, geometry.pixels * channels, outputs) / scale, jnp.float32)
    assert max(_differences(layers.convolve, images, kernel, geometry)) < 1e-5


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("cnn-fedavg, second", True),
        ("resnet, 14 x 14", True),
        ("resnet, 7 x 7", True),
        ("resnet, halved", False),
        ("cut off", False),
    ],
)
def test_the_form_with_less_work_is_chosen(name, chosen):
    geometry, channels, outputs = LAYERS[name]
    images = jax.ShapeDtypeStruct((*geometry.image, 50, channels), jnp.float32)
    assert layers.frequencies_are_faster(images, outputs, geometry) is chosen
    half = jax.ShapeDtypeStruct(images.shape, jnp.bfloat16)
    assert not layers.frequencies_are_faster(half, outputs, geometry)


def test_multiplications_are_those_of_the_products():
    """The count that decides is the one of the traced code."""
    geometry, channels, outputs = LAYERS["resnet, 14 x 14"]
    traced = jax.make_jaxpr(lambda images, kernel: _by_frequencies(images, kernel, geometry))(
        jnp.zeros((*geometry.image, 5, channels)), jnp.zeros((geometry.pixels * channels, outputs))
    )
    counted = frequencies.count_multiplications(5, channels, outputs, geometry)
    assert 2 * counted == count_operations(traced.jaxpr)


def test_large_images_are_left_to_windows():
    """There the transforms, which are products with whole rows and columns, take more than the windows."""
    geometry = Geometry((64, 64), (3, 3), (1, 1), ((1, 1), (1, 1)))
    images = jax.ShapeDtypeStruct((64, 64, 50, 32), jnp.float32)
    assert not layers.frequencies_are_faster(images, 32, geometry)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("model", [FedAvgCNN((28, 28, 1)), ResNet((28, 28, 1))])
def test_networks_agree_with_xla(model, monkeypatch):
    """The whole network, value and gradient, against the same network with XLA's convolutions."""
    images = jnp.asarray(_random(0, 4, 28, 28, 1))
    params = model.init(jax.random.key(0), images)
    params = jax.tree.map(lambda leaf: leaf + 0.01, params)

    def values():
        return jax.value_and_grad(lambda params: jnp.sum(jnp.sin(model.apply(params, images))))(
            params
        )

    ours = values()
    monkeypatch.setattr(
        "fedkin.models.image_networks.convolve",
        lambda images, kernel, geometry: _xla(images, kernel, geometry),
    )
    for own, other in zip(jax.tree.leaves(ours), jax.tree.leaves(values()), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-9 * (1e-3 + float(jnp.max(jnp.abs(other)))))


def test_users_convolutions_take_frequencies():
    """A user's layer, in the order of Flax, becomes products without a primitive of its own."""

    def layer(images, kernel):
        return lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    images = jnp.asarray(_random(0, 10, 7, 7, 32), jnp.float32)
    kernel = jnp.asarray(_random(1, 3, 3, 32, 32), jnp.float32)
    fast = with_fast_layers(layer)
    traced = str(jax.make_jaxpr(fast)(images, kernel))
    assert "conv" not in traced
    np.testing.assert_allclose(fast(images, kernel), layer(images, kernel), atol=1e-4)
