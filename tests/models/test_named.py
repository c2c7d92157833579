"""Models by name: fedkin's own, registered ones, and those of other packages."""

from importlib.metadata import EntryPoint

import flax.linen as nn
import numpy as np
import pytest

import fedkin
from federations import classification_nodes
from fedkin import registry
from fedkin.errors import InputError
from fedkin.models.base import WrappedModel
from fedkin.models.mlp import MLP
from fedkin.models.named import MODELS, known_task, named_model
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
        ("forest", None, "choose one of logistic, ridge, mlp, cnn"),
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


def test_two_models_of_one_name_are_refused(own_registry):
    with pytest.raises(InputError, match="two models called 'cnn': rename one"):
        fedkin.register_model("cnn", narrow)
