"""`Problem.train`: its defaults, wherever it is called from, and its checkpoints."""

import io
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedkin
from federations import classification_nodes
from fedkin.errors import InputError
from fedkin.events import RunFinished, RunStarted, StepDone
from fedkin.methods.registry import PAPER_METHODS, make_method
from fedkin.studies.cell import do_run
from fedkin.studies.config import RunConfig
from fedkin.training import problem as problem_module
from fedkin.training.problem import Problem, simulation
from fedkin.training.runner import Budget
from mutations import mutated

DATA_FILES = Path(__file__).parents[1] / "data_files"


def small(model="logistic", l2=None):
    nodes, validation = classification_nodes((30, 20, 25))
    engine = simulation(dict(zip("abc", nodes, strict=True)), batch_size=10, seed=0)
    return Problem.build(
        engine, validation, model=model, classes=np.arange(3), l2=l2, batch_size=10
    )


# Defaults


class ReachedError(Exception):
    pass


@pytest.fixture
def asked_for(monkeypatch):
    """Record what the outer loop is asked for, and do not run it."""
    found = {}

    def run(algorithm, federation, *arguments, budget, keep, **others):
        found.update(budget=budget, keep=keep, ask_all=federation.ask_all, algorithm=algorithm)
        raise ReachedError

    monkeypatch.setattr(problem_module, "run", run)
    return found


def by_problem(method, preset, model, directory, **limits):
    small(model).train(make_method(method, {"preset": preset}), budget=Budget(**limits))


def by_fit(method, preset, model, directory, **limits):
    nodes, validation = classification_nodes((30, 20, 25))
    fedkin.fit(nodes, validation, method=method, preset=preset, model=model, **limits)


def by_study(method, preset, model, directory, **limits):
    config = RunConfig(
        dataset="digits",
        setting=2,
        model=model,
        method=method,
        settings={"preset": preset},
        **{"synchronizations": None, **limits},
    )
    do_run(config, directory)


CALLERS = [by_problem, by_fit, by_study]


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize("method", PAPER_METHODS)
def test_defaults_are_the_same_from_everywhere(caller, method, model, asked_for, tmp_path):
    # A step of Bi-level's own loop is a single exchange, so it may take more of them.
    many = 200 if method == "bilevel" else 50
    for preset, steps in (("paper", 20), ("automatic", many)):
        with pytest.raises(ReachedError):
            caller(method, preset, model, tmp_path)
        single = (preset, method, model) == ("automatic", "bilevel", "logistic")
        assert asked_for["budget"] == Budget(steps=200 if single else steps)
        converges = preset == "automatic" and model == "logistic"
        converges = converges and method in ("bilevel", "fedavg", "local")
        converges = converges and caller is not by_study  # where the paper's rule holds
        assert asked_for["keep"] == ("last" if converges else "best")
        assert asked_for["ask_all"] == (preset == "paper")


@pytest.mark.parametrize("caller", CALLERS)
def test_a_budget_is_the_only_limit(caller, asked_for, tmp_path):
    for limits in ({"synchronizations": 70}, {"steps": 3}, {"steps": 3, "synchronizations": 70}):
        with pytest.raises(ReachedError):
            caller("fedavg", "automatic", "logistic", tmp_path, **limits)
        assert asked_for["budget"] == Budget(**limits)
    if caller is not by_fit:
        with pytest.raises(ReachedError):
            caller("fedavg", "automatic", "logistic", tmp_path, points=900)
        assert asked_for["budget"] == Budget(points=900)


def test_what_is_said_counts(asked_for, tmp_path):
    with pytest.raises(ReachedError):
        small().train(make_method("bilevel"), keep="random", ask_all=True)
    assert (asked_for["keep"], asked_for["ask_all"]) == ("random", True)
    with pytest.raises(ReachedError):
        small().train(make_method("bilevel", {"preset": "paper"}), keep="last", ask_all=False)
    assert (asked_for["keep"], asked_for["ask_all"]) == ("last", False)
    nodes, validation = classification_nodes((30, 20, 25))
    with pytest.raises(ReachedError):
        fedkin.fit(nodes, validation, keep="random", ask_all=True)
    assert (asked_for["keep"], asked_for["ask_all"]) == ("random", True)
    config = RunConfig(dataset="digits", setting=2, model="logistic", keep="last", ask_all=False)
    with pytest.raises(ReachedError):
        do_run(config, tmp_path)
    assert (asked_for["keep"], asked_for["ask_all"]) == ("last", False)


