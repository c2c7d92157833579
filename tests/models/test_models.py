import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedkin
from fedkin.models.base import LinearModel, WrappedModel, as_model
from fedkin.models.cnn import CNN
from fedkin.models.linear import Logistic, Ridge
from fedkin.models.mlp import MLP
from fedkin.models.objective import Batch, Objective
from reference import reference_cnn


@pytest.mark.parametrize(
    ("shape", "channels", "kernels", "size"),
    [
        ((28, 28, 1), 2, (4, 2), 363),  # the number METHOD gives
        # 3·3·16 + 3 + 6, 5·3·4 + 5 + 10, 5·25·10 + 10
        ((32, 32, 3), 5, (4, 2), 153 + 75 + 1260),
        ((8, 8, 1), 2, (2, 2), 5 + 2 + 10 + 4 + 2 * 9 * 10 + 10),
        ((17, 9, 2), 3, (3, 2), 2 * 2 * 9 + 2 + 4 + 3 * 2 * 4 + 3 + 6 + 3 * 4 * 2 * 10 + 10),
    ],
)
def test_cnn_equals_xlas_convolutions(shape, channels, kernels, size):
    model = CNN(shape, channels=channels, kernels=kernels)
    images = np.random.default_rng(0).integers(0, 256, (6, *shape), np.uint8)
    prepared = model.prepare(jnp.asarray(images))
    assert prepared.dtype == jnp.uint8
    objective = Objective.create(model, prepared)
    assert objective.size == size
    params = objective.unflatten(objective.init(jax.random.key(0)) + 0.1)
    apply = jax.jit(
        lambda inputs, statistics=None: model.apply(params, inputs, statistics=statistics)
    )
    reference = jax.jit(lambda images, moments=None: reference_cnn(model, params, images, moments))
    ours = apply(prepared)
    np.testing.assert_allclose(ours, reference(images), rtol=1e-4, atol=1e-4)
    statistics = jax.jit(model.statistics)(params, prepared)
    few = apply(prepared[:2], statistics)
    np.testing.assert_allclose(few, ours[:2], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(few, reference(images[:2], statistics), rtol=1e-4, atol=1e-4)


def test_points_that_only_fill_up_a_batch_change_nothing():
    model = CNN((28, 28, 1))
    images = np.random.default_rng(0).integers(0, 256, (8, 28, 28, 1), np.uint8)
    prepared, labels = model.prepare(jnp.asarray(images)), jnp.arange(8)
    objective = Objective.create(model, prepared)
    theta = objective.init(jax.random.key(0))
    alone = Batch(prepared[:5], labels[:5], None)
    filled = Batch(prepared, labels, jnp.array([0.2] * 5 + [0.0] * 3))
    for function in (objective.batch_loss, jax.grad(objective.batch_loss)):
        compiled = jax.jit(function)
        np.testing.assert_allclose(compiled(theta, filled), compiled(theta, alone), atol=1e-6)


def test_images_too_small_for_the_kernels_are_refused():
    with pytest.raises(fedkin.InputError, match="choose smaller kernels"):
        CNN((1, 1, 1))


@pytest.mark.usefixtures("float64")
def test_logistic_gradient_and_curvature_bound():
    model = Logistic(classes=3, l2=0.1)
    rng = np.random.default_rng(0)
    inputs, labels = jnp.asarray(rng.normal(size=(30, 4))), jnp.asarray(rng.integers(0, 3, 30))
    objective = Objective.create(model, inputs)
    theta = jnp.asarray(rng.normal(size=objective.size))
    params = objective.unflatten(theta)
    scores = np.asarray(inputs @ params["kernel"] + params["bias"])
    surplus = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) - np.eye(3)[labels]
    batch = Batch(inputs, labels, None)
    gradient = objective.unflatten(jax.jit(jax.grad(objective.batch_loss))(theta, batch))
    np.testing.assert_allclose(gradient["kernel"], inputs.T @ surplus / 30 + 0.1 * params["kernel"])
    np.testing.assert_allclose(gradient["bias"], surplus.mean(0) + 0.1 * params["bias"])
    features = np.append(inputs, np.ones((30, 1)), axis=1)
    bound = model.curvature_bound * np.linalg.eigvalsh(features.T @ features / 30).max() + model.l2
    hessian = jax.jit(jax.hessian(objective.batch_loss))(theta, batch)
    assert model.l2 - 1e-12 <= np.linalg.eigvalsh(hessian).min()
    assert np.linalg.eigvalsh(hessian).max() <= bound


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("intercept", [True, False])
def test_ridge_is_minimized_by_the_closed_form(intercept):
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(30, 4)), rng.normal(size=30)
    objective = Objective.create(Ridge(l2=0.1, intercept=intercept), jnp.asarray(inputs))
    features = np.append(np.ones((30, 1)), inputs, axis=1) if intercept else inputs
    exact = np.linalg.solve(
        features.T @ features / 30 + 0.1 * np.eye(features.shape[1]), features.T @ labels / 30
    )
    batch = Batch(jnp.asarray(inputs), jnp.asarray(labels), None)
    gradient = jax.grad(objective.batch_loss)(jnp.asarray(exact), batch)  # the bias comes first
    np.testing.assert_allclose(gradient, 0, atol=1e-12)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_mlp_has_the_outputs_of_its_task(task):
    model = MLP(outputs=3, hidden=5, task=task)
    inputs = model.prepare(jnp.ones((4, 2, 3)))
    objective = Objective.create(model, inputs)
    params = objective.unflatten(objective.init(jax.random.key(0)))
    assert model.apply(params, inputs).shape == ((4, 3) if task == "classification" else (4,))
    assert not isinstance(model, LinearModel)


class SmallNetwork(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(3)(nn.tanh(nn.Dense(4)(inputs)))


def test_a_flax_module_is_a_model():
    model = as_model(SmallNetwork(), "classification")
    assert isinstance(model, WrappedModel)
    inputs = jnp.ones((5, 2))
    objective = Objective.create(model, inputs)
    assert objective.size == 2 * 4 + 4 + 4 * 3 + 3
    loss = objective.batch_loss(
        objective.init(jax.random.key(0)), Batch(inputs, jnp.zeros(5, int), None)
    )
    assert np.isfinite(loss)


def test_what_is_no_model_is_refused():
    with pytest.raises(fedkin.InputError, match="init"):
        as_model(object(), "classification")


@pytest.mark.parametrize(("words", "heavy"), [(30_000, False), (40_000, True)])
def test_a_large_table_counts_as_work_though_it_multiplies_nothing(words, heavy):
    """Several copies of it, one per mini-batch that is computed at the same time, would fill the memory."""

    class Words(nn.Module):
        @nn.compact
        def __call__(self, inputs):
            return nn.Embed(words, 3)(inputs.astype(jnp.int32)).sum(1)

    objective = Objective.create(as_model(Words(), "classification"), np.zeros((2, 4), np.float32))
    assert objective.size == 3 * words
    assert objective.is_heavy(points=50) == heavy
