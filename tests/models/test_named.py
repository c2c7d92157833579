"""Models by name: fedkin's own, registered ones, and those of other packages."""

from importlib.metadata import EntryPoint

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedkin
from federations import classification_nodes
from fedkin import registry
from fedkin.errors import InputError
from fedkin.models.base import WrappedModel
from fedkin.models.mlp import MLP
from fedkin.models.named import MODELS, known_task, named_model
from fedkin.models.objective import Batch, Objective
from fedkin.studies.config import RunConfig


@pytest.fixture
def own_registry(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(MODELS, "_things", dict(MODELS._things))
    declared = {}
    monkeypatch.setattr(registry, "_declared", lambda group: declared.get(group, {}))
    return declared


def narrow(classes, point_shape):
    """A model of another package."""
    return MLP(outputs=classes, hidden=2 * point_shape[0])


def flax_model(classes, point_shape):
    return nn.Dense(classes)


PLACE = f"{__name__}:narrow"


def test_a_registered_model_is_trained(own_registry):
    fedkin.register_model("narrow", narrow)
    nodes, validation = classification_nodes((30, 20))
    named = fedkin.fit(nodes, validation, model="narrow", steps=1, rounds=2)
    given = fedkin.fit(nodes, validation, model=MLP(outputs=3, hidden=6), steps=1, rounds=2)
    assert named.model == given.model
    np.testing.assert_array_equal(named.theta, given.theta)


def test_a_model_of_another_package(own_registry):
    own_registry["fedkin.models"] = {"narrow": EntryPoint("narrow", PLACE, "fedkin.models")}
    assert "narrow" in MODELS.names()
    for name in ("narrow", PLACE):
        assert named_model(name, "classification", 4, (5,)) == MLP(outputs=4, hidden=10)
        assert RunConfig(dataset="digits", setting=1, model=name).model == name
        assert known_task(name) is None
    wrapped = named_model(f"{__name__}:flax_model", "classification", 4, (5,))
    assert isinstance(wrapped, WrappedModel)


@pytest.mark.parametrize("value", [0.01, np.float32(0.01), np.float64(0.01), 1, np.int64(1)])
def test_l2_may_be_any_number(value):
    model = named_model("logistic", "classification", 3, (5,), l2=value)
    assert model.l2 == pytest.approx(float(value))
    assert type(model.l2) is float


@pytest.mark.parametrize(
    ("name", "l2", "message"),
    [
        ("logistc", None, "model='logistc' is unknown; did you mean logistic"),
        ("boosting", None, "choose one of logistic, ridge, mlp, cnn"),
        ("nowhere.at_all:model", None, "cannot be imported"),
        (PLACE, 0.1, "l2 is not a setting of the model"),
        ("logistic", -1, "l2 must be a number from 0 on, not -1"),
        ("logistic", True, "l2 must be a number from 0 on, not True"),
        ("logistic", "0.1", "l2 must be a number from 0 on, not '0.1'"),
        ("logistic", np.nan, "l2 must be a number from 0 on"),
        ("logistic", 0, "needs l2 above 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(name, l2, message):
    with pytest.raises(InputError, match=message):
        named_model(name, "classification", 3, (5,), l2)


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        # 25·32 + 32, 25·32·64 + 64, 4·4·64·512 + 512, 512·10 + 10
        ("cnn-fedavg", (28, 28, 1), 582_026),
        ("cnn-fedavg", (32, 32, 3), 75 * 32 + 32 + 51_264 + 25 * 64 * 512 + 512 + 5_130),
        # A normalized 3 x 3 convolution has 9·in·out + 2·out; one way around 32·64 + 64.
        ("resnet", (28, 28, 1), 352 + 4 * 9_280 + 18_560 + 3 * 36_992 + 2_112 + 650),
        ("resnet", (33, 40, 3), 928 + 4 * 9_280 + 18_560 + 3 * 36_992 + 2_112 + 650),
    ],
)
def test_networks_for_images_have_these_sizes(name, shape, size):
    model = named_model(name, "classification", 10, shape)
    objective = Objective.create(model, model.prepare(np.zeros((2, *shape), np.uint8)))
    assert objective.size == size
    assert objective.output_shape() == (10,)


def test_no_parameter_of_the_residual_network_loses_its_gradient():
    """XLA made a gradient zero where the vector of parameters was cut into slices, from 16 x 16 on."""
    model = named_model("resnet", "classification", 10, (16, 16, 1))
    images = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 1), np.uint8)
    objective = Objective.create(model, images)
    batch = Batch(jnp.asarray(images), jnp.arange(4), None)
    theta = objective.init(jax.random.key(0))
    gradient = jax.jit(jax.grad(objective.batch_loss))(theta, batch)
    block = objective.unflatten(gradient)["blocks"][2]
    assert jnp.linalg.norm(block["around"]["bias"]) > 0.01


@pytest.mark.parametrize(("name", "shape"), [("cnn-fedavg", (16, 18, 3)), ("resnet", (9, 8, 1))])
def test_networks_for_images_start_sensibly_and_have_gradients(name, shape):
    model = named_model(name, "classification", 10, shape)
    images = np.random.default_rng(0).integers(0, 256, (4, *shape), np.uint8)
    objective = Objective.create(model, model.prepare(images))
    theta = objective.init(jax.random.key(0))
    batch = Batch(jnp.asarray(images), jnp.arange(4), None)
    compute = jax.jit(jax.value_and_grad(objective.batch_loss))
    loss, gradient = compute(theta, batch)
    assert 1 < loss < 10  # about log 10 before training
    length = jnp.linalg.norm(gradient)
    moved, _ = compute(theta - 1e-3 * gradient / length, batch)
    np.testing.assert_allclose(loss - moved, 1e-3 * length, rtol=0.1)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("cnn-fedavg", (15, 28, 1), "too small for the model 'cnn-fedavg'.*16 x 16"),
        ("resnet", (7, 28, 1), "too small for the model 'resnet'.*8 x 8"),
        ("resnet", (28, 28), "'resnet' needs images of shape"),
    ],
)
def test_images_that_do_not_fit_are_refused(name, shape, message):
    with pytest.raises(InputError, match=message):
        named_model(name, "classification", 10, shape)


def test_two_models_of_one_name_are_refused(own_registry):
    with pytest.raises(InputError, match="two models called 'cnn': rename one"):
        fedkin.register_model("cnn", narrow)
