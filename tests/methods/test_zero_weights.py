"""Nodes of weight zero: not asking them changes what a run costs, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedkin
from federations import classification_nodes, problem
from fedkin.compilation import COMPILED
from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import load_images
from fedkin.methods.bilevel.hypergradient import AdjointSystem
from fedkin.methods.bilevel.method import Bilevel
from fedkin.methods.bilevel.solvers import ConjugateGradients, LocalSvrgSolver, NeumannSeries
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.models.linear import Logistic
from fedkin.training.problem import Problem, simulation

SIZES = (23, 12, 18, 15)
WEIGHTS = np.array([0.6, 0.0, 0.4, 0.0])
SOLVERS = {
    "cg": ConjugateGradients(damping=0.1, iterations=5),
    "neumann": NeumannSeries(step=0.1, terms=5, damping=0.1),
    "svrg": LocalSvrgSolver(training=LocalSvrg(0.05, period=3, rounds=4, refresh_probability=0.2)),
    # Diverges at first: every retry is a new series.
    "svrg again": LocalSvrgSolver(
        training=LocalSvrg(50.0, period=3, rounds=8, refresh_probability=0.2)
    ),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SOLVERS)
def test_hypergradients_are_those_of_asking_all(name):
    found = []
    for ask_all in (False, True):
        made = problem(Logistic(classes=3, l2=0.1), *classification_nodes(SIZES))
        made.federation.ask_all = ask_all
        theta = jnp.linspace(-1, 1, made.objective.size)
        target = made.center.loss_and_gradient(theta)[1]
        found.append(
            SOLVERS[name](
                AdjointSystem(
                    made.federation, jnp.asarray(WEIGHTS), theta, target, jax.random.key(0)
                )
            )
        )
    some, everyone = found
    assert np.isfinite(some.gradient).all()
    assert np.abs(some.gradient[np.array([1, 3])]).min() > 1e-3  # nodes of weight zero have a slope
    np.testing.assert_allclose(some.gradient, everyone.gradient, rtol=1e-10)
    np.testing.assert_allclose(some.adjoint, everyone.adjoint, rtol=1e-10)
    assert some.diagnostics == pytest.approx(everyone.diagnostics)
    assert (some.diagnostics.get("adjoint_retries", 0) > 0) == (name == "svrg again")
    assert some.cost.bytes_up < everyone.cost.bytes_up
    assert some.cost.bytes_down < everyone.cost.bytes_down
    # Their slopes are asked for once, at the end: with the first of them ∇L_k(θ) is computed.
    for node in (1, 3):
        assert some.cost.node_points[node] == SIZES[node] < everyone.cost.node_points[node]
    one_more = 0 if name.startswith("svrg") else 1
    assert some.cost.synchronizations == everyone.cost.synchronizations + one_more


def two_groups(solver, ask_all):
    """Train on six nodes, of which three call the classes by other names."""
    nodes, validation = classification_nodes((40, 30, 35, 40, 30, 35), seed=1)
    nodes = [(x, y if number < 3 else (y + 1) % 3) for number, (x, y) in enumerate(nodes)]
    engine = simulation(dict(zip("abcdef", nodes, strict=True)), batch_size=10, seed=0)
    made = Problem.build(engine, validation, classes=np.arange(3), l2=0.01, batch_size=10)
    trained = made.train(Bilevel(solver=solver, rounds=10), ask_all=ask_all)
    return trained.state.history, trained.state.kept_theta


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("solver", ["cg", "svrg", "neumann"])
def test_a_run_is_that_of_asking_all_but_for_its_cost(solver):
    (some, theta), (everyone, same_theta) = (two_groups(solver, each) for each in (False, True))
    assert len(some) == len(everyone) > 3
    np.testing.assert_allclose(theta, same_theta, rtol=1e-6)
    fell = 0
    for place, (row, full) in enumerate(zip(some, everyone, strict=True)):
        assert row.validation.loss == pytest.approx(full.validation.loss, rel=1e-6)
        np.testing.assert_allclose(row.node_weights, full.node_weights, rtol=1e-6, atol=1e-9)
        if place == 0:
            # Equal weights: all nodes are asked anyway.
            assert row.cost == full.cost
            continue
        sent, sent_by_all = (
            now.cost.bytes_up - before.cost.bytes_up
            for now, before in ((row, some[place - 1]), (full, everyone[place - 1]))
        )
        zeros = np.count_nonzero(row.node_weights == 0)
        if row.diagnostics["accepted"] and zeros:
            fell += 1
            assert sent < sent_by_all * (1 - 0.5 * zeros / 6)
    assert fell >= 2
    last = np.asarray(some[-1].node_weights)
    assert np.count_nonzero(last == 0) >= 2
    assert some[-1].cost.bytes_up < everyone[-1].cost.bytes_up
    assert some[-1].cost.nodes_asked < everyone[-1].cost.nodes_asked
    idle = last == 0
    points, all_points = (
        np.array(history[-1].cost.node_points)[idle] for history in (some, everyone)
    )
    assert (points < all_points).all()


@pytest.mark.usefixtures("float64")
def test_other_nodes_that_count_need_no_other_code():
    two_groups("cg", ask_all=True)
    known = set(COMPILED)
    history, _ = two_groups("cg", ask_all=False)
    assert len({row.cost.nodes_asked for row in history}) > 1
    assert set(COMPILED) == known


@pytest.mark.slow
def test_the_digits_of_the_demo():
    """In single precision, too, all iterates agree to rounding."""
    data = sample_federation(load_images("digits"), paper_scenario("digits", 2), "minority", 0)
    some, everyone = (
        fedkin.fit(data.nodes, data.validation, classes=10, solver="cg", ask_all=each)
        for each in (False, True)
    )
    assert some.stopped.startswith("converged")
    assert len(some.history) == len(everyone.history)
    np.testing.assert_allclose(
        some.history.validation_loss, everyone.history.validation_loss, rtol=1e-5
    )
    weights = np.array([list(result.weights.values()) for result in (some, everyone)])
    np.testing.assert_allclose(*weights, atol=1e-5)
    idle = np.count_nonzero(weights[0] == 0)
    assert idle >= 5
    up, all_up = (np.diff(result.history.bytes_up)[-1] for result in (some, everyone))
    assert up < all_up * (1 - 0.8 * idle / 15)
    assert some.cost.bytes_down < everyone.cost.bytes_down
    assert sum(some.cost.node_points) < 0.8 * sum(everyone.cost.node_points)
