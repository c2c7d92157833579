import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import fedkin
from federations import classification_nodes, problem, regression_nodes
from fedkin.errors import InputError
from fedkin.methods.bilevel.hypergradient import AdjointSystem
from fedkin.methods.bilevel.solvers import (
    ConjugateGradients,
    LocalSvrgSolver,
    NeumannSeries,
    OwnHessian,
)
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.models.linear import Logistic, Ridge

WEIGHTS = np.array([0.2, 0.5, 0.3])
SIZES = (23, 12, 8)

EXACT_SOLVERS = {
    "cg": ConjugateGradients(damping=0.0, iterations=60, tolerance=1e-12),
    "neumann": NeumannSeries(step=0.2, terms=4000, tolerance=1e-12),
    "svrg": LocalSvrgSolver(
        training=LocalSvrg(0.045, period=1, rounds=1600, refresh_probability=0.2)
    ),
}

# How long Local-SVRG has to run follows from the conditioning: l2 = 0.3 keeps the tests short.
MODELS = {
    "ridge": lambda: problem(Ridge(l2=0.3), *regression_nodes(SIZES)),
    "logistic": lambda: problem(Logistic(classes=3, l2=0.3), *classification_nodes(SIZES)),
}


def system_of(made, theta, target):
    return AdjointSystem(made.federation, jnp.asarray(WEIGHTS), theta, target, jax.random.key(0))


class Exact:
    """The bilevel problem by dense linear algebra on plain means over points."""

    def __init__(self, made):
        model, unflatten = made.objective.model, made.objective.unflatten

        def loss(theta, inputs, labels):
            params = unflatten(theta)
            return jnp.mean(model.loss(model.apply(params, inputs), labels)) + model.penalty(params)

        def weighted(theta, weights):
            return sum(
                w * loss(theta, *points) for w, points in zip(weights, made.nodes, strict=True)
            )

        self.size = made.objective.size
        self.node_losses = [
            jax.jit(lambda theta, p=points: loss(theta, *p)) for points in made.nodes
        ]
        self.inner = jax.jit(weighted)
        self.inner_gradient = jax.jit(jax.grad(weighted))
        self.inner_hessian = jax.jit(jax.hessian(weighted))
        self.outer = jax.jit(lambda theta: loss(theta, *made.validation))

    def solve(self, weights):
        found = minimize(
            self.inner, np.zeros(self.size), args=(weights,), jac=self.inner_gradient, method="BFGS"
        ).x
        for _ in range(4):  # Newton's method to machine precision
            step = np.linalg.solve(
                self.inner_hessian(found, weights), self.inner_gradient(found, weights)
            )
            found = found - step
        return found

    def hypergradient(self, weights):
        theta = self.solve(weights)
        adjoint = np.linalg.solve(self.inner_hessian(theta, weights), jax.grad(self.outer)(theta))
        return np.array([-jax.grad(loss)(theta) @ adjoint for loss in self.node_losses])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("model", MODELS)
def test_every_solver_gives_the_exact_implicit_gradient_and_that_the_finite_differences(model):
    made = MODELS[model]()
    exact = Exact(made)
    theta = jnp.asarray(exact.solve(WEIGHTS))
    truth = exact.hypergradient(WEIGHTS)
    loss, target = made.center.loss_and_gradient(theta)
    assert loss == pytest.approx(float(exact.outer(theta)), rel=1e-12)
    for name, solve in EXACT_SOLVERS.items():
        found = solve(system_of(made, theta, target))
        error = np.linalg.norm(found.gradient - truth) / np.linalg.norm(truth)
        assert error < 1e-6, name
        assert found.warnings == ()
    step = 1e-5
    for node, direction in enumerate(np.eye(3)):
        ahead, behind = (exact.outer(exact.solve(WEIGHTS + s * direction)) for s in (step, -step))
        assert (ahead - behind) / (2 * step) == pytest.approx(truth[node], rel=1e-4, abs=1e-8)


@pytest.mark.usefixtures("float64")
def test_one_synchronization_per_product_and_none_for_the_slopes():
    made = MODELS["logistic"]()
    theta = jnp.zeros(made.objective.size)
    target = made.center.loss_and_gradient(theta)[1]
    solve = ConjugateGradients(damping=0.1, iterations=3, tolerance=1e-30)
    found = solve(system_of(made, theta, target))
    size, nodes, number = made.objective.size, 3, 8
    assert found.cost.synchronizations == 3 == found.diagnostics["adjoint_products"]
    assert found.cost.bytes_down == nodes * number * (size + 3 * size)  # theta once, three vectors
    assert found.cost.bytes_up == nodes * number * 3 * (size + 1)  # a product and a number each
    assert (
        found.cost.points == 23 + 3 * 23
    )  # the gradient once, three products, by the largest node


@pytest.mark.usefixtures("float64")
def test_a_diverging_solve_is_noticed_reported_and_repeated_with_smaller_steps():
    made = MODELS["logistic"]()
    exact = Exact(made)
    theta = jnp.asarray(exact.solve(WEIGHTS))
    target = made.center.loss_and_gradient(theta)[1]
    solve = LocalSvrgSolver(training=LocalSvrg(50.0, period=5, rounds=400, refresh_probability=0.2))
    found = solve(system_of(made, theta, target))
    assert found.diagnostics["adjoint_retries"] >= 3
    assert found.rate_factor == 0.5 ** found.diagnostics["adjoint_retries"]
    assert "diverged with γ_h = 50" in found.warnings[0]
    assert found.diagnostics["adjoint_learning_rate"] == 50 * found.rate_factor
    truth = exact.hypergradient(WEIGHTS)
    error = np.linalg.norm(found.gradient - truth) / np.linalg.norm(truth)
    assert error < 0.2  # local steps leave a floor; what matters is that it is of use
    again = solve(system_of(made, theta, target), rate_factor=found.rate_factor)
    assert again.warnings == ()
    assert again.diagnostics["adjoint_retries"] == 0


@pytest.mark.usefixtures("float64")
def test_a_solve_that_no_step_size_saves_ends_with_an_error():
    made = MODELS["logistic"]()
    theta = jnp.zeros(made.objective.size)
    solve = LocalSvrgSolver(training=LocalSvrg(0.1, period=2, rounds=2))
    with pytest.raises(fedkin.DivergedError, match="γ_h"):
        solve(system_of(made, theta, jnp.full(theta.shape, jnp.nan)))


def test_the_owners_hessian_is_exact_where_the_weighted_nodes_have_the_owners_rows():
    nodes, own = classification_nodes((25, 31), classes=2)
    made = problem(Logistic(l2=0.3), [own, nodes[1]], own, batch_size=40)
    exact, weights = Exact(made), np.array([1.0, 0.0])
    theta = jnp.asarray(exact.solve(weights))
    _, target = made.center.loss_and_gradient(theta)
    system = AdjointSystem(
        made.federation, jnp.asarray(weights), theta, target, jax.random.key(0), made.center
    )
    found = OwnHessian(damping=0.0, iterations=60)(system)
    np.testing.assert_allclose(found.gradient, exact.hypergradient(weights), rtol=1e-3, atol=1e-5)
    assert found.cost.synchronizations == 1


def test_the_owners_hessian_needs_the_owner():
    made = MODELS["ridge"]()
    theta = jnp.zeros(made.objective.size)
    with pytest.raises(InputError, match="owner's rows"):
        OwnHessian(damping=0.0, iterations=5)(system_of(made, theta, theta))
