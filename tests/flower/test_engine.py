"""The engine against the simulation, with messages that go through bytes but not through processes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.errors import InputError
from fedkin.events import StepDone
from fedkin.federation.attendance import TooFewNodesError
from fedkin.federation.base import PerNode, Revealed, WeightedSum
from fedkin.federation.task import slots_of
from fedkin.flower import wire
from fedkin.flower.discovery import describe_nodes
from fedkin.flower.jobs.loading import load_job
from fedkin.flower.messenger import Messenger
from fedkin.methods.bilevel.node import HESSIAN_PRODUCT, SLOPE
from fedkin.methods.registry import METHODS
from fedkin.models.linear import Logistic
from fedkin.models.objective import Objective
from fedkin.studies.cell import do_run, draw_problem, simulate
from fedkin.studies.config import RunConfig
from fedkin.studies.store import RunDirectory
from fedkin.training.checkpoint import read_made_with
from flower.fake_grid import FakeGrid
from flower.trials import CASES, NAMES, assert_same, config, engines, outcome, settings

# A network takes long to compile: the other methods with it are left to `make flower`.
EVERY_METHOD = [
    *(pytest.param(case, "logistic", 1e-5) for case in CASES),
    *(
        pytest.param(case, "cnn", 1e-3, marks=[] if case == "bilevel-cg" else pytest.mark.flower)
        for case in CASES
    ),
]


def grid_of_all(**more):
    return FakeGrid([settings(name, **more) for name in NAMES])


def same_as_simulation(run, grid, directory, tolerance):
    """Compare the results of a run; return the one over Flower."""
    do_run(run, directory / "flower", engine=engines(Messenger(grid)))
    do_run(run, directory / "simulated")
    flower, simulated = (outcome(directory / place, run) for place in ("flower", "simulated"))
    assert_same(flower, simulated, tolerance)
    return flower


@pytest.mark.parametrize(("case", "model", "tolerance"), EVERY_METHOD)
def test_every_method_gives_what_the_simulation_gives(case, model, tolerance, tmp_path):
    same_as_simulation(config(case, model), grid_of_all(), tmp_path, tolerance)


def test_nodes_of_weight_zero_get_no_message(tmp_path):
    """Except for one that asks for their slope; and the numbers are those of the simulation."""
    run = config("bilevel-cg", steps=3, ask_all=False, outer_learning_rate=20.0)
    grid = grid_of_all()
    history, _ = same_as_simulation(run, grid, tmp_path, 1e-4)
    assert (history["weight majority-1"] == 0).tolist() == [False, True, True]
    assert history[["weight minority-1", "weight majority-2"]].to_numpy().min() > 0
    # Two rounds and three products, of those that count.
    assert history.nodes_asked.tolist() == [15, 15 + 11, 15 + 11 + 11]
    messages = dict.fromkeys(NAMES, 0)
    for sent in grid.sent:
        messages[grid.name(sent.metadata.dst_node_id)] += 1
    joining = 2
    assert messages == {
        "minority-1": joining + 15,
        "majority-1": joining + 5 + 1 + 1,
        "majority-2": joining + 15,
    }


class StoppedError(Exception):
    pass


def stop_after(steps):
    def on_event(event):
        if isinstance(event, StepDone) and event.step == steps:
            raise StoppedError

    return on_event


@pytest.mark.parametrize("case", ["bilevel-cg", "fedavg", "ditto"])
def test_a_run_that_is_resumed_ends_as_if_it_had_not_been_stopped(case, tmp_path):
    run = config(case, steps=3, **({"refresh_probability": 0.3} if case == "fedavg" else {}))

    def nodes(place):
        grid = FakeGrid([settings(name, state=str(tmp_path / place / name)) for name in NAMES])
        return engines(Messenger(grid))

    do_run(run, tmp_path / "whole", engine=nodes("one"))
    with pytest.raises(StoppedError):
        do_run(run, tmp_path / "parts", engine=nodes("two"), on_event=stop_after(2))
    # To Flower, a resumed run is a new run: no node remembers anything but what is on its disk.
    do_run(run, tmp_path / "parts", engine=nodes("two"))
    whole, parts = (outcome(tmp_path / place, run) for place in ("whole", "parts"))
    pd.testing.assert_frame_equal(
        whole[0].drop(columns="seconds"), parts[0].drop(columns="seconds")
    )
    np.testing.assert_array_equal(whole[1]["last"], parts[1]["last"])


def test_a_resumed_node_without_a_disk_begins_again_and_the_run_continues(tmp_path):
    run = config("fedavg", steps=2)
    with pytest.raises(StoppedError):
        do_run(run, tmp_path, engine=engines(Messenger(grid_of_all())), on_event=stop_after(1))
    assert do_run(run, tmp_path, engine=engines(Messenger(grid_of_all())))["warnings"] == []
    assert outcome(tmp_path, run)[0].step.tolist() == [1, 2]


def federation(grid, patience=0.3, wait=10.0):
    messenger = Messenger(grid, patience=patience, interval=0.01)
    return draw_problem(config("bilevel-cg"), engine=engines(messenger, wait)).problem.federation


@pytest.fixture(scope="module")
def simulated():
    return draw_problem(config("bilevel-cg")).problem.federation


# Not a constant: that shifts all classes alike, and then the data of the nodes make no difference.
VECTOR = jnp.linspace(-1, 1, 650)
THETA = 0.1 * jnp.sin(jnp.arange(650))
EQUAL = (1 / 3, 1 / 3, 1 / 3)


def product(federation, *, begin, weights=EQUAL):
    """Ask for the product of the weighted Hessian with a vector."""
    message = {"vector": VECTOR} | ({"theta": THETA} if begin else {})
    request = WeightedSum(HESSIAN_PRODUCT, message, weights=jnp.array(weights), begin=begin)
    return federation.exchange(hessian=request, key=jax.random.key(0)).hessian["product"]


def slopes(federation, *, begin):
    message = {"vector": VECTOR} | ({"theta": THETA} if begin else {})
    request = PerNode(SLOPE, message, begin=begin)
    return federation.exchange(slope=request, key=jax.random.key(0)).slope["slope"]


def test_a_node_that_has_missed_the_beginning_catches_up(simulated):
    withheld = {"once": True}

    def tamper(name, reply):
        tasks = reply.has_content() and wire.ARRAYS in reply.content["answer"]
        if name == "majority-1" and tasks and withheld.pop("once", False):
            return None
        return reply

    grid = FakeGrid([settings(name) for name in NAMES], tamper)
    over_flower = federation(grid)
    grid.forget("majority-2")  # it had joined; now it does not know of that
    first = product(over_flower, begin=True)
    # The weights of the others are those of the one that answered.
    expected = product(simulated, begin=True, weights=(1, 0, 0))
    np.testing.assert_allclose(first, expected, rtol=1e-5)
    over_flower.begin_step(1)  # majority-2 joins again
    later = product(over_flower, begin=False)
    np.testing.assert_allclose(later, product(simulated, begin=True), rtol=1e-5)
    notes = over_flower.end_step()
    assert any("majority-1" in note and "in time" in note for note in notes)
    assert any("majority-2" in note and "not joined" in note for note in notes)


def test_a_node_that_lost_its_memory_in_a_series_begins_again(simulated, caplog):
    """With the θ that the series began with; what it is asked along does not matter."""
    grid = grid_of_all()
    over_flower = federation(grid)
    expected = slopes(simulated, begin=True)
    np.testing.assert_allclose(slopes(over_flower, begin=True), expected, rtol=1e-5)
    grid.forget("majority-2")
    missing = slopes(over_flower, begin=False)
    np.testing.assert_array_equal(np.isnan(missing), [False, False, True])
    over_flower.begin_step(1)
    before = len(grid.sent)
    with caplog.at_level("INFO"):
        later = slopes(over_flower, begin=False)
    np.testing.assert_allclose(later, expected, rtol=1e-5)
    assert "majority-2 begins again" in caplog.text
    assert len(grid.sent) == before + 3 + 1
    slopes(over_flower, begin=False)
    assert len(grid.sent) == before + 3 + 1 + 3  # now it remembers


def test_a_node_that_is_gone_is_found_again_under_another_number():
    """Without keys Flower gives a SuperNode that is started again another number."""
    grid = grid_of_all()
    over_flower = federation(grid, patience=0.05)
    grid.away.add("majority-2")
    for _ in range(3):
        product(over_flower, begin=True)
    np.testing.assert_array_equal(over_flower.present, [True, True, False])
    over_flower.begin_step(1)
    assert not over_flower.present[2]  # still gone
    del grid.settings[102]
    grid.settings |= {110: settings("stranger"), 111: settings("majority-2")}
    grid.away.clear()
    over_flower.begin_step(2)
    assert over_flower.present.all()
    product(over_flower, begin=True)
    assert any("majority-2 is back" in note for note in over_flower.end_step())


@pytest.mark.parametrize("is_missed", [True, False])
def test_the_reason_why_a_node_cannot_rejoin_is_reported(is_missed):
    """Whether it was dropped in between, or has only lost its memory."""
    grid = grid_of_all()
    over_flower = federation(grid, patience=0.05)
    if is_missed:
        grid.away.add("majority-2")
    else:
        grid.forget("majority-2")
    for _ in range(3 if is_missed else 1):
        product(over_flower, begin=True)
    over_flower.end_step()
    grid.away.clear()
    grid.contexts.pop(102, None)
    grid.settings[102] |= {"minimum-points": 100_000}
    over_flower.begin_step(1)
    (note,) = over_flower.end_step()
    assert "majority-2 is back, but cannot take part" in note
    assert "see its owner's log" in note
    assert bool(over_flower.present[2]) is not is_missed


def test_messages_are_as_few_as_the_synchronizations(tmp_path):
    """In addition to one for describing the node and one for joining."""
    grid = grid_of_all()
    run = config("bilevel-cg")
    do_run(run, tmp_path, engine=engines(Messenger(grid)))
    history, _ = outcome(tmp_path, run)
    # Two outer iterations of two rounds and three products each, as docs/costs.md says.
    assert history.synchronizations.iloc[-1] == 2 * (2 + 3)
    assert len(grid.sent) == 3 * (2 + 10)


def test_requests_travel_in_one_message_and_a_shared_array_once():
    grid = grid_of_all()
    over_flower = federation(grid)
    before = len(grid.sent)
    message = {"vector": VECTOR, "theta": THETA}
    over_flower.exchange(
        hessian=WeightedSum(HESSIAN_PRODUCT, message, weights=jnp.array(EQUAL), begin=True),
        # Copies, since it is the content that is shared.
        slope=PerNode(SLOPE, {name: jnp.array(each) for name, each in message.items()}, begin=True),
        key=jax.random.key(0),
    )
    assert len(grid.sent) == before + 3
    for sent in grid.sent[before:]:
        parcel = wire.unpack("request", sent.content, len(VECTOR))
        values, arrays = parcel.values, parcel.vectors
        assert values["requests"] == "hessian,slope"
        assert len(arrays) == 2
        for name in ("vector", "theta"):
            place = values[f"hessian.vector.{name}"]
            assert place == values[f"slope.vector.{name}"]
            np.testing.assert_array_equal(arrays[place], message[name])


def test_only_vectors_of_model_size_and_numbers_cross(tmp_path):
    grid = grid_of_all()
    for case in ("bilevel-svrg", "pfedme"):
        do_run(config(case), tmp_path, engine=engines(Messenger(grid)))
    for message in [*grid.sent, *grid.received]:
        (kind,) = message.content
        parcel = wire.unpack(kind, message.content, 650)
        for array in parcel.vectors.values():
            assert array.shape == (650,)
            assert array.dtype == "float32"
        for name, value in parcel.values.items():
            assert isinstance(value, (int, float, bool, str)), name
            assert name == "card" or not isinstance(value, str) or len(value) < 100, name


def make(run, grid, objective):
    """Make a federation with another model than that of the run."""
    return engines(Messenger(grid))(run, draw_problem(run).data)(objective)


def test_nodes_train_with_the_l2_of_the_centers_model(simulated):
    run = config("bilevel-cg")
    drawn = draw_problem(run)
    model = replace(simulated.objective.model, l2=0.5)
    sample = np.asarray(model.prepare(jnp.asarray(drawn.data.nodes[0][0][:2])))
    objective = Objective.create(model, sample)
    over_flower = make(run, grid_of_all(), objective)
    expected = product(simulate(run, drawn.data)(objective), begin=True)
    np.testing.assert_allclose(product(over_flower, begin=True), expected, rtol=1e-5)
    default = product(simulated, begin=True)
    assert np.abs(np.asarray(expected - default)).max() > 0.4  # l2 makes a difference


def test_a_model_that_nodes_do_not_have_is_refused(simulated):
    """It has the name of one of fedkin's own, but is another: nodes would train something else."""

    class Changed(Logistic):
        pass

    objective = replace(simulated.objective, model=Changed(classes=10))
    with pytest.raises(InputError, match="l2 is a setting of fedkin's own models, which need it"):
        make(config("bilevel-cg"), grid_of_all(), objective)


