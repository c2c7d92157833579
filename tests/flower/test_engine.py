"""The engine against the simulation, with messages that go through bytes but not through processes."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.errors import InputError
from fedkin.flower.engine import describe_nodes
from fedkin.flower.jobs.loading import load_job
from fedkin.flower.jobs.study import flower_engine
from fedkin.flower.messenger import Messenger
from fedkin.models.linear import Logistic
from fedkin.models.objective import Objective
from fedkin.studies.cell import run_cell, set_up, simulate
from fedkin.studies.store import RunDirectory
from fedkin.training.checkpoint import chosen_learning_rate
from flower.fake_grid import FakeGrid
from flower.trials import CASES, NAMES, assert_same, config, engine, outcome, settings

# A network takes long to compile: the other methods with it are left to `make flower`.
EVERY_METHOD = [
    *(pytest.param(case, "logistic", 1e-5) for case in CASES),
    *(
        pytest.param(case, "cnn", 1e-3, marks=[] if case == "bilevel-cg" else pytest.mark.flower)
        for case in CASES
    ),
]


@pytest.mark.parametrize(("case", "model", "tolerance"), EVERY_METHOD)
def test_every_method_gives_what_the_simulation_gives(case, model, tolerance, tmp_path):
    run = config(case, model)
    grid = FakeGrid([settings(name) for name in NAMES])
    run_cell(run, tmp_path / "flower", engine=engine(Messenger(grid)))
    run_cell(run, tmp_path / "simulated")
    flower, simulated = (outcome(tmp_path / place, run) for place in ("flower", "simulated"))
    assert_same(flower, simulated, tolerance)


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("case", ["bilevel-cg", "fedavg", "ditto"])
def test_a_run_that_is_resumed_ends_as_if_it_had_not_been_stopped(case, tmp_path):
    run = config(case, steps=3, **({"refresh_probability": 0.3} if case == "fedavg" else {}))

    def stop(state):
        if len(state.history) == 2:
            raise StoppedError

    def grid(place):
        return FakeGrid([settings(name, state=str(tmp_path / place / name)) for name in NAMES])

    run_cell(run, tmp_path / "whole", engine=engine(Messenger(grid("one"))))
    with pytest.raises(StoppedError):
        run_cell(run, tmp_path / "parts", engine=engine(Messenger(grid("two"))), after_step=stop)
    # A resumed run is a new one to Flower: no node remembers anything but what it has on its disk.
    run_cell(run, tmp_path / "parts", engine=engine(Messenger(grid("two"))))
    whole, parts = (outcome(tmp_path / place, run) for place in ("whole", "parts"))
    pd.testing.assert_frame_equal(
        whole[0].drop(columns="seconds"), parts[0].drop(columns="seconds")
    )
    np.testing.assert_array_equal(whole[1]["last"], parts[1]["last"])


def test_a_resumed_node_without_a_disk_begins_anew_and_the_run_goes_on(tmp_path):
    run = config("fedavg", steps=2)

    def stop(state):
        raise StoppedError

    grid = FakeGrid([settings(name) for name in NAMES])
    with pytest.raises(StoppedError):
        run_cell(run, tmp_path, engine=engine(Messenger(grid)), after_step=stop)
    grid = FakeGrid([settings(name) for name in NAMES])
    assert run_cell(run, tmp_path, engine=engine(Messenger(grid)))["warnings"] == []
    assert outcome(tmp_path, run)[0].step.tolist() == [1, 2]


def federation(grid, patience=0.3, case="bilevel-cg"):
    run = config(case)
    return set_up(run, engine=engine(Messenger(grid, patience=patience, interval=0.01))).federation


def product(federation, start, key=None):
    # Not a constant: that shifts all classes alike, and then the data of the nodes make no difference.
    vector = jnp.linspace(-1, 1, 650)
    message = {"vector": vector} | ({"theta": jnp.full(650, 0.01)} if start else {})
    replies, _ = federation.call(
        "hessian_product", message, key=jax.random.key(0), start=start, node_weights=jnp.ones(3) / 3
    )
    return replies["product"]


def test_a_node_that_has_missed_the_beginning_catches_up():
    expected = product(set_up(config("bilevel-cg")).federation, start=True)
    withheld = {"once": True}

    def tamper(name, reply):
        tasks = reply.has_content() and "vectors" in reply.content and len(reply.content["vectors"])
        if name == "majority-1" and tasks and withheld.pop("once", False):
            return None
        return reply

    grid = FakeGrid([settings(name) for name in NAMES], tamper)
    over_flower = federation(grid)
    grid.forget("majority-2")  # it had joined; now it does not know of that
    first = product(over_flower, start=True)
    np.testing.assert_allclose(first[0], expected[0], rtol=1e-5)
    assert not np.allclose(first[1], expected[1], rtol=1e-5)  # stand-ins
    over_flower.begin_step(1)  # majority-2 joins again
    later = product(over_flower, start=False)
    np.testing.assert_allclose(later, expected, rtol=1e-5)
    notes = over_flower.end_step()
    assert any("majority-1" in note and "in time" in note for note in notes)
    assert any("majority-2" in note and "not joined" in note for note in notes)


def test_a_node_that_is_gone_is_found_again_under_another_number():
    """Without keys Flower gives a SuperNode that is started again another number."""
    grid = FakeGrid([settings(name) for name in NAMES])
    over_flower = federation(grid, patience=0.05)
    grid.away.add("majority-2")
    for _ in range(3):
        product(over_flower, start=True)
    np.testing.assert_array_equal(over_flower.present, [True, True, False])
    over_flower.begin_step(1)
    assert not over_flower.present[2]  # still gone
    del grid.settings[102]
    grid.settings |= {110: settings("stranger"), 111: settings("majority-2")}
    grid.away.clear()
    over_flower.begin_step(2)
    assert over_flower.present.all()
    product(over_flower, start=True)
    assert any("majority-2 is back" in note for note in over_flower.end_step())


def test_messages_are_as_few_as_the_synchronizations(tmp_path):
    """Besides one to learn who is there and one to join."""
    grid = FakeGrid([settings(name) for name in NAMES])
    run = config("bilevel-cg")
    run_cell(run, tmp_path, engine=engine(Messenger(grid)))
    history, _ = outcome(tmp_path, run)
    # Two outer iterations of two rounds and three products each, as docs/costs.md says.
    assert history.synchronizations.iloc[-1] == 2 * (2 + 3)
    assert len(grid.sent) == 3 * (2 + 10)


def test_only_vectors_of_model_size_and_numbers_cross(tmp_path):
    grid = FakeGrid([settings(name) for name in NAMES])
    for case in ("bilevel-svrg", "pfedme"):
        run_cell(config(case), tmp_path, engine=engine(Messenger(grid)))
    for message in [*grid.sent, *grid.received]:
        assert set(message.content) <= {"request", "answer", "vectors"}
        for array in message.content["vectors"].values():
            assert array.shape == (650,)
            assert array.dtype == "float32"
        (values,) = message.content.config_records.values()
        for name, value in values.items():
            assert isinstance(value, (int, float, bool, str)), name
            assert not isinstance(value, str) or len(value) < 100, name


def test_nodes_train_with_the_l2_of_the_centers_model():
    run = config("bilevel-cg")
    scene = set_up(run)
    model = replace(scene.objective.model, l2=0.5)
    sample = np.asarray(model.prepare(jnp.asarray(scene.data.nodes[0][0][:2])))
    objective = Objective.create(model, sample)
    grid = FakeGrid([settings(name) for name in NAMES])
    over_flower = engine(Messenger(grid))(run, scene.data, objective)
    expected = product(simulate(run, scene.data, objective), start=True)
    np.testing.assert_allclose(product(over_flower, start=True), expected, rtol=1e-5)
    default = product(scene.federation, start=True)
    assert np.abs(np.asarray(expected - default)).max() > 0.4  # l2 makes a difference


def test_a_model_that_nodes_do_not_have_is_refused():
    class Changed(Logistic):
        pass

    scene = set_up(config("bilevel-cg"))
    objective = replace(scene.objective, model=Changed(classes=10))
    grid = FakeGrid([settings(name) for name in NAMES])
    with pytest.raises(InputError, match="logistic, ridge, mlp, cnn, not Changed"):
        engine(Messenger(grid))(config("bilevel-cg"), scene.data, objective)


def test_two_nodes_of_one_name_are_told():
    grid = FakeGrid([settings("minority-1"), settings("minority-1"), settings("majority-1")])
    with pytest.raises(InputError, match="two nodes are called 'minority-1'"):
        set_up(config("fedavg"), engine=partial(flower_engine, Messenger(grid), wait=0.1))


def test_a_node_of_another_data_set_cannot_take_part():
    other = settings("majority-2") | {"train-size": 8}
    grid = FakeGrid([settings("minority-1"), settings("majority-1"), other])
    with pytest.raises(InputError, match="fewer points than its owner requires"):
        set_up(config("fedavg"), engine=partial(flower_engine, Messenger(grid), wait=0.1))


# Nodes that are gone for good


def automatic(case, **more):
    """A run whose step size comes from the nodes' own data."""
    return config(case, preset="automatic", learning_rate=None, **more)


