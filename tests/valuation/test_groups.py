"""Models of groups of nodes: each is the one that training on these nodes alone would give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedkin.errors import DivergedError
from fedkin.methods.local_svrg.center import LocalSvrg, solve_inner
from fedkin.models.linear import Logistic, Ridge
from fedkin.models.mlp import MLP
from fedkin.training.alone import OwnRows, PenalizedLoss, add_ones
from fedkin.valuation.groups import GroupTraining
from tests.federations import classification_nodes, problem, regression_nodes

GROUPS = np.array([[1, 0, 0], [0.2, 0, 0.8], [0.3, 0.4, 0.3]])
KEY = jax.random.key(3)


def training(model, nodes, validation, rounds=None):
    found = problem(model, nodes, validation)
    start = found.objective.start(jax.random.key(0))
    return GroupTraining(found.federation, found.center, start, KEY, rounds), found


def test_ridge_models_solve_the_normal_equations():
    nodes, validation = regression_nodes([20, 35, 50])
    trained, _ = training(Ridge(l2=0.01), nodes, validation)
    found = trained.train(GROUPS)
    assert found.unsettled == 0
    for weights, theta in zip(GROUPS, found.models, strict=True):
        hessian, target = 0.01 * np.eye(5), np.zeros(5)
        for weight, (x, y) in zip(weights, nodes, strict=True):
            features = add_ones(x)
            hessian = hessian + weight * features.T @ features / len(y)
            target = target + weight * features.T @ y / len(y)
        exact = np.linalg.solve(hessian, target)
        # The intercept comes first in the vector of parameters.
        np.testing.assert_allclose(theta, [exact[-1], *exact[:-1]], atol=2e-3)


def test_logistic_models_are_those_of_newtons_method_on_the_pooled_rows():
    nodes, validation = classification_nodes([20, 35, 50])
    trained, found = training(Logistic(classes=3, l2=0.01), nodes, validation)
    models = trained.train(GROUPS).models
    for weights, theta in zip(GROUPS, models, strict=True):
        rows = OwnRows(
            np.concatenate([add_ones(x) for x, _ in nodes]),
            np.concatenate([y for _, y in nodes]),
            "classification",
            3,
        )
        counts = np.repeat(weights / [20, 35, 50], [20, 35, 50])
        exact = PenalizedLoss(rows, counts, np.full(4, 0.01)).minimize().reshape(3, 4).T
        own = found.objective.unflatten(jnp.asarray(theta))
        np.testing.assert_allclose(own["kernel"], exact[:-1], atol=3e-3)
        np.testing.assert_allclose(own["bias"], exact[-1], atol=3e-3)


def test_groups_share_exchanges():
    """However many groups: the synchronizations of the slowest, and no node is asked that no group has."""
    nodes, validation = classification_nodes([20, 35, 50])
    alone = [training(Logistic(classes=3), nodes, validation)[0].train(row[None]) for row in GROUPS]
    together = training(Logistic(classes=3), nodes, validation)[0].train(GROUPS)
    assert together.cost.synchronizations == max(one.cost.synchronizations for one in alone)
    assert together.cost.bytes_up == sum(one.cost.bytes_up for one in alone)
    assert alone[0].cost.node_points[1:3] == (0, 0)


def test_rounds_are_those_of_local_svrg_on_the_group():
    nodes, validation = classification_nodes([20, 35, 50])
    settings = LocalSvrg(learning_rate=0.1, period=4, rounds=3)
    trained, _ = training(MLP(outputs=3, hidden=4), nodes, validation, settings)
    found = trained.train(GROUPS)
    assert found.cost.synchronizations == 3
    for weights, theta in zip(GROUPS, found.models, strict=True):
        other, _ = training(MLP(outputs=3, hidden=4), nodes, validation, settings)
        alone = solve_inner(other.federation, jnp.asarray(weights), other.start, KEY, settings)
        np.testing.assert_allclose(theta, alone.point, atol=1e-5)


def test_a_group_that_diverges_begins_again_with_smaller_steps():
    """Only node 3's inputs are too large for the learning rate: the other group's model stays the same."""
    nodes, validation = regression_nodes([20, 35, 50])
    nodes[2] = (nodes[2][0] * 40, nodes[2][1])
    settings = LocalSvrg(learning_rate=0.02, period=10, rounds=3)
    found = training(Ridge(), nodes, validation, settings)[0].train(GROUPS[:2])
    alone = training(Ridge(), nodes, validation, settings)[0].train(GROUPS[:1])
    np.testing.assert_allclose(found.models[0], alone.models[0], atol=1e-6)
    assert np.isfinite(found.models).all()
    assert found.cost.synchronizations > 3


def test_what_always_diverges_is_an_error_that_says_what_to_do():
    nodes, validation = regression_nodes([20, 35, 50])
    nodes[2] = (nodes[2][0] * 1e4, nodes[2][1])
    settings = LocalSvrg(learning_rate=1.0, period=10, rounds=3)
    with pytest.raises(DivergedError, match=r"smaller learning_rate, below 0\.016"):
        training(Ridge(), nodes, validation, settings)[0].train(GROUPS)