def test_the_study_s_own_defaults_are_written_in_its_config(asked_for, tmp_path):
    """Budget and result are the paper's: 800 synchronizations, the best validation accuracy."""
    with pytest.raises(ReachedError):
        do_run(RunConfig(dataset="digits", setting=2, model="logistic"), tmp_path)
    assert asked_for["budget"] == Budget(synchronizations=800)
    assert asked_for["keep"] == "best"


def test_the_events_of_a_run():
    events = []
    trained = small().train(
        make_method("bilevel", {"rounds": 2}),
        budget=Budget(steps=2),
        on_event=events.append,
        run_name="one",
    )
    assert [type(event) for event in events] == [RunStarted, StepDone, StepDone, RunFinished]
    assert {event.run for event in events} == {"one"}
    assert events[0].nodes == ("a", "b", "c")
    assert events[0].resumed_after is None
    for event, row in zip(events[1:3], trained.state.history, strict=True):
        assert (event.step, event.validation_loss) == (row.step, row.validation.loss)
        assert event.weights == tuple(row.node_weights.tolist())
    assert events[-1].stopped == trained.state.stopped


# Checkpoints


class KilledError(Exception):
    pass


METHODS = {
    **{name: make_method(name, {"rounds": 3, "period": 4}) for name in PAPER_METHODS},
    "bilevel svrg": fedkin.Bilevel(
        solver="svrg", outer="proximal", outer_learning_rate=2.0, rounds=3, warm_start_adjoint=True
    ),
    "single loop": fedkin.Bilevel(outer="single", period=4, restarts=1),
    "theory": fedkin.TheoryBilevel(epsilon=0.05, limited=True, cap=0.5, outer="proximal"),
}
STEPS = 3


def outcome(trained):
    state = trained.state
    rows = [replace(row, seconds=0.0, node_weights=None) for row in state.history]
    weights = [
        None if row.node_weights is None else row.node_weights.tolist() for row in state.history
    ]
    return rows, weights, state.kept_theta.tolist(), state.last_theta.tolist(), state.stopped


def interrupted(method, checkpoint, after, l2=None):
    def kill(state):
        if len(state.history) == after:
            raise KilledError

    with pytest.raises(KilledError):
        small(l2=l2).train(
            method, budget=Budget(steps=STEPS), checkpoint=checkpoint, after_step=kill
        )


@pytest.mark.parametrize("name", METHODS)
def test_a_run_continues_from_its_checkpoint_as_if_it_had_not_stopped(name, tmp_path):
    method = METHODS[name]
    l2 = (
        100.0 if name == "theory" else None
    )  # well-conditioned: the theory then asks for few rounds
    whole = small(l2=l2).train(method, budget=Budget(steps=STEPS))
    assert len(whole.state.history) == STEPS
    for after in [2] if name == "theory" else range(1, STEPS):
        checkpoint, events = tmp_path / f"{after}.npz", []
        interrupted(method, checkpoint, after, l2)
        continued = small(l2=l2).train(
            method, budget=Budget(steps=STEPS), checkpoint=checkpoint, on_event=events.append
        )
        assert events[0].resumed_after == after
        assert outcome(continued) == outcome(whole)


