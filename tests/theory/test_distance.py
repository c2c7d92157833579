import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.models.linear import Ridge
from fedkin.models.objective import Batch, Objective
from fedkin.theory.distance import (
    Quadratic,
    estimate_distance,
    population_quadratic,
    ridge_quadratic,
    statistical_distance,
)


def gap(target, nodes, theta):
    return np.sqrt(sum((target(theta) - node(theta)) ** 2 for node in nodes))


def test_one_dimension_by_hand():
    # L_0 − L_1 = −½·4 + 2θ on [−3, 3]: largest in size at θ = −3, where it is −8.
    moment = np.eye(1)
    target = population_quadratic(moment, np.zeros(1), 1.0)
    node = population_quadratic(moment, np.array([2.0]), 1.0)
    found = statistical_distance(target, [node], 3.0)
    assert found.exact
    assert found.upper == pytest.approx(8)
    # Node and center alike: no distance.
    assert statistical_distance(target, [target], 3.0).upper == 0


@given(seed=st.integers(0, 10**6), same=st.booleans(), count=st.integers(1, 4))
@settings(deadline=None, max_examples=40)
def test_encloses_the_distance(seed, same, count):
    rng = np.random.default_rng(seed)

    def quadratic(matrix=None):
        root = rng.normal(size=(3, 3))
        matrix = root @ root.T if matrix is None else matrix
        return Quadratic(matrix, rng.normal(size=3), float(rng.normal()))

    target = quadratic()
    nodes = [quadratic(target.matrix if same else None) for _ in range(count)]
    found = statistical_distance(target, nodes, 1.5)
    assert found.exact == (same or count == 1) or found.upper <= found.lower * (1 + 1e-9)
    points = rng.normal(size=(500, 3))
    points *= (
        1.5 * rng.uniform(size=(500, 1)) ** (1 / 3) / np.linalg.norm(points, axis=1, keepdims=True)
    )
    best = max(gap(target, nodes, point) for point in points)
    assert best <= found.upper * (1 + 1e-9)
    # The lower bound is found by climbing: random points are not far above it, if at all.
    assert best <= found.lower * 1.02


@pytest.mark.parametrize("intercept", [True, False])
def test_ridge_quadratic_is_the_model_s_loss(intercept):
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(9, 2)), rng.normal(size=9)
    model = Ridge(l2=0.3, intercept=intercept)
    objective = Objective.create(model, jnp.asarray(inputs))
    loss = ridge_quadratic(model, inputs, labels)
    for _ in range(3):
        theta = rng.normal(size=objective.size)
        expected = objective.batch_loss(
            jnp.asarray(theta), Batch(jnp.asarray(inputs), jnp.asarray(labels), None)
        )
        assert loss(theta) == pytest.approx(float(expected), rel=1e-5)


def test_ascent_finds_the_exact_distance_of_ridge():
    rng = np.random.default_rng(3)
    model = Ridge(l2=0.1, intercept=False)
    data = [(rng.normal(size=(20, 2)), rng.normal(size=20)) for _ in range(2)]
    exact = statistical_distance(
        ridge_quadratic(model, *data[0]), [ridge_quadratic(model, *data[1])], 2.0
    )
    assert exact.exact  # one node: both bounds meet
    batches = [Batch(jnp.asarray(x), jnp.asarray(y), None) for x, y in data]
    objective = Objective.create(model, jnp.asarray(data[0][0]))
    found = estimate_distance(objective, batches[0], batches[1:], 2.0, jax.random.key(0))
    assert found.upper == float("inf")
    assert 0.98 * exact.upper <= found.lower <= exact.upper * (1 + 1e-5)
