"""PyTorch modules have the numbers of the same models in JAX: steps, products, solves, weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import fedkin
from fedkin.federation.base import PerNode, WeightedSum
from fedkin.federation.simulation import SimulatedFederation
from fedkin.methods.bilevel.node import DECREMENT, HESSIAN_PRODUCT, SLOPE
from fedkin.methods.ditto.node import DITTO_SHARED_ROUND
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.pfedme.node import PFEDME_ROUND
from fedkin.models.linear import Logistic
from fedkin.models.named import named_model
from fedkin.models.torch_module import TorchObjective
from torch_twins import MODELS, NODES, VALIDATION, Pair, images


@pytest.fixture(scope="module", params=MODELS)
def pair(request):
    return Pair(MODELS[request.param])


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
    check_step(pair, kind)


def check_step(pair, kind):
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
    near(theirs.decrement["decrement"], ours.decrement["decrement"], 1e-4)


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
    if loop == "single" and isinstance(pair.model, Logistic):
        pytest.skip("linear models take Newton steps there")
    check_five_outer_steps(pair, loop)


def check_five_outer_steps(pair, loop):
    nodes, validation = dict(zip("abc", pair.nodes, strict=True)), pair.validation
    settings = {"period": 4, "learning_rate": 0.05, "steps": 5, "batch_size": 8, "keep": "last"}
    ours, theirs = (
        fedkin.fit(nodes, validation, model=model, **settings, **LOOPS[loop])
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
        theirs.predict_proba(validation[0]), ours.predict_proba(validation[0]), atol=1e-3
    )


@pytest.mark.parametrize("method", ["fedavg", "local", "ditto", "pfedme"])
def test_every_other_method_trains_the_same(method):
    pair = Pair(MODELS["mlp"])
    settings = {"period": 3, "rounds": 2, "learning_rate": 0.05, "steps": 2, "batch_size": 8}
    ours, theirs = (
        fedkin.fit(NODES, VALIDATION, model=model, method=method, keep="last", **settings)
        for model in (pair.model, pair.twin)
    )
    near(theirs.theta, ours.theta[pair.order], 1e-4)
    assert theirs.weights == ours.weights
    assert theirs.cost == ours.cost


@pytest.fixture(scope="module")
def fedavg_pair():
    """The named network of federated averaging, for the smallest images that it takes."""
    nodes = [images(size, seed, side=16) for seed, size in enumerate((16, 20, 12))]
    model = named_model("cnn-fedavg", "classification", 3, (16, 16, 1))
    return Pair(model, nodes, images(16, 9, side=16))


def test_the_network_of_fedavg_takes_the_same_step(fedavg_pair):
    check_step(fedavg_pair, "svrg")


def test_the_network_of_fedavg_has_the_same_products(fedavg_pair):
    thetas = fedavg_pair.vector(1)
    (_, gradient), (_, own_gradient) = (
        center.loss_and_gradient(theta)
        for center, theta in zip(fedavg_pair.centers, thetas, strict=True)
    )
    near(own_gradient, gradient[fedavg_pair.order])
    solutions = [
        center.solve(theta, target, damping=1.0, iterations=1).solution
        for center, theta, target in zip(
            fedavg_pair.centers, thetas, (gradient, own_gradient), strict=True
        )
    ]
    near(solutions[1], solutions[0][fedavg_pair.order], 2e-5)


def test_the_network_of_fedavg_learns_the_same_weights_in_five_outer_steps(fedavg_pair):
    check_five_outer_steps(fedavg_pair, "proximal")


def test_threads_change_nothing(monkeypatch):
    monkeypatch.setattr(TorchObjective, "is_heavy", lambda *_: True)
    pair = Pair(MODELS["cnn"])
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
