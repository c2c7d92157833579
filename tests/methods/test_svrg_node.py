import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import (
    classification_nodes,
    own_data,
    problem,
    regression_nodes,
    remembered,
    reveal,
)
from fedkin.data.batches import OWN_FIELDS
from fedkin.methods.bilevel.node import adjoint_problem
from fedkin.methods.local_svrg import node as svrg
from fedkin.models.cnn import CNN
from fedkin.models.linear import Logistic, Ridge
from fedkin.nodes import oracles
from fedkin.nodes.draws import draw_batches_and_coins


def cnn_problem():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (45, 8, 8, 1), np.uint8)
    nodes = [(images[:23], rng.integers(0, 10, 23)), (images[23:40], rng.integers(0, 10, 17))]
    return problem(CNN((8, 8, 1), kernels=(2, 2)), nodes, (images[40:], np.arange(5)))


def logistic_problem():
    return problem(Logistic(classes=3, l2=0.1), *classification_nodes((23, 4)))


@pytest.fixture(params=["kept", "computed again"])
def batch_gradients(request, monkeypatch):
    """Have nodes keep the gradients of mini-batches at the reference point, or not."""
    monkeypatch.setattr(svrg, "LEAST_RATIO", 0 if request.param == "kept" else np.inf)
    return request.param


@pytest.mark.usefixtures("float64", "batch_gradients")
@pytest.mark.parametrize("make", [logistic_problem, cnn_problem])
@pytest.mark.parametrize("which", ["inner", "adjoint"])
def test_the_gradient_estimate_averages_to_the_full_gradient(make, which):
    made = make()
    rng = np.random.default_rng(1)
    point, reference, theta, target = jnp.asarray(rng.normal(size=(4, made.objective.size)))
    for node in range(2):
        data = own_data(made.federation.data, node)
        if which == "inner":
            kept = svrg.gradients_to_keep(made.objective, made.federation.data)
            functions = svrg.inner_problem(made.objective, data, kept)
        else:
            functions = adjoint_problem(made.objective, data, theta, target)
        step_gradients = jax.jit(functions.step_gradients)
        gradients = jax.jit(functions.reference_gradients)
        state = svrg.svrg_start(functions, reference)
        state = state._replace(gradients=gradients(reference, functions.operands))
        estimates = [
            step_gradients(point, state, index, functions.operands)[1] + state.gradients.full
            for index in range(int(data.batches))
        ]
        exact = gradients(point, functions.operands).full
        np.testing.assert_allclose(np.mean(estimates, axis=0), exact, atol=1e-11)
        assert np.abs(estimates[0] - exact).max() > 1e-6 or int(data.batches) == 1


def rounds(made, point, number, *, steps=7, refresh=0.3, begin=True, learning_rate=0.05):
    return reveal(
        made.federation,
        svrg.INNER_SVRG_ROUND,
        {
            "point": point,
            "learning_rate": learning_rate,
            "refresh_probability": refresh,
            "averaging_rate": 0.01,
        },
        key=jax.random.key(number),
        steps=steps,
        begin=begin,
        reply="point",
    )


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("make", [logistic_problem, cnn_problem])
def test_nodes_together_do_what_each_does_alone_step_by_step(make, batch_gradients):
    """A round, each node a share of its own, against a loop that follows Algorithm 1 line by line."""
    made = make()
    point = made.objective.init(jax.random.key(0)) + 0.1
    replies, _ = rounds(made, point, 3)
    gradient = jax.jit(
        lambda x, batch: oracles.batch_loss_and_gradient(made.objective, x, batch)[1]
    )
    full = jax.jit(lambda x, data: oracles.full_loss_and_gradient(made.objective, x, data)[1])
    for node in range(2):
        data = own_data(made.federation.data, node)
        key = jax.random.fold_in(jax.random.key(3), node)
        batches, coins = draw_batches_and_coins(key, 7, data.batches, 0.3)
        x = y = average = point
        full_gradient = full(y, data)
        masses = [1.0]
        for index, coin in zip(batches, coins, strict=True):
            batch = data.batch(index)
            step = gradient(x, batch) - gradient(y, batch) + full_gradient
            if coin:
                y, full_gradient = x, full(x, data)
            x = x - 0.05 * step
            masses.append(masses[-1] / 0.99)  # u_t = (1 - 0.01)^-(t+1)
            average = average + x * masses[-1]
        np.testing.assert_allclose(replies["point"][node], x, rtol=1e-9, atol=1e-12)
        kept = jax.tree.map(
            lambda leaf, node=node: leaf[node], remembered(made.federation, svrg.INNER)
        )
        np.testing.assert_allclose(kept.reference, y, rtol=1e-9, atol=1e-12)
        assert kept.due == coins[-1]
        if not kept.due:
            np.testing.assert_allclose(kept.gradients.full, full_gradient, rtol=1e-8, atol=1e-11)
        np.testing.assert_allclose(kept.average, average / sum(masses), rtol=1e-9, atol=1e-12)
        assert (len(kept.gradients.of_batches) > 0) == (batch_gradients == "kept")
        assert np.any(coins)