def changed(path, change):
    """Write a checkpoint again with its arrays and its description changed."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    description = json.loads(arrays["description"].tobytes())
    arrays = change(arrays, description) or arrays
    arrays["description"] = np.frombuffer(json.dumps(description).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    path.write_bytes(buffer.getvalue())


def rename_slot(arrays, description):
    return {name.replace("slot/inner", "slot/other"): array for name, array in arrays.items()}


def drop_leaf(arrays, description):
    del arrays["federation/slot/inner/2"]


def cut_leaf(arrays, description):
    arrays["federation/slot/inner/0"] = arrays["federation/slot/inner/0"][:, :2]


def other_version(arrays, description):
    description["made_with"]["versions"]["fedkin"] = "0.0.1"


def other_step_size(arrays, description):
    description["made_with"]["parameters"]["training"]["period"] = 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            rename_slot,
            r"damaged or of another version \('other'\): delete it to start this run over",
        ),
        (drop_leaf, "damaged or of another version"),
        (cut_leaf, r"damaged or of another version \(an array of shape"),
        (
            other_version,
            r"made with other versions \(fedkin 0\.0\.1, now .*\): continue with those, or",
        ),
        (other_step_size, r"made with other parameters \(training"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(change, message, tmp_path):
    method, checkpoint = METHODS["fedavg"], tmp_path / "checkpoint.npz"
    interrupted(method, checkpoint, 1)
    changed(checkpoint, change)
    with pytest.raises(InputError, match=message):
        small().train(method, budget=Budget(steps=STEPS), checkpoint=checkpoint)


def test_a_checkpoint_of_other_surroundings_is_refused(tmp_path):
    method, checkpoint = METHODS["fedavg"], tmp_path / "checkpoint.npz"
    made_with = {"data": {"checksum": "1"}}
    small().train(method, budget=Budget(steps=1), checkpoint=checkpoint, made_with=made_with)
    with pytest.raises(InputError, match=r"other data \(checksum 1, now 2\)"):
        small().train(method, checkpoint=checkpoint, made_with={"data": {"checksum": "2"}})


def test_a_run_continues_with_the_step_size_it_began_with(tmp_path):
    """Even where the nodes' data would now lead to another."""
    checkpoint = tmp_path / "checkpoint.npz"
    first = small().train(METHODS["fedavg"], budget=Budget(steps=1), checkpoint=checkpoint)
    nodes, validation = classification_nodes((30, 20, 25))
    wider = {name: (3 * x, y) for name, (x, y) in zip("abc", nodes, strict=True)}
    other = Problem.build(
        simulation(wider, batch_size=10, seed=0), validation, classes=np.arange(3), batch_size=10
    )
    again = other.train(METHODS["fedavg"], budget=Budget(steps=2), checkpoint=checkpoint)
    assert again.parameters == first.parameters
    assert len(again.state.history) == 2
    fresh = other.train(METHODS["fedavg"], budget=Budget(steps=1))
    assert (
        fresh.parameters["training"]["learning_rate"]
        < 0.5 * (first.parameters["training"]["learning_rate"])
    )


def test_only_an_input_error_leaves_a_checkpoint_that_was_changed(tmp_path):
    """Sixty files, changed at random."""
    method, checkpoint, refused = METHODS["fedavg"], tmp_path / "checkpoint.npz", 0
    interrupted(method, checkpoint, 1)
    good, chance = checkpoint.read_bytes(), random.Random(0)

    def loaded(event):
        raise ReachedError

    for _ in range(60):
        checkpoint.write_bytes(mutated(good, chance))
        with pytest.raises((ReachedError, InputError)) as caught:
            small().train(
                method, budget=Budget(steps=STEPS), checkpoint=checkpoint, on_event=loaded
            )
        refused += caught.type is InputError
    assert refused > 40


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, description: {**arrays, "kept_theta": arrays["kept_theta"][:-1]},
        lambda arrays, description: {**arrays, "last_theta": arrays["last_theta"].astype(int)},
        lambda arrays, description: description.update(kept=7),
        lambda arrays, description: description.update(history=[[]]),
        lambda arrays, description: {**arrays, "algorithm/0": arrays["algorithm/0"][:-1]},
    ],
)
def test_a_checkpoint_of_the_wrong_form_is_refused(change, tmp_path):
    method, checkpoint = METHODS["fedavg"], tmp_path / "checkpoint.npz"
    interrupted(method, checkpoint, 1)
    changed(checkpoint, change)
    with pytest.raises(InputError, match="damaged or of another version"):
        small().train(method, budget=Budget(steps=STEPS), checkpoint=checkpoint)
