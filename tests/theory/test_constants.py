from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federations import classification_nodes, problem, regression_nodes
from fedkin.errors import InputError
from fedkin.models.linear import Logistic, Ridge
from fedkin.models.mlp import MLP
from fedkin.models.objective import Batch, Objective
from fedkin.theory.constants import Constants, NodeSummary, constants, constants_of_data
from fedkin.theory.estimates import estimate_constants, lanczos, power_iteration

ROUNDING = 1 + 1e-4
"""Losses and Hessians below are computed in single precision."""


def batch(points):
    return Batch(jnp.asarray(points[0]), jnp.asarray(points[1]), None)


def federation(kind, seed, l2, intercept):
    if kind == "ridge":
        nodes, validation = regression_nodes([7, 7, 7], features=2, seed=seed)
        return Ridge(l2=l2, intercept=intercept), nodes, validation
    nodes, validation = classification_nodes([7, 7, 7], features=2, seed=seed)
    return Logistic(l2=l2, intercept=intercept, classes=3), nodes, validation


@partial(jax.jit, static_argnums=0)
def gradient(objective, theta, points):
    return jax.grad(objective.batch_loss)(theta, points)


@partial(jax.jit, static_argnums=0)
def hessian(objective, theta, points):
    return jax.hessian(objective.batch_loss)(theta, points)


def minimiser(objective, weights, batches):
    """Newton's method: an independent solver."""
    theta = jnp.zeros(objective.size)
    for _ in range(20):
        slope = sum(
            w * gradient(objective, theta, b) for w, b in zip(weights, batches, strict=True)
        )
        curvature = sum(
            w * hessian(objective, theta, b) for w, b in zip(weights, batches, strict=True)
        )
        theta = theta - jnp.asarray(np.linalg.solve(np.asarray(curvature), np.asarray(slope)))
    return theta


@pytest.mark.parametrize(
    ("kind", "l2", "intercept"),
    [("ridge", 0.05, True), ("ridge", 2.0, False), ("logistic", 0.05, True)],
)
@given(seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=12)
def test_the_constants_are_bounds(kind, seed, l2, intercept):
    model, nodes, validation = federation(kind, seed, l2, intercept)
    found = constants_of_data(model, nodes, validation)
    objective = Objective.create(model, jnp.asarray(nodes[0][0]))
    own = [batch(points) for points in nodes]
    everybody = [*own, batch(validation)]
    rng = np.random.default_rng(seed)

    def in_ball():
        direction = rng.normal(size=objective.size)
        return jnp.asarray(
            2 * found.radius * rng.uniform() * direction / np.linalg.norm(direction), jnp.float32
        )

    for _ in range(3):
        theta, other = in_ball(), in_ball()
        for each in everybody:
            assert jnp.linalg.norm(gradient(objective, theta, each)) <= found.lipschitz * ROUNDING
            change = np.linalg.norm(
                hessian(objective, theta, each) - hessian(objective, other, each), ord=2
            )
            assert change <= (
                found.hessian_lipschitz * jnp.linalg.norm(theta - other) * ROUNDING + 1e-4
            )
        for each in own:
            assert np.linalg.eigvalsh(hessian(objective, theta, each))[0] >= (
                found.strong_convexity - 1e-4 * found.smoothness
            )
        for inputs, labels in nodes:
            point = Batch(jnp.asarray(inputs[:1]), jnp.asarray(labels[:1]), None)
            largest = np.linalg.eigvalsh(hessian(objective, theta, point))[-1]
            assert largest <= found.smoothness * ROUNDING
    for _ in range(3):
        weights = rng.dirichlet(np.ones(len(own)))
        theta = minimiser(objective, weights, own)
        assert jnp.linalg.norm(theta) <= found.radius * ROUNDING


def test_ridge_by_hand():
    # One feature, no intercept, l2 = 1. Node: x = 1, 2 with y = 1, 0; centre: x = 1, y = 3.
    # Curvatures of points 1 and 4 (+ 1); of the node 2.5 + 1; ∇L(0) = −½; of the centre 2 and −3.
    nodes = [(np.array([[1.0], [2.0]]), np.array([1.0, 0.0]))]
    validation = (np.array([[1.0]]), np.array([3.0]))
    found = constants_of_data(Ridge(l2=1.0, intercept=False), nodes, validation)
    assert found.smoothness == pytest.approx(5, rel=1e-4)
    assert found.strong_convexity == pytest.approx(3.5, rel=1e-4)
    assert found.radius == pytest.approx(0.5 / 3.5, rel=1e-4)
    # The centre's gradient is the larger: 3 + 2·(2R).
    assert found.lipschitz == pytest.approx(3 + 4 * 0.5 / 3.5, rel=1e-4)
    assert found.hessian_lipschitz == 0
    assert not found.estimated