def test_each_node_refreshes_on_its_own_coin_with_rate_q():
    sizes = (30,) * 8
    made = problem(Logistic(classes=3), *classification_nodes(sizes))
    point = jnp.zeros(made.objective.size)
    functions = partial(svrg.inner_problem, made.objective, kept=0)

    @jax.jit
    def refreshes(key):
        def one(data, number):
            state = svrg.svrg_start(functions(data), point)
            result = svrg.svrg_round(
                functions(data),
                state,
                point,
                jax.random.fold_in(key, number),
                steps=50,
                learning_rate=0.01,
                refresh_probability=0.1,
                averaging_rate=0.0,
            )
            return (result.evaluations - 50 * 10 * 2) / 30

        return jax.vmap(one, in_axes=(OWN_FIELDS, 0))(made.federation.data, jnp.arange(8))

    counts = np.array([refreshes(jax.random.key(seed)) for seed in range(100)])
    # 100 x 50 coins per node with q = 0.1: mean 500, standard deviation sqrt(5000 · 0.09) = 21.
    assert np.all(np.abs(counts.sum(axis=0) - 500) < 4.5 * 21.3)
    assert len(np.unique(counts[0])) > 1
    correlation = np.corrcoef(counts.T)[~np.eye(8, dtype=bool)]
    assert np.abs(correlation).max() < 0.45  # 4.5 standard errors of 1/sqrt(100)


def solve_exactly(nodes, weights, l2):
    features = nodes[0][0].shape[1]
    gram = sum(w * x.T @ x / len(x) for w, (x, _) in zip(weights, nodes, strict=True))
    moment = sum(w * x.T @ y / len(x) for w, (x, y) in zip(weights, nodes, strict=True))
    return np.linalg.solve(gram + l2 * np.eye(features), moment)


UNEQUAL = (35, 12, 4)
WEIGHTS = np.array([0.2, 0.5, 0.3])


def ridge_run(period, learning_rate, count, seed=0):
    """Errors of x after each synchronization; the optimum is known in closed form."""
    nodes, validation = regression_nodes(UNEQUAL)
    made = problem(Ridge(l2=0.1, intercept=False), nodes, validation)
    exact = solve_exactly(nodes, WEIGHTS, 0.1)
    point, errors = jnp.zeros(4), []
    for number in range(count):
        replies, _ = rounds(
            made,
            point,
            1000 * seed + number,
            steps=period,
            refresh=0.2,
            begin=number == 0,
            learning_rate=learning_rate,
        )
        point = WEIGHTS @ replies["point"]
        errors.append(float(np.linalg.norm(point - exact)))
    return np.array(errors)


@pytest.mark.usefixtures("float64")
def test_with_communication_after_each_step_the_error_falls_linearly_to_nothing():
    errors = ridge_run(period=1, learning_rate=0.08, count=900)
    assert errors[-1] < 1e-10
    reached = int(np.argmax(errors < 1e-10))
    logs = np.log(errors[10:reached])
    steps = np.arange(len(logs))
    slope, _intercept = np.polyfit(steps, logs, 1)
    assert slope < 0
    # A straight line explains the fall over ten orders of magnitude.
    assert np.corrcoef(steps, logs)[0, 1] < -0.99


@pytest.mark.usefixtures("float64")
def test_with_local_steps_the_error_stops_at_a_floor_that_shrinks_as_gamma_squared():
    floors = []
    for learning_rate, count in ((0.02, 400), (0.01, 800), (0.005, 1600)):
        squares = ridge_run(period=5, learning_rate=learning_rate, count=count)[-50:] ** 2
        assert squares.max() < 2 * squares.min()  # it has stopped
        floors.append(squares.mean())
    assert floors[-1] > 1e-12
    for larger, smaller in itertools.pairwise(floors):
        assert 3 < larger / smaller < 5


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [((400,) * 6, 4), ((40_000, *(100,) * 50), 0)],
    ids=["equal nodes", "one large node, many small ones"],
)
def test_kept_gradients_never_take_more_than_their_part_of_memory(sizes, kept):
    rng = np.random.default_rng(0)
    nodes = [(rng.normal(size=(n, 20)), rng.normal(size=n)) for n in sizes]
    made = problem(Ridge(l2=0.1), nodes, nodes[-1], batch_size=100)
    point = jnp.zeros(made.objective.size)
    rounds(made, point, 0, steps=1)
    gradients = remembered(made.federation, svrg.INNER).gradients.of_batches
    assert gradients.shape[:2] == (len(sizes), kept)
    assert 4 * gradients.nbytes <= made.federation.data.inputs.nbytes
