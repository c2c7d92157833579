"""Real SuperLink, SuperNode, worker and ServerApp processes, against the simulation."""

import json
import os
import re
import signal

import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from fedkin.events import EventReader, RunStarted, Warned
from fedkin.federation.simulation import SimulatedFederation
from fedkin.methods.fedavg import FedAvgAlgorithm
from fedkin.methods.local_svrg.center import LocalSvrg
from fedkin.studies.cell import do_run, draw_problem
from fedkin.studies.store import RunDirectory
from fedkin.training.keys import initial_model_key, training_key
from fedkin.training.runner import Budget, begin
from fedkin.training.runner import run as run_steps
from flower.processes import Processes, wait_until
from flower.recorder import Recorder
from flower.trials import NAMES, assert_same, config, outcome, settings

PATIENCE = 900
"""Seconds that anything may take: on a calm machine a run takes one minute, on a busy one many."""

STUDY = """
dataset = "digits"
setting = 2
method = "{method}"
model = "{model}"
steps = {steps}
minority_nodes = {minority}
majority_nodes = {majority}

[federation]
plain-sums = true
patience = {patience}

[settings]
"""


def write_study(path, run, patience=120):
    """Write a run as a study of one."""
    text = STUDY.format(
        method=run.method,
        model=run.model,
        steps=run.steps,
        minority=run.minority_nodes,
        majority=run.majority_nodes,
        patience=patience,
    )
    lines = [f"{name} = {json.dumps(value)}" for name, value in run.settings.items()]
    path.write_text(text + "\n".join(lines))
    # A study has a default budget, which is part of the run's name.
    return run.model_copy(update={"synchronizations": 800})


class Trial:
    """A federation of three nodes."""

    def __init__(self, directory, *, database=False):
        self.processes = Processes(directory, database=database)
        self.directory = directory
        self.processes.start_superlink()
        self.recorder = Recorder(self.processes.port)
        for name in NAMES:
            self.start_node(name)

    def start_node(self, name, **more):
        link = self.recorder.port if name == NAMES[0] else None
        state = self.directory / "state" / name
        self.processes.start_node(superlink=link, **settings(name, state=state), **more)

    def submit(self, run, out, **more):
        study = self.directory / "study.toml"
        run = write_study(study, run, **more)
        self.processes.submit(study, out, resume=out.exists())
        return run, RunDirectory(out / "runs", run)

    def finish(self, directory):
        wait_until(directory.is_finished, PATIENCE, f"the end of {directory.path.name}")

    def stop(self):
        self.processes.stop()
        self.recorder.close()


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """One federation for all tests of this file that leave it as it was."""
    made = Trial(tmp_path_factory.mktemp("federation"))
    try:
        yield made
    finally:
        made.stop()
    wait_until(lambda: not made.processes.left_running(), 30, "the end of all processes")


def equals_simulation(run, out, tmp_path, tolerance):
    do_run(run, tmp_path / "simulated")
    assert_same(outcome(out / "runs", run), outcome(tmp_path / "simulated", run), tolerance)


@pytest.mark.flower
def test_a_server_app_killed_and_resumed_ends_as_the_simulation_does(trial, tmp_path):
    """Also looks at every byte between one node and the SuperLink."""
    out = tmp_path / "out"
    run, directory = trial.submit(config("bilevel-cg"), out)
    wait_until(directory.checkpoint.exists, PATIENCE, "the first checkpoint")
    for process in trial.processes.left_running("serverapp.py"):
        os.kill(process, signal.SIGKILL)
    assert not directory.is_finished()
    trial.submit(config("bilevel-cg"), out)
    trial.finish(directory)
    starts = [each for each in EventReader(directory.events).new() if isinstance(each, RunStarted)]
    assert starts[-1].resumed_after == 1
    equals_simulation(run, out, tmp_path, 1e-5)
    only_vectors_and_numbers_cross(trial.recorder.recorded, run)


