"""PyTorch modules have the numbers of the same models in JAX: steps, products, solves, weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import fedkin
from fedkin.federation.base import PerNode, WeightedSum
from fedkin.federation.center import Center
from fedkin.federation.simulation import SimulatedFederation
from fedkin.methods.bilevel.node import DECREMENT, HESSIAN_PRODUCT, SLOPE
from fedkin.methods.ditto.node import DITTO_SHARED_ROUND
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.pfedme.node import PFEDME_ROUND
from fedkin.models.base import as_model
from fedkin.models.mlp import MLP
from fedkin.models.objective import Objective
from fedkin.models.torch_module import TorchModel
from torch_twins import MODELS, NODES, VALIDATION, Pair, fill


@pytest.fixture(scope="module", params=MODELS)
def pair(request):
    return Pair(request.param)


def near(found, expected, tolerance=1e-5):
    """Compare two vectors or tables by the norm of their difference."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected)


NUMBERS = {"learning_rate": 0.05}
STEPS = {
    "svrg": (
        INNER_SVRG_ROUND,
        "point",
        {**NUMBERS, "refresh_probability": 0.5, "averaging_rate": 0.1},
        {"steps": 1, "reply": "average"},
    ),
    "ditto": (DITTO_SHARED_ROUND, "shared", NUMBERS, {"steps": 1}),
    "pfedme": (
        PFEDME_ROUND,
        "shared",
        {**NUMBERS, "proximal": 2.0, "tolerance": 0.05},
        {"steps": 1, "iterations": 3},
    ),
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_is_that_of_the_jax_engine(pair, kind):
    task, name, numbers, options = STEPS[kind]
    points = pair.vector(1)
    replies = [
        federation.exchange(
            train=WeightedSum(
                task,
                {name: point, **numbers},
                weights=jnp.array([0.5, 0.3, 0.2]),
                begin=bool(task.slots),
                **options,
            ),
            key=jax.random.key(7),
        )
        for federation, point in zip(pair.federations, points, strict=True)
    ]
    ours, theirs = replies
    near(theirs.train["point"] - points[1], (ours.train["point"] - points[0])[pair.order], 2e-5)
    near(theirs.train["point"], ours.train["point"][pair.order])
    near(theirs.train["loss"], ours.train["loss"])
    assert theirs.cost == ours.cost


def test_products_slopes_and_decrements_are_those_of_the_jax_engine(pair):
    thetas, vectors = pair.vector(1), pair.vector(2, 0.3)
    ours, theirs = (
        federation.exchange(
            hessian=WeightedSum(
                HESSIAN_PRODUCT,
                {"theta": theta, "vector": vector},
                weights=jnp.array([0.5, 0.3, 0.2]),
                begin=True,
            ),
            slope=PerNode(SLOPE, {"theta": theta, "vector": vector}, begin=True),
            decrement=PerNode(
                DECREMENT,
                {"theta": theta, "damping": 0.5},
                begin=True,
                iterations=3,
                batches=2,
            ),
            key=jax.random.key(7),
        )
        for federation, theta, vector in zip(pair.federations, thetas, vectors, strict=True)
    )
    near(theirs.hessian["product"], ours.hessian["product"][pair.order])
    near(theirs.slope["slope"], ours.slope["slope"])
    near(theirs.decrement["decrement"], ours.decrement["decrement"], 2e-5)


def test_the_center_computes_the_same(pair):
    thetas = pair.vector(1)
    (loss, gradient), (own_loss, own_gradient) = (
        center.loss_and_gradient(theta) for center, theta in zip(pair.centers, thetas, strict=True)
    )
    near(own_loss, loss)
    near(own_gradient, gradient[pair.order])
    ours, theirs = (
        center.solve(theta, target, damping=1.0, iterations=4)
        for center, theta, target in zip(
            pair.centers, thetas, (gradient, own_gradient), strict=True
        )
    )
    near(theirs.solution, ours.solution[pair.order], 2e-5)
    near(theirs.curvature, ours.curvature, 2e-5)
    assert bool(theirs.convex) == bool(ours.convex)
    raw = VALIDATION[0][:7]
    scores = [
        center.outputs(theta, inputs)
        for center, theta, inputs in zip(
            pair.centers, thetas, (np.asarray(pair.model.prepare(raw)), raw), strict=True
        )
    ]
    near(scores[1], scores[0])
    assert (
        pair.centers[1].validate(thetas[1]).accuracy == pair.centers[0].validate(thetas[0]).accuracy
    )


LOOPS = {
    "proximal": {"outer": "proximal", "outer_learning_rate": 0.1, "damping": 1.0, "rounds": 2},
    "single": {"restarts": 0},
}


@pytest.mark.parametrize("loop", LOOPS)
def test_five_outer_steps_learn_the_same_weights(pair, loop):
    if loop == "single" and not isinstance(pair.model, MLP):
        pytest.skip("linear models take Newton steps there; one network is enough")
    nodes = dict(zip("abc", NODES, strict=True))
    settings = {"period": 4, "learning_rate": 0.05, "steps": 5, "batch_size": 8, "keep": "last"}
    ours, theirs = (
        fedkin.fit(nodes, VALIDATION, model=model, **settings, **LOOPS[loop])
        for model in (pair.model, pair.twin)
    )
    columns = [name for name in ours.history if name.startswith("weight")]
    assert len(columns) == 3
    np.testing.assert_allclose(theirs.history[columns], ours.history[columns], atol=1e-3)
    if loop == "proximal":  # the single loop waits for evidence that 20 points do not give
        assert np.ptp(list(ours.weights.values())) > 0.01
    near(theirs.theta, ours.theta[pair.order], 1e-3)
    assert theirs.cost == ours.cost
    np.testing.assert_allclose(
        theirs.predict_proba(VALIDATION[0]), ours.predict_proba(VALIDATION[0]), atol=1e-3
    )


@pytest.mark.parametrize("method", ["fedavg", "local", "ditto", "pfedme"])
def test_every_other_method_trains_the_same(method):
    pair = Pair("mlp")
    settings = {"period": 3, "rounds": 2, "learning_rate": 0.05, "steps": 2, "batch_size": 8}
    ours, theirs = (
        fedkin.fit(NODES, VALIDATION, model=model, method=method, keep="last", **settings)
        for model in (pair.model, pair.twin)
    )
    near(theirs.theta, ours.theta[pair.order], 1e-4)
    assert theirs.weights == ours.weights
    assert theirs.cost == ours.cost


def test_the_network_of_fedavg_is_the_same_in_flax_and_pytorch():
    """Two convolutions of 5 x 5 without padding, pooling, 512 hidden units: 582,026 parameters."""
    linen = pytest.importorskip("flax.linen")
    from benchmarks.torch_modules import fedavg_network

    class Net(linen.Module):
        @linen.compact
        def __call__(self, inputs):
            for channels in (32, 64):
                inputs = linen.relu(linen.Conv(channels, (5, 5), padding="VALID")(inputs))
                inputs = linen.max_pool(inputs, (2, 2), (2, 2))
            # PyTorch has the channel first when it flattens.
            hidden = linen.Dense(512)(inputs.transpose(0, 3, 1, 2).reshape(len(inputs), -1))
            return linen.Dense(10)(linen.relu(hidden))

    draw = np.random.default_rng(0)
    inputs = draw.integers(0, 255, (4, 28, 28, 1)).astype(np.uint8)
    labels = draw.integers(0, 10, 4).astype(np.int32)
    model = as_model(Net(), "classification")
    objective = Objective.create(model, inputs[:2])
    assert objective.size == 582_026

    def in_order(vector):
        layers = objective.unflatten(vector)["params"]
        parts = []
        for name in ("Conv_0", "Conv_1", "Dense_0", "Dense_1"):
            kernel = np.asarray(layers[name]["kernel"])
            parts += [kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel.T]
            parts += [np.asarray(layers[name]["bias"])]
        return np.concatenate([part.ravel() for part in parts])

    theta = objective.init(jax.random.key(0))
    module = fedavg_network()
    fill(module, in_order(theta))
    channel_first = inputs.transpose(0, 3, 1, 2)
    twin = Objective.create(TorchModel(module), channel_first[:2])
    assert twin.size == objective.size
    (loss, gradient), (own_loss, own_gradient) = (
        Center(each, points, labels, batch_size=4, seed=0).loss_and_gradient(at)
        for each, points, at in (
            (objective, inputs, theta),
            (twin, channel_first, jnp.asarray(in_order(theta))),
        )
    )
    near(own_loss, loss)
    near(own_gradient, in_order(gradient))


def test_threads_change_nothing(monkeypatch):
    from fedkin.federation import torch_work

    monkeypatch.setattr(torch_work, "LONG_GRADIENT", 0.0)
    pair = Pair("cnn")
    federations = [
        SimulatedFederation(pair.objectives[1], NODES, batch_size=8, seed=3, threads=threads)
        for threads in (1, 2)
    ]
    message = {"theta": pair.vector(1)[1], "vector": pair.vector(2)[1]}
    before = torch.get_num_threads()
    alone, together = (
        federation.exchange(
            slope=PerNode(SLOPE, message, begin=True),
            hessian=WeightedSum(HESSIAN_PRODUCT, message, weights=jnp.ones(3) / 3, begin=True),
            key=jax.random.key(0),
        )
        for federation in federations
    )
    np.testing.assert_array_equal(together.slope["slope"], alone.slope["slope"])
    np.testing.assert_array_equal(together.hessian["product"], alone.hessian["product"])
    assert torch.get_num_threads() == before
