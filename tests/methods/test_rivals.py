"""What every rival has to keep: one owner and all, resuming, settings, what it sees of nodes."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedkin
from fedkin.errors import InputError
from fedkin.federation.base import Revealed
from fedkin.methods.base import TrainedMethod
from fedkin.methods.descent.center import Descent
from fedkin.methods.local_svrg.training import SvrgMethod
from fedkin.methods.registry import METHODS, PAPER_METHODS, make_method
from fedkin.report.style import revealing
from fedkin.training import problem as problem_module
from fedkin.training.joint import JointProblem, OwnerData
from fedkin.training.runner import Budget
from fedkin.types import Points

RIVALS = tuple(name for name in METHODS.names() if name not in PAPER_METHODS)

OTHER_VALUES = {
    "finetune": {"personal_steps": 10},
    "tawt": {"outer_learning_rate": 3.0},
    "ifca": {"clusters": 3},
    "fedfomo": {},
    "fedamp": {"attraction": 0.3, "sigma": 0.7, "proximal": 0.4},
    "pfedgraph": {"fidelity": 0.2},
    "apfl": {"mixing": 0.2, "mixing_rate": 0.0},
    "fedala": {"mixing_rate": 5.0, "mixing_steps": 2},
    "apple": {"mixing_rate": 0.3, "proximal": 2.0, "decay_rounds": 1},
    "cobo": {"attraction": 0.3, "outer_learning_rate": 0.1},
    "median": {},
    "trimmed-mean": {"trimmed_share": 0.3},
    "krum": {"bad_share": 0.1},
}
"""For every setting that is a method's own, a value that is not the default."""


def points(sign, rows, seed):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 3)).astype(np.float32)
    return Points(x, (sign * x[:, 0] + 0.3 * draw.normal(size=rows) > 0).astype(np.int32))


SIGNS = {"north": 1, "south": 1, "west": -1, "east": -1}
NODES = {
    name: points(sign, 30 + 3 * place, place) for place, (name, sign) in enumerate(SIGNS.items())
}
VALIDATIONS = {
    name: points(sign, 24, 10 + place) for place, (name, sign) in enumerate(SIGNS.items())
}


def small():
    engine = problem_module.simulation(NODES, batch_size=10, seed=0)
    return problem_module.Problem.build(
        engine, VALIDATIONS["north"], classes=np.arange(2), batch_size=10
    )


def short(name, **settings):
    return make_method(name, {"rounds": 2, "period": 4, **settings})


def outcome(trained):
    rows = [replace(row, seconds=0.0, node_weights=None) for row in trained.state.history]
    weights = [
        None if row.node_weights is None else row.node_weights.tolist()
        for row in trained.state.history
    ]
    return rows, weights, trained.state.kept_theta.tolist(), trained.state.last_theta.tolist()


@pytest.mark.parametrize("name", RIVALS)
def test_it_asks_for_what_it_declares_and_continues_where_it_was_interrupted(
    name, tmp_path, monkeypatch
):
    method, asked, revealed = short(name), set(), []
    problem = small()
    for federation in (problem.federation, problem.center.alone):
        exchange = federation.exchange

        def spy(*, key, exchange=exchange, **requests):
            asked.update(request.task for request in requests.values())
            revealed.extend(each for each in requests.values() if isinstance(each, Revealed))
            return exchange(key=key, **requests)

        monkeypatch.setattr(federation, "exchange", spy)
    whole = problem.train(method, budget=Budget(steps=3))
    assert asked == set(method.tasks)
    assert bool(revealed) == method.reveals_models
    said = revealing([name])
    assert said == (
        f"{method.title} needs single nodes' models: no secure aggregation." * bool(revealed)
    )
    checkpoint = tmp_path / "checkpoint.npz"

    class KilledError(Exception):
        pass

    def kill(state):
        if len(state.history) == 1:
            raise KilledError

    with pytest.raises(KilledError):
        small().train(method, budget=Budget(steps=3), checkpoint=checkpoint, after_step=kill)
    continued = small().train(method, budget=Budget(steps=3), checkpoint=checkpoint)
    assert outcome(continued) == outcome(whole)
    assert len({row.cost.synchronizations for row in whole.state.history}) == 3


