import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from federations import problem
from fedkin.methods.bilevel.outer import (
    AcceleratedBilevel,
    AdaptiveBilevel,
    Differentiation,
    ProximalBilevel,
)
from fedkin.methods.bilevel.solvers import ConjugateGradients
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.models.linear import Ridge
from fedkin.training.runner import Budget, begin, run

pytestmark = pytest.mark.usefixtures("float64")

EXACT = ConjugateGradients(damping=0.0, iterations=30, tolerance=1e-12)


def linear_regression(nodes=6, features=3, seed=0):
    """The paper's example: the same inputs everywhere, so θ(w) = Σ w_k θ_k and F is quadratic in w."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(20, features))
    labels = [inputs @ rng.normal(size=features) + 0.1 * rng.normal(size=20) for _ in range(nodes)]
    own = rng.normal(size=(15, features))
    validation = own, own @ rng.normal(size=features) * 0.5 + 0.1 * rng.normal(size=15)
    l2 = 0.1
    made = problem(Ridge(l2=l2, intercept=False), [(inputs, y) for y in labels], validation)
    gram = inputs.T @ inputs / 20 + l2 * np.eye(features)
    solutions = np.stack([np.linalg.solve(gram, inputs.T @ y / 20) for y in labels], axis=1)

    def outer(weights):
        theta = solutions @ weights
        return 0.5 * np.mean((own @ theta - validation[1]) ** 2) + 0.5 * l2 * theta @ theta

    return made, outer


def minimum(outer, nodes, cap):
    found = minimize(
        outer,
        np.full(nodes, 1 / nodes),
        bounds=[(0, cap)] * nodes,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    assert found.success
    return found


def exact_inner():
    # One mini-batch of all points per node and one step per round: gradient descent, run to convergence.
    return LocalSvrg(0.5, period=1, rounds=300, refresh_probability=1.0, tolerance=1e-12)


def exact(cap, **settings):
    return Differentiation(cap, exact_inner(), EXACT, **settings)


@pytest.mark.parametrize("cap", [0.3, 1.0])
@pytest.mark.parametrize(
    ("algorithm", "steps", "settings"),
    [
        (ProximalBilevel, 150, {"outer_learning_rate": 0.1}),
        (AcceleratedBilevel, 60, {"outer_learning_rate": 0.1}),
        (AdaptiveBilevel, 60, {"tolerance": 1e-9, "smallest_move": 1e-6}),
    ],
)
def test_the_weights_reach_the_exact_minimizer_of_linear_regression(
    algorithm, steps, settings, cap
):
    made, outer = linear_regression()
    best = minimum(outer, 6, cap)
    method = algorithm(exact(cap), **settings)
    state = method.init(jnp.zeros(3), 6)
    for step in range(steps):
        state, info = method.step(state, jax.random.key(step), made.federation, made.center)
        if info.stop:
            break
    weights = (
        state.accepted.node_weights if algorithm is AdaptiveBilevel else state.aggregate_weights
    )
    assert float(jnp.sum(weights)) == pytest.approx(1, abs=1e-12)
    assert outer(np.asarray(weights)) - best.fun <= 1e-6
    # The start is far from it, so that the test can fail.
    assert outer(np.full(6, 1 / 6)) - best.fun > 1e-2


@pytest.mark.parametrize("algorithm", [ProximalBilevel, AcceleratedBilevel])
def test_mean_estimation_gives_both_sides_half(algorithm):
    """Nodes around +a and -a, target around 0: only equal weights find the mean (METHOD, section 9)."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=30)
    noise -= noise.mean()
    ones = np.ones((30, 1))
    made = problem(
        Ridge(l2=1e-9, intercept=False), [(ones, noise + 2.0), (ones, noise - 2.0)], (ones, noise)
    )
    method = algorithm(exact(1.0), outer_learning_rate=0.02)
    state = method.init(jnp.zeros(1), 2)
    state = state._replace(
        node_weights=jnp.array([0.9, 0.1]), aggregate_weights=jnp.array([0.9, 0.1])
    )
    for step in range(60):
        state, _ = method.step(state, jax.random.key(step), made.federation, made.center)
    np.testing.assert_allclose(state.aggregate_weights, [0.5, 0.5], atol=1e-3)


