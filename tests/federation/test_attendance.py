"""Nodes that fail: who is left out, what stands in for them, when they are dropped and taken in again."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import problem, regression_nodes
from fedkin.errors import DivergedError
from fedkin.federation.attendance import (
    STRIKES,
    Answer,
    AttendedFederation,
    TooFewNodesError,
    stand_in,
)
from fedkin.federation.checks import find_faults
from fedkin.methods.bilevel.hypergradient import ConjugateGradientSolver
from fedkin.methods.bilevel.outer import ProximalBilevel
from fedkin.methods.fedavg import FedAvg
from fedkin.methods.local_svrg.center import LocalSvrg, combine
from fedkin.methods.weights import equal_weights, project_weights, readmit
from fedkin.models.linear import Ridge
from fedkin.training.runner import Budget, begin, run

SIZES = [30, 30, 30, 30]
ROUND = {
    "point": jnp.zeros(5),
    "learning_rate": 0.01,
    "refresh_probability": 0.1,
    "averaging_rate": 0.0,
}


class Unreliable(AttendedFederation):
    """A simulation whose nodes may fail: `fail(node, call)` returns what a node answers instead."""

    def __init__(self, simulated, fail, back=lambda node, step: True):
        super().__init__(simulated.objective, simulated.names, simulated.batches)
        self.simulated, self.fail, self.back = simulated, fail, back
        self.calls, self.step = 0, 0

    def ask(self, nodes, task, message, *, key, start, options):
        self.calls += 1
        arrays = {name: jnp.asarray(array) for name, array in message.items()}
        replies, _ = self.simulated.call(task, arrays, key=key, start=start, **options)
        answers = []
        for node in nodes:
            own = {name: np.asarray(reply)[node] for name, reply in replies.items()}
            changed = self.fail(node, self.calls)
            if changed == "nothing":
                answers.append(Answer(None, "it did not answer in time"))
            else:
                answers.append(Answer(own if changed is None else changed(own), None, 10, 8, 8))
        return answers

    def seek(self, absent):
        return [node for node in absent if self.back(node, self.step)]

    def begin_step(self, step):
        self.step = step
        super().begin_step(step)

    def export_state(self):
        return self.simulated.export_state()

    def import_state(self, state):
        self.simulated.import_state(state)


def with_value(value):
    return lambda own: {name: np.full_like(array, value) for name, array in own.items()}


FAULTS = {
    "nothing": ("nothing", "did not answer in time"),
    "not a number": (with_value(np.nan), "not finite"),
    "infinite": (with_value(np.inf), "not finite"),
    "wrong shape": (lambda own: own | {"point": own["point"][:-1]}, r"shape \(4,\)"),
    "scalar": (lambda own: own | {"point": np.float32(1)}, r"shape \(\)"),
    "huge": (lambda own: own | {"point": own["point"] * 0 + np.float32(1e30)}, "norm"),
    "other type": (lambda own: own | {"point": own["point"].astype(np.float64)}, "float64"),
    "whole numbers": (lambda own: own | {"point": own["point"].astype(np.int32)}, "int32"),
    "another reply": (lambda own: {"gradient": own["point"]}, "gradient"),
    "one reply too many": (lambda own: own | {"data": own["point"]}, "data"),
}


def made(fail, **more):
    nodes, validation = regression_nodes(SIZES)
    world = problem(Ridge(l2=0.1), nodes, validation)
    return world, Unreliable(world.federation, fail, **more)


def ask(federation, weights=None):
    return federation.call(
        "inner_svrg_round",
        ROUND,
        key=jax.random.key(0),
        node_weights=weights,
        start=True,
        steps=3,
        reply="point",
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_is_left_out_and_told(fault):
    changed, told = FAULTS[fault]
    world, federation = made(lambda node, call: changed if node == 2 else None)
    weights = jnp.array([0.1, 0.2, 0.3, 0.4])
    replies, cost = ask(federation, weights)
    good, _ = ask(world.federation)
    rest = np.array([0, 1, 3])
    renormalized = np.asarray(weights)[rest] / np.asarray(weights)[rest].sum()
    expected = renormalized @ np.asarray(good["point"])[rest]
    np.testing.assert_allclose(combine(weights, replies["point"]), expected, rtol=1e-6)
    expected_loss = renormalized @ np.asarray(good["loss"])[rest]
    np.testing.assert_allclose(weights @ replies["loss"], expected_loss, rtol=1e-6)
    np.testing.assert_array_equal(replies["point"][rest], good["point"][rest])
    (note,) = federation.end_step()
    assert "node 3 was left out" in note
    assert re.search(told, note)
    assert federation.present.all()  # one strike is not the end
    assert cost.synchronizations == 1


def test_without_faults_it_is_the_simulation_to_the_bit():
    world, federation = made(lambda node, call: None)
    replies, cost = ask(federation, jnp.full(4, 0.25))
    expected, _ = ask(world.federation)
    for name in expected:
        np.testing.assert_array_equal(replies[name], expected[name])
    assert federation.end_step() == ()
    assert cost.node_points == (10, 10, 10, 10)


def test_three_failures_in_a_row_drop_a_node_two_do_not():
    _, federation = made(lambda node, call: "nothing" if node == 1 and call != 3 else None)
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
    _, federation = made(lambda node, call: "nothing" if node == 0 else None)
    for _ in range(STRIKES):
        ask(federation)
    _, cost = ask(federation)
    assert cost.node_points == (0, 10, 10, 10)


def test_numbers_that_no_node_can_avoid_are_not_the_nodes_fault():
    world, federation = made(lambda node, call: with_value(np.nan))
    algorithm = FedAvg(LocalSvrg(0.01, period=2, rounds=2))
    state = begin(algorithm, federation, jnp.zeros(5))
    with pytest.raises(DivergedError, match="learning rate"):
        run(algorithm, federation, world.center, state, jax.random.key(0), budget=Budget(1))


def bilevel(cap=0.5):
    inner = LocalSvrg(0.02, period=5, rounds=4)
    return ProximalBilevel(cap, inner, ConjugateGradientSolver(0.0, 5), outer_learning_rate=0.1)


def play(federation, center, steps, algorithm=None):
    algorithm = algorithm or bilevel()
    state = begin(algorithm, federation, jnp.zeros(5))
    return run(algorithm, federation, center, state, jax.random.key(0), budget=Budget(steps))


@pytest.mark.parametrize("algorithm", [bilevel(), FedAvg(LocalSvrg(0.02, period=5, rounds=4))])
def test_a_node_goes_in_mid_run_and_comes_back(algorithm):
    """It is away from the 12th call on and back when the sixth step begins: weights follow."""
    away = {"now": True}
    world, federation = made(
        lambda node, call: "nothing" if node == 3 and call >= 12 and away["now"] else None,
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
    told = [warning for row in state.history for warning in row.warnings]
    assert any("node 4 was dropped" in warning for warning in told)
    assert any("node 4 is back" in warning for warning in state.history[5].warnings)
    assert state.history[-1].validation.loss < state.history[0].validation.loss


def test_a_run_without_one_node_is_the_run_of_the_others():
    """Dropped from the first call on, a node leaves the others the result that they have alone."""
    nodes, validation = regression_nodes(SIZES)
    world, federation = made(lambda node, call: "nothing" if node == 3 else None)
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
    world, federation = made(lambda node, call: "nothing" if node > 0 and call > 20 else None)
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
    """Two nodes have to be left; that both answer every time is not asked for."""
    world, federation = made(lambda node, call: "nothing" if node > 0 and call == 1 else None)
    weights = jnp.full(4, 0.25)
    replies, _ = ask(federation, weights)
    good, _ = ask(world.federation)
    np.testing.assert_allclose(combine(weights, replies["point"]), good["point"][0], rtol=1e-6)
    assert federation.present.all()


def test_if_nobody_answers_everybody_is_asked_again():
    world, federation = made(lambda node, call: "nothing" if call < STRIKES else None)
    replies, cost = ask(federation)
    good, _ = ask(world.federation)
    np.testing.assert_array_equal(replies["point"], good["point"])
    assert cost.synchronizations == STRIKES
    _, silent = made(lambda node, call: "nothing")
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


def test_the_stand_in_of_nodes_without_weight_is_a_plain_mean():
    good = {0: {"loss": np.float32(1)}, 2: {"loss": np.float32(3)}}
    replies = stand_in(good, 3, np.array([0.0, 1.0, 0.0]))
    np.testing.assert_allclose(replies["loss"], [1, 2, 3])


def reply(value, size=4):
    return {"point": np.full(size, value, np.float32), "loss": np.float32(1)}


SENT = {"point": np.ones(4, np.float32)}


def test_numbers_that_are_finite_nowhere_are_the_methods_fault_if_all_agree():
    nowhere = [reply(np.nan), reply(np.inf), reply(np.nan)]
    assert find_faults("inner_svrg_round", nowhere, SENT, 4) == [None] * 3


@pytest.mark.parametrize("others", [[], [None], [None, None], [reply(1, size=3)]])
def test_one_node_alone_does_not_make_a_run_diverge(others):
    """The others were silent, or broken too: whose fault it is nobody knows."""
    faults = find_faults("inner_svrg_round", [reply(np.nan), *others], SENT, 4)
    assert "not finite" in faults[0]


def test_a_single_reply_is_no_measure_of_itself():
    faults = find_faults("inner_svrg_round", [reply(1e9), None], SENT, 4)
    assert "out of all scale" in faults[0]
    assert find_faults("inner_svrg_round", [reply(1e3), None], SENT, 4) == [None, None]
