"""Several owners with one federation: what a run that was stopped costs and computes when it continues."""

import numpy as np
import pytest

from fedkin.federation.work import LocalWork
from fedkin.methods.registry import make_method
from fedkin.training.joint import JointProblem, OwnerData
from fedkin.training.runner import Budget
from fedkin.types import Points

OWNERS = 4
DRAW = np.random.default_rng(0)


def points(rows):
    return Points(DRAW.normal(size=(rows, 3)).astype(np.float32), DRAW.integers(0, 2, rows))


NODES = {f"n{number}": points(40) for number in range(OWNERS)}
OWN = {name: OwnerData(points(20), own=node) for name, node in NODES.items()}


class StoppedError(Exception):
    pass


@pytest.fixture
def computed(monkeypatch):
    """Count the items that nodes compute: a model and a node each."""
    count = [0]
    original = LocalWork.compute_together

    def compute_together(self, task, options, portions):
        count[0] += sum(len(portion.items) for portion in portions)
        return original(self, task, options, portions)

    monkeypatch.setattr(LocalWork, "compute_together", compute_together)
    return count


def train(method, **more):
    problem = JointProblem.build(NODES, OWN, classes=np.arange(2), batch_size=10)
    return problem, problem.train(method, budget=Budget(steps=4), **more)


@pytest.mark.parametrize(
    ("name", "settings", "ask_all"),
    [("fedavg", {"rounds": 3}, False), ("bilevel", {}, True), ("ditto", {"rounds": 2}, False)],
)
def test_a_run_that_was_stopped_costs_and_computes_no_more(
    name, settings, ask_all, computed, tmp_path
):
    """FedAvg trains once for all, also after it was stopped; equal costs do not mean equal requests."""
    method = make_method(name, settings)
    problem, whole = train(method, ask_all=ask_all)
    at_once = computed[0]
    checkpoints = {owner: tmp_path / f"{owner}.npz" for owner in NODES}
    stepped = []

    def stop(owner, state):
        stepped.append(owner)
        if len(stepped) == 2 * OWNERS:
            raise StoppedError

    computed[0] = 0
    with pytest.raises(StoppedError):
        train(method, ask_all=ask_all, checkpoints=checkpoints, after_step=stop)
    problem, resumed = train(method, ask_all=ask_all, checkpoints=checkpoints)
    assert resumed.cost == whole.cost
    # What prepares the owners is asked for again: at most each node once, for all, and each owner's own.
    assert at_once <= computed[0] <= at_once + 2 * OWNERS
    for owner, run in whole.runs.items():
        np.testing.assert_array_equal(resumed.runs[owner].state.kept_theta, run.state.kept_theta)
    for engine in (problem.federation, problem.alone):
        held = engine._work.export_arrays()
        assert all(len(items) == 0 for place, items in held.items() if place.endswith("/items"))