def test_two_nodes_of_one_name_are_reported():
    grid = FakeGrid([settings("minority-1"), settings("minority-1"), settings("majority-1")])
    with pytest.raises(InputError, match="two nodes are called 'minority-1'"):
        federation(grid, wait=0.1)


def test_a_node_of_another_data_set_cannot_take_part():
    other = settings("majority-2") | {"train-size": 8}
    grid = FakeGrid([settings("minority-1"), settings("majority-1"), other])
    with pytest.raises(InputError, match="see its owner's log"):
        federation(grid, wait=0.1)


# Methods and models of other packages


@pytest.fixture
def only_own_methods(monkeypatch):
    """Nodes of a test share one registry with it; in reality each has its own process."""
    monkeypatch.setattr(METHODS, "_things", dict(METHODS._things))
    assert "outside_median" not in METHODS.names()


def outside(method="flower.outside:Median", model="logistic", **more):
    return RunConfig(
        dataset="digits",
        setting=2,
        method=method,
        model=model,
        steps=2,
        minority_nodes=1,
        majority_nodes=2,
        settings=more,
    )


METHOD = "flower.outside:Median"


@pytest.mark.usefixtures("only_own_methods")
def test_a_method_of_another_package_gives_what_the_simulation_gives(tmp_path):
    same_as_simulation(outside(), grid_of_all(methods=METHOD, reveal=True), tmp_path, 1e-5)


