"""The federated part of an advice, solved by SciPy in float64: quick, and independent of fedkin's solver.

`federations.py` uses it for hundreds of federations; a test compares it with `fedkin.advise` itself.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from fedkin.advice.candidates import (
    ALL_ROWS,
    CANDIDATES,
    WAYS,
    Candidates,
    Federated,
    Splits,
    learners,
    train_candidates,
)
from fedkin.advice.judgment import Judgment, judge
from fedkin.federation.base import Cost
from fedkin.training.alone import OwnRows, PenalizedLoss, add_ones
from fedkin.training.refit import owner_share
from fedkin.types import LearningTask

L2 = 1e-3


class ExactFederation:
    """Nodes whose weighted training problem is solved by Newton's method. Two classes, or numbers."""

    def __init__(self, nodes: Mapping[str, Any], rows: OwnRows) -> None:
        self.sizes = np.array([len(labels) for _, labels in nodes.values()])
        self.rows = OwnRows(
            np.concatenate([add_ones(inputs) for inputs, _ in nodes.values()]),
            np.concatenate([labels for _, labels in nodes.values()]),
            rows.task,
            rows.outputs,
        )
        self.of_rows = np.repeat(np.arange(len(self.sizes)), self.sizes)

    def loss(
        self, weights: np.ndarray, own: OwnRows | None = None, l2: float = L2
    ) -> PenalizedLoss:
        """Return what a model with some weights minimizes, perhaps with the owner's rows as a node."""
        counts = (weights / self.sizes)[self.of_rows]
        rows = self.rows.take(counts > 0)
        counts = counts[counts > 0]
        if own is not None:
            share = owner_share(weights, self.sizes, own.total)
            rows = rows._replace(
                inputs=np.concatenate([rows.inputs, own.inputs]),
                labels=np.concatenate([rows.labels, own.labels]),
            )
            counts = np.append((1 - share) * counts, np.full(own.total, share / own.total))
        return PenalizedLoss(rows, counts, np.full(rows.inputs.shape[1], l2))

    def train(
        self,
        weights: np.ndarray,
        start: np.ndarray | None = None,
        own: OwnRows | None = None,
        l2: float = L2,
    ) -> np.ndarray:
        """Return the matrix of the model with some weights, perhaps with the owner's rows as a node."""
        loss = self.loss(weights, own, l2)
        return loss.matrix(loss.minimize(None if start is None else loss.point(start)))

    def learn(
        self,
        own: OwnRows,
        prior: np.ndarray,
        first: np.ndarray,
        *,
        strength: float = 1.0,
        cap: float = 1.0,
    ) -> np.ndarray:
        """Return the weights that minimize the validation loss with a prior worth `strength` rows."""
        unit = 1.0 if own.task == "classification" else float(np.var(own.labels))
        factor = strength * unit / own.total
        judge = PenalizedLoss(
            own, np.full(own.total, 1 / own.total), np.full(own.inputs.shape[1], L2)
        )
        everybody = self.loss(np.ones(len(prior)))
        last = {"point": judge.point(first)}

        def value(weights: np.ndarray) -> tuple[float, np.ndarray]:
            weights = np.clip(weights, 0, None)
            weights = weights / weights.sum()
            trained = self.loss(weights)
            point = last["point"] = trained.minimize(last["point"])
            adjoint = np.linalg.solve(trained.derivatives(point)[1], judge.derivatives(point)[0])
            along = everybody.slopes(point)[:, 0] * (self.rows.inputs @ adjoint)
            slopes = np.bincount(self.of_rows, along) / self.sizes
            slopes = slopes + (everybody.penalty * point) @ adjoint
            away = (weights - prior) / prior
            loss = judge.value(point) + 0.5 * factor * np.sum(away * (weights - prior))
            return float(loss), -slopes + factor * away

        found = minimize(
            value,
            prior,
            jac=True,
            method="SLSQP",
            bounds=[(0, cap)] * len(prior),
            constraints={
                "type": "eq",
                "fun": lambda w: w.sum() - 1,
                "jac": lambda w: np.ones_like(w),
            },
            options={"ftol": 1e-6, "maxiter": 60},
        ).x
        weights = np.clip(found, 0, cap)
        return weights / weights.sum()


def train_exactly(federation: ExactFederation, rows: OwnRows, splits: Splits) -> Federated:
    """Return what `fedkin.advice.candidates.train_with_nodes` returns, but for costs."""
    size = federation.sizes / federation.sizes.sum()
    equal = np.full(len(size), 1 / len(size))
    without = {"equal": federation.train(equal), "size": federation.train(size)}
    weights, joined = {}, {}
    for learner, own in learners(rows, splits).items():
        weights[learner] = federation.learn(own, size, without["size"])
        starts = [without["equal"], without["size"], without["size"]]
        joined[learner] = np.stack(
            [
                federation.train(way, start, own)
                for way, start in zip((equal, size, weights[learner]), starts, strict=True)
            ]
        )
    without["learned"] = federation.train(weights[ALL_ROWS], without["size"])
    plain = np.stack([without[way] for way in WAYS])
    objective: Any = None  # nobody asks for the model itself
    features = (rows.inputs.shape[1] - 1,)
    present = np.ones(len(size), bool)
    return Federated(joined, plain, weights, Cost(), objective, features, present)


class Trained(NamedTuple):
    """All candidates, and what they rest on."""

    rows: OwnRows
    """The owner's rows, numbers in units of their deviation."""
    splits: Splits
    federation: ExactFederation
    federated: Federated
    candidates: Candidates
    mean: float
    deviation: float


def train_all(
    nodes: Mapping[str, Any],
    owner: tuple[np.ndarray, np.ndarray],
    task: LearningTask,
    *,
    folds: int = 5,
    repeats: int = 2,
) -> Trained:
    """Train what `fedkin.advise` compares, with the nodes' part solved by SciPy. Two classes, or numbers."""
    mean, deviation = 0.0, 1.0
    if task == "regression":
        mean, deviation = float(owner[1].mean()), float(owner[1].std())
        nodes = {name: (x, (y - mean) / deviation) for name, (x, y) in nodes.items()}
        owner = (owner[0], (owner[1] - mean) / deviation)
    rows = OwnRows(add_ones(owner[0]), owner[1], task, 2 if task == "classification" else 1)
    splits = Splits.draw(rows, folds, repeats, seed=0)
    federation = ExactFederation(nodes, rows)
    federated = train_exactly(federation, rows, splits)
    candidates = train_candidates(rows, splits, federated)
    return Trained(rows, splits, federation, federated, candidates, mean, deviation)


class Advised(NamedTuple):
    """What an advice says, and its models with labels in their own unit."""

    judged: Judgment
    models: dict[str, np.ndarray]
    """Every candidate, the final model, and `equal weights` without the owner's rows as a node."""


def conclude(trained: Trained) -> Advised:
    """Return what `fedkin.advise` makes of its candidates."""
    without = trained.federated.without
    judged = judge(trained.rows, trained.splits, trained.candidates, without)
    names = (*CANDIDATES, "final", "equal weights")
    models = {}
    for name, model in zip(
        names, [*judged.models.models, without[WAYS.index("equal")]], strict=True
    ):
        models[name] = trained.deviation * model
        models[name][-1] += trained.mean
    return Advised(judged, models)
