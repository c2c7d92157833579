"""The candidates: alone, equal weights, weights by size, learned weights; on all rows and on every fold."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedkin.errors import FedkinError
from fedkin.events import OnEvent
from fedkin.federation.base import Cost
from fedkin.methods.base import Method
from fedkin.methods.bilevel.method import Bilevel
from fedkin.models.objective import Objective
from fedkin.training.alone import (
    INNER_FOLDS,
    OwnRows,
    coefficients,
    losses,
    recalibrate,
    train_alone,
)
from fedkin.training.folds import draw_folds
from fedkin.training.joint import JointProblem, OwnerData
from fedkin.training.problem import TrainedRun
from fedkin.types import Points

CANDIDATES = ("alone", "equal", "size", "learned")
TITLES = {
    "alone": "alone, on all own rows",
    "equal": "joined, equal weights",
    "size": "joined, weights by size",
    "learned": "joined, learned weights",
}
ALL_ROWS = "all rows"

TOLERANCE = 1e-3
"""How much lower the validation loss may still be, as a share of it: far less than what chance decides."""


class Splits(NamedTuple):
    """Which fold each row is in: (repetitions, rows)."""

    of_rows: np.ndarray
    folds: int
    seed: int

    @classmethod
    def draw(cls, rows: OwnRows, folds: int, repeats: int, seed: int) -> "Splits":
        """Draw the folds of every repetition."""
        random = np.random.default_rng(seed)
        stratify = rows.task == "classification"
        drawn = [draw_folds(rows.labels, folds, random, stratify) for _ in range(repeats)]
        return cls(np.stack(drawn), folds, seed)

    def all(self) -> list[tuple[int, int]]:
        """Return every repetition and fold."""
        return [(r, f) for r in range(len(self.of_rows)) for f in range(self.folds)]


class Federated(NamedTuple):
    """What the nodes were asked for: coefficients of models, and weights."""

    models: dict[str, np.ndarray]
    """For `equal`, `size`, all rows and every fold."""
    weights: dict[str, np.ndarray]
    """The learned weights, for all rows and every fold."""
    cost: Cost
    objective: Objective
    point_shape: tuple[int, ...]


def fold_name(repeat: int, fold: int) -> str:
    """Return the name of a fold as an owner."""
    return f"fold {repeat + 1}.{fold + 1}"


def train_with_nodes(
    nodes: Mapping[str, Points],
    owner: Points,
    splits: Splits,
    *,
    model: str,
    classes: np.ndarray | None,
    cap: float,
    l2: float | None,
    batch_size: int,
    seed: int,
    on_event: OnEvent | None = None,
) -> Federated:
    """Train everything that needs the nodes. All share their exchanges: each fold is an owner of its own."""
    rows = np.array([len(points.labels) for points in nodes.values()], np.float64)
    size = tuple((rows / rows.sum()).tolist())
    equal = tuple(np.full(len(rows), 1 / len(rows)).tolist())
    owners = {name: OwnerData(owner) for name in (ALL_ROWS, "equal", "size")}
    learned = Bilevel(cap=cap, prior=size, tolerance=TOLERANCE)
    methods: dict[str, Method] = {
        ALL_ROWS: learned,
        "equal": Bilevel(cap=1.0, prior=equal, prior_strength=np.inf, tolerance=TOLERANCE),
        "size": Bilevel(cap=1.0, prior=size, prior_strength=np.inf, tolerance=TOLERANCE),
    }
    for repeat, fold in splits.all():
        kept = splits.of_rows[repeat] != fold
        owners[fold_name(repeat, fold)] = OwnerData(Points(owner.inputs[kept], owner.labels[kept]))
        methods[fold_name(repeat, fold)] = learned
    problem = JointProblem.build(
        nodes,
        owners,
        model=model,
        task="regression" if classes is None else "classification",
        classes=classes,
        l2=l2,
        batch_size=batch_size,
        seed=seed,
    )
    joint = problem.train(methods, on_event=on_event)
    objective = problem.federation.objective
    models: dict[str, np.ndarray] = {}
    weights: dict[str, np.ndarray] = {}
    for name, run in joint.runs.items():
        if isinstance(run, FedkinError):
            raise run
        models[name], weights[name] = _found(run, objective)
    return Federated(
        models, weights, joint.cost, objective, next(iter(problem.problems.values())).point_shape
    )


def _found(run: TrainedRun, objective: Objective) -> tuple[np.ndarray, np.ndarray]:
    kept = run.state.kept
    assert kept is not None
    assert kept.node_weights is not None
    assert run.state.kept_theta is not None
    weights = np.asarray(kept.node_weights, np.float64)
    return coefficients(run.state.kept_theta, objective), weights


class Candidates(NamedTuple):
    """Every candidate, trained on all rows, and its outputs for rows that a fold's model has not seen."""

    models: np.ndarray
    """(candidates, features + 1, outputs), trained on all rows."""
    held_out: np.ndarray
    """(repetitions, rows, candidates, outputs)."""
    fold_outputs: np.ndarray
    """Outputs of every fold's models for all rows: (repetitions, folds, rows, candidates, outputs)."""


def train_candidates(rows: OwnRows, splits: Splits, federated: Federated) -> Candidates:
    """Train every candidate on all rows and on every fold; only `alone` and recalibration are left to do."""
    repeats = len(splits.of_rows)
    shape = (repeats, splits.folds, rows.total, len(CANDIDATES), rows.outputs)
    fold_outputs = np.zeros(shape)
    held_out = np.zeros((repeats, *shape[2:]))
    random = np.random.default_rng([splits.seed, 1])
    for repeat, fold in splits.all():
        kept = splits.of_rows[repeat] != fold
        models = _models_of(rows.take(kept), federated, fold_name(repeat, fold), random)
        outputs = np.einsum("if,jfk->ijk", rows.inputs, models)
        fold_outputs[repeat, fold] = outputs
        held_out[repeat, ~kept] = outputs[~kept]
    return Candidates(_models_of(rows, federated, ALL_ROWS, random), held_out, fold_outputs)


def _models_of(
    rows: OwnRows, federated: Federated, learner: str, random: np.random.Generator
) -> np.ndarray:
    stratify = rows.task == "classification"
    inner = draw_folds(rows.labels, INNER_FOLDS, random, stratify)
    joined = [federated.models[name] for name in ("equal", "size", learner)]
    return np.stack([train_alone(rows, inner), *(recalibrate(model, rows) for model in joined)])


def mean_losses(outputs: np.ndarray, rows: OwnRows) -> np.ndarray:
    """Return each candidate's mean loss, given outputs (rows, candidates, outputs)."""
    return row_losses(outputs, rows).mean(axis=0)


def row_losses(outputs: np.ndarray, rows: OwnRows) -> np.ndarray:
    """Return the loss of each row by each candidate."""
    return np.stack(
        [losses(outputs[:, j], rows.labels, rows.task) for j in range(outputs.shape[1])], axis=1
    )


def row_mistakes(outputs: np.ndarray, rows: OwnRows) -> np.ndarray:
    """Return, for each row and candidate, 1 where the class is wrong."""
    return (outputs.argmax(axis=2) != rows.labels[:, None]).astype(np.float64)
