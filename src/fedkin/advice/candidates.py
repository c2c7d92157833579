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
    train_alone,
)
from fedkin.training.folds import draw_folds
from fedkin.training.joint import JointProblem, OwnerData
from fedkin.training.problem import TrainedRun
from fedkin.types import Points, Vector

WAYS = ("equal", "size", "learned")
"""The ways of joining."""

CANDIDATES = ("alone", *WAYS)
TITLES = {
    "alone": "alone, on all own rows",
    "equal": "joined, equal weights",
    "size": "joined, weights by size",
    "learned": "joined, learned weights",
    "final": "the final model",
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

    joined: dict[str, np.ndarray]
    """The models of every way of joining, with the learner's own rows as a node, for all rows and
    every fold: (ways, features + 1, outputs)."""
    without: np.ndarray
    """The same models without any rows of the owner among those that train."""
    weights: dict[str, np.ndarray]
    """The learned weights, for all rows and every fold."""
    cost: Cost
    objective: Objective
    point_shape: tuple[int, ...]


def fold_name(repeat: int, fold: int) -> str:
    """Return the name of a fold as an owner."""
    return f"fold {repeat + 1}.{fold + 1}"


def learners(rows: OwnRows, splits: Splits) -> dict[str, OwnRows]:
    """Return the rows that each owner learns from: all of them, and all but those of a fold."""
    return {ALL_ROWS: rows} | {
        fold_name(repeat, fold): rows.take(splits.of_rows[repeat] != fold)
        for repeat, fold in splits.all()
    }


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
    trained = problem.train(methods, on_event=on_event)
    found = {name: _found(run) for name, run in trained.runs.items()}
    back = [
        (learner, found[name].theta, found[name].weights)
        for learner in (ALL_ROWS, *(fold_name(*place) for place in splits.all()))
        for name in ("equal", "size", learner)
    ]
    thetas, cost = problem.put_rows_back(back, rows)
    objective = problem.federation.objective
    joined: dict[str, list[np.ndarray]] = {}
    for (learner, _, _), theta in zip(back, thetas, strict=True):
        joined.setdefault(learner, []).append(coefficients(theta, objective))
    first = [coefficients(found[name].theta, objective) for name in ("equal", "size", ALL_ROWS)]
    return Federated(
        {learner: np.stack(models) for learner, models in joined.items()},
        np.stack(first),
        {learner: found[learner].weights for learner in joined},
        trained.cost + cost,
        objective,
        next(iter(problem.problems.values())).point_shape,
    )


class _Found(NamedTuple):
    theta: Vector
    weights: np.ndarray


def _found(run: TrainedRun | FedkinError) -> _Found:
    if isinstance(run, FedkinError):
        raise run
    kept = run.state.kept
    assert kept is not None
    assert kept.node_weights is not None
    assert run.state.kept_theta is not None
    return _Found(run.state.kept_theta, np.asarray(kept.node_weights, np.float64))


class Candidates(NamedTuple):
    """Every candidate, trained on all rows, and its outputs for rows that a fold's model has not seen."""

    models: np.ndarray
    """(candidates, features + 1, outputs), trained on all rows."""
    held_out: np.ndarray
    """(repetitions, rows, candidates, outputs)."""

    def with_final(self, shares: np.ndarray, held_out: np.ndarray) -> "Candidates":
        """Return the candidates with their mixture in the last place.

        Args:
            shares: The shares of the candidates.
            held_out: The mixture's outputs for rows that neither models nor shares have seen:
                (repetitions, rows, outputs).
        """
        mixed = np.einsum("j,jfk->fk", shares, self.models)
        return Candidates(
            np.concatenate([self.models, mixed[None]]),
            np.concatenate([self.held_out, held_out[:, :, None]], axis=2),
        )


def train_candidates(rows: OwnRows, splits: Splits, federated: Federated) -> Candidates:
    """Collect every candidate on all rows and on every fold; only `alone` is left to train."""
    held_out = np.zeros((len(splits.of_rows), rows.total, len(CANDIDATES), rows.outputs))
    random = np.random.default_rng([splits.seed, 1])
    models = {
        name: np.concatenate([_alone(own, random)[None], federated.joined[name]])
        for name, own in learners(rows, splits).items()
    }
    for repeat, fold in splits.all():
        held = splits.of_rows[repeat] == fold
        trained = models[fold_name(repeat, fold)]
        held_out[repeat, held] = np.einsum("if,jfk->ijk", rows.inputs[held], trained)
    return Candidates(models[ALL_ROWS], held_out)


def _alone(rows: OwnRows, random: np.random.Generator) -> np.ndarray:
    stratify = rows.task == "classification"
    return train_alone(rows, draw_folds(rows.labels, INNER_FOLDS, random, stratify))


def row_losses(outputs: np.ndarray, rows: OwnRows) -> np.ndarray:
    """Return the loss of each row by each candidate."""
    return np.stack(
        [losses(outputs[:, j], rows.labels, rows.task) for j in range(outputs.shape[1])], axis=1
    )


def row_mistakes(outputs: np.ndarray, rows: OwnRows) -> np.ndarray:
    """Return, for each row and candidate, 1 where the class is wrong."""
    return (outputs.argmax(axis=2) != rows.labels[:, None]).astype(np.float64)
