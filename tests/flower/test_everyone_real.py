"""Everyone's question with real processes: a SuperLink without data, and nodes that are owners."""

import json

import numpy as np
import pytest

import fedkin
from fedkin.events import EventReader, RunFailed, StepDone
from flower.processes import Processes, wait_until
from flower.test_everyone_over_flower import SEED, TEST, VALIDATION, assert_same, simulated
from flower.test_everyone_over_flower import tables as tables

pytestmark = pytest.mark.flower

PATIENCE = 900
"""Seconds that anything may take."""

JOB = """
validation-fraction = 0.25
label = "outcome"
seed = 3
compare = []
leave-one-out = false

[federation]
plain-sums = true
nodes = 4
wait = {wait}
patience = {patience}
"""


class Trial:
    """A SuperLink and four nodes."""

    def __init__(self, directory, tables):
        self.processes, self.directory, self.tables = Processes(directory), directory, tables
        self.processes.start_superlink()
        for name in tables:
            self.start_node(name)

    def start_node(self, name):
        settings = {"validation-fraction": VALIDATION, "test-fraction": TEST, "seed": SEED}
        # Secure sums do not cover this: several owners' sums at nearby models would show single vectors.
        settings["plain-sums"] = True
        self.processes.start_node(
            name,
            data=self.tables[name],
            label="outcome",
            state=self.directory / "state" / name,
            **settings,
        )

    def submit(self, name, wait=300, patience=120):
        job = self.directory / f"{name}.toml"
        job.write_text(JOB.format(wait=wait, patience=patience))
        self.processes.submit(job, self.directory / name)
        return EventReader(self.directory / f"{name}.events.jsonl")

    def finish(self, name):
        found = self.directory / name / "everyone.fedkin"
        events = EventReader(self.directory / f"{name}.events.jsonl")

        def ended():
            assert not [event for event in events.new() if isinstance(event, RunFailed)]
            return found.exists()

        wait_until(ended, PATIENCE, f"the end of {name}")
        return fedkin.Collaboration.load(found)


@pytest.fixture
def trial(tmp_path, tables):
    made = Trial(tmp_path, tables)
    try:
        yield made
    finally:
        made.processes.stop()


def test_it_gives_what_the_simulation_gives(trial, tables):
    trial.submit("whole")
    found = trial.finish("whole")
    assert_same(found, simulated(tables, compare=[]))
    rows = json.loads((trial.directory / "whole" / "rows.json").read_text())
    assert set(rows) == set(tables)


def test_a_node_that_is_killed_is_lost_for_all_and_one_that_returns_is_answered(trial):
    """First it stays away, and its owner is told so; in a second run it is started again."""
    events = trial.submit("lost", wait=15, patience=10)
    seen = []

    def has_step():
        seen.extend(events.new())
        assert not [event for event in seen if isinstance(event, RunFailed)]
        return any(isinstance(event, StepDone) and event.step >= 2 for event in seen)

    wait_until(has_step, PATIENCE, "the second step")
    trial.processes.kill("d")
    found = trial.finish("lost")
    assert list(found.failures) == ["d"]
    assert "its own question has no answer" in found.failures["d"]
    others = found.matrix.loc[["a", "b", "c"]]
    assert (others["d"] == 0).all()
    np.testing.assert_allclose(others.sum(axis=1), 1, atol=1e-5)
    assert any("d was dropped" in warning for warning in found.warnings)

    trial.start_node("d")
    events, seen = trial.submit("returning", wait=300, patience=10), []
    wait_until(has_step, PATIENCE, "the second step of the second run")
    trial.processes.kill("d")
    trial.start_node("d")
    found = trial.finish("returning")
    assert found.failures == {}
    assert found.groups == (("a", "b"), ("c", "d"))
