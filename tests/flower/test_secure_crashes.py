"""Secure sums with real processes that are killed: nodes, the center's program, the SuperLink."""

import contextlib
import hashlib
import json
import os
import re
import signal

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from fedkin.events import EventReader, RunStarted, Warned
from fedkin.federation.unreliable import NOTHING, UnreliableSimulation
from fedkin.flower.node_sums import LAST
from fedkin.studies.cell import do_run, simulate
from fedkin.studies.store import RunDirectory
from flower.processes import Processes, wait_until
from flower.trials import assert_same, config, outcome, settings
from flower.tripwire import Tripwire

pytestmark = pytest.mark.flower

NAMES = ("minority-1", "majority-1", "majority-2", "majority-3")
VICTIM, OTHERS = 2, "0,1,3"
"""The number of the node that is killed, and those of the nodes that are then asked without it."""
PATIENCE = 900

STUDY = """
dataset = "digits"
setting = 2
method = "{method}"
model = "logistic"
steps = {steps}
minority_nodes = 1
majority_nodes = 3

[federation]
patience = {patience}

[settings]
"""


class Trial:
    """Four nodes, each behind a tripwire."""

    def __init__(self, directory, *, database=False):
        self.directory = directory
        self.processes = Processes(directory, database=database)
        self.processes.start_superlink()
        self.wires = {name: Tripwire(self.processes.port) for name in NAMES}
        for name in NAMES:
            self.start_node(name)

    def start_node(self, name):
        own = settings(name, state=self.directory / "state" / name) | {"majority-nodes": 3}
        self.processes.start_node(superlink=self.wires[name].port, **own)

    def submit(self, case, out, patience=30, **more):
        run = config(case, **more).model_copy(update={"majority_nodes": 3})
        lines = [f"{name} = {json.dumps(value)}" for name, value in run.settings.items()]
        study = self.directory / f"{out.name}.toml"
        written = STUDY.format(method=run.method, steps=run.steps, patience=patience)
        study.write_text(written + "\n".join(lines))
        self.processes.submit(study, out, resume=out.exists())
        # A study has a default budget, which is part of the run's name.
        run = run.model_copy(update={"synchronizations": 800})
        return run, RunDirectory(out / "runs", run)

    def warm_up(self, *cases):
        """Let the nodes compile, which they keep on their disks: later they answer at once."""
        for case in cases:
            _, directory = self.submit(case, self.directory / f"warm-{case}", patience=300, steps=1)
            self.finish(directory)

    def finish(self, directory):
        wait_until(directory.is_finished, PATIENCE, f"the end of {directory.path.name}")

    def kill_center(self):
        for process in self.processes.left_running("serverapp.py"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def answered(self, name, run):
        """The numbers of the exchanges of a run that a node has answered, by its key in each attempt."""
        digest = hashlib.sha256(run.directory.encode()).hexdigest()[:16]
        found = {}
        for line in (
            (self.directory / "state" / name / f"run-{digest}.sums").read_text().splitlines()
        ):
            if line.startswith(f"{LAST} "):
                _, key, number = line.split()
                found.setdefault(key, []).append(int(number))
        return found

    def stop(self):
        self.processes.stop()
        for wire in self.wires.values():
            wire.close()


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    made = Trial(tmp_path_factory.mktemp("federation"))
    try:
        made.warm_up("fedavg", "bilevel-cg")
        yield made
    finally:
        made.stop()
    wait_until(lambda: not made.processes.left_running(), 30, "the end of all processes")


def always(data):
    return True


def warnings(directory):
    events = EventReader(directory.events).new()
    return [event.message for event in events if isinstance(event, Warned)]


def simulated(run, fail, parent, **more):
    """Do the run in this process, with nodes that fail where `fail` says so."""

    def engine(config, data):
        sound = simulate(config, data)
        return lambda objective: UnreliableSimulation(
            sound(objective), fail, lambda node, step: False, **more
        )

    do_run(run, parent, engine=engine)
    return outcome(parent, run)


def assert_models(found, expected):
    for name, model in expected.items():
        distance = np.linalg.norm(found[name] - model)
        assert distance <= 1e-4 * np.linalg.norm(model), f"{name}: {distance}"


@pytest.mark.parametrize(
    ("moment", "lost", "rate"),
    [
        ("it is asked", 1, 0.05),
        ("its words are on the way", 1, 0.04),
        ("its words have arrived", 2, 0.03),
    ],
)
def test_a_node_that_is_killed_costs_the_others_nothing_but_time(
    trial, tmp_path, moment, lost, rate
):
    """Dead from the first sum on, or from the second where its words had arrived: as in a simulation.

    Its words of the first sum are of no use to anybody where they were on the way: with the others' second
    answer they add up to noise.
    """
    name = NAMES[VICTIM]
    trial.wires[name].when(moment, always, lambda: trial.processes.kill(name))
    out = tmp_path / "out"
    run, directory = trial.submit("fedavg", out, steps=2, rounds=4, learning_rate=rate)
    trial.finish(directory)
    said = warnings(directory)
    assert any(f"{name} was dropped after 3 failures" in each for each in said), said
    assert not any(other in each for other in NAMES if other != name for each in said), said
    history, models = outcome(out / "runs", run)
    _, expected = simulated(
        run,
        lambda node, call: NOTHING if node == VICTIM and call >= lost else None,
        tmp_path / "simulated",
    )
    assert_models(models, expected)
    assert np.isfinite(history["validation_loss"]).all()
    # Each of the others was asked once more for each of three sums that were spoiled, and answered each once.
    answered = {each: list(trial.answered(each, run).values()) for each in NAMES if each != name}
    assert list(answered.values()) == [[list(range(1, 8 + 3 + 1))]] * 3
    trial.start_node(name)


def test_a_killed_center_continues_under_secure_sums(trial, tmp_path):
    out = tmp_path / "out"
    run, directory = trial.submit("bilevel-cg", out)
    wait_until(directory.checkpoint.exists, PATIENCE, "the first checkpoint")
    trial.kill_center()
    assert not directory.is_finished()
    trial.submit("bilevel-cg", out)
    trial.finish(directory)
    assert_as_simulated(run, directory, out, tmp_path)
    # A new attempt has new keys, and begins to count again.
    assert len(trial.answered(NAMES[0], run)) == 2


def assert_as_simulated(run, directory, out, tmp_path):
    starts = [each for each in EventReader(directory.events).new() if isinstance(each, RunStarted)]
    assert starts[-1].resumed_after >= 1
    assert warnings(directory) == []
    do_run(run, tmp_path / "simulated")
    (history, models), expected = outcome(out / "runs", run), outcome(tmp_path / "simulated", run)
    costs = {name: expected[0][name] for name in ("bytes_up", "bytes_down")}
    assert_same((history.assign(**costs), models), expected, 1e-5)


def test_a_center_that_is_killed_in_the_step_of_a_nodes_failure_leaves_the_node_out_there_again(
    trial, tmp_path
):
    """The node is back by then. With it, the sum would differ from the earlier one by its vector."""
    name, witness = NAMES[VICTIM], NAMES[0]
    out, resumed = tmp_path / "out", []
    asked = []

    def second_sum_of_the_second_step(data):
        if directory.checkpoint.exists():
            asked.append(data)
        return len(asked) == 2

    run = config("bilevel-cg", steps=3).model_copy(
        update={"majority_nodes": 3, "synchronizations": 800}
    )
    directory = RunDirectory(out / "runs", run)
    trial.wires[name].when(
        "its words are on the way",
        second_sum_of_the_second_step,
        lambda: trial.processes.kill(name),
    )
    trial.wires[witness].when(
        "its words have arrived",
        lambda data: re.search(rf"\b{OTHERS}\b".encode(), data) is not None,
        lambda: (trial.kill_center(), resumed.append(True)),
    )
    trial.submit("bilevel-cg", out, steps=3)
    wait_until(lambda: resumed, PATIENCE, "that the others are asked without the node")
    assert directory.checkpoint.with_suffix(".sums.json").exists()
    trial.start_node(name)
    trial.submit("bilevel-cg", out, steps=3)
    trial.finish(directory)
    assert warnings(directory) == []
    assert not directory.checkpoint.with_suffix(".sums.json").exists()
    _, models = outcome(out / "runs", run)
    # The exchanges of a step are those of the simulation, so the one that failed is known by its number.
    do_run(run, tmp_path / "whole")
    whole, _ = outcome(tmp_path / "whole", run)
    failed = int(whole["synchronizations"][0]) + len(asked)
    _, expected = simulated(
        run,
        lambda node, call: NOTHING if node == VICTIM and call == failed else None,
        tmp_path / "simulated",
        secure=True,  # which has a smaller cap
    )
    assert_models(models, expected)


def test_a_superlink_that_is_started_again_continues_under_secure_sums(tmp_path):
    trial = Trial(tmp_path / "federation", database=True)
    try:
        trial.warm_up("bilevel-cg")
        out = tmp_path / "out"
        run, directory = trial.submit("bilevel-cg", out)
        wait_until(directory.checkpoint.exists, PATIENCE, "the first checkpoint")
        trial.processes.kill("superlink")
        trial.kill_center()
        trial.processes.start_superlink()
        trial.submit("bilevel-cg", out)
        trial.finish(directory)
        assert_as_simulated(run, directory, out, tmp_path)
    finally:
        trial.stop()
