"""How much arithmetic a computation is, counted in what JAX would compute."""

import math

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval

from benchmarks import work
from benchmarks.problem import NETWORKS, BenchProblem
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
        if equation.primitive.name.startswith("fedkin_"):
            # A product of matrices, possibly stacked: sizes i·j, j·k and i·k give i·j·k.
            shapes = [variable.aval.shape for variable in (*equation.invars, *equation.outvars)]
            stacked = max(math.prod(shape[:-2]) for shape in shapes)
            total += 2 * stacked * math.isqrt(math.prod(math.prod(shape[-2:]) for shape in shapes))
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


class Clock:
    """Time that passes only in the operations that are measured, each as long as a test says."""

    def __init__(self, monkeypatch, **durations):
        self.now = 0.0
        self.done = {name: [] for name in durations}
        monkeypatch.setattr(work.time, "perf_counter", lambda: self.now)
        for name, seconds in durations.items():
            monkeypatch.setattr(work.np, name, self.slow(name, getattr(np, name), iter(seconds)))

    def slow(self, name, operation, seconds):
        def measured(*arrays):
            self.now += next(seconds)
            self.done[name].append([array.shape for array in arrays])
            return operation(*arrays)

        return measured


def test_limits_are_what_the_fastest_product_and_copy_do_in_a_second(monkeypatch):
    monkeypatch.setattr(work, "MATRIX", 30)
    monkeypatch.setattr(work, "COPIED_BYTES", 8000)
    # The copies are two, one for each thread, and it takes both of them to copy all bytes.
    clock = Clock(monkeypatch, matmul=[0.5, 0.2, 0.4], copyto=[0.1, 0.1, 0.3, 0.1, 0.1, 0.2])
    limits = work.measure_limits(threads=2, repeats=3)
    assert clock.done["matmul"] == [[(30, 30), (30, 30)]] * 3
    assert clock.done["copyto"] == [[(4000,), (4000,)]] * 6
    # A product of n × n matrices takes n³ multiplications and as many additions.
    assert limits.flops == pytest.approx(2 * 30**3 / 0.2)
    # Each byte is read and written.
    assert limits.bandwidth == pytest.approx(2 * 8000 / 0.2)
