"""The single loop for convex models: against exact minima, and as a method like the others."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import fedkin
from federation.attended import NOTHING, AttendedSimulation
from fedkin.errors import InputError
from fedkin.federation.base import WeightedSum
from fedkin.federation.wrapper import WrappedFederation
from fedkin.methods.bilevel.newton import NewtonBilevel
from fedkin.methods.bilevel.newton_state import search_line
from fedkin.methods.bilevel.starts import other_starts
from fedkin.numerics.line_search import LineSearch
from fedkin.numerics.simplex_steps import project
from fedkin.training.problem import Problem, simulation
from fedkin.training.runner import Budget
from fedkin.types import Points
from reproduction.convergence import ONE_BATCH, excess
from reproduction.random_federations import draw_federation

# The same shapes for all federations, so that code is compiled once.
SHAPES = {"sizes": (30, 300, 90, 150), "features": 5, "own_rows": 60}


def fit(federation, **settings):
    return fedkin.fit(
        list(federation.nodes),
        federation.own,
        model=federation.model,
        batch_size=ONE_BATCH,
        **settings,
    )


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seed", range(50, 54))
def test_ridge_regression_reaches_the_exact_minimum(seed):
    federation = draw_federation(seed, "ridge", **SHAPES)
    result = fit(federation)
    weights = np.array(list(result.weights.values()))
    equal = federation.outer(np.full(4, 1 / 4))[0]
    lowest = federation.minimum(starts=3)
    assert federation.outer(weights / weights.sum())[0] - lowest <= 1e-6
    assert result.stopped.startswith("converged")
    # The start is far from it, so that the test can fail.
    assert equal - lowest > 1e-3


@pytest.mark.parametrize("seed", range(60, 72))
def test_converged_is_true_on_random_federations(seed):
    federation = draw_federation(seed, **SHAPES)
    result = fit(federation)
    assert result.stopped.startswith("converged")
    assert excess(federation, result, federation.minimum(starts=3)) <= 0.002
    assert result.cost.synchronizations <= 60


def test_the_lowest_of_several_minima_is_found():
    # From equal weights the search ends in a minimum that is 1.12% above the lowest.
    federation = draw_federation(1018)
    result = fit(federation)
    assert result.stopped.startswith("converged")
    assert "several starts" in result.stopped
    assert excess(federation, result, federation.minimum()) <= 0.002


@pytest.mark.usefixtures("float64")
def test_short_steps_along_a_valley_do_not_take_all_exchanges():
    # The first candidates are so near that they show no curvature: lines have to be followed farther.
    federation = draw_federation(1012, "ridge")
    result = fit(federation)
    assert result.stopped.startswith("converged")
    weights = np.array(list(result.weights.values()))
    assert federation.outer(weights / weights.sum())[0] - federation.minimum() <= 1e-6
    assert result.cost.synchronizations <= 60


@pytest.mark.parametrize("seed", range(30))
def test_other_starts_keep_to_the_caps(seed):
    """Also where the caps leave less than 1 in all, as with few nodes, or a larger cap of the owner's own."""
    draw = np.random.default_rng(seed)
    caps = np.full(draw.integers(3, 7), 0.4)
    caps[draw.integers(len(caps))] = draw.uniform(0.4, 1.0)
    starts = other_starts(project(draw.normal(size=len(caps)), caps), caps)
    assert len(starts) > 0
    assert (starts >= 0).all()
    assert (starts <= caps + 1e-12).all()
    np.testing.assert_allclose(starts.sum(axis=1), 1)


def test_a_budget_that_ends_among_other_starts_keeps_the_lowest_minimum():
    federation = draw_federation(1018)
    ended = fit(federation)
    cut = fit(federation, synchronizations=ended.cost.synchronizations - 2)
    assert cut.stopped.startswith("stopped")
    assert cut.weights == ended.weights


def problem(federation, model="logistic", **settings):
    nodes = {f"node {number}": Points(*rows) for number, rows in enumerate(federation.nodes)}
    classes = None if model == "ridge" else np.arange(2)
    task = "regression" if model == "ridge" else "classification"
    return Problem.build(
        simulation(nodes, batch_size=ONE_BATCH, seed=0),
        Points(*federation.own),
        model=model,
        task=task,
        classes=classes,
        **settings,
    )


def steps(outcome):
    return [
        (row.node_weights.tolist(), row.validation.loss, row.diagnostics, row.cost)
        for row in outcome.state.history
    ]


@pytest.mark.parametrize("whole_hessian", [True, False])
def test_a_run_continues_exactly_from_its_checkpoint(tmp_path, whole_hessian, monkeypatch):
    monkeypatch.setattr("fedkin.methods.bilevel.method.is_small", lambda objective: whole_hessian)
    federation = draw_federation(61, **SHAPES)
    method, file = fedkin.Bilevel(), tmp_path / "checkpoint.npz"
    whole = problem(federation).train(method, budget=Budget(steps=9))
    problem(federation).train(method, budget=Budget(steps=4), checkpoint=file)
    # A budget is no part of what a run depends on; the reason to stop is.
    arrays = dict(np.load(file))
    description = (
        arrays["description"]
        .tobytes()
        .decode()
        .replace('"stopped": "stopped: reached the limit of 4 outer steps"', '"stopped": null')
    )
    arrays["description"] = np.frombuffer(description.encode(), np.uint8)
    np.savez(file, **arrays)
    resumed = problem(federation).train(method, budget=Budget(steps=9), checkpoint=file)
    assert len(resumed.state.history) == len(whole.state.history) > 4
    assert steps(resumed) == steps(whole)