def only_vectors_and_numbers_cross(recorded, run):
    drawn = draw_problem(run)
    size = drawn.problem.objective.size
    shapes = {"up": [], "down": []}
    for way, data in recorded.items():
        for match in re.finditer(rb"[\w./]+=(\w\d):([\dx]*)", bytes(data)):
            shapes[way].append((match[1], match[2]))
    assert len(shapes["up"]) >= 8, "the recording has seen nothing"
    assert set(shapes["up"]) == set(shapes["down"]) == {(b"f4", str(size).encode())}
    # None of the node's images has left it, neither as bytes nor as the numbers that the model sees.
    images = drawn.data.nodes[0][0]
    sent = bytes(recorded["up"])
    for image in images:
        assert image.tobytes() not in sent
        assert (image.astype(np.float32) / 255).tobytes() not in sent


@pytest.mark.flower
@pytest.mark.parametrize("model", ["logistic", "cnn"])
@pytest.mark.parametrize("case", ["bilevel-cg", "bilevel-svrg", "fedavg", "ditto", "pfedme"])
def test_every_method_gives_what_the_simulation_gives(trial, tmp_path, case, model):
    run, directory = trial.submit(config(case, model), tmp_path / "out")
    trial.finish(directory)
    equals_simulation(run, tmp_path / "out", tmp_path, {"logistic": 1e-5, "cnn": 1e-3}[model])


@pytest.mark.flower
def test_fedavg_killed_and_resumed_ends_as_the_simulation_does(trial, tmp_path):
    """The one method whose nodes carry something from step to step."""
    out = tmp_path / "out"
    run, directory = trial.submit(config("fedavg", steps=3, refresh_probability=0.2), out)
    wait_until(directory.checkpoint.exists, PATIENCE, "the first checkpoint")
    for process in trial.processes.left_running("serverapp.py"):
        os.kill(process, signal.SIGKILL)
    trial.submit(config("fedavg", steps=3, refresh_probability=0.2), out)
    trial.finish(directory)
    equals_simulation(run, out, tmp_path, 1e-5)


@pytest.mark.flower
def test_a_superlink_that_is_started_again_continues_with_its_database(tmp_path):
    """Its nodes stay, and find it again; the run continues from its checkpoint."""
    trial = Trial(tmp_path / "federation", database=True)
    try:
        out = tmp_path / "out"
        run, directory = trial.submit(config("bilevel-cg"), out)
        wait_until(directory.checkpoint.exists, PATIENCE, "the first checkpoint")
        trial.processes.kill("superlink")
        for process in trial.processes.left_running("serverapp.py"):
            os.kill(process, signal.SIGKILL)
        trial.processes.start_superlink()
        trial.submit(config("bilevel-cg"), out)
        trial.finish(directory)
    finally:
        trial.stop()
    equals_simulation(run, out, tmp_path, 1e-5)


@pytest.mark.flower
def test_a_supernode_killed_during_a_run_comes_back(trial, tmp_path):
    """It is dropped after three failures and rejoins when it is back, and the run ends well."""
    out = tmp_path / "out"
    # Enough steps that the run is still under way when the node has started again.
    run, directory = trial.submit(config("bilevel-cg", steps=60), out, patience=45)
    wait_until(directory.checkpoint.exists, PATIENCE, "the first checkpoint")
    trial.processes.kill("majority-2")

    def warnings():
        events = EventReader(directory.events).new()
        return "\n".join(event.message for event in events if isinstance(event, Warned))

    def dropped():
        return "majority-2 was dropped" in warnings()

    wait_until(dropped, PATIENCE, "that the node is dropped")
    trial.start_node("majority-2")
    trial.finish(directory)
    assert "majority-2 is back" in warnings(), warnings()
    history, _ = outcome(out / "runs", run)
    weights = history[[f"weight {name}" for name in NAMES]].to_numpy()
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
    assert (weights[:, 2] == 0).any()
    assert (weights[0] > 0).all()
    assert len(history) >= 6  # more where it is back just before the end