@pytest.mark.parametrize("case", ["bilevel-adaptive", "fedavg"])
def test_a_run_that_has_lost_a_node_for_good_is_resumed_without_it(case, tmp_path):
    run = automatic(case, steps=3)

    def stop(state):
        raise StoppedError

    def quick(grid):
        return partial(flower_engine, Messenger(grid, patience=0.3, interval=0.01), wait=0.2)

    grid = FakeGrid([settings(name) for name in NAMES])
    with pytest.raises(StoppedError):
        run_cell(run, tmp_path, engine=quick(grid), after_step=stop)
    begun = chosen_learning_rate(RunDirectory(tmp_path, run).checkpoint)
    grid = FakeGrid([settings(name) for name in NAMES])
    grid.away.add("minority-1")  # the one whose data are the steepest decides no more
    told = run_cell(run, tmp_path, engine=quick(grid))
    history, _ = outcome(tmp_path, run)
    assert any("minority-1 is missing" in warning for warning in told["warnings"])
    assert history["weight minority-1"].tolist()[1:] == [0, 0]
    assert history["weight minority-1"][0] > 0
    assert history.step.tolist() == [1, 2, 3]
    parameters = told["parameters"]
    assert (parameters.get("inner") or parameters["settings"])["learning_rate"] == begun