def test_a_model_whose_hessian_is_not_sent_learns_the_same_weights():
    federation = draw_federation(62, **SHAPES)
    made = problem(federation)
    loops = [NewtonBilevel(0.5), NewtonBilevel(0.5, whole_hessian=False)]
    found = []
    for loop in loops:
        state = loop.init(made.objective.init(jax.random.key(0)), 4)
        for step in range(60):
            state, info = loop.step(state, jax.random.key(step), made.federation, made.center)
            if info.stop:
                break
        found.append(federation.outer(np.asarray(info.node_weights, float))[0])
    assert found[1] == pytest.approx(found[0], rel=1e-3)


class Recorder(WrappedFederation):
    """Notes which nodes are asked for vectors, and which for numbers."""

    def __init__(self, federation):
        super().__init__(federation)
        self.asked = []

    def exchange(self, *, key, **requests):
        reply = super().exchange(key=key, **requests)
        sums = [r for r in requests.values() if isinstance(r, WeightedSum)]
        vectors = np.any(
            [r.asked(len(self.names), ask_all=False).any(axis=0) for r in sums], axis=0
        )
        self.asked.append((np.asarray(np.atleast_2d(sums[0].weights)[0]), vectors))
        return reply


def test_nodes_of_weight_zero_are_not_asked_for_vectors():
    federation = draw_federation(63, **SHAPES)
    made = problem(federation)
    nodes = Recorder(made.federation)
    loop = NewtonBilevel(0.5)
    state = loop.init(made.objective.init(jax.random.key(0)), 4)
    for step in range(40):
        state, info = loop.step(state, jax.random.key(step), nodes, made.center)
        if info.stop:
            break
    assert info.cost.synchronizations == 1
    assert any((weights == 0).any() for weights, _ in nodes.asked)
    for weights, vectors in nodes.asked:
        np.testing.assert_array_equal(vectors, weights != 0)


def test_a_node_that_goes_and_comes_back_does_not_stop_the_loop():
    federation = draw_federation(64, **SHAPES)
    made = problem(federation)
    loop = NewtonBilevel(0.5)
    state = loop.init(made.objective.init(jax.random.key(0)), 4)
    for step in range(60):
        made.federation.present = np.array([True, not 4 <= step < 8, True, True])
        state, info = loop.step(state, jax.random.key(step), made.federation, made.center)
        if 4 <= step < 8:
            assert info.node_weights[1] == 0
            continue
        if info.stop:
            break
    assert info.stop.startswith("converged")
    weights = np.asarray(info.node_weights, float)
    lowest = federation.minimum(starts=3)
    assert federation.outer(weights / weights.sum())[0] <= 1.002 * lowest


def test_it_does_not_converge_with_weight_on_a_node_that_has_just_been_dropped():
    """The sums of an exchange in which a node is lost are those of other weights."""
    drawn = draw_federation(64, **SHAPES)
    # With equal nodes any weights are best, so it converges as soon as the model is trained.
    made = problem(dataclasses.replace(drawn, nodes=drawn.nodes[:1] * 4))
    attended = AttendedSimulation(
        made.federation,
        lambda node, call: NOTHING if node == 0 and call >= 2 else None,
        back=lambda node, step: False,
    )
    loop = NewtonBilevel(cap=0.5, tolerance=1e-2)
    state = loop.init(made.objective.init(jax.random.key(0)), 4)
    for step in range(40):
        attended.begin_step(step)
        state, info = loop.step(state, jax.random.key(step), attended, made.center)
        attended.end_step()
        if info.stop is not None:
            break
    assert info.stop.startswith("converged")
    assert not attended.present[0]
    assert info.node_weights[0] == 0


def test_inputs_that_overflow_end_with_advice():
    drawn = draw_federation(64, **SHAPES)
    nodes = tuple((1e25 * inputs, labels) for inputs, labels in drawn.nodes)
    with pytest.raises(fedkin.FedkinError, match="standardize the features"):
        fit(dataclasses.replace(drawn, nodes=nodes))


def test_the_single_loop_is_the_default_where_nothing_else_is_asked_for():
    assert fedkin.Bilevel().chosen_outer == "single"
    assert fedkin.Bilevel(cap=0.5).chosen_outer == "single"
    assert fedkin.Bilevel(solver="cg").chosen_outer == "adaptive"
    assert fedkin.Bilevel(rounds=5).chosen_outer == "adaptive"
    assert fedkin.Bilevel.paper().chosen_outer == "proximal"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"outer": "single", "rounds": 5}, "rounds changes nothing with outer='single'"),
        ({"outer": "single", "solver": "cg"}, "solver changes nothing"),
        ({"outer_learning_rate": 0.1}, "chosen by the outer loop 'single'"),
    ],
)
def test_settings_that_the_single_loop_does_not_read_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        fedkin.Bilevel(**settings)


def test_a_step_to_a_bound_reaches_it():
    """In single precision a third is not a third, and a weight of 1e-9 would be left."""
    center = SimpleNamespace(
        search_line=lambda theta, direction, offset, longest, bend: LineSearch(
            float(np.float32(longest)), -1.0, 1.0
        )
    )
    seen = SimpleNamespace(direction=np.ones(2), inner_error=0.0)
    assert float(np.float32(1 / 3)) != 1 / 3
    assert search_line(np.zeros(2), seen, center, 1 / 3).share == 1 / 3