@pytest.mark.flower
def test_a_node_that_hangs_in_the_first_of_two_steps_ends_with_a_weight(trial, tmp_path):
    """The only node like the owner is stopped until it is dropped, and then continued."""
    out, name = tmp_path / "out", "minority-1"
    run, directory = trial.submit(config("bilevel-cg", steps=2), out, patience=45)

    def said(words):
        events = EventReader(directory.events).new()
        return any(isinstance(event, Warned) and words in event.message for event in events)

    def begun():
        events = EventReader(directory.events).new()
        return any(isinstance(event, RunStarted) for event in events)

    wait_until(begun, PATIENCE, "the start of the run")
    node = psutil.Process(trial.processes.started[name].pid)
    stopped = [node, *node.children(recursive=True)]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: said(f"{name} was dropped"), PATIENCE, "that the node is dropped")
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)
    trial.finish(directory)
    assert said(f"{name} is back")
    history, _ = outcome(out / "runs", run)
    weights = history[[f"weight {each}" for each in NAMES]].to_numpy()
    assert (weights[:, 0] == 0).any()
    assert weights[-1, 0] > 0.3


@pytest.mark.flower
def test_nodes_that_answer_nonsense_are_left_out_of_what_the_others_learn(tmp_path):
    """Two sound nodes, and one each that answers NaN, a wrong shape, a huge norm, nothing."""
    processes = Processes(tmp_path / "federation")
    tricks = dict(zip(("nan", "shape", "huge", "silence"), range(1, 5), strict=True))
    common = {"minority-nodes": 2, "majority-nodes": 4}
    sound = ["minority-1", "minority-2"]
    try:
        processes.start_superlink()
        for name in sound:
            processes.start_node(**(settings(name) | common))
        for trick, number in tricks.items():
            own = settings(f"majority-{number}") | common
            processes.start_node(sabotage=trick, **own)
        run = config("fedavg", steps=1, rounds=4).model_copy(
            update={"minority_nodes": 2, "majority_nodes": 4}
        )
        study = tmp_path / "study.toml"
        run = write_study(study, run, patience=20)
        processes.submit(study, tmp_path / "out")
        directory = RunDirectory(tmp_path / "out" / "runs", run)
        wait_until(directory.is_finished, PATIENCE, "the end of the run")
    finally:
        processes.stop()
    warnings = json.loads((directory.path / "finished.json").read_text())["warnings"]
    for trick, words in {
        "nan": "not finite",
        "shape": "shape",
        "huge": "norm",
        "silence": "did not answer in time",
    }.items():
        own = [warning for warning in warnings if f"majority-{tricks[trick]} " in warning]
        assert any(words in warning for warning in own), warnings
        assert any("was dropped" in warning for warning in own), warnings
    history, models = outcome(tmp_path / "out" / "runs", run)
    # A node whose answers have a wrong shape comes back, and the run takes further steps for it.
    expected = alone(run, len(history))
    np.testing.assert_allclose(models["last"], expected, rtol=1e-4, atol=1e-6)


def alone(run, steps):
    """What the two sound nodes learn without the others."""
    drawn = draw_problem(run)
    objective = drawn.problem.objective
    nodes = [
        (np.asarray(objective.model.prepare(jnp.asarray(images))), labels)
        for images, labels in drawn.data.nodes[:2]
    ]
    two = SimulatedFederation(objective, nodes, batch_size=run.batch_size, seed=run.seed)
    given = run.settings
    training = LocalSvrg(given["learning_rate"], given["period"], given["rounds"])
    algorithm = FedAvgAlgorithm(training)
    state = begin(algorithm, two, objective.init(initial_model_key(run.seed)))
    key = training_key(run.seed)
    run_steps(algorithm, two, drawn.problem.center, state, key, budget=Budget(steps))
    return np.asarray(state.last_theta)


@pytest.mark.flower
def test_flowers_own_way_of_a_process_for_every_message_works_too(tmp_path):
    processes = Processes(tmp_path / "federation")
    try:
        processes.start_superlink()
        for name in NAMES:
            state = tmp_path / "state" / name
            processes.start_node(bare=True, **settings(name, state=state))
        study = tmp_path / "study.toml"
        run_ = write_study(study, config("bilevel-cg", steps=1))
        processes.submit(study, tmp_path / "out")
        directory = RunDirectory(tmp_path / "out" / "runs", run_)
        wait_until(directory.is_finished, PATIENCE, "the end of the run")
    finally:
        processes.stop()
    equals_simulation(run_, tmp_path / "out", tmp_path, 1e-5)