@pytest.mark.usefixtures("only_own_methods")
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"reveal": True}, "there is no task 'outside_descent'"),
        ({"methods": METHOD}, "does not allow requests for its own vectors"),
        (
            {"methods": METHOD, "reveal": True, "allow": "describe"},
            "does not allow outside_descent",
        ),
    ],
    ids=["not among its methods", "not revealed", "not allowed"],
)
def test_a_node_takes_part_only_in_what_its_owner_has_chosen(tmp_path, more, told):
    with pytest.raises(TooFewNodesError, match=told):
        do_run(outside(), tmp_path, engine=engines(Messenger(grid_of_all(**more))))


def test_a_node_that_reveals_nothing_is_left_out():
    """The others' vectors arrive, its own are unknown."""
    nodes = [settings(name, reveal=name != "majority-1") for name in NAMES]
    over_flower = federation(FakeGrid(nodes))
    message = {"vector": VECTOR, "theta": THETA}
    reply = over_flower.exchange(
        each=Revealed(HESSIAN_PRODUCT, message, begin=True), key=jax.random.key(0)
    )
    unknown = np.isnan(reply.each["product"])
    np.testing.assert_array_equal(unknown.all(axis=1), [False, True, False])
    assert not unknown[[0, 2]].any()
    (note,) = over_flower.end_step()
    assert "majority-1 was left out" in note
    assert "(reveal)" in note


