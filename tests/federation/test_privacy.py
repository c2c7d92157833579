"""Nodes that protect their rows: how much noise, what it costs, and that nothing leaves them without it."""

from dataclasses import replace

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from federations import classification_nodes, own_data, reveal
from fedkin.data.batches import stack_nodes
from fedkin.federation.base import PerNode, WeightedSum
from fedkin.federation.portions import Portion
from fedkin.federation.privacy import (
    Budget,
    BudgetSpentError,
    NotPrivateError,
    Privacy,
    system_normal,
)
from fedkin.federation.private_work import PrivateWork
from fedkin.federation.simulation import SimulatedFederation
from fedkin.methods.bilevel.method import Bilevel
from fedkin.methods.bilevel.node import GRADIENT, HESSIAN_PRODUCT, SLOPE
from fedkin.methods.bilevel.solvers import OwnHessian
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.models.linear import Logistic
from fedkin.models.objective import Objective
from fedkin.nodes import oracles
from fedkin.nodes.clipped import LARGEST_ROW_LOSS, clipped_loss_and_gradient, penalty_gradient
from fedkin.training.problem import Problem
from fedkin.training.runner import Budget as Length
from fedkin.types import Points

KEY = jax.random.key(0)
GRANTED = Privacy(epsilon=1.0, delta=1e-3, clip=0.5, steps=10)


def silent(shape):
    return np.zeros(shape)


def simulated(nodes, privacy=GRANTED, normal=silent, threads=1, batch_size=10):
    model = Logistic()
    prepared = [(np.asarray(x, np.float32), np.asarray(y)) for x, y in nodes]
    objective = Objective.create(model, jnp.asarray(prepared[0][0][:2]))
    budgets = [Budget(privacy) for _ in nodes]

    def work(objective, data):
        return PrivateWork(objective, data, budgets, normal=normal, threads=threads)

    made = SimulatedFederation(objective, prepared, batch_size=batch_size, seed=0, work=work)
    return made, budgets


@pytest.fixture
def nodes():
    return classification_nodes((23, 40), classes=2)[0]


def test_spending_everything_is_the_epsilon_that_was_granted():
    for epsilon in (0.1, 1.0, 8.0):
        privacy = Privacy(epsilon, 1e-5, clip=1.0, steps=37)
        assert privacy.epsilon_of(37 * privacy.cost_of_step) == pytest.approx(epsilon, rel=1e-6)
        assert privacy.epsilon_of(0.0) == 0


def test_the_closed_form_of_the_gaussian_mechanism():
    privacy = Privacy(2.0, 1e-4, clip=1.0, steps=5)
    sigma = (3 * privacy.cost_of_step) ** -0.5
    epsilon = privacy.epsilon_of(3 * privacy.cost_of_step)
    # Balle and Wang (2018), theorem 8, for a quantity that changes by at most 1.
    upper = norm.cdf(1 / (2 * sigma) - epsilon * sigma)
    delta = upper - np.exp(epsilon) * norm.cdf(-1 / (2 * sigma) - epsilon * sigma)
    assert delta == pytest.approx(1e-4, rel=1e-6)


def test_other_accountants_agree_on_many_releases():
    privacy = Privacy(1.0, 1e-5, clip=1.0, steps=50)
    event = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(privacy.noise), 50),
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.GaussianDpEvent(10 * privacy.noise), 50
            ),
        ]
    )
    by_loss_distribution = dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    by_renyi = dp_accounting.rdp.RdpAccountant().compose(event).get_epsilon(1e-5)
    assert by_loss_distribution == pytest.approx(1.0, rel=2e-3)
    assert 1.0 <= by_renyi < 1.5  # an upper bound


def test_a_larger_epsilon_or_delta_means_less_noise_and_more_steps_more():
    def noise(epsilon=1.0, delta=1e-5, steps=10):
        return Privacy(epsilon, delta, 1.0, steps).noise

    assert noise(epsilon=2.0) < noise() < noise(steps=40)
    assert noise(delta=1e-3) < noise()
    assert noise(steps=40) == pytest.approx(2 * noise())


clipped = jax.jit(clipped_loss_and_gradient, static_argnums=0)


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 3.0), st.floats(0.0, 30.0))
def test_one_row_changes_a_gradient_by_at_most_what_the_noise_is_for(seed, clip, size):
    random = np.random.default_rng(seed)
    inputs = (size * random.normal(size=(13, 3))).astype(np.float32)
    labels = random.integers(0, 2, 13)
    objective = Objective.create(Logistic(), jnp.asarray(inputs[:2]))
    theta = jnp.asarray(random.normal(size=objective.size), jnp.float32)
    others, other_labels = inputs.copy(), labels.copy()
    others[5] = 1e3 * random.normal(size=3)
    other_labels[5] = 1 - labels[5]
    found = []
    for x, y in ((inputs, labels), (others, other_labels)):
        data = own_data(stack_nodes([x], [y], 5, seed=0), 0)
        found.append(clipped(objective, theta, data, jnp.float32(clip)))
    (loss, gradient), (other_loss, other_gradient) = found
    assert np.linalg.norm(np.subtract(gradient, other_gradient)) <= 2 * clip / 13 * (1 + 1e-4)
    assert abs(float(loss - other_loss)) <= LARGEST_ROW_LOSS / 13 * (1 + 1e-4)


