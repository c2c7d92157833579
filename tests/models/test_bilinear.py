"""Products with derivatives of their own against JAX's, alone and stacked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedkin.models import bilinear
from fedkin.models.operations import count_operations


def _random(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def _values(product, kernel, columns):
    """Return outputs, gradients, and a Hessian product that uses every derivative of every derivative."""

    def loss(*operands):
        return jnp.sum(jnp.sin(product(*operands)))

    gradient = jax.grad(loss, (0, 1))
    vectors = (jnp.cos(kernel), jnp.cos(columns))
    forward = jax.jvp(gradient, (kernel, columns), vectors)[1]
    _, back = jax.vjp(gradient, kernel, columns)
    return product(kernel, columns), gradient(kernel, columns), forward, back(vectors)


def _plain(kernel, columns):
    return kernel.T @ columns


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("few", [0, 100])
@pytest.mark.parametrize("axes", [None, (0, 0), (0, None), (None, 0), (2, 1)])
def test_the_numbers_and_derivatives_of_the_product(axes, few, monkeypatch):
    monkeypatch.setattr(bilinear, "FEW_SUMS", few)
    monkeypatch.setattr(bilinear, "FEW_OUTPUTS", few)
    shapes: list[tuple[int, ...]] = [(5, 3), (5, 7)]
    if axes is not None:
        for place, axis in enumerate(axes):
            if axis is not None:
                shapes[place] = (*shapes[place][:axis], 4, *shapes[place][axis:])
    operands = [_random(place, *shape) for place, shape in enumerate(shapes)]

    def both(product):
        def values(kernel, columns):
            return _values(product, kernel, columns)

        return (values if axes is None else jax.vmap(values, axes))(*operands)

    ours, theirs = both(bilinear.multiply_columns), both(_plain)
    for own, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-12)


def test_its_arithmetic_is_counted():
    """What a model's work is judged by is the same as for JAX's own product."""
    operands = (jnp.ones((5, 3)), jnp.ones((5, 7)))
    counts = [
        count_operations(jax.make_jaxpr(product)(*operands).jaxpr)
        for product in (bilinear.multiply_columns, _plain)
    ]
    assert counts[0] == counts[1] == 2 * 5 * 3 * 7
