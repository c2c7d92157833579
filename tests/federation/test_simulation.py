import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import classification_nodes, problem
from fedkin.compilation import COMPILED
from fedkin.federation.base import Cost, Revealed
from fedkin.federation.task import slots_of
from fedkin.federation.work import SlotContents
from fedkin.methods.bilevel.node import ADJOINT_SVRG_ROUND
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local_svrg.center import LocalSvrg, solve_inner
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.models import objective
from fedkin.models.linear import Logistic
from fedkin.models.mlp import MLP

WEIGHTS = jnp.array([0.25, 0.75])


def make(seed=0):
    return problem(Logistic(classes=3, l2=0.1), *classification_nodes((30, 17)), seed=seed)


def test_a_second_solve_of_the_same_shape_compiles_nothing():
    settings = LocalSvrg(0.1, period=4, rounds=3)
    first = make()
    start = jnp.zeros(first.objective.size)
    solve_inner(first.federation, WEIGHTS, start, jax.random.key(0), settings)
    known = set(COMPILED)
    second = make(seed=1)
    solve_inner(
        second.federation, WEIGHTS, start + 1, jax.random.key(1), LocalSvrg(0.2, period=4, rounds=9)
    )
    assert set(COMPILED) == known
    assert known


def test_cost_is_what_was_sent_and_computed():
    made = make()
    size, rounds, period = made.objective.size, 3, 4
    settings = LocalSvrg(0.1, period=period, rounds=rounds, refresh_probability=1e-9)
    solution = solve_inner(made.federation, WEIGHTS, jnp.zeros(size), jax.random.key(0), settings)
    assert solution.cost == Cost(
        synchronizations=rounds,
        bytes_up=2 * rounds * 4 * (size + 1),  # an iterate and a loss
        bytes_down=2 * rounds * 4 * (size + 3),  # an iterate and three numbers
        # One full gradient, then two gradients of ten points (nine or eight on the smaller node).
        node_points=(30 + rounds * period * 2 * 10, solution.cost.node_points[1]),
        nodes_asked=2 * rounds,
    )


@pytest.mark.parametrize("result", ["last", "average"])
def test_state_can_be_taken_out_and_put_back(result):
    settings = LocalSvrg(0.1, period=4, rounds=2, refresh_probability=0.5, result=result)
    made, other = make(), make()
    point = jnp.zeros(made.objective.size)
    point = solve_inner(made.federation, WEIGHTS, point, jax.random.key(0), settings).point
    other.federation.import_state(made.federation.export_state(), slots_of(FedAvg.tasks))
    both = [
        solve_inner(federation, WEIGHTS, point, jax.random.key(1), settings, begin=False).point
        for federation in (made.federation, other.federation)
    ]
    np.testing.assert_array_equal(*both)
    fresh = solve_inner(make().federation, WEIGHTS, point, jax.random.key(1), settings).point
    assert np.any(fresh != both[0])


@pytest.mark.parametrize("ask_all", [False, True])
def test_nodes_of_weight_zero_cannot_spoil_the_result(ask_all):
    nodes, validation = classification_nodes((30, 17))
    nodes[0] = np.full_like(nodes[0][0], np.nan), nodes[0][1]
    made = problem(Logistic(classes=3, l2=0.1), nodes, validation)
    made.federation.ask_all = ask_all
    solution = solve_inner(
        made.federation,
        jnp.array([0.0, 1.0]),
        jnp.zeros(made.objective.size),
        jax.random.key(0),
        LocalSvrg(0.1, period=2, rounds=2),
    )
    assert np.isfinite(solution.point).all()


def crowd():
    """Seventy nodes, as many as make shares of two sizes."""
    nodes, validation = classification_nodes([8] * 70)
    return problem(Logistic(classes=3, l2=0.1), nodes, validation)


def sums(federation, chosen, **options):
    weights = jnp.where(jnp.isin(jnp.arange(70), jnp.array(chosen)), 1 / len(chosen), 0.0)
    start = jnp.linspace(-1, 1, federation.objective.size)
    settings = LocalSvrg(0.1, period=4, rounds=2, refresh_probability=0.3)
    return solve_inner(federation, weights, start, jax.random.key(0), settings, **options).point


def test_few_nodes_of_many_are_not_computed_with_others(monkeypatch):
    sizes = []
    of = SlotContents.of
    monkeypatch.setattr(
        SlotContents, "of", lambda self, share: sizes.append(len(share)) or of(self, share)
    )
    few, everyone = crowd().federation, crowd().federation
    found = sums(few, [3, 20, 69])
    assert set(sizes) == {4}
    sizes.clear()
    everyone.ask_all = True
    np.testing.assert_allclose(found, sums(everyone, [3, 20, 69]), rtol=1e-5)
    assert set(sizes) == {18}


def test_nodes_keep_their_state_when_they_come_to_another_share():
    """They continue a series as they would if only they had been asked all the time."""
    alone, among = crowd().federation, crowd().federation
    few, many = [3, 20, 69], list(range(70))
    first = [sums(federation, few) for federation in (alone, among)]
    np.testing.assert_array_equal(*first)
    # In the meantime the others begin too, in shares of another size; of the few nothing is changed but
    # what they compute themselves, so the same happens to both federations.
    for federation, chosen in ((alone, few), (among, many)):
        sums(federation, chosen, begin=False)
    second = [sums(federation, few, begin=False) for federation in (alone, among)]
    np.testing.assert_allclose(*second, rtol=1e-5)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("task", ["inner", "adjoint"])
def test_nodes_one_by_one_give_the_numbers_of_nodes_at_once(monkeypatch, task):
    """Heavy models are computed node by node and mini-batch by mini-batch, others side by side."""
    nodes, validation = classification_nodes((30, 17, 25, 10, 12))

    def replies(operations):
        monkeypatch.setattr(objective, "OPERATIONS_FOR_ONE_NODE", operations)
        made = problem(MLP(outputs=3, hidden=4), nodes, validation)
        theta = made.objective.init(jax.random.key(0))
        numbers = {"learning_rate": 0.1, "refresh_probability": 0.3, "averaging_rate": 0.1}
        message = {"point": theta / 2, **numbers}
        beginning = {"theta": theta, "target": theta} if task == "adjoint" else {}
        which = INNER_SVRG_ROUND if task == "inner" else ADJOINT_SVRG_ROUND
        return [
            made.federation.exchange(
                train=Revealed(which, message | own, begin=begin, steps=4, reply="point"),
                key=jax.random.key(number),
            ).train["point"]
            for number, (begin, own) in enumerate(((True, beginning), (False, {})))
        ]

    for heavy, light in zip(replies(1), replies(10**12), strict=True):
        np.testing.assert_allclose(heavy, light, rtol=1e-10, atol=1e-12)