@pytest.mark.parametrize("name", RIVALS)
def test_all_owners_get_what_each_would_get_alone(name):
    method, budget = short(name), Budget(steps=2)
    owners = {each: OwnerData(VALIDATIONS[each], own=NODES[each]) for each in NODES}

    def joint(chosen):
        own = {each: owners[each] for each in chosen}
        return JointProblem.build(NODES, own, classes=np.arange(2), batch_size=10)

    every = joint(NODES).train(method, budget=budget)
    single = joint(["west"]).train(method, budget=budget)
    for one, other in zip(
        every.runs["west"].state.history, single.runs["west"].state.history, strict=True
    ):
        assert one.cost == other.cost
    models = (run.runs["west"].state.last_theta for run in (every, single))
    np.testing.assert_allclose(*models, rtol=1e-4, atol=1e-6)
    kept = {each: run.state.kept_theta for each, run in every.runs.items()}
    assert all(np.isfinite(theta).all() for theta in kept.values())
    assert np.any(kept["north"] != kept["east"])
    if method.reveals_models and name != "fedfomo":
        # All ask for the same: the nodes train their own models, once for everybody.
        assert every.cost == single.cost


def test_every_setting_is_in_the_list_of_other_values():
    common = {*TrainedMethod.setting_names(), *SvrgMethod.setting_names()}
    own = {name: set(METHODS.get(name).setting_names()) - common for name in RIVALS}
    assert own == {name: set(values) for name, values in OTHER_VALUES.items()}


@pytest.mark.parametrize("name", RIVALS)
def test_every_setting_changes_the_result(name):
    budget = Budget(steps=2)
    plain = small().train(short(name), budget=budget).state
    common = {"learning_rate": 0.03, "period": 3, "rounds": 3}
    for setting, value in (common | OTHER_VALUES[name]).items():
        other = small().train(short(name, **{setting: value}), budget=budget).state
        same_model = np.array_equal(plain.last_theta, other.last_theta)
        same_report = plain.history[-1].diagnostics == other.history[-1].diagnostics
        assert not (same_model and same_report), setting
    method = METHODS.get(name)
    assert issubclass(method, TrainedMethod)
    assert method.paper().asks_all
    for setting, values in method.tuning_grid.items():
        assert len({getattr(method(**{setting: value}), setting) for value in values}) > 1
    with pytest.raises(InputError, match=f"is not a setting of the method '{name}'"):
        make_method(name, {"strength": 1.0})


@pytest.mark.parametrize("name", RIVALS)
def test_it_learns_with_networks_too(name):
    """In the paper's preset: the owner's data are separable, so a learner is right nearly always."""
    # Robust aggregation sides with the majority: without one like the owner it cannot learn.
    more = {"kin": points(1, 40, 5)} if name in ("median", "trimmed-mean", "krum") else {}
    result = fedkin.fit(
        list({**NODES, **more}.values()),
        VALIDATIONS["north"],
        model="mlp",
        method=make_method(name, {"preset": "paper", "learning_rate": 0.2, "period": 10}),
        test=points(1, 200, 99),
        steps=4,
    )
    assert np.isfinite(result.theta).all()
    assert result.history.test_accuracy.iloc[-1] > (0.4 if name == "ifca" else 0.55)


def test_an_open_step_size_suits_everybody():
    """It is the same for all owners that are nodes, so that they ask for the same."""
    problem = small()
    method = METHODS.get("ifca")()
    outside, _ = method.choose_descent(problem.federation, problem.center, jax.random.key(0))
    inside, cost = method.choose_descent(
        problem.federation, problem.center.with_own_node(0), jax.random.key(0)
    )
    assert isinstance(inside, Descent)
    assert outside.learning_rate <= inside.learning_rate
    assert cost.synchronizations == 1
