"""Nodes that fail: who is left out, what that does to the numbers, when they are dropped and rejoin."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federation.attended import NOTHING, AttendedSimulation
from federations import problem, regression_nodes
from fedkin.errors import DivergedError
from fedkin.federation.attendance import STRIKES, TooFewNodesError
from fedkin.federation.base import PerNode, WeightedSum
from fedkin.federation.checks import FARTHEST_MOVE, find_far_moves, find_faults
from fedkin.methods.bilevel.newton import NewtonBilevel
from fedkin.methods.bilevel.node import HESSIAN_PRODUCT, SLOPE
from fedkin.methods.bilevel.outer import Differentiation, ProximalBilevel
from fedkin.methods.bilevel.solvers import ConjugateGradients
from fedkin.methods.fedavg import FedAvgAlgorithm
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.methods.local_svrg.node import INNER_SVRG_ROUND
from fedkin.methods.step_size import SMOOTHNESS
from fedkin.methods.weights import Roster, equal_weights, fill_unknown, project_weights, readmit
from fedkin.models.linear import Ridge
from fedkin.training.runner import Budget, begin, run

SIZES = [30, 30, 30, 30]
EQUAL = (0.25, 0.25, 0.25, 0.25)
WEIGHTS = (0.1, 0.2, 0.3, 0.4)
ROUND = {
    "point": jnp.zeros(5),
    "learning_rate": 0.01,
    "refresh_probability": 0.1,
    "averaging_rate": 0.0,
}


def with_value(value):
    return lambda own: {name: np.full_like(array, value) for name, array in own.items()}


FAULTS = {
    "nothing": (NOTHING, "did not answer in time"),
    "not a number": (with_value(np.nan), "not finite"),
    "infinite": (with_value(np.inf), "not finite"),
    "wrong shape": (lambda own: own | {"point": own["point"][:, :-1]}, r"shape \(1, 4\)"),
    "scalar": (lambda own: own | {"point": np.float32(1)}, r"shape \(\)"),
    "a row too many": (lambda own: own | {"loss": np.ones(2, np.float32)}, r"shape \(2,\)"),
    "huge": (lambda own: own | {"point": own["point"] * 0 + np.float32(1e30)}, "norm"),
    "other type": (lambda own: own | {"point": own["point"].astype(np.float64)}, "float64"),
    "whole numbers": (lambda own: own | {"point": own["point"].astype(np.int32)}, "int32"),
    "another reply": (lambda own: {"gradient": own["point"]}, "gradient"),
    "one reply too many": (lambda own: own | {"data": own["point"]}, "data"),
}


def made(fail, **more):
    nodes, validation = regression_nodes(SIZES)
    world = problem(Ridge(l2=0.1), nodes, validation)
    return world, AttendedSimulation(world.federation, fail, **more)


def ask(federation, weights=EQUAL):
    request = WeightedSum(
        INNER_SVRG_ROUND,
        ROUND,
        weights=jnp.array(weights),
        begin=True,
        steps=3,
        reply="point",
    )
    return federation.exchange(train=request, key=jax.random.key(0))


def assert_same_sum(reply, expected):
    assert set(reply.train) == set(expected.train) == {"point", "loss"}
    for name, array in expected.train.items():
        np.testing.assert_allclose(reply.train[name], array, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_is_left_out_and_reported(fault):
    """The sum is what it would be with its weight shared out among the others in proportion."""
    changed, words = FAULTS[fault]
    world, federation = made(lambda node, call: changed if node == 2 else None)
    reply = ask(federation, WEIGHTS)
    rest = np.array([0.1, 0.2, 0.0, 0.4])
    assert_same_sum(reply, ask(world.federation, rest / rest.sum()))
    (note,) = federation.end_step()
    assert "node 3 was left out" in note
    assert re.search(words, note)
    assert federation.present.all()  # one strike is not the end
    assert reply.cost.synchronizations == 1
    assert reply.cost.nodes_asked == 4


def test_numbers_of_a_node_that_does_not_answer_are_unknown():
    """The method fills them: a weight whose slope is unknown moves neither up nor down."""
    world, federation = made(lambda node, call: NOTHING if node == 1 else None)
    request = PerNode(SMOOTHNESS)
    found = federation.exchange(bound=request, key=jax.random.key(0)).bound["smoothness"]
    expected = world.federation.exchange(bound=request, key=jax.random.key(0)).bound["smoothness"]
    others = np.array([0, 2, 3])
    np.testing.assert_array_equal(np.asarray(found)[others], np.asarray(expected)[others])
    assert np.isnan(found[1])
    filled = fill_unknown(found, jnp.array(WEIGHTS))
    mean = np.average(np.asarray(expected)[others], weights=np.array(WEIGHTS)[others])
    np.testing.assert_allclose(filled[1], mean, rtol=1e-6)


def test_unknown_numbers_of_nodes_without_weight_are_a_plain_mean():
    numbers = jnp.array([1.0, jnp.nan, 3.0])
    np.testing.assert_allclose(fill_unknown(numbers, jnp.array([0.0, 1.0, 0.0])), [1, 2, 3])


def test_a_node_whose_reply_to_one_request_is_bad_is_left_out_of_all():
    def fail(node, call):
        return (
            (lambda own: {n: v * np.nan for n, v in own.items()} if "slope" in own else own)
            if (node == 0)
            else None
        )

    world, federation = made(fail)
    message = {"theta": jnp.full(5, 0.1), "vector": jnp.arange(5.0)}

    def both(nodes, weights):
        return nodes.exchange(
            hessian=WeightedSum(HESSIAN_PRODUCT, message, weights=jnp.array(weights), begin=True),
            slope=PerNode(SLOPE, message, begin=True),
            key=jax.random.key(0),
        )

    found, expected = both(federation, EQUAL), both(world.federation, (0, 1 / 3, 1 / 3, 1 / 3))
    np.testing.assert_allclose(found.hessian["product"], expected.hessian["product"], rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(found.slope["slope"]), [True, False, False, False])
    (note,) = federation.end_step()  # one strike, not one for each request
    assert "node 1 was left out" in note


def test_without_faults_it_is_the_simulation_to_the_bit():
    world, federation = made(lambda node, call: None)
    reply, expected = ask(federation), ask(world.federation)
    for name in expected.train:
        np.testing.assert_array_equal(reply.train[name], expected.train[name])
    assert federation.end_step() == ()
    assert reply.cost == expected.cost


def test_three_failures_in_a_row_drop_a_node_two_do_not():
    _, federation = made(lambda node, call: NOTHING if node == 1 and call != 3 else None)
    for _ in range(5):
        ask(federation)
    assert federation.present.all()  # failures 1, 2, then an answer, then 4, 5
    ask(federation)
    np.testing.assert_array_equal(federation.present, [True, False, True, True])
    ask(federation)
    notes = federation.end_step()
    assert any(f"dropped after {STRIKES}" in note for note in notes)
    assert any("(5 times)" in note for note in notes)  # once dropped, it is not asked any more


def test_a_dropped_node_is_not_asked_and_costs_nothing():
    world, federation = made(lambda node, call: NOTHING if node == 0 else None)
    for _ in range(STRIKES):
        ask(federation)
    reply = ask(federation, WEIGHTS)
    assert reply.cost.node_points[0] == 0
    assert min(reply.cost.node_points[1:]) > 0
    assert reply.cost.nodes_asked == 3
    assert federation.asked[-1] == [1, 2, 3]
    rest = np.array([0.0, 0.2, 0.3, 0.4])
    assert_same_sum(reply, ask(world.federation, rest / rest.sum()))


def test_nodes_of_weight_zero_are_not_asked_and_cannot_fail():
    world, federation = made(lambda node, call: NOTHING if node == 2 else None)
    weights = (0.5, 0.3, 0.0, 0.2)
    reply = ask(federation, weights)
    assert_same_sum(reply, ask(world.federation, weights))
    assert federation.asked == [[0, 1, 3]]
    assert federation.end_step() == ()


def test_a_sum_whose_only_node_fails_is_asked_for_again():
    """Others may answer other requests: that does not make up for it."""
    world, federation = made(lambda node, call: NOTHING if node == 2 and call < STRIKES else None)
    reply = ask(federation, (0, 0, 1, 0))
    assert_same_sum(reply, ask(world.federation, (0, 0, 1, 0)))
    assert federation.asked == [[2]] * STRIKES


def test_a_sum_whose_only_node_is_dropped_is_the_mean_of_the_others():
    """A method projects its weights again in its next step; this one comes to its end."""
    world, federation = made(lambda node, call: NOTHING if node == 2 else None)
    reply = ask(federation, (0, 0, 1, 0))
    assert_same_sum(reply, ask(world.federation, (1 / 3, 1 / 3, 0, 1 / 3)))
    assert federation.asked == [[2]] * STRIKES + [[0, 1, 3]]


def test_a_node_that_began_in_vain_begins_again():
    """Its first answer was lost: it is asked to begin once more, and gives what it would have given."""
    world, federation = made(lambda node, call: NOTHING if node == 3 and call == 1 else None)
    theta, vector = jnp.full(5, 0.1), jnp.arange(5.0)
    request = PerNode(SLOPE, {"theta": theta, "vector": vector}, begin=True)
    first = federation.exchange(slope=request, key=jax.random.key(0))
    np.testing.assert_array_equal(np.isnan(first.slope["slope"]), [False, False, False, True])
    expected = world.federation.exchange(slope=request, key=jax.random.key(0))
    later = federation.exchange(slope=PerNode(SLOPE, {"vector": vector}), key=jax.random.key(0))
    np.testing.assert_array_equal(later.slope["slope"], expected.slope["slope"])
    # θ and ∇L_k(θ) once more for this node, and for no other.
    assert later.cost.bytes_down == (4 + 1) * 5 * 4
    assert later.cost.node_points == (0, 0, 0, 30)


# Several models at once

ROWS = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.3, 0.7]])


def ask_for_models(federation, rows):
    request = WeightedSum(
        INNER_SVRG_ROUND,
        ROUND | {"point": jnp.stack([jnp.zeros(5), jnp.ones(5)])},
        weights=jnp.asarray(rows),
        begin=True,
        steps=3,
        reply="point",
    )
    return federation.exchange(train=request, key=jax.random.key(0))


def test_each_model_is_summed_over_those_that_answered():
    world, federation = made(lambda node, call: NOTHING if node in (1, 2) else None)
    reply = ask_for_models(federation, ROWS)
    expected = ask_for_models(world.federation, np.array([[1, 0, 0, 0], [0, 0, 0, 1.0]]))
    assert_same_sum(reply, expected)
    assert reply.cost.synchronizations == 1


def test_a_model_without_any_answer_is_asked_for_again():
    world, federation = made(lambda node, call: NOTHING if node > 1 and call == 1 else None)
    reply = ask_for_models(federation, ROWS)
    assert_same_sum(reply, ask_for_models(world.federation, ROWS))
    assert reply.cost.synchronizations == 2


def test_a_model_that_asks_nobody_needs_no_answer():
    _, federation = made(lambda node, call: None)
    vectors = jnp.stack([jnp.zeros(5), jnp.ones(5)])
    nodes = np.array([[True, False, False, False], [False] * 4])
    request = PerNode(SLOPE, {"theta": vectors, "vector": vectors}, begin=True, nodes=nodes)
    reply = federation.exchange(slope=request, key=jax.random.key(0))
    np.testing.assert_array_equal(np.isnan(reply.slope["slope"]), ~nodes)
    assert federation.calls == 1


def test_numbers_that_no_node_can_avoid_are_not_the_nodes_fault():
    world, federation = made(lambda node, call: with_value(np.nan))
    algorithm = FedAvgAlgorithm(LocalSvrg(0.01, period=2, rounds=2))
    state = begin(algorithm, federation, jnp.zeros(5))
    with pytest.raises(DivergedError, match="learning rate"):
        run(algorithm, federation, world.center, state, jax.random.key(0), budget=Budget(1))


def bilevel(cap=0.5):
    inner = LocalSvrg(0.02, period=5, rounds=4)
    solver = ConjugateGradients(damping=0.0, iterations=5)
    return ProximalBilevel(Differentiation(cap, inner, solver), outer_learning_rate=0.1)


def play(federation, center, steps, algorithm=None):
    algorithm = algorithm or bilevel()
    state = begin(algorithm, federation, jnp.zeros(5))
    return run(algorithm, federation, center, state, jax.random.key(0), budget=Budget(steps))


@pytest.mark.parametrize(
    "algorithm", [bilevel(), FedAvgAlgorithm(LocalSvrg(0.02, period=5, rounds=4))]
)
def test_a_node_leaves_during_a_run_and_comes_back(algorithm):
    """It is away from the 12th message on and back when the sixth step begins: weights follow."""
    away = {"now": True}
    world, federation = made(
        lambda node, call: NOTHING if node == 3 and call >= 12 and away["now"] else None,
        back=lambda node, step: step >= 5,
    )
    original = federation.begin_step

    def begin_step(step):
        away["now"] = step < 5
        original(step)

    federation.begin_step = begin_step
    state = play(federation, world.center, 9, algorithm)
    weights = np.array([row.node_weights for row in state.history])
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    assert (weights[0] > 0).all()
    assert weights[4, 3] == 0  # dropped: no weight at all
    np.testing.assert_allclose(weights[4, :3].sum(), 1, atol=1e-6)
    assert weights[-1, 3] > 0  # it is back, and has earned some weight again
    warnings = [warning for row in state.history for warning in row.warnings]
    assert any("node 4 was dropped" in warning for warning in warnings)
    assert any("node 4 is back" in warning for warning in state.history[5].warnings)
    assert state.history[-1].validation.loss < state.history[0].validation.loss


def test_a_run_without_one_node_is_the_run_of_the_others():
    """Without a node that is dropped from the first message on, the others get what they get alone."""
    nodes, validation = regression_nodes(SIZES)
    world, federation = made(lambda node, call: NOTHING if node == 3 else None)
    federation.present[3] = False
    federation.back = lambda node, step: False
    state = play(federation, world.center, 4)
    alone = problem(Ridge(l2=0.1), nodes[:3], validation)
    expected = play(alone.federation, alone.center, 4)
    np.testing.assert_allclose(
        state.history[-1].node_weights[:3], expected.history[-1].node_weights, rtol=1e-5
    )
    np.testing.assert_allclose(state.last_theta, expected.last_theta, rtol=1e-4, atol=1e-6)


def test_fewer_than_two_nodes_end_the_run_with_what_it_has():
    world, federation = made(lambda node, call: NOTHING if node > 0 and call > 20 else None)
    steps = []
    algorithm = bilevel()
    state = begin(algorithm, federation, jnp.zeros(5))
    with pytest.raises(TooFewNodesError, match=r"nodes are left \(node 1\).*--resume") as caught:
        run(
            algorithm,
            federation,
            world.center,
            state,
            jax.random.key(0),
            budget=Budget(10),
            after_step=lambda state: steps.append(len(state.history)),
        )
    assert steps  # the steps before it were kept, as a checkpoint keeps them
    assert caught.value.__notes__ == [f"in outer step {len(steps) + 1}"]


def test_one_good_answer_is_enough_for_a_synchronization():
    """Two nodes have to be left, but they need not both answer every time."""
    world, federation = made(lambda node, call: NOTHING if node > 0 and call == 1 else None)
    assert_same_sum(ask(federation), ask(world.federation, (1, 0, 0, 0)))
    assert federation.present.all()


def test_if_nobody_answers_everybody_is_asked_again():
    world, federation = made(lambda node, call: NOTHING if call < STRIKES else None)
    reply, expected = ask(federation), ask(world.federation)
    np.testing.assert_array_equal(reply.train["point"], expected.train["point"])
    assert reply.cost.synchronizations == STRIKES
    assert reply.cost.bytes_down == STRIKES * expected.cost.bytes_down
    _, silent = made(lambda node, call: NOTHING)
    with pytest.raises(TooFewNodesError, match=r"nodes are left \(none\)"):
        ask(silent)
    assert silent.calls == STRIKES


@pytest.mark.parametrize("present", [[1, 1, 1, 1], [1, 0, 1, 1], [0, 1, 0, 1]])
@pytest.mark.parametrize("cap", [0.25, 0.3, 0.5, 1.0])
def test_weights_of_those_that_take_part(present, cap):
    present = np.array(present, bool)
    weights = project_weights(jnp.array([0.9, 0.05, 0.4, -0.3]), cap, present)
    assert (np.asarray(weights)[~present] == 0).all()
    assert float(weights.sum()) == pytest.approx(1)
    # The cap is raised to an equal share where the others could not have the whole weight.
    assert float(weights.max()) <= max(cap, 1 / present.sum()) + 1e-6
    np.testing.assert_allclose(
        equal_weights(present), np.where(present, 1 / present.sum(), 0), rtol=1e-6
    )
    assert readmit(weights, cap, present) is weights  # nothing to do


def test_weights_are_projected_again_when_a_node_is_dropped_or_back():
    weights = jnp.array([0.5, 0.3, 0.2])
    without = readmit(weights, 0.5, np.array([False, True, True]))
    np.testing.assert_allclose(without, [0, 0.5, 0.5], atol=1e-6)
    alone = jnp.array([0.0, 0.9, 0.1])  # as if the cap had been raised
    back = readmit(alone, 0.5, np.array([True, True, True]))
    assert float(back.max()) <= 0.5 + 1e-6
    assert float(back.sum()) == pytest.approx(1)


def test_a_node_that_is_back_has_its_former_weight_and_the_others_make_room():
    roster = Roster.of_all(jnp.array([0.4, 0.2, 0.3, 0.1]))
    away = np.array([True, False, True, True])
    left = roster.readmit(roster.weights, 0.5, away)
    assert left[1] == 0
    roster = roster.after(left, away)
    moved = jnp.array([0.5, 0.0, 0.5, 0.0])  # what the others do meanwhile
    assert roster.readmit(moved, 0.5, away) is moved
    roster = roster.after(moved, away)
    found = roster.readmit(moved, 0.5, np.ones(4, bool))
    np.testing.assert_allclose(found, [0.4, 0.2, 0.4, 0.0], atol=1e-6)
    np.testing.assert_allclose(roster.readmit(moved, 0.3, np.ones(4, bool))[1], 0.25, atol=0.06)
    assert roster.after(found, np.ones(4, bool)).readmit(found, 0.5, np.ones(4, bool)) is found


def hanging(until):
    """Nodes like the owner, but for the last, whose labels are noise; the first hangs in the first step."""
    nodes, validation = regression_nodes([60] * 4, noise=0.1)
    rng = np.random.default_rng(1)
    target = np.linalg.lstsq(*validation, rcond=None)[0]
    nodes = [(x, x @ target + 0.1 * rng.normal(size=60)) for x, _ in nodes]
    nodes[3] = (nodes[3][0], 3 * rng.normal(size=60))
    world = problem(Ridge(l2=0.1), nodes, validation)
    back = {"now": False}

    def fail(node, call):
        return NOTHING if node == 0 and not back["now"] else None

    def is_back(node, step):
        back["now"] = step >= until
        return back["now"]

    return world, AttendedSimulation(world.federation, fail, is_back)


def test_a_run_does_not_end_while_a_node_that_is_back_has_not_been_asked():
    """A good node hangs in the first step of two, and ends with a weight like the other good ones."""
    world, federation = hanging(until=2)
    state = play(federation, world.center, 2, bilevel(cap=1 / 3))
    assert [row.node_weights[0] == 0 for row in state.history] == [False, True, False]
    assert any("node 1 is back" in warning for warning in state.history[2].warnings)
    assert state.history[2].node_weights[0] == pytest.approx(0.25)
    assert state.stopped == "stopped: reached the limit of 2 outer steps"


def test_a_run_ends_where_nobody_is_back():
    world, federation = hanging(until=100)
    state = play(federation, world.center, 2, bilevel(cap=1 / 3))
    assert len(state.history) == 2


def test_newton_steps_go_on_with_a_node_that_is_back():
    world, federation = hanging(until=4)
    state = play(federation, world.center, 60, NewtonBilevel(1 / 3))
    assert state.history[3].node_weights[0] == 0
    assert state.history[4].node_weights[0] == pytest.approx(0.25, abs=1e-6)
    weights = state.history[-1].node_weights
    assert state.stopped.startswith("converged")
    assert weights[0] > 0.2 > 0.05 > weights[3]


def reply(value, size=4, rows=1):
    return {"point": np.full((rows, size), value, np.float32), "loss": np.ones(rows, np.float32)}


SENT = {"point": np.ones(4, np.float32)}


def faults_of(*replies, models=None):
    return find_faults(INNER_SVRG_ROUND, replies, models or [1] * len(replies), SENT, 4)


def test_numbers_that_are_finite_nowhere_are_the_methods_fault_if_all_agree():
    assert faults_of(reply(np.nan), reply(np.inf), reply(np.nan)) == [None] * 3


@pytest.mark.parametrize("others", [[None], [None, None], [reply(1, size=3)]])
def test_one_node_alone_does_not_make_a_run_diverge(others):
    """The others were silent, or broken too: whose fault it is nobody knows."""
    assert "not finite" in faults_of(reply(np.nan), *others)[0]


def test_the_only_node_that_counts_is_not_blamed_for_what_nobody_else_can_confirm():
    assert faults_of(reply(np.nan)) == [None]


def test_a_single_reply_is_no_measure_of_itself():
    assert "far out of range" in faults_of(reply(1e9), None)[0]
    assert faults_of(reply(1e3), None) == [None, None]


def moves_of(*lengths, models=None, sent=None):
    sent = np.ones(4, np.float32) if sent is None else sent
    asked = models or [(0,)] * len(lengths)
    begun = [sent if sent.ndim < 2 else sent[list(own)] for own in asked]
    replies = [
        None if length is None else {"point": start + np.full((1, 4), length / 2, np.float32)}
        for length, start in zip(lengths, begun, strict=True)
    ]
    return find_far_moves(INNER_SVRG_ROUND, replies, asked, {"point": sent})


def test_a_node_that_moves_the_model_much_farther_than_the_others_is_named():
    assert moves_of(1, 2, 3, FARTHEST_MOVE * 2.1)[:3] == [None] * 3
    assert "42 times as far" in moves_of(1, 2, 3, FARTHEST_MOVE * 4.2)[3]
    assert moves_of(1, 2, 3, FARTHEST_MOVE * 1.9) == [None] * 4
    assert moves_of(None, 1, 1e9) == [None] * 3  # of two, nobody is in the middle
    assert moves_of(0, 0, 0, 1) == [None] * 4  # the others stand still


def test_moves_are_measured_from_the_model_that_a_node_was_asked_for():
    sent = np.stack([np.zeros(4), np.full(4, 100.0)]).astype(np.float32)
    assert moves_of(1, 1, 2, models=[(0,), (1,), (1,)], sent=sent) == [None] * 3


def test_a_reply_has_a_row_for_every_model_that_was_asked_for():
    assert faults_of(reply(1, rows=2), reply(1), models=[2, 1]) == [None, None]
    assert "shape (1, 4) instead of (2, 4)" in faults_of(reply(1), reply(1), models=[2, 1])[0]