def test_logistic_by_hand():
    # Two classes, one point x = 2: curvature at most ½·4, ∇L(0) = x(½, −½), of length √2.
    nodes = [(np.array([[2.0]]), np.array([1]))]
    model = Logistic(l2=0.5, intercept=False, classes=2)
    found = constants_of_data(model, nodes, nodes[0])
    assert found.smoothness == pytest.approx(2.5, rel=1e-4)
    assert found.strong_convexity == 0.5
    assert found.radius == pytest.approx(np.sqrt(2) / 0.5, rel=1e-4)
    # Third derivative of log(1 + e^t) is at most 1/(6√3), with t = (u_1 − u_2) of length √2·‖u‖ at most.
    assert found.hessian_lipschitz == pytest.approx(8 * 2**1.5 / (6 * 3**0.5), rel=1e-4)


def test_nodes_answer_with_the_same_numbers_through_the_federation():
    nodes, validation = regression_nodes([7, 12], features=2)
    model = Ridge(l2=0.3)
    made = problem(model, nodes, validation, batch_size=1)
    replies, cost = made.federation.call("constants", {}, key=jax.random.key(0))
    own, _ = made.centre.alone.call("constants", {}, key=jax.random.key(0))
    names = NodeSummary._fields
    found = constants(
        NodeSummary(**{name: replies[name] for name in names}),
        NodeSummary(**{name: own[name][0] for name in names}),
    )
    expected = constants_of_data(model, nodes, validation)
    for name in ("lipschitz", "smoothness", "strong_convexity", "radius"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-4)
    assert cost.synchronizations == 1
    assert cost.bytes_up == 2 * len(names) * 4  # numbers, no vectors
    # Mini-batches have smaller constants than single points.
    whole = problem(model, nodes, validation, batch_size=100)
    larger, _ = whole.federation.call("constants", {}, key=jax.random.key(0))
    assert (larger["batch_smoothness"] < replies["batch_smoothness"]).all()


def test_what_is_not_strongly_convex_is_refused():
    with pytest.raises(InputError, match="l2"):
        Constants(1.0, 1.0, 0.0, 0.0, 1.0)
    with pytest.raises(InputError, match="μ ≤ ℓ_1"):
        Constants(1.0, 1.0, 0.0, 2.0, 1.0)
    nodes = [(np.ones((3, 2)), np.ones(3))]
    with pytest.raises(InputError, match="l2 above 0"):
        constants_of_data(Ridge(l2=0.0), nodes, nodes[0])
    with pytest.raises(InputError, match="estimates"):
        constants_of_data(MLP(hidden=2, task="regression"), nodes, nodes[0])  # pyright: ignore


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_power_iteration_and_lanczos_against_eigenvalues(seed, size):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(size, size)).astype(np.float32)
    matrix = matrix + matrix.T
    exact = np.linalg.eigvalsh(matrix.astype(np.float64))
    start = jnp.asarray(rng.normal(size=size), jnp.float32)
    scale = np.abs(exact).max()
    ends = lanczos(lambda v: jnp.asarray(matrix) @ v, start, iterations=size)
    assert ends.smallest == pytest.approx(exact[0], abs=1e-3 * scale)
    assert ends.largest == pytest.approx(exact[-1], abs=1e-3 * scale)
    # From below, always; and near where one eigenvalue stands out.
    found = power_iteration(lambda v: jnp.asarray(matrix) @ v, start, 500)
    assert found <= scale * (1 + 1e-4)
    definite = matrix @ matrix + np.diag(np.arange(size) == 0) * 10 * scale**2
    top = np.linalg.eigvalsh(definite.astype(np.float64))[-1]
    found = power_iteration(lambda v: jnp.asarray(definite, jnp.float32) @ v, start, 500)
    assert found == pytest.approx(top, rel=1e-2)


def test_estimates_are_marked_and_lie_within_the_bounds():
    nodes, validation = regression_nodes([15, 12], features=2)
    model = Ridge(l2=0.3)
    objective = Objective.create(model, jnp.asarray(nodes[0][0]))
    own = [batch(points) for points in nodes]
    theta = minimiser(objective, [0.5, 0.5], own)
    found = estimate_constants(objective, own, batch(validation), theta, jax.random.key(0))
    bounds = constants_of_data(model, nodes, validation)
    assert found.estimated
    assert not bounds.estimated
    assert found.smoothness <= bounds.smoothness * ROUNDING
    assert found.strong_convexity >= bounds.strong_convexity / ROUNDING
    assert found.strong_convexity == pytest.approx(bounds.strong_convexity, rel=1e-2)
    assert found.hessian_lipschitz <= 1e-3


def test_estimates_refuse_a_loss_that_is_not_convex():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(30, 2)), rng.normal(size=30)
    model = MLP(hidden=4, task="regression", l2=0.0)
    objective = Objective.create(model, jnp.asarray(points[0]))
    theta = objective.init(jax.random.key(1))
    with pytest.raises(InputError, match="strongly convex"):
        estimate_constants(objective, [batch(points)], batch(points), theta, jax.random.key(0))
