"""Block d: four hospitals by FLamby's protocol, every one an owner, in the tables of the leaderboard.

FLamby's splits (two thirds of a hospital's rows for training) and its scaling, as in
`reproduction.verdict.tables`. A fifth of the training rows of a hospital validate, for all methods alike.
"""

import itertools
import json
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import train_test_split

from fedkin.data.sources import data_directory
from fedkin.errors import FedkinError, InputError
from fedkin.methods.registry import make_method
from fedkin.training.joint import JointProblem, OwnerData
from fedkin.training.problem import TrainedRun
from fedkin.training.runner import Budget
from fedkin.types import Points
from reproduction.leaderboard import plan
from reproduction.leaderboard.index import add_rows, make_row, read_rows
from reproduction.verdict.tables import FLAMBY_SEED, Rows, hospitals, split_and_scale

NAME, CELL, MODEL = "d-hospitals", "four hospitals", "logistic"
SPLITS = (FLAMBY_SEED, *plan.SEEDS[:2])
"""FLamby's own split, and two more."""
VALIDATION_SHARE = 0.2
PERIOD = 20
"""Local steps per synchronization: five or more passes over a hospital's rows."""


class Outcome(NamedTuple):
    """What a run has come to."""

    accuracies: list[float]
    """On the test rows of every hospital."""
    validation: float
    """The mean accuracy on validation rows."""
    loss: float
    """The mean loss there."""
    synchronizations: int
    sent: int
    """Bytes up and down."""
    seconds: float


def run_missing(data: Path | None, methods: list[str], report: Callable[[str], None]) -> None:
    """Do the runs that the table lacks, and add each to it when it is finished."""
    done = {(row["method"], row["seed"]) for row in read_rows(NAME).to_dict("records")}
    for method in methods:
        missing = [split for split in SPLITS if (method, split) not in done]
        if not missing:
            continue
        try:
            settings = _chosen_settings(method, data)
        except InputError as error:
            report(f"{method}: {error}")
            continue
        for split in missing:
            found = run(method, settings, split, plan.SYNCHRONIZATIONS, data)
            report(f"{method}, split {split}: {np.mean(found.accuracies):.3f}")
            add_rows(NAME, [_row(method, settings, split, found)])


def _row(method: str, settings: Mapping[str, Any], split: int, found: Outcome) -> dict[str, Any]:
    return make_row(
        cell=CELL,
        method=method,
        seed=split,
        settings=dict(settings),
        owners=found.accuracies,
        validation_accuracy=found.validation,
        synchronizations=found.synchronizations,
        sent=found.sent,
        seconds=found.seconds,
        run=f"split-{split}",
    )


def _chosen_settings(method: str, data: Path | None) -> dict[str, Any]:
    """Choose parameters on another split: those of a former run, or the best of short runs."""
    for row in read_rows(NAME).to_dict("records"):
        if row["method"] == method:
            return json.loads(row["settings"])
    fixed = plan.settings_of(method, PERIOD)
    choices = plan.choices_of(method, MODEL, owner_caps=plan.OWN_CAPS_OF_FEW)
    best, score, problem = fixed, (-1.0, 0.0), ""
    for values in itertools.product(*choices.values()):
        settings = fixed | dict(zip(choices, values, strict=True))
        try:
            found = run(method, settings, plan.TUNING_SEED, plan.TUNING_SYNCHRONIZATIONS, data)
        except FedkinError as error:
            problem = str(error)
            continue
        if (found.validation, -found.loss) > score:
            best, score = settings, (found.validation, -found.loss)
    if score[0] < 0:
        raise InputError(f"all combinations of parameters failed: {problem}")
    return best


def run(
    method: str, settings: Mapping[str, Any], split: int, budget: int, data: Path | None
) -> Outcome:
    """Train every hospital's model with a budget of synchronizations."""
    start = time.perf_counter()
    nodes, owners = _owners(split, data)
    problem = JointProblem.build(
        nodes, owners, model=MODEL, classes=np.arange(2), batch_size=50, seed=split
    )
    joint = problem.train(
        make_method(method, settings), budget=Budget(synchronizations=budget), keep="best"
    )
    kept = []
    for trained in joint.runs.values():
        if not isinstance(trained, TrainedRun):
            raise trained
        kept.append(trained.state.kept)
    return Outcome(
        accuracies=[each.test.accuracy for each in kept],
        validation=float(np.mean([each.validation.accuracy for each in kept])),
        loss=float(np.mean([each.validation.loss for each in kept])),
        synchronizations=joint.cost.synchronizations,
        sent=joint.cost.bytes_up + joint.cost.bytes_down,
        seconds=time.perf_counter() - start,
    )


@lru_cache(maxsize=1)
def _owners(split: int, data: Path | None) -> tuple[dict[str, Points], dict[str, OwnerData]]:
    directory = data_directory(data)
    if directory is None or not (directory / "heart-disease").is_dir():
        raise InputError("block d needs heart-disease in the directory of data: set FEDKIN_DATA")
    sites = hospitals(directory)
    train, test = split_and_scale(sites, split)
    nodes, owners = {}, {}
    for name, rows in train.items():
        kept, validation = _hold_out(rows, split)
        nodes[name] = kept
        owners[name] = OwnerData(validation=validation, own=kept, test=_points(test[name]))
    return nodes, owners


def _hold_out(rows: Rows, split: int) -> tuple[Points, Points]:
    x, y = rows
    stratify = y if np.bincount(y).min() > 1 else None
    found: Any = train_test_split(
        x, y, test_size=VALIDATION_SHARE, random_state=split, stratify=stratify
    )
    x_train, x_validation, y_train, y_validation = found
    return _points((x_train, y_train)), _points((x_validation, y_validation))


def _points(rows: Rows) -> Points:
    return Points(rows[0].astype(np.float32), rows[1].astype(np.int32))
