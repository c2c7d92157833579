"""The federated part of an advice, solved by SciPy in float64: quick, and independent of fedkin's solver.

`federations.py` uses it for hundreds of federations; a test compares it with `fedkin.advise` itself.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from fedkin.advice.advise import Judgment, judge
from fedkin.advice.candidates import (
    ALL_ROWS,
    CANDIDATES,
    Federated,
    Splits,
    fold_name,
    train_candidates,
)
from fedkin.federation.base import Cost
from fedkin.training.alone import OwnRows, add_ones, losses, residuals
from fedkin.types import LearningTask

L2 = 1e-3
DECREMENT = 1e-8


class ExactFederation:
    """Nodes whose weighted training problem is solved by Newton's method."""

    def __init__(self, nodes: Mapping[str, Any], rows: OwnRows) -> None:
        self.sizes = np.array([len(labels) for _, labels in nodes.values()])
        self.inputs = np.concatenate([add_ones(inputs) for inputs, _ in nodes.values()])
        self.labels = np.concatenate([labels for _, labels in nodes.values()])
        self.of_rows = np.repeat(np.arange(len(self.sizes)), self.sizes)
        self.task: LearningTask = rows.task
        self.outputs = rows.outputs

    def train(
        self, weights: np.ndarray, start: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the model of some weights and the Hessian there, classes one after the other."""
        counts = (weights / self.sizes)[self.of_rows]
        used = counts > 0
        inputs, labels, counts = self.inputs[used], self.labels[used], counts[used]
        features = inputs.shape[1]
        model = np.zeros((features, self.outputs)) if start is None else start
        value = np.inf
        hessian = np.eye(model.size)
        for _ in range(60):
            outputs = inputs @ model
            slope = residuals(outputs, labels, self.task)
            gradient = inputs.T @ (counts[:, None] * slope) + L2 * model
            hessian = self._hessian(inputs, outputs, counts) + L2 * np.eye(model.size)
            step = -np.linalg.solve(hessian, gradient.T.ravel()).reshape(self.outputs, features).T
            decrement = -float(np.sum(gradient * step))
            if decrement < DECREMENT:
                break
            value = self._value(model, inputs, labels, counts)
            share = 1.0
            while (
                self._value(model + share * step, inputs, labels, counts)
                > value - 0.05 * share * decrement
                and share > 1e-4
            ):
                share /= 2
            model = model + share * step
        return model, hessian

    def _value(
        self, model: np.ndarray, inputs: np.ndarray, labels: np.ndarray, counts: np.ndarray
    ) -> float:
        total = counts @ losses(inputs @ model, labels, self.task)
        return float(total + 0.5 * L2 * np.sum(model**2))

    def _hessian(self, inputs: np.ndarray, outputs: np.ndarray, counts: np.ndarray) -> np.ndarray:
        if self.task == "regression":
            return (inputs.T * counts) @ inputs
        shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        p = shifted / shifted.sum(axis=1, keepdims=True)
        # Two classes: the four blocks differ by their signs only.
        block = (inputs.T * (counts * p[:, 0] * p[:, 1])) @ inputs
        return np.block([[block, -block], [-block, block]])

    def learn(self, rows: OwnRows, prior: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Return the weights that minimize the validation loss with its prior, and cap 1."""
        unit = 1.0 if self.task == "classification" else float(np.var(rows.labels))
        strength = unit / rows.total
        last = {"model": first}

        def value(weights: np.ndarray) -> tuple[float, np.ndarray]:
            weights = np.clip(weights, 0, None)
            weights = weights / weights.sum()
            model, hessian = self.train(weights, last["model"])
            last["model"] = model
            outputs = rows.inputs @ model
            slope = residuals(outputs, rows.labels, self.task)
            target = rows.inputs.T @ slope / rows.total + L2 * model
            adjoint = np.linalg.solve(hessian, target.T.ravel())
            adjoint = adjoint.reshape(self.outputs, -1).T
            own = residuals(self.inputs @ model, self.labels, self.task)
            along = np.sum(own * (self.inputs @ adjoint), axis=1)
            slopes = np.bincount(self.of_rows, along) / self.sizes + L2 * np.sum(model * adjoint)
            away = (weights - prior) / prior
            loss = losses(outputs, rows.labels, self.task).mean() + 0.5 * L2 * np.sum(model**2)
            loss += 0.5 * strength * np.sum(away * (weights - prior))
            return float(loss), -slopes + strength * away

        found = minimize(
            value,
            prior,
            jac=True,
            method="SLSQP",
            bounds=[(0, 1)] * len(prior),
            constraints={
                "type": "eq",
                "fun": lambda w: w.sum() - 1,
                "jac": lambda w: np.ones_like(w),
            },
            options={"ftol": 1e-6, "maxiter": 60},
        ).x
        weights = np.clip(found, 0, 1)
        return weights / weights.sum()


def train_exactly(nodes: Mapping[str, Any], rows: OwnRows, splits: Splits) -> Federated:
    """Return what `fedkin.advice.candidates.train_with_nodes` returns, but for costs."""
    federation = ExactFederation(nodes, rows)
    size = federation.sizes / federation.sizes.sum()
    equal = np.full(len(size), 1 / len(size))
    models = {"equal": federation.train(equal)[0], "size": federation.train(size)[0]}
    owners = {ALL_ROWS: rows} | {
        fold_name(repeat, fold): rows.take(splits.of_rows[repeat] != fold)
        for repeat, fold in splits.all()
    }
    weights = {name: federation.learn(own, size, models["size"]) for name, own in owners.items()}
    models |= {name: federation.train(own, models["size"])[0] for name, own in weights.items()}
    objective: Any = None  # nobody asks for the model itself
    return Federated(models, weights, Cost(), objective, (rows.inputs.shape[1] - 1,))


class Advised(NamedTuple):
    """What an advice says, and its models with labels in their own unit."""

    judged: Judgment
    models: dict[str, np.ndarray]
    """Every candidate and the final model."""


def advise_exactly(
    nodes: Mapping[str, Any],
    owner: tuple[np.ndarray, np.ndarray],
    task: LearningTask,
    *,
    folds: int = 5,
    repeats: int = 2,
) -> Advised:
    """Return what `fedkin.advise` would, with the nodes' part solved by SciPy. Two classes, or numbers."""
    mean, deviation = 0.0, 1.0
    if task == "regression":
        mean, deviation = float(owner[1].mean()), float(owner[1].std())
        nodes = {name: (x, (y - mean) / deviation) for name, (x, y) in nodes.items()}
        owner = (owner[0], (owner[1] - mean) / deviation)
    rows = OwnRows(add_ones(owner[0]), owner[1], task, 2 if task == "classification" else 1)
    splits = Splits.draw(rows, folds, repeats, seed=0)
    candidates = train_candidates(rows, splits, train_exactly(nodes, rows, splits))
    judged = judge(rows, candidates)
    final = np.einsum("j,jfk->fk", judged.shares, candidates.models)
    models = dict(zip(CANDIDATES, candidates.models, strict=True)) | {"final": final}
    for model in models.values():
        model *= deviation
        model[-1] += mean
    return Advised(judged, models)