def test_a_run_begins_without_a_node_and_takes_it_in_when_it_comes():
    grid = FakeGrid([settings(name) for name in NAMES])
    grid.away.add("majority-2")
    messenger = Messenger(grid, patience=0.3, interval=0.01)
    run = config("bilevel-cg")
    made = set_up(run, engine=partial(flower_engine, messenger, wait=0.05)).federation
    np.testing.assert_array_equal(made.present, [True, True, False])
    assert made.batches == set_up(run).federation.batches
    made.begin_step(0)
    product(made, start=True)
    np.testing.assert_array_equal(made.present, [True, True, False])
    grid.away.clear()
    made.begin_step(1)
    assert made.present.all()
    expected = product(set_up(run).federation, start=True)
    np.testing.assert_allclose(product(made, start=True), expected, rtol=1e-5)
    grid.away |= {"majority-1", "majority-2"}
    with pytest.raises(InputError, match=r"1 of 3 nodes are ready after 0\.05 s"):
        set_up(run, engine=partial(flower_engine, messenger, wait=0.05))


def test_who_was_dropped_stays_so_over_a_checkpoint():
    grid = FakeGrid([settings(name) for name in NAMES])
    first, second = federation(grid), federation(grid)
    first.present[1] = False
    second.import_state(first.export_state())
    np.testing.assert_array_equal(second.present, [True, False, True])


def test_later_runs_of_a_study_go_on_without_a_node_that_is_gone(tmp_path):
    grid = FakeGrid([settings(name) for name in NAMES])
    grid.away.add("majority-1")
    path = tmp_path / "study.toml"
    path.write_text(
        "dataset = 'digits'\nsetting = 2\nmethod = ['fedavg', 'ditto']\nmodel = 'logistic'\nsteps = 1\n"
        "minority_nodes = 1\nmajority_nodes = 2\n[settings]\nrounds = 2\nlearning_rate = 0.05\n"
        "[federation]\nwait = 0.1\npatience = 0.3\n"
    )
    load_job(path).carry_out(Messenger(grid, 0.3, 0.01), tmp_path / "out", resume=False)
    runs = fedkin.results(tmp_path / "out")
    assert len(runs) == 2


def test_a_node_that_is_slow_to_say_who_it_is_is_asked_again():
    silent = {"majority-1": 2}

    def tamper(name, reply):
        silent[name] = silent.get(name, 0) - 1
        return None if silent[name] >= 0 else reply

    grid = FakeGrid([settings(name) for name in NAMES], tamper)
    found = describe_nodes(Messenger(grid, patience=0.02, interval=0.01), 3, 2.0)
    assert {node.name for node in found} == set(NAMES)


def test_a_node_that_refuses_is_not_asked_again():
    grid = FakeGrid([settings("minority-1"), settings("majority-1", **{"minimum-points": 10_000})])
    with pytest.raises(InputError, match="fewer points"):
        describe_nodes(Messenger(grid, patience=0.02, interval=0.01), 2, 0.5, enough=1)
    assert len(grid.sent) == 2


def test_a_node_that_came_back_slowly_is_no_stranger():
    slow = {"now": False}

    def tamper(name, reply):
        return None if name == "majority-2" and slow["now"] else reply

    grid = FakeGrid([settings(name) for name in NAMES], tamper)
    over_flower = federation(grid, patience=0.05)
    over_flower.present[2] = False
    del grid.settings[102]
    grid.settings[111] = settings("majority-2")
    slow["now"] = True
    over_flower.begin_step(1)
    assert not over_flower.present[2]
    slow["now"] = False
    over_flower.begin_step(2)
    assert over_flower.present.all()


def test_what_has_no_beginning_is_not_asked_to_begin(caplog):
    """The slope is of a linearization: a node without one cannot be helped by asking again."""
    grid = FakeGrid([settings(name) for name in NAMES])
    over_flower = federation(grid)
    product(over_flower, start=True)
    grid.contexts[101].state.pop("slot.linearization")
    grid.contexts[101].state["series"].pop("linearization")
    before = len(grid.sent)
    with caplog.at_level("INFO"):
        over_flower.call("slope", {"vector": jnp.ones(650)}, key=jax.random.key(0))
    assert len(grid.sent) == before + 3
    notes = over_flower.end_step()
    assert any("missed the beginning" in note for note in notes)
    assert not any("cannot begin" in note for note in notes)


def test_a_node_that_restarts_is_logged(caplog):
    grid = FakeGrid([settings(name) for name in NAMES])
    over_flower = federation(grid)
    product(over_flower, start=True)
    grid.contexts[101].state["series"].pop("linearization")
    with caplog.at_level("INFO"):
        product(over_flower, start=False)
    assert "majority-1 restarts at hessian_product" in caplog.text