@pytest.mark.parametrize("model", ["flower.outside:narrow", "flower.outside:Linear"])
def test_a_model_of_another_package_gives_what_the_simulation_gives(tmp_path, model):
    run = outside("fedavg", model, learning_rate=0.05, period=5, rounds=2)
    grid = grid_of_all(models=model)
    same_as_simulation(run, grid, tmp_path, 1e-4)
    joins = [sent.content["request"] for sent in grid.sent]
    joins = [values for values in joins if values["kind"] == "join"]
    assert [values["model"] for values in joins] == [model] * 3
    assert not any("l2" in values for values in joins)


# Nodes that are gone for good


def automatic(case, **more):
    """A run whose step size comes from the nodes' own data."""
    return config(case, preset="automatic", learning_rate=None, **more)


@pytest.mark.parametrize("case", ["bilevel-adaptive", "fedavg"])
def test_a_run_that_has_lost_a_node_for_good_is_resumed_without_it(case, tmp_path):
    run = automatic(case, steps=3)

    def quick(grid):
        return engines(Messenger(grid, patience=0.3, interval=0.01), 0.2)

    def learning_rate(parameters):
        training = parameters.get("training") or parameters["differentiation"]["inner"]
        return training["learning_rate"]

    with pytest.raises(StoppedError):
        do_run(run, tmp_path, engine=quick(grid_of_all()), on_event=stop_after(1))
    begun = read_made_with(RunDirectory(tmp_path, run).checkpoint)
    grid = grid_of_all()
    grid.away.add("minority-1")  # the one whose data are the steepest decides no more
    found = do_run(run, tmp_path, engine=quick(grid))
    history, _ = outcome(tmp_path, run)
    assert any("minority-1 is missing" in warning for warning in found["warnings"])
    assert history["weight minority-1"].tolist()[1:] == [0, 0]
    assert history["weight minority-1"][0] > 0
    assert history.step.tolist() == [1, 2, 3]
    assert learning_rate(found["parameters"]) == learning_rate(begun["parameters"])


