"""How much arithmetic a computation is, counted in what JAX would compute."""

import math

import jax
import jax.extend
import jax.numpy as jnp
import pytest
from jax.interpreters import partial_eval

from fedkin.bench import work
from fedkin.bench.problem import NETWORKS, BenchProblem
from fedkin.models.objective import Batch
from fedkin.nodes import oracles

POINTS = 10


def product_operations(jaxpr):
    """Operations of all matrix products, also in functions that are called."""
    total = 0
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            if isinstance(value, jax.extend.core.ClosedJaxpr):
                total += product_operations(value.jaxpr)
        if equation.primitive.name == "dot_general":
            left, right = (variable.aval for variable in equation.invars)
            (contracted, _), (batched, _) = equation.params["dimension_numbers"]
            shared = math.prod(left.shape[axis] for axis in (*contracted, *batched))
            free = math.prod(left.shape) * math.prod(right.shape) // shared**2
            total += 2 * free * shared
    return total


@pytest.mark.parametrize("network", NETWORKS)
def test_operations_are_those_of_the_products_that_jax_computes(network):
    problem = BenchProblem(network, nodes=1, points=50)
    objective, theta = problem.objective, problem.theta
    inputs, labels = problem.prepared(0, POINTS)
    batch = Batch(jnp.asarray(inputs), jnp.asarray(labels), None)
    gradient = jax.make_jaxpr(lambda x: oracles.batch_loss_and_gradient(objective, x, batch))(theta)
    product = jax.make_jaxpr(lambda x: oracles.batch_hessian_product(objective, x, batch, x))(theta)
    # What nobody needs is left out, as the compiler does: here the gradient itself.
    needed, _ = partial_eval.dce_jaxpr(product.jaxpr, [True])
    assert product_operations(gradient.jaxpr) == POINTS * work.gradient_flops(problem.model)
    assert product_operations(needed) == POINTS * work.product_flops(problem.model)


def test_limits_are_those_of_a_computer():
    limits = work.measure_limits(threads=1, repeats=1)
    assert 1e8 < limits.flops < 1e14
    assert 1e8 < limits.bandwidth < 1e12
