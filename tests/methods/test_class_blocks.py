"""The Hessian of a multinomial model, class by class, and what it is good for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import load_images
from fedkin.methods.bilevel.class_blocks import ClassBlocks, class_directions, has_class_blocks
from fedkin.methods.bilevel.curvature import Place
from fedkin.methods.bilevel.method import Bilevel
from fedkin.models.linear import Logistic, Ridge
from fedkin.models.objective import Batch, Objective
from fedkin.training.problem import Problem, simulation
from fedkin.training.runner import Budget
from fedkin.types import Points

pytestmark = pytest.mark.usefixtures("float64")


def measure(objective, theta, inputs):
    """Return the blocks, and the whole Hessian."""
    labels = np.zeros(len(inputs), int)
    hessian = np.asarray(
        jax.hessian(objective.batch_loss)(theta, Batch(jnp.asarray(inputs), labels, None))
    )
    classes, size = objective.model.classes, objective.size
    own = np.arange(size) % classes
    blocks = np.where(own[:, None] == own, hessian - objective.model.l2 * np.eye(size), 0)
    found = ClassBlocks.measured(
        class_directions(objective) @ blocks, objective.model, np.asarray(theta), np.ones(1)
    )
    return found, hessian


@pytest.mark.parametrize(("classes", "scale"), [(2, 1.0), (4, 0.0)])
def test_the_blocks_invert_the_hessian_where_they_are_exact(classes, scale):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(50, 6))
    objective = Objective.create(Logistic(classes=classes, l2=0.01), inputs)
    theta = scale * jnp.asarray(rng.normal(size=objective.size))
    found, hessian = measure(objective, theta, inputs)
    vector = rng.normal(size=objective.size)
    solution = found.solver(Place(objective, None, theta))(vector)
    np.testing.assert_allclose(hessian @ solution, vector, atol=1e-9)


def test_the_blocks_are_near_the_hessian_elsewhere():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(200, 6))
    objective = Objective.create(Logistic(classes=5, l2=0.01), inputs)
    theta = jnp.asarray(rng.normal(size=objective.size))
    found, hessian = measure(objective, theta, inputs)
    solve = found.solver(Place(objective, None, theta))
    values = np.linalg.eigvals(np.stack([solve(row) for row in hessian])).real
    assert 0.1 < values.min() <= values.max() < 2


def test_blocks_of_nodes_that_lie_grow_stale_with_the_model():
    """They may be those of no Hessian."""
    inputs = np.random.default_rng(0).normal(size=(50, 6))
    objective = Objective.create(Logistic(classes=3, l2=0.01), inputs)
    true, _ = measure(objective, jnp.zeros(objective.size), inputs)
    found = true._replace(blocks=-true.blocks)
    assert not found.are_stale(found.theta, found.weights)
    assert found.are_stale(found.theta + 10, found.weights)


def test_blocks_grow_stale_with_the_weights_and_with_the_model():
    inputs = np.random.default_rng(0).normal(size=(50, 6))
    objective = Objective.create(Logistic(classes=3), inputs)
    theta, weights = np.zeros(objective.size), np.array([0.5, 0.5])
    found = measure(objective, jnp.asarray(theta), inputs)[0]._replace(weights=weights)
    assert ClassBlocks.unknown().are_stale(theta, weights)
    assert not found.are_stale(theta, weights)
    assert found.are_stale(theta, np.array([1.5, -0.5]))
    assert found.are_stale(theta + 10, weights)


def test_models_of_many_features_or_without_classes_have_none():
    assert has_class_blocks(Objective.create(Logistic(classes=10), np.zeros((2, 64))))
    assert not has_class_blocks(Objective.create(Logistic(classes=2), np.zeros((2, 500))))
    assert not has_class_blocks(Objective.create(Ridge(), np.zeros((2, 64))))


def test_digits_converge_in_few_exchanges():
    data = sample_federation(load_images("digits"), paper_scenario("digits", 2), "minority", 1)
    nodes = {f"node {number}": Points(*points) for number, points in enumerate(data.nodes)}
    made = Problem.build(
        simulation(nodes, batch_size=50, seed=1),
        Points(*data.validation),
        classes=np.arange(10),
        seed=1,
    )
    trained = made.train(Bilevel(), budget=Budget(synchronizations=60))
    assert trained.state.stopped.startswith("converged")
    kin = np.asarray(trained.state.history[-1].node_weights)[np.array(data.similar)].sum()
    assert kin > 0.95
