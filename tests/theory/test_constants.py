from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federations import classification_nodes, problem, regression_nodes, reveal
from fedkin.errors import InputError
from fedkin.methods.bilevel.node import CONSTANTS
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


@partial(jax.jit, static_argnums=0)
def point_hessians(objective, theta, points):
    def of_one(inputs, label):
        return jax.hessian(objective.batch_loss)(theta, Batch(inputs[None], label[None], None))

    return jax.vmap(of_one)(points.inputs, points.labels)


def minimizer(objective, weights, batches):
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
        # ℓ_1: every single point that a step may draw, and the center's whole loss.
        steepest = [
            np.linalg.eigvalsh(each)[-1]
            for points in own
            for each in point_hessians(objective, theta, points)
        ] + [np.linalg.eigvalsh(hessian(objective, theta, everybody[-1]))[-1]]
        assert len(steepest) == 3 * 7 + 1
        assert max(steepest) <= found.smoothness * ROUNDING
    for _ in range(3):
        weights = rng.dirichlet(np.ones(len(own)))
        theta = minimizer(objective, weights, own)
        assert jnp.linalg.norm(theta) <= found.radius * ROUNDING


def test_ridge_by_hand():
    # One feature, no intercept, l2 = 1. Node: x = 1, 2 with y = 1, 0; center: x = 1, y = 3.
    # Curvatures of points 1 and 4 (+ 1); of the node 2.5 + 1; ∇L(0) = −½; of the center 2 and −3.
    nodes = [(np.array([[1.0], [2.0]]), np.array([1.0, 0.0]))]
    validation = (np.array([[1.0]]), np.array([3.0]))
    found = constants_of_data(Ridge(l2=1.0, intercept=False), nodes, validation)
    assert found.smoothness == pytest.approx(5, rel=1e-4)
    assert found.strong_convexity == pytest.approx(3.5, rel=1e-4)
    assert found.radius == pytest.approx(0.5 / 3.5, rel=1e-4)
    # The center's gradient is the larger: 3 + 2·(2R).
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
    replies, cost = reveal(made.federation, CONSTANTS, key=jax.random.key(0))
    own, _ = reveal(made.center.alone, CONSTANTS, key=jax.random.key(0))
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
    larger, _ = reveal(whole.federation, CONSTANTS, key=jax.random.key(0))
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


def mini_batches(points, size):
    return [
        batch((points[0][begin : begin + size], points[1][begin : begin + size]))
        for begin in range(0, len(points[0]), size)
    ]


@pytest.mark.parametrize("size", [1, 3, 12])
def test_estimates_of_ridge_are_the_exact_eigenvalues(size):
    """ℓ_1 is that of the steepest mini-batch, μ that of the flattest node: for ridge both are eigenvalues."""
    nodes, validation = regression_nodes([12, 12], features=2)
    l2 = 0.3
    model = Ridge(l2=l2, intercept=False)
    objective = Objective.create(model, jnp.asarray(nodes[0][0]))
    theta = minimizer(objective, [0.5, 0.5], [batch(points) for points in nodes])
    found = estimate_constants(
        objective,
        [mini_batches(points, size) for points in nodes],
        batch(validation),
        theta,
        jax.random.key(0),
    )

    def eigenvalues(rows):
        return np.linalg.eigvalsh(rows.T @ rows / len(rows) + l2 * np.eye(2))

    steepest = [
        eigenvalues(rows[begin : begin + size])[-1]
        for rows, _ in nodes
        for begin in range(0, 12, size)
    ]
    expected = max(*steepest, eigenvalues(validation[0])[-1])
    assert found.smoothness == pytest.approx(expected, rel=1e-2)
    assert found.smoothness <= expected * ROUNDING
    flattest = min(eigenvalues(rows)[0] for rows, _ in nodes)
    assert found.strong_convexity == pytest.approx(flattest, rel=1e-2)
    assert found.hessian_lipschitz <= 1e-3
    assert found.estimated
    bounds = constants_of_data(model, nodes, validation)
    assert not bounds.estimated
    assert found.smoothness <= bounds.smoothness * ROUNDING
    assert found.lipschitz <= bounds.lipschitz * ROUNDING
    if size == 1:
        assert found.smoothness == pytest.approx(bounds.smoothness, rel=1e-2)
    if size == 12:  # The whole node curves less than its steepest point.
        assert found.smoothness < 0.8 * bounds.smoothness


def test_estimates_need_mini_batches_of_one_size():
    nodes, validation = regression_nodes([5, 5], features=2)
    objective = Objective.create(Ridge(l2=0.3), jnp.asarray(nodes[0][0]))
    for wrong in ([[]], [mini_batches(nodes[0], 2)]):
        with pytest.raises(InputError, match="must have one size"):
            estimate_constants(
                objective, wrong, batch(validation), jnp.zeros(objective.size), jax.random.key(0)
            )


def test_estimates_refuse_a_loss_that_is_not_convex():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(30, 2)), rng.normal(size=30)
    model = MLP(hidden=4, task="regression", l2=0.0)
    objective = Objective.create(model, jnp.asarray(points[0]))
    theta = objective.init(jax.random.key(1))
    with pytest.raises(InputError, match="strongly convex"):
        estimate_constants(objective, [[batch(points)]], batch(points), theta, jax.random.key(0))
