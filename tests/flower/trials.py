"""A trial federation of three nodes with digits, for tests of the engine."""

import numpy as np
import pandas as pd

from fedkin.flower.jobs.study import FlowerEngines
from fedkin.studies.config import RunConfig
from fedkin.studies.store import RunDirectory

NAMES = ("minority-1", "majority-1", "majority-2")

JOIN = {
    "kind": "join",
    "run": "a run",
    "attempt": "one",
    "number": 0,
    "seed": 0,
    "batch-size": 50,
    "model": "logistic",
    "task": "classification",
    "classes": 10,
    "l2": 1e-3,
    "preprocessing": "",
}
"""A request to join that a node of digits accepts."""

CASES = {
    "bilevel-cg": ("bilevel", {"solver": "cg", "solver_iterations": 3}),
    "bilevel-svrg": ("bilevel", {"solver": "svrg"}),
    "bilevel-neumann": ("bilevel", {"solver": "neumann", "solver_iterations": 3}),
    "bilevel-own": ("bilevel", {"solver": "own"}),
    "bilevel-adaptive": ("bilevel", {"solver": "cg", "outer": "adaptive", "solver_iterations": 2}),
    "bilevel-accelerated": (
        "bilevel",
        {"solver": "cg", "outer": "accelerated", "solver_iterations": 2},
    ),
    "fedavg": ("fedavg", {}),
    "local": ("local", {}),
    "ditto": ("ditto", {"personal_steps": 5}),
    "pfedme": ("pfedme", {}),
}


def settings(name, **more):
    """A node's settings, as its owner writes them."""
    return {
        "name": name,
        "data": "digits",
        "setting": 2,
        "minority-nodes": 1,
        "majority-nodes": 2,
        "reproducible": True,
        **more,
    }


def config(case, model="logistic", steps=2, ask_all=None, **more):
    method, parameters = CASES[case]
    values = {"learning_rate": 0.05, "period": 5, "rounds": 2} | parameters | more
    return RunConfig(
        dataset="digits",
        setting=2,
        method=method,
        model=model,
        synchronizations=None,
        steps=steps,
        minority_nodes=1,
        majority_nodes=2,
        ask_all=ask_all,
        settings={"preset": "paper"} | values,
    )


def engines(messenger, wait=10.0, *, plain_sums=True):
    return FlowerEngines(messenger, wait, plain_sums=plain_sums)


def outcome(parent, run):
    """The result of a run: its history and its models."""
    path = RunDirectory(parent, run).path
    history = pd.read_parquet(path / "history.parquet")
    with np.load(path / "models.npz") as models:
        return history, {name: models[name] for name in models.files}


def assert_same(flower, simulated, tolerance):
    """The same weights, parameters, losses and costs, up to rounding."""
    (history, models), (expected, expected_models) = flower, simulated
    costs = [
        "step",
        "synchronizations",
        "rounds",
        "points",
        "bytes_up",
        "bytes_down",
        "nodes_asked",
    ]
    pd.testing.assert_frame_equal(history[costs], expected[costs])
    for column in expected.columns:
        if column.startswith("weight ") or column.endswith("_loss"):
            np.testing.assert_allclose(
                history[column], expected[column], rtol=tolerance, atol=tolerance, err_msg=column
            )
    for name, model in expected_models.items():
        distance = np.linalg.norm(models[name] - model)
        assert distance <= tolerance * np.linalg.norm(model), f"{name}: {distance}"
