from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import classification_nodes, own_data, problem, regression_nodes, reveal
from fedkin.methods.pfedme import node as pfedme
from fedkin.models.linear import Logistic, Ridge
from pseudocode import gradient_of, pfedme_rounds

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("task", [pfedme.PFEDME_ROUND, pfedme.PFEDME_PERSONAL_ROUND])
def test_nodes_together_do_what_the_pseudocode_does(task):
    made = problem(Logistic(classes=3, l2=0.1), *classification_nodes((23, 4)))
    shared = jnp.linspace(-1, 1, made.objective.size)
    key = jax.random.key(3)
    settings = {"rate": 0.1, "pull": 2.0, "tolerance": 0.085, "iterations": 9}
    replies, cost = reveal(
        made.federation,
        task,
        {"shared": shared, "learning_rate": 0.1, "proximal": 2.0, "tolerance": 0.085},
        key=key,
        steps=8,
        iterations=9,
    )
    evaluations, iterations = [], []
    for node in range(2):
        data = own_data(made.federation.data, node)
        moved, personal, count, counts = pfedme_rounds(
            gradient_of(made.objective),
            data,
            jax.random.fold_in(key, node),
            8,
            shared,
            **settings,
        )
        expected = moved if task is pfedme.PFEDME_ROUND else personal
        np.testing.assert_allclose(replies["point"][node], expected, rtol=1e-9, atol=1e-12)
        assert float(replies["iterations"][node]) == pytest.approx(np.mean(counts))
        evaluations.append(count)
        iterations += counts
    assert cost.points == max(evaluations)
    # Both ends of a subproblem have occurred: a small gradient, and the largest number of iterations.
    assert min(iterations) < 9 == max(iterations)


def subproblem(tolerance, iterations, pull=2.0):
    nodes, validation = regression_nodes((20,))
    made = problem(Ridge(l2=0.1, intercept=False), nodes, validation, batch_size=25)
    batch = own_data(made.federation.data, 0).batch(0)
    solve = jax.jit(partial(pfedme.solve_proximal, made.objective, iterations=iterations))
    shared = jnp.arange(4.0)
    solution = solve(batch, shared, learning_rate=0.1, proximal=pull, tolerance=tolerance)
    inputs, labels = made.nodes[0]
    hessian = inputs.T @ inputs / 20 + (0.1 + pull) * np.eye(4)
    return solution, hessian, inputs.T @ labels / 20 + pull * np.arange(4.0)


def test_the_proximal_subproblem_is_solved_as_ridge_regression_says():
    solution, hessian, target = subproblem(tolerance=1e-12, iterations=1000)
    np.testing.assert_allclose(solution.point, np.linalg.solve(hessian, target), atol=1e-11)
    assert int(solution.iterations) < 1000


def test_gradient_descent_ends_at_the_first_gradient_below_the_tolerance():
    solution, hessian, target = subproblem(tolerance=0.005, iterations=1000)
    assert np.linalg.norm(hessian @ solution.point - target) < 0.005
    # One iteration less had not been enough, and one is the gradient that found it out.
    shorter, _, _ = subproblem(tolerance=0.005, iterations=int(solution.iterations) - 2)
    assert np.linalg.norm(hessian @ shorter.point - target) >= 0.005


def test_a_subproblem_that_is_solved_already_costs_one_gradient():
    solution, _, _ = subproblem(tolerance=1e3, iterations=20)
    np.testing.assert_array_equal(solution.point, jnp.arange(4.0))
    assert int(solution.iterations) == 1
