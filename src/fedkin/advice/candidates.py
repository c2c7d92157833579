"""The candidates: alone, equal weights, weights by size, learned weights; on all rows and on every fold."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedkin.errors import FedkinError
from fedkin.events import Event, OnEvent, Warned
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
    present: np.ndarray
    """Which nodes were there to the end (bools). The weights of the others are 0."""
    warnings: tuple[str, ...] = ()
    """What went wrong with nodes."""


def among_present(weights: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Return weights with those of lost nodes divided among the others, in proportion.

    >>> among_present(np.array([0.5, 0.1, 0.4]), np.array([True, True, False])).round(2).tolist()
    [0.83, 0.17, 0.0]
    >>> among_present(np.array([0.0, 0.0, 1.0]), np.array([True, True, False])).tolist()
    [0.5, 0.5, 0.0]
    """
    if present.all():
        return weights
    kept = np.where(present, weights, 0.0)
    return kept / kept.sum() if kept.sum() > 0 else present / present.sum()


def fold_name(repeat: int, fold: int) -> str:
    """Return the name of a fold as an owner."""
    return f"fold {repeat + 1}.{fold + 1}"


def learners(rows: OwnRows, splits: Splits) -> dict[str, OwnRows]:
    """Return the rows that each owner learns from: all of them, and all but those of a fold."""
    return {ALL_ROWS: rows} | {
        fold_name(repeat, fold): rows.take(splits.of_rows[repeat] != fold)
        for repeat, fold in splits.all()
    }


BuildProblem = Callable[[Mapping[str, OwnerData]], JointProblem]
"""Lets some owners ask the nodes: those of a simulation, or of a real federation."""


class Kept(NamedTuple):
    """Where a run is kept, so that it can be resumed."""

    checkpoints: Callable[[list[str]], Mapping[str, Path]]
    """Returns the file of every owner."""
    made_with: Mapping[str, Any]
    """What the run depends on."""


def train_with_nodes(
    build: BuildProblem,
    node_rows: np.ndarray,
    owner: Points,
    splits: Splits,
    *,
    cap: float,
    on_event: OnEvent | None = None,
    kept: Kept | None = None,
    leave_one_out: bool = False,
) -> Federated:
    """Train everything that needs the nodes. All share their exchanges: each fold is an owner of its own.

    Args:
        build: Lets owners ask the nodes.
        node_rows: The number of rows of each node.
        owner: The owner's rows.
        splits: Their folds.
        cap: The largest weight that is learned.
        on_event: Called with the events of training.
        kept: Where to keep what was learned so far; None for nowhere.
        leave_one_out: Whether, at the end, each node that has a learned weight is left out once, by all rows
            and by those of every fold.
    """
    rows = np.asarray(node_rows, np.float64)
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
        kept_rows = splits.of_rows[repeat] != fold
        owners[fold_name(repeat, fold)] = OwnerData(
            Points(owner.inputs[kept_rows], owner.labels[kept_rows])
        )
        methods[fold_name(repeat, fold)] = learned
    folds = [fold_name(*place) for place in splits.all()]
    warnings: dict[str, None] = {}

    def report(event: Event) -> None:
        # Which nodes a fold does without is part of the cross-validation, and no news for the owner.
        if isinstance(event, Warned) and not any(fold in event.message for fold in folds):
            warnings[event.message] = None
        if on_event is not None:
            on_event(event)

    problem = build(owners)
    trained = problem.train(
        methods,
        on_event=report,
        checkpoints=None if kept is None else kept.checkpoints(list(owners)),
        made_with=None if kept is None else kept.made_with,
        run_name=lambda name: f"advise: {name}",
        leave_one_out=(ALL_ROWS, *folds) if leave_one_out else (),  # the others have fixed weights
    )
    found = {name: _found(run) for name, run in trained.runs.items()}
    federation = next(iter(problem.problems.values())).federation
    back = [
        (learner, found[name].theta, among_present(found[name].weights, federation.present))
        for learner in (ALL_ROWS, *folds)
        for name in ("equal", "size", learner)
    ]
    thetas, cost = problem.put_rows_back(back, rows)
    for message in federation.end_step():
        report(Warned(message=message))
    present = federation.present.copy()
    objective = problem.federation.objective
    joined: dict[str, list[np.ndarray]] = {}
    for (learner, _, _), theta in zip(back, thetas, strict=True):
        joined.setdefault(learner, []).append(coefficients(theta, objective))
    first = [coefficients(found[name].theta, objective) for name in ("equal", "size", ALL_ROWS)]
    return Federated(
        {learner: np.stack(models) for learner, models in joined.items()},
        np.stack(first),
        {learner: among_present(found[learner].weights, present) for learner in joined},
        trained.cost + cost,
        objective,
        next(iter(problem.problems.values())).point_shape,
        present,
        tuple(warnings),
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