def run_of(method):
    made, _ = linear_regression(seed=3)
    return run(
        method,
        made.federation,
        made.center,
        begin(method, made.federation, jnp.zeros(3)),
        jax.random.key(0),
        budget=Budget(steps=50),
        keep="last",
    )


def test_the_adaptive_loop_never_accepts_a_worse_validation_loss_and_says_why_it_stopped():
    outcome = run_of(
        AdaptiveBilevel(exact(1.0), first_move=5.0, tolerance=1e-9, smallest_move=1e-6)
    )
    accepted = [
        row.diagnostics["outer_loss"] for row in outcome.history if row.diagnostics["accepted"]
    ]
    assert all(np.diff(accepted) <= 0)
    assert len(accepted) < len(outcome.history)  # the first move was too bold, and taken back
    assert outcome.stopped.startswith("converged")


def test_the_adaptive_loop_has_not_converged_where_training_has_not():
    made, _ = linear_regression(seed=3)
    for rounds, reason in ((2, "training has not settled"), (300, "other weights may lower it")):
        inner = LocalSvrg(0.5, period=1, rounds=rounds, refresh_probability=1.0, tolerance=1e-12)
        # With this tolerance the loop stops at once, wherever it is.
        method = AdaptiveBilevel(Differentiation(1.0, inner, EXACT), tolerance=1e6)
        state = method.init(jnp.zeros(3), 6)
        _, info = method.step(state, jax.random.key(0), made.federation, made.center)
        assert info.stop.startswith("stopped")
        assert reason in info.stop


def test_the_adaptive_loop_does_not_call_a_short_step_or_unfinished_training_converged():
    short = run_of(AdaptiveBilevel(exact(1.0), first_move=5.0, tolerance=1e-4))
    assert short.stopped.startswith("stopped: the next step promises")
    assert "by its slopes other weights may lower it by" in short.stopped
    few_rounds = LocalSvrg(0.5, period=1, rounds=5, refresh_probability=1.0, tolerance=1e-12)
    differentiation = Differentiation(1.0, few_rounds, EXACT)
    unfinished = run_of(AdaptiveBilevel(differentiation, tolerance=1e-4))
    assert "training has not settled: give it more rounds" in unfinished.stopped


@pytest.mark.parametrize(("equally_long", "worse_is_accepted"), [(False, 1), (True, 0)])
def test_where_nodes_may_lie_weights_are_compared_that_were_trained_equally_long(
    equally_long, worse_is_accepted
):
    """A model that is far from the end gets better with any weights, if it is trained for longer."""
    ones, noise = np.ones((30, 1)), np.random.default_rng(0).normal(size=30)
    kin, other = (ones, noise + 1.0), (ones, noise + 3.0)
    made = problem(Ridge(l2=1e-9, intercept=False), [kin, other], kin)
    inner = LocalSvrg(0.1, period=1, rounds=2, refresh_probability=1.0)
    method = AdaptiveBilevel(Differentiation(1.0, inner, EXACT), equally_long=equally_long)
    state = method.init(jnp.full(1, 10.0), 2)
    state, first = method.step(state, jax.random.key(0), made.federation, made.center)
    for candidate, accepted in (([0.1, 0.9], worse_is_accepted), ([0.9, 0.1], 1)):
        tried = state._replace(candidate=jnp.array(candidate))
        _, info = method.step(tried, jax.random.key(1), made.federation, made.center)
        assert info.diagnostics["accepted"] == accepted
        assert info.cost.synchronizations <= first.cost.synchronizations


def test_starting_the_inner_solve_at_zero_gives_the_same_hypergradient_at_convergence():
    made, _ = linear_regression()
    gradients = []
    for warm_start in (True, False):
        method = ProximalBilevel(
            exact(1.0, warm_start=warm_start, warm_start_adjoint=True), outer_learning_rate=0.02
        )
        state = method.init(jnp.ones(3), 6)
        for step in range(3):
            state, info = method.step(state, jax.random.key(step), made.federation, made.center)
        gradients.append(info.diagnostics["hypergradient_norm"])
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-6)
