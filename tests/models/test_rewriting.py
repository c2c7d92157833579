"""Convolutions and pooling of any JAX model, rewritten: the numbers of the untouched model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedkin.models import convolutions, layers
from fedkin.models.rewriting import with_fast_layers


def _agree(function, *arguments, rewritten=True, tolerance=1e-12):
    """Compare outputs, gradients and Hessian products of a function and its rewritten form."""
    fast = with_fast_layers(function)
    kept = "conv_general_dilated" in str(jax.make_jaxpr(fast)(*arguments))
    assert kept != rewritten

    def values(function):
        shapes = jax.eval_shape(function, *arguments)
        pattern = _random(*shapes.shape, dtype=shapes.dtype)

        def loss(arguments):
            return jnp.sum(jnp.sin(function(*arguments)) * pattern)

        vectors = tuple(_random(*one.shape, dtype=one.dtype) + 1 for one in arguments)
        gradient, product = jax.jvp(jax.grad(loss), (arguments,), (vectors,))
        return function(*arguments), gradient, product

    ours, theirs = jax.jit(lambda: values(fast))(), jax.jit(lambda: values(function))()
    for own, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert own.dtype == other.dtype
        scale = float(jnp.max(jnp.abs(other))) + 1e-30
        np.testing.assert_allclose(
            np.asarray(own, float) / scale, np.asarray(other, float) / scale, atol=tolerance
        )


def _random(*shape, dtype=float):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("form", ["planes", "windows", "windows in parts"])
@pytest.mark.parametrize(
    ("images", "kernel", "strides", "padding", "layout"),
    [
        ((7, 8, 9, 3), (3, 3, 3, 4), (1, 1), "VALID", ("NHWC", "HWIO", "NHWC")),
        ((4, 8, 9, 3), (3, 2, 3, 4), (2, 3), "SAME", ("NHWC", "HWIO", "NHWC")),
        ((4, 3, 8, 9), (5, 3, 3, 3), (2, 1), ((2, 1), (0, 3)), ("NCHW", "OIHW", "NCHW")),
        ((4, 8, 9, 3), (1, 1, 3, 4), (2, 2), "SAME", ("NHWC", "HWIO", "NHWC")),
        ((4, 8, 9, 3), (3, 3, 3, 4), (1, 1), ((-1, 2), (-2, -1)), ("NHWC", "HWIO", "NCHW")),
        ((4, 3, 11), (5, 3, 4), (2,), "SAME", ("NCH", "OIH", "NCH")),
        ((2, 5, 6, 4, 2), (2, 3, 2, 2, 3), (1, 2, 1), "SAME", ("NDHWC", "DHWIO", "NDHWC")),
    ],
)
def test_convolutions(images, kernel, strides, padding, layout, form, monkeypatch):
    monkeypatch.setattr(layers, "POINTS_AT_ONCE", 3)
    if form != "planes":
        monkeypatch.setattr(layers, "FEW_CHANNELS", 0)
        monkeypatch.setattr(layers, "NUMBERS_IN_WINDOWS", 0 if "parts" in form else 10**9)
        monkeypatch.setattr(layers, "frequencies_are_faster", lambda *_: False)
    monkeypatch.setattr(convolutions, "BYTES_AT_ONCE", 10_000)  # several parts, the last not full
    monkeypatch.setattr(convolutions, "FEW_WEIGHTS", 20)

    def function(images, kernel):
        return lax.conv_general_dilated(images, kernel, strides, padding, dimension_numbers=layout)

    _agree(function, _random(*images), _random(*kernel))


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 0.05)])
def test_other_precisions(dtype, tolerance):
    def function(images, kernel):
        return lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    images, kernel = _random(4, 6, 6, 3, dtype=dtype), _random(3, 3, 3, 4, dtype=dtype)
    _agree(function, images, kernel, tolerance=tolerance)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "settings",
    [
        {"rhs_dilation": (2, 2)},
        {"lhs_dilation": (2, 1)},
        {"feature_group_count": 2},
        {"batch_group_count": 2},
    ],
)
def test_unusual_convolutions_stay_as_they_are(settings):
    channels = 2 if "feature_group_count" in settings else 4

    def function(images, kernel):
        return lax.conv_general_dilated(
            images,
            kernel,
            (1, 1),
            ((1, 1), (1, 1)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            **settings,
        )

    _agree(function, _random(4, 6, 6, 4), _random(3, 3, channels, 4), rewritten=False)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("window", "strides", "padding"),
    [
        ((2, 2), (2, 2), "VALID"),
        ((3, 3), (2, 2), "SAME"),
        ((2, 3), (1, 1), ((1, 0), (0, 2))),
        ((7, 6), (1, 1), "VALID"),
    ],
)
def test_pooling(window, strides, padding, ties):
    images = _random(3, 7, 6, 2)
    if ties:
        images = jnp.round(images)

    def maximum(images):
        return lax.reduce_window(
            images, -jnp.inf, lax.max, (1, *window, 1), (1, *strides, 1), _whole(padding)
        )

    def total(images):
        return lax.reduce_window(
            images, 0.0, lax.add, (1, *window, 1), (1, *strides, 1), _whole(padding)
        )

    for function in (maximum, total):
        _agree(function, images)
        text = str(jax.make_jaxpr(with_fast_layers(function))(images))
        assert "reduce_window" not in text


def _whole(padding):
    return padding if isinstance(padding, str) else ((0, 0), *padding, (0, 0))


def test_the_maximum_of_no_number_is_no_number():
    def function(images):
        return lax.reduce_window(images, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID")

    images = jnp.asarray([[1.0, jnp.nan, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    np.testing.assert_array_equal(with_fast_layers(function)(images), [[jnp.nan, 4.0]])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("way", ["jit", "checkpoint", "scan", "cond", "while", "vmap"])
def test_layers_inside_other_functions(way):
    def layer(images, kernel):
        return jnp.tanh(
            lax.conv_general_dilated(
                images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        )

    def function(images, kernel):
        if way == "jit":
            return jax.jit(layer)(images, kernel)
        if way == "checkpoint":
            return jax.checkpoint(layer)(images, kernel)
        if way == "scan":
            return lax.scan(lambda x, _: (layer(x, kernel), None), images, None, length=2)[0]
        if way == "cond":
            return lax.cond(jnp.sum(images) > 1e9, lambda: images, lambda: layer(images, kernel))
        if way == "while":
            return lax.fori_loop(0, 2, lambda _, x: layer(x, kernel), images)
        return jax.vmap(layer, (0, None))(images[None], kernel)[0]

    _agree(function, _random(3, 5, 5, 2), _random(3, 3, 2, 2))


@pytest.mark.usefixtures("float64")
def test_derivatives_that_a_user_wrote_are_kept():
    @jax.custom_jvp
    def layer(images, kernel):
        return lax.conv_general_dilated(images, kernel, (1, 1), "SAME")

    layer.defjvp(lambda primals, tangents: (layer(*primals), 3 * layer(tangents[0], primals[1])))
    _agree(layer, _random(2, 2, 5, 5), _random(2, 2, 3, 3), rewritten=False)


@pytest.mark.usefixtures("float64")
def test_rewritten_layers_under_vmap():
    """Nodes side by side: each with its own kernel, or images, or both."""

    def function(images, kernel):
        return lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    fast = with_fast_layers(function)

    def gradients(function, images, kernel):
        return jax.grad(lambda *both: jnp.sum(jnp.sin(function(*both))), (0, 1))(images, kernel)

    images, kernels = _random(3, 4, 5, 5, 2), _random(3, 3, 3, 2, 2)
    for axes, operands in (
        ((0, 0), (images, kernels)),
        ((0, None), (images, kernels[0])),
        ((None, 0), (images[0], kernels)),
        ((4, 4), (jnp.moveaxis(images, 0, 4), jnp.moveaxis(kernels, 0, 4))),
    ):
        ours = jax.vmap(lambda *both: gradients(fast, *both), axes)(*operands)
        theirs = jax.vmap(lambda *both: gradients(function, *both), axes)(*operands)
        for own, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(own, other, atol=1e-12)