def test_a_row_that_is_no_number_counts_for_nothing():
    inputs = np.ones((6, 2), np.float32)
    inputs[2] = np.inf
    objective = Objective.create(Logistic(), jnp.asarray(inputs[:2]))
    data = own_data(stack_nodes([inputs], [np.zeros(6, int)], 6, seed=0), 0)
    loss, gradient = clipped_loss_and_gradient(
        objective, jnp.ones(objective.size), data, jnp.float32(1.0)
    )
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()


def test_without_need_to_clip_it_is_the_gradient(nodes):
    federation, _ = simulated(nodes, replace(GRANTED, clip=1e6))
    theta = jnp.full(federation.objective.size, 0.1)
    found, _ = reveal(federation, GRADIENT, {"theta": theta}, key=KEY, begin=True)
    for node in range(2):
        data = own_data(federation.data, node)
        _, expected = oracles.full_loss_and_gradient(federation.objective, theta, data)
        np.testing.assert_allclose(found["gradient"][node], expected, rtol=1e-5, atol=1e-7)


def test_a_large_penalty_shows_no_row_by_rounding(nodes):
    """A center chooses l2 and the model. Then steps between float32 numbers may be far larger than 2C/n."""
    inputs, labels = np.asarray(nodes[0][0], np.float32), nodes[0][1]
    others = labels.copy()
    others[3] = 1 - labels[3]
    model = Logistic(l2=1e6)
    objective = Objective.create(model, jnp.asarray(inputs[:2]))
    # At this model the penalty's gradient is 2.5e6, where neighboring numbers are 0.25 apart.
    theta = jnp.full(objective.size, 2.5)
    assert np.spacing(np.float32(penalty_gradient(objective, theta)[0])) == 0.25
    noise = np.random.default_rng(0).normal(size=(40, objective.size))
    answers = []
    for own in (labels, others):
        drawn = iter(noise)

        def normal(shape, drawn=drawn):
            return np.zeros(shape) if len(shape) == 1 else next(drawn)[None]

        granted = Privacy(epsilon=1e4, delta=1e-3, clip=1.0, steps=len(noise))
        data = stack_nodes([inputs], [own], 10, seed=0)
        work = PrivateWork(objective, data, [Budget(granted)], normal=normal, threads=1)
        portion = Portion(
            np.array([[0, 0]], np.int32),
            np.zeros(1, int),
            np.zeros(1, np.int32),
            {"point": theta},
            KEY,
            {},
        )
        answers.append(
            [work._noisy_gradients(portion, np.asarray(theta)[None])[1][0] for _ in noise]
        )
    changes = np.linalg.norm(np.subtract(*answers), axis=1)
    assert changes.min() > 0
    assert changes.max() <= 2 * 1.0 / len(labels) * (1 + 1e-4)


def test_noise_has_the_stated_deviation(nodes):
    random = np.random.default_rng(0)
    many = Privacy(1.0, 1e-3, clip=0.5, steps=3_000)
    federation, _ = simulated(nodes, many, random.standard_normal)
    quiet, _ = simulated(nodes, many)
    theta = jnp.full(federation.objective.size, 0.3)
    one = jnp.array([1.0, 0.0])

    def gradient(of, key):
        request = WeightedSum(GRADIENT, {"theta": theta}, weights=one, begin=True)
        return np.asarray(of.exchange(ask=request, key=key).ask["gradient"], np.float64)

    truth = gradient(quiet, KEY)
    errors = np.array([gradient(federation, jax.random.fold_in(KEY, i)) for i in range(300)])
    expected = many.noise * 2 * 0.5 / 23
    scaled = (errors - truth).ravel() / expected
    assert kstest(scaled, "norm").pvalue > 1e-3
    assert scaled.std() == pytest.approx(1.0, abs=4 / (2 * scaled.size) ** 0.5)


def test_the_systems_random_source_is_normal():
    drawn = system_normal((50, 400))
    assert kstest(drawn.ravel(), "norm").pvalue > 1e-4
    assert not np.array_equal(drawn, system_normal((50, 400)))
    assert np.isfinite(drawn).all()


