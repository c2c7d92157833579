from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import classification_nodes, own_data, problem, regression_nodes, reveal
from fedkin.methods.ditto import node as ditto
from fedkin.models.linear import Logistic, Ridge
from pseudocode import ditto_steps, gradient_of

pytestmark = pytest.mark.usefixtures("float64")


def logistic_problem():
    return problem(Logistic(classes=3, l2=0.1), *classification_nodes((23, 4)))


def test_nodes_together_train_the_shared_model_as_the_pseudocode_does():
    made = logistic_problem()
    shared = made.objective.init(jax.random.key(0)) + 0.1
    key = jax.random.key(3)
    replies, cost = reveal(
        made.federation,
        ditto.DITTO_SHARED_ROUND,
        {"shared": shared, "learning_rate": 0.05},
        key=key,
        steps=7,
    )
    evaluations = []
    for node in range(2):
        data = own_data(made.federation.data, node)
        expected, count = ditto_steps(
            gradient_of(made.objective), data, jax.random.fold_in(key, node), 7, shared, rate=0.05
        )
        np.testing.assert_allclose(replies["point"][node], expected, rtol=1e-9, atol=1e-12)
        evaluations.append(count)
    assert cost.points == max(evaluations)


def test_the_personal_model_persists_and_follows_the_pseudocode():
    made = logistic_problem()
    data = own_data(made.center.data, 0)
    initial = made.objective.init(jax.random.key(0)) + 0.1
    personal = initial
    for number, shared in enumerate([initial, initial + 1, initial - 1]):
        key = jax.random.key(number)
        replies, cost = reveal(
            made.center.alone,
            ditto.DITTO_PERSONAL_ROUND,
            {"shared": shared, "learning_rate": 0.05, "proximal": 0.7}
            | ({"personal": initial} if number == 0 else {}),
            key=key,
            steps=5,
            begin=number == 0,
        )
        personal, evaluations = ditto_steps(
            gradient_of(made.objective),
            data,
            jax.random.fold_in(key, 0),
            5,
            personal,
            rate=0.05,
            shared=shared,
            pull=0.7,
        )
        np.testing.assert_allclose(replies["point"][0], personal, rtol=1e-9, atol=1e-12)
        assert cost.points == evaluations
        # D_0 has 25 points in mini-batches of 9, 8 and 8: filling must not count.
        assert evaluations < 5 * 10


@pytest.mark.parametrize("pull", [0.05, 3.0])
def test_the_personal_model_settles_where_ridge_regression_says(pull):
    nodes, validation = regression_nodes((20,))
    made = problem(Ridge(l2=0.1, intercept=False), nodes, validation, batch_size=25)
    inputs, labels = made.validation
    shared = jnp.arange(4.0)
    descend = jax.jit(partial(ditto.personal_round, made.objective, steps=800))
    result = descend(
        own_data(made.center.data, 0),
        jnp.zeros(4),
        shared,
        jax.random.key(0),
        learning_rate=0.1,
        proximal=pull,
    )
    hessian = inputs.T @ inputs / 25 + 0.1 * np.eye(4)
    exact = np.linalg.solve(hessian + pull * np.eye(4), inputs.T @ labels / 25 + pull * shared)
    np.testing.assert_allclose(result.point, exact, atol=1e-10)
    assert int(result.evaluations) == 800 * 25
