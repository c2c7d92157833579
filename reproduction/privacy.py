"""What differential privacy costs on the four hospitals: `python -m reproduction.privacy`.

Every hospital is a node that protects its rows (docs/security.md). One model is trained with equal weights, as
in FLamby's experiment with differential privacy, and scored on a third of each hospital's rows that no node
has. A run has a split and noise of its own. Needs UCI's Heart Disease data in FEDKIN_DATA/heart-disease.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedkin.data.batches import NodeData
from fedkin.data.labels import binary_label, split_rows
from fedkin.data.table_federation import federate
from fedkin.data.tables import TableFormat, read_table
from fedkin.errors import InputError
from fedkin.federation.privacy import Budget, Privacy
from fedkin.federation.private_work import PrivateWork
from fedkin.methods.fedavg import FedAvg
from fedkin.models.objective import Objective
from fedkin.training.problem import Problem, prepare_points, simulation
from fedkin.training.runner import Budget as Length
from fedkin.types import Points

FILES = {
    "Cleveland": "processed.cleveland.data",
    "Hungary": "processed.hungarian.data",
    "Switzerland": "processed.switzerland.data",
    "VA": "processed.va.data",
}
# fmt: off
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak",
    "slope", "ca", "thal", "num",
)
# fmt: on
CODES = ("cp", "restecg", "slope", "thal")
NOT_MEASURED = {"chol": 0.0, "trestbps": 0.0}
TEST = 1 / 3
EPSILONS = (10.0, 3.0, 1.0, 0.3, 0.1)
FLAMBY = {None: 0.712, 1.0: 0.701, 0.1: 0.629}
"""Accuracies that FLamby reports at delta = 1e-3."""
FIRST_TUNING_SEED = 10_000
"""Clip, steps and learning rate were chosen on splits from this seed on, which the table does not use."""


class Hospitals:
    """The four tables."""

    def __init__(self, directory: Path) -> None:
        written = TableFormat(names=COLUMNS)
        self._tables = {
            name: binary_label(read_table(directory / file, f"node '{name}'", written), "num", ">0")
            for name, file in FILES.items()
        }

    def split(self, seed: int) -> tuple[dict[str, Points], dict[str, Points]]:
        """Return training and test rows of each hospital, with columns agreed on from training rows."""
        parts = {
            name: split_rows(table, "num", (TEST / 2, TEST / 2), seed, stratify=True)
            for name, table in self._tables.items()
        }
        nodes = {name: rest for name, (_, _, rest) in parts.items()}
        tests: dict[str, Points] = {}
        training: dict[str, Points] = {}
        for name, (first, second, _) in parts.items():
            federation = federate(
                nodes, first, second, "num", categorical=CODES, missing_codes=NOT_MEASURED
            )
            assert federation.test is not None
            halves = (federation.validation, federation.test)
            tests[name] = Points(
                np.concatenate([half.inputs for half in halves]),
                np.concatenate([half.labels for half in halves]),
            )
            training = dict(federation.nodes)
        return training, tests


def accuracy(
    hospitals: Hospitals, seed: int, privacy: Privacy | None, steps: int, rate: float
) -> dict[str, float]:
    """Train with equal weights, and return the accuracy on each hospital's test rows.

    Args:
        hospitals: The data.
        seed: Decides the split and the noise.
        privacy: What each hospital grants; None for no protection.
        steps: The number of steps, each with all rows of every hospital.
        rate: The step size.
    """
    training, tests = hospitals.split(seed)
    random = np.random.default_rng([seed, 1])

    def private(objective: Objective, data: NodeData, granted: Privacy) -> PrivateWork:
        budgets = [Budget(granted) for _ in training]
        return PrivateWork(objective, data, budgets, threads=1, normal=random.standard_normal)

    work = None if privacy is None else partial(private, granted=privacy)
    # Mini-batches of all rows, so that without noise the steps are those of gradient descent too.
    engine = simulation(training, batch_size=1_000, seed=seed, threads=1, work=work)
    first = next(iter(training.values()))
    problem = Problem.build(engine, first, classes=np.arange(2), seed=seed)
    method = FedAvg(learning_rate=rate, period=1, rounds=steps)
    trained = problem.train(method, budget=Length(steps=1), keep="last")
    theta = trained.state.last_theta
    assert theta is not None
    hits = {}
    for name, points in tests.items():
        inputs, labels = prepare_points(problem.objective.model, points)
        hits[name] = np.argmax(problem.center.outputs(theta, inputs), axis=1) == labels
    return {name: float(own.mean()) for name, own in hits.items()}


def table(
    hospitals: Hospitals, seeds: Sequence[int], granted: Sequence[Privacy | None], **how
) -> str:
    """Return a table of accuracies: a row for what is granted, with means and standard errors over seeds."""
    titles = [*FILES, "mean", "FLamby"]
    lines = ["| ε | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for privacy in granted:
        runs = [accuracy(hospitals, seed, privacy, **how) for seed in seeds]
        columns = [np.array([run[name] for run in runs]) for name in FILES]
        columns.append(np.mean(columns, axis=0))
        shown = [f"{own.mean():.3f} ± {own.std(ddof=1) / len(own) ** 0.5:.3f}" for own in columns]
        epsilon = None if privacy is None else privacy.epsilon
        theirs = FLAMBY.get(epsilon)
        shown.append("" if theirs is None else f"{theirs:.3f}")
        name = "no noise, no clipping" if epsilon is None else f"{epsilon:g}"
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
        sys.stderr.write(f"{name}: done\n")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50, help="splits, each with noise of its own")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--epsilon", type=float, action="append", help="default: 10, 3, 1, 0.3, 0.1"
    )
    parser.add_argument("--delta", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.2)
    options = parser.parse_args(arguments)
    directory = Path(os.environ.get("FEDKIN_DATA", "."), "heart-disease")
    if options.seeds < 2:
        sys.exit("error: --seeds must be at least 2, for a standard error")
    if not directory.is_dir():
        sys.exit(f"error: no directory {directory}; set FEDKIN_DATA to the one that holds it")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    granted = [None] + [
        Privacy(epsilon, options.delta, options.clip, options.steps)
        for epsilon in options.epsilon or EPSILONS
    ]
    try:
        found = table(Hospitals(directory), seeds, granted, steps=options.steps, rate=options.rate)
    except InputError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(found + "\n")


if __name__ == "__main__":
    main()