def test_a_run_begins_without_a_node_that_joins_when_it_connects(simulated):
    grid = grid_of_all()
    grid.away.add("majority-2")
    made = federation(grid, wait=0.05)
    np.testing.assert_array_equal(made.present, [True, True, False])
    assert made.batches == simulated.batches
    made.begin_step(0)
    product(made, begin=True)
    np.testing.assert_array_equal(made.present, [True, True, False])
    grid.away.clear()
    made.begin_step(1)
    assert made.present.all()
    expected = product(simulated, begin=True)
    np.testing.assert_allclose(product(made, begin=True), expected, rtol=1e-5)
    grid.away |= {"majority-1", "majority-2"}
    with pytest.raises(InputError, match=r"1 of 3 nodes are ready after 0\.05 s"):
        federation(grid, wait=0.05)


def test_a_dropped_node_stays_dropped_over_a_checkpoint():
    grid = grid_of_all()
    first, second = federation(grid), federation(grid)
    first.present[1] = False
    second.import_state(first.export_state(), slots_of([HESSIAN_PRODUCT]))
    np.testing.assert_array_equal(second.present, [True, False, True])


def test_later_runs_of_a_study_continue_without_a_node_that_is_gone(tmp_path):
    grid = grid_of_all()
    grid.away.add("majority-1")
    path = tmp_path / "study.toml"
    path.write_text(
        "dataset = 'digits'\nsetting = 2\nmethod = ['fedavg', 'ditto']\nmodel = 'logistic'\nsteps = 1\n"
        "minority_nodes = 1\nmajority_nodes = 2\n[settings]\nrounds = 2\nlearning_rate = 0.05\n"
        "[federation]\nwait = 0.1\npatience = 0.3\nplain-sums = true\n"
    )
    load_job(path).carry_out(Messenger(grid, 0.3, 0.01), tmp_path / "out", resume=False)
    runs = fedkin.results(tmp_path / "out")
    assert len(runs) == 2


def test_a_node_that_is_slow_to_describe_itself_is_asked_again():
    silent = {"majority-1": 2}

    def tamper(name, reply):
        silent[name] = silent.get(name, 0) - 1
        return None if silent[name] >= 0 else reply

    grid = FakeGrid([settings(name) for name in NAMES], tamper)
    found = describe_nodes(Messenger(grid, patience=0.02, interval=0.01), 3, 2.0)
    assert {node.name for node in found} == set(NAMES)


def test_a_node_that_refuses_is_not_asked_again():
    grid = FakeGrid([settings("minority-1"), settings("majority-1", **{"minimum-points": 10_000})])
    with pytest.raises(InputError, match="see its owner's log"):
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
