"""Nodes that lie: the attacks on a small federation, with and without the defenses, and what judges nodes."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from attacks.lying_nodes import ATTACKS, NODES, Rows, build, false_slope, play, small
from fedkin.events import Warned
from fedkin.federation.base import Cost, PerNode
from fedkin.federation.center import Center, Comparison
from fedkin.federation.excluding import ExcludingFederation
from fedkin.federation.task import slots_of
from fedkin.federation.unreliable import UnreliableSimulation
from fedkin.methods.bilevel.method import Bilevel
from fedkin.methods.bilevel.mismatch import mismatch_of
from fedkin.methods.bilevel.node import SLOPE
from fedkin.training.false_slopes import find_false_slope
from fedkin.training.joint import JointProblem, OwnerData
from fedkin.training.judged import exclude_silent
from fedkin.training.keys import building_key
from fedkin.training.leave_out import LeftOut, leave_each_out
from fedkin.training.problem import cap_in, simulation
from fedkin.training.runner import Budget
from fedkin.types import Points


@pytest.mark.parametrize(("attack", "liars"), [("slope -1", 1), ("slope -10000", 2)])
def test_nodes_that_lie_about_their_slopes_are_named_and_get_no_weight(attack, liars):
    defended = play("newton", ATTACKS[attack], liars, rows=small, leave_one_out=True)
    assert defended.liars_weight(liars) == 0
    assert defended.named() == {f"n{NODES - number}" for number in range(liars)}
    attacked = play("newton", ATTACKS[attack], liars, rows=small)
    assert attacked.liars_weight(liars) > 0.1  # else there would be nothing to defend against
    assert any("a node lies" in warning for warning in attacked.warnings)


def test_where_nobody_lies_the_result_is_the_same_and_nobody_is_named():
    plain = play("newton", None, 1, rows=small)
    judged = play("newton", None, 1, rows=small, leave_one_out=True)
    np.testing.assert_array_equal(judged.weights, plain.weights)
    assert judged.accuracy == plain.accuracy
    assert judged.warnings == plain.warnings == ()
    assert (
        judged.synchronizations == plain.synchronizations + 11
    )  # ten rounds, and one for the step size


def test_an_updates_length_names_a_node():
    """A hundred times too long: it is left out of sums, dropped and named, without a judgment of rows."""
    found = play("adaptive", ATTACKS["updates × 100"], 1, rows=small)
    assert found.liars_weight(1) == 0
    assert any(
        "n8 was left out" in warning and "times as far" in warning for warning in found.warnings
    )


@pytest.mark.parametrize("secure", [False, True])
def test_where_models_are_judged_a_long_move_is_no_fault(secure):
    """Near the model of most nodes, an honest node that is unlike them moves it many times as far."""
    problem = build(small(0, 1), "logistic", {NODES - 1: ATTACKS["updates × 100"]}, secure=secure)
    weights = np.full(NODES, 1 / NODES)
    theta = problem.objective.start(building_key(0))
    key = building_key(0)
    found = leave_each_out(problem.federation, problem.center, theta, weights, 1 / 3, key)
    assert problem.federation.end_step() == ()
    assert found.harmful(np.ones(NODES, bool)) == NODES - 1


def test_an_honest_node_is_not_blamed_for_a_liar_whose_updates_are_too_long():
    """The sums that do not belong together end the search before the unlike node has lost its weight.

    The owner's rows would blame it; arithmetic says who it is.
    """

    def rows(seed, liars):
        found = small(seed, liars)
        own = found.nodes["n1"]
        swapped = Points(own.inputs, np.array([1, 2, 0], np.int32)[own.labels])
        return Rows({**found.nodes, "n1": swapped}, found.validation, found.test)

    lies = {NODES - 1: ATTACKS["updates × 100"]}
    problem = build(rows(0, 1), "logistic", lies)
    state = problem.train(Bilevel(), budget=Budget(steps=15), leave_one_out=True).state
    warnings = [warning for row in state.history for warning in row.warnings]
    assert any("n8 gets no weight from the owner: the slopes" in warning for warning in warnings)
    assert not any("n1 " in warning for warning in warnings)
    assert state.kept.node_weights[0] < 0.01  # by its slope
    assert state.kept.node_weights[-1] == 0


def test_slopes_and_gradients_belong_together():
    rng = np.random.default_rng(0)
    gradients, adjoint = rng.normal(size=(5, 20)), rng.normal(size=20)
    weights, slopes = np.array([0.4, 0.3, 0.2, 0.1, 0.0]), -gradients @ adjoint
    gradient = weights @ gradients
    assert mismatch_of(slopes, weights, gradient, adjoint, 0.5) is None
    unasked = np.where(weights > 0, slopes, np.nan)
    assert mismatch_of(unasked, weights, gradient, adjoint, 0.5) is None
    for false in (-1e4, -10.0):
        lying = np.where(np.arange(5) == 2, false, slopes)
        assert "a node lies" in mismatch_of(lying, weights, gradient, adjoint, 0.5)


ROWS = np.linspace(0.5, 1.5, 100)


def left_out(with_all=ROWS, **without):
    """Return what is known of nodes without which rows have other losses."""

    class Losses(Center):
        """Rows whose losses are the "models" themselves."""

        def __init__(self):
            pass

        def _row_losses(self, theta):
            return theta

    loss, compared = Losses().compare(with_all, list(without.values()))
    return LeftOut(loss, dict(zip((int(n[1:]) for n in without), compared, strict=True)), Cost())


def test_a_node_harms_where_most_rows_say_so():
    noise = np.random.default_rng(0).normal(size=100)
    found = left_out(n0=ROWS - 0.1, n1=ROWS - 0.01, n2=ROWS - 0.1 + noise, n3=ROWS + 0.2)
    assert [found.harms(node) for node in range(5)] == [True, False, False, False, False]
    claims = np.array([True, True, True, True, True])
    assert found.harmful(claims) == 0
    assert found.harmful(~claims) is None  # its own slope says so, too: it does not lie
    assert left_out(n0=0.4 * ROWS).harmful(~claims) == 0
    assert left_out(n0=ROWS - 0.1, n1=ROWS - 0.2).harmful(claims) == 1


def test_training_that_diverges_with_a_node_only_is_its_fault():
    diverged = left_out(np.full(100, np.inf), n0=ROWS, n1=np.full(100, np.inf))
    assert diverged.harmful(np.zeros(2, bool)) == 0
    assert not diverged.harms(1)


def test_only_nodes_that_harm_twice_are_named():
    once = left_out(n0=ROWS - 0.1, n1=ROWS - 0.2)
    both = once.confirmed_by(left_out(n0=ROWS - 0.1, n1=ROWS))
    assert both.harmful(np.ones(2, bool)) == 0
    assert both.cost == Cost()


def test_an_excluded_node_is_not_asked_and_its_reason_is_given_once_per_run():
    problem = build(small(0, 0), "logistic", {})
    federation = ExcludingFederation(problem.federation)
    federation.exclude(2, "n3 is out")
    assert federation.end_step() == ("n3 is out",)
    assert federation.end_step() == ()
    np.testing.assert_array_equal(np.flatnonzero(~federation.present), [2])
    theta = jnp.zeros(problem.objective.size)
    request = PerNode(SLOPE, {"theta": theta, "vector": theta + 1}, begin=True)
    reply = federation.exchange(slope=request, key=building_key(0))
    np.testing.assert_array_equal(np.isnan(reply.slope["slope"]), np.arange(NODES) == 2)
    np.testing.assert_array_equal(federation.slopes, np.asarray(reply.slope["slope"], float))
    other = ExcludingFederation(problem.federation)
    other.import_state(federation.export_state(), slots_of((SLOPE,)))
    np.testing.assert_array_equal(other.excluded, federation.excluded)


def test_leaving_out_noise_lowers_the_loss_and_leaving_out_others_does_not():
    problem = build(small(0, 1), "logistic", {})
    weights = np.full(NODES, 1 / NODES)
    theta = problem.objective.start(building_key(0))
    found = leave_each_out(
        problem.federation, problem.center, theta, weights, 1 / 3, building_key(0)
    )
    gains = [found.gain(node) for node in range(NODES)]
    assert int(np.argmax(gains)) == NODES - 1
    assert found.harms(NODES - 1)


def blamed(*attacks, rows=None):
    """Return who is blamed for slopes that are not those of gradients, where the last nodes lie."""
    known = {**ATTACKS, "slope 1": false_slope(1.0)}
    lies = {
        NODES - 1 - place: known[attack]
        for place, attack in enumerate(attacks)
        if known[attack] is not None
    }
    problem = build(rows or small(0, len(attacks)), "logistic", lies)
    weights = np.full(NODES, 1 / NODES)
    theta = problem.objective.start(building_key(0))
    return find_false_slope(
        problem.federation, problem.center, theta, weights, 1 / 3, building_key(0)
    )


@pytest.mark.parametrize(
    ("attacks", "named"),
    [
        ((), {None}),
        (("noise labels only",), {None}),  # it does not lie
        (("slope -0.1",), {7}),
        (("slope -100",), {7}),
        (("updates × -1",), {7}),
        (("updates × 100",), {7}),
        (("slope -1", "slope -1"), {6, 7}),
        (("slope -1", "slope -100"), {6}),  # the worse one first
        (("updates × 10", "slope -0.1"), {None, 6, 7}),  # how false depends on the model
        (("updates × -1", "updates × -1"), {6, 7}),
        (("slope -1", "slope 1"), {6, 7}),  # what is false nearly cancels
    ],
)
def test_arithmetic_says_whose_slopes_are_false(attacks, named):
    assert blamed(*attacks)[0] in named


def test_arithmetic_says_it_where_sums_are_secure_too():
    """Every sum is over three nodes or more, at a model of its own."""
    problem = build(small(0, 1), "logistic", {NODES - 1: ATTACKS["slope -1"]}, secure=True)
    trained = problem.train(Bilevel(), budget=Budget(steps=20), leave_one_out=True)
    said = [warning for row in trained.state.history for warning in row.warnings]
    assert any("n8 gets no weight from the owner: the slopes" in warning for warning in said)
    assert trained.state.kept.node_weights[-1] == 0


def test_slopes_that_are_out_of_all_range_are_not_even_compared():
    rows = small(0, 1)
    problem = build(rows, "logistic", {NODES - 1: false_slope(-1e9)})
    weights = np.full(NODES, 1 / NODES)
    theta = problem.objective.start(building_key(0))
    node, _ = find_false_slope(
        problem.federation, problem.center, theta, weights, 1 / 3, building_key(0)
    )
    assert node is None
    np.testing.assert_array_equal(np.flatnonzero(~problem.federation.present), [NODES - 1])


def test_whose_slopes_are_false_does_not_depend_on_how_many_rows_the_owner_has():
    rows = small(0, 1)
    few = Points(rows.validation.inputs[:8], rows.validation.labels[:8])
    node, cost = blamed("slope -1", rows=Rows(rows.nodes, few, rows.test))
    assert node == NODES - 1
    assert cost.synchronizations == 3


@pytest.mark.parametrize("kind", ["truth in one sum", "at random"])
def test_two_liars_can_hardly_have_an_honest_node_blamed(kind):
    """They tell the truth in one sum, which may be the one without an honest node, or lie at random."""
    draw = np.random.default_rng(0)

    def sometimes(own, replies):
        if own.request.task is not SLOPE or replies["slope"].ndim == 0:
            return replies
        told = np.full_like(replies["slope"], -1.0)
        told[2] = replies["slope"][2]
        if kind == "at random":
            told = draw.normal(size=told.shape).astype(told.dtype)
        return {"slope": told}

    problem = build(small(0, 2), "logistic", {6: sometimes, 7: sometimes})
    theta = problem.objective.start(building_key(0))
    weights, honest = np.full(NODES, 1 / NODES), 0
    for number in range(20):
        key = building_key(number)
        node, _ = find_false_slope(problem.federation, problem.center, theta, weights, 1 / 3, key)
        honest += node is not None and node < 6
    assert honest <= 3  # one in a hundred; the center draws what nodes cannot know


def test_an_owner_that_is_a_node_does_not_judge_itself():
    problem = build(small(0, 1), "logistic", {})
    weights = np.full(NODES, 1 / NODES)
    theta = problem.objective.start(building_key(0))
    center = problem.center.with_own_node(NODES - 1)
    found = leave_each_out(problem.federation, center, theta, weights, 1 / 3, building_key(0))
    assert sorted(found.without) == list(range(NODES - 1))


def test_with_secure_sums_a_judged_run_has_the_cap_of_secure_sums():
    """With that of plain sums, two of four nodes could have all the weight, and no sum would be possible."""
    rows = small(0, 0)
    four = Rows(dict(list(rows.nodes.items())[:4]), rows.validation, rows.test)
    trained = build(four, "logistic", {}, secure=True).train(
        Bilevel(), budget=Budget(steps=3), leave_one_out=True
    )
    assert cap_in(trained.parameters) == pytest.approx(1 / 3)
    plain = build(four, "logistic", {}).train(Bilevel(), budget=Budget(steps=3), leave_one_out=True)
    assert cap_in(plain.parameters) == pytest.approx(1 / 2)


def test_every_owner_judges_for_itself():
    """Two owners whose rows call classes by other names, a node of each kind that lies about its slope, and
    honest ones of both kinds."""
    rows = small(0, 1)
    swapped = np.array([1, 2, 0], np.int32)
    nodes = {
        name: Points(own.inputs, swapped[own.labels]) if number < 3 else own
        for number, (name, own) in enumerate(rows.nodes.items())
    }
    others = Points(rows.validation.inputs, swapped[rows.validation.labels])
    owners = {"one": OwnerData(rows.validation), "other": OwnerData(others)}

    def learn(**options):
        engine = simulation(nodes, batch_size=50, seed=0)(build(rows, "logistic", {}).objective)
        federation = UnreliableSimulation(engine, lies={NODES - 1: ATTACKS["slope -1"]})
        joint = JointProblem.around(
            federation, owners, classes=np.arange(3), point_shape=(4,), batch_size=50, seed=0
        )
        events = []
        found = joint.train(Bilevel(), on_event=events.append, **options)
        said = [event.message for event in events if isinstance(event, Warned)]
        return {name: run.state.kept.node_weights for name, run in found.runs.items()}, said

    weights, said = learn(leave_one_out=owners)
    assert all(own[-1] == 0 for own in weights.values())
    assert sum("n8 gets no weight" in warning for warning in said) == 2  # each has found out
    assert weights["one"][:3].sum() < 0.05  # the honest nodes of the other kind
    assert weights["other"][:3].sum() > 0.95
    assert not any("n1 " in warning or "n2 " in warning or "n3 " in warning for warning in said)
    attacked, said = learn()
    assert all(own[-1] > 0.1 for own in attacked.values())
    assert not any("gets no weight" in warning for warning in said)


def test_a_judged_run_is_resumed_with_the_same_nodes_excluded(tmp_path):
    """Stopped in the second attempt, it does not ask the liar again."""
    rows, lies = small(0, 1), {NODES - 1: ATTACKS["slope -1"]}
    checkpoint, steps = tmp_path / "run.npz", []

    class StopError(Exception):
        pass

    def stop(state):
        steps.append(len(state.history))
        if steps[-1] < max(steps):  # it has started over
            raise StopError

    def train(**options):
        made = build(rows, "logistic", lies)
        budget = Budget(steps=200)
        return made.train(
            Bilevel(), budget=budget, leave_one_out=True, checkpoint=checkpoint, **options
        ).state

    with pytest.raises(StopError):
        train(after_step=stop)
    resumed = train()
    checkpoint.unlink()
    whole = train()
    np.testing.assert_array_equal(resumed.kept.node_weights, whole.kept.node_weights)
    assert resumed.cost == whole.cost


def test_whoever_is_dropped_while_nodes_are_judged_is_out_of_the_next_run():
    present = np.array([True, True, False])
    inner: Any = SimpleNamespace(names=("n1", "n2", "n3"), present=present, end_step=tuple)
    federation = ExcludingFederation(inner)
    assert exclude_silent(federation, np.ones(3, bool))
    present[:] = True  # the run starts over, and welcomes everybody back
    assert federation.present.tolist() == [True, True, False]
    (warning,) = federation.end_step()
    assert warning.startswith("n3 gets no weight: it gave no usable answer")
    assert not exclude_silent(federation, federation.present)  # nobody else: the run can end


@pytest.mark.parametrize("secure", [False, True])
def test_only_where_sums_are_secure_does_a_run_without_a_node_begin_at_another_model(secure):
    problem = build(small(0, 1), "logistic", {}, secure=secure)
    federation = ExcludingFederation(problem.federation)
    first = problem._first_model(federation)
    federation.exclude(NODES - 1, "n8 is out")
    again = problem._first_model(federation)
    assert np.array_equal(first, again) == (not secure)


def test_no_node_harms_an_owner_whose_loss_is_zero():
    none = LeftOut(0.0, {0: Comparison(0.0, 0.0)}, Cost())
    assert not none.harms(0)