@pytest.mark.parametrize(
    ("task", "more"),
    [
        (INNER_SVRG_ROUND, {"refresh_probability": 0.1, "averaging_rate": 0.0}),
        (DESCENT_ROUND, {"proximal": 0.0}),
    ],
)
@pytest.mark.parametrize(("threads", "batch_size"), [(1, 10), (2, 10), (1, 50)])
def test_a_round_is_gradient_descent_with_all_rows(nodes, task, more, threads, batch_size):
    federation, budgets = simulated(nodes, threads=threads, batch_size=batch_size)
    start = jnp.full(federation.objective.size, 0.2)
    options = {"steps": 3} | ({"reply": "point"} if task is INNER_SVRG_ROUND else {})
    message = {"point": start, "learning_rate": 0.7, **more}
    begin = task is INNER_SVRG_ROUND
    replies, cost = reveal(federation, task, message, key=KEY, begin=begin, **options)
    for node in range(2):
        point = start
        for _ in range(3):
            data = own_data(federation.data, node)
            _, gradient = clipped_loss_and_gradient(
                federation.objective, point, data, jnp.float32(GRANTED.clip)
            )
            point = point - 0.7 * (gradient + penalty_gradient(federation.objective, point))
        np.testing.assert_allclose(replies["point"][node], point, rtol=1e-4, atol=1e-6)
    assert cost.node_points == (3 * 23, 3 * 40)
    assert [budget.spent for budget in budgets] == pytest.approx([3 * GRANTED.cost_of_step] * 2)


def test_slopes_are_of_the_noisy_gradient_and_cost_nothing_more(nodes):
    random = np.random.default_rng(1)
    federation, budgets = simulated(nodes, normal=random.standard_normal)
    theta = jnp.full(federation.objective.size, 0.1)
    vector = jnp.arange(federation.objective.size, dtype=jnp.float32)
    found, _ = reveal(federation, GRADIENT, {"theta": theta}, key=KEY, begin=True)
    reply = federation.exchange(ask=PerNode(SLOPE, {"vector": vector}), key=KEY)
    np.testing.assert_allclose(
        reply.ask["slope"], -np.asarray(found["gradient"]) @ np.asarray(vector), rtol=1e-5
    )
    assert budgets[0].spent == pytest.approx(GRANTED.cost_of_step)
    again = federation.exchange(
        ask=PerNode(SLOPE, {"vector": vector, "theta": theta}, begin=True), key=KEY
    )
    assert not np.allclose(again.ask["slope"], reply.ask["slope"])  # new noise, paid for
    assert budgets[0].spent == pytest.approx(2 * GRANTED.cost_of_step)


def test_a_budget_that_is_spent_allows_nothing(nodes):
    federation, budgets = simulated(nodes)
    point = jnp.zeros(federation.objective.size)

    def ask(steps):
        message = {"point": point, "learning_rate": 0.1, "proximal": 0.0}
        request = WeightedSum(DESCENT_ROUND, message, weights=jnp.ones(2) / 2, steps=steps)
        return federation.exchange(ask=request, key=KEY)

    ask(8)
    with pytest.raises(BudgetSpentError, match=r"ε = 0\.87.* of 1 .*3 more steps"):
        ask(3)
    assert budgets[0].spent == pytest.approx(8 * GRANTED.cost_of_step)  # a refusal costs nothing
    ask(2)
    assert budgets[0].epsilon == pytest.approx(1.0)
    with pytest.raises(BudgetSpentError):
        ask(1)


@pytest.mark.parametrize("task", [HESSIAN_PRODUCT, SMOOTHNESS])
def test_what_has_no_private_answer_is_refused(nodes, task):
    federation, budgets = simulated(nodes)
    size = federation.objective.size
    message = {name: jnp.ones(size) for name in (*task.vectors, *task.begin_vectors)}
    with pytest.raises(NotPrivateError, match=f"no private answer to {task.name}"):
        reveal(federation, task, message, key=KEY, begin=True)
    assert budgets[0].spent == 0


def test_an_average_of_earlier_models_is_refused(nodes):
    federation, _ = simulated(nodes)
    message = {
        "point": jnp.zeros(federation.objective.size),
        "learning_rate": 0.1,
        "refresh_probability": 0.1,
        "averaging_rate": 0.0,
    }
    with pytest.raises(NotPrivateError, match="average"):
        reveal(federation, INNER_SVRG_ROUND, message, key=KEY, begin=True, steps=1, reply="average")


def test_weights_are_learned_from_private_answers(nodes):
    granted = Privacy(epsilon=1e4, delta=1e-3, clip=5.0, steps=12)  # next to no noise
    made, budgets = simulated(nodes, granted, np.random.default_rng(0).standard_normal)
    owner = Points(*nodes[0])
    built = Problem.build(lambda objective: made, owner, classes=np.arange(2))
    method = Bilevel(
        outer="proximal",
        outer_learning_rate=1.0,
        learning_rate=0.5,
        period=2,
        rounds=1,
        solver=OwnHessian(),
        cap=1.0,
    )
    run = built.train(method, budget=Length(steps=4), keep="last")
    weights = run.state.history[-1].node_weights
    assert weights is not None
    assert weights[0] > 0.6  # the owner's own rows
    assert [budget.epsilon for budget in budgets] == pytest.approx([1e4, 1e4])
