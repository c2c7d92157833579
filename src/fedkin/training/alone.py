r"""Linear models at the center, in float64: training on the owner's own rows, recalibration, mixtures.

A model is a matrix of coefficients: one row per feature and a last one for the intercept, one column per
class (a single column for regression). Its outputs are :math:`[X, 1]\,A`.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from fedkin.models.objective import Objective
from fedkin.types import LearningTask, Vector

STRENGTHS = (0.1, 0.5, 2.0, 8.0, 30.0, 120.0)
"""Penalties of a model trained alone, as a number of rows: the factor of ½‖θ‖² is this over the rows."""

INNER_FOLDS = 5
"""The folds by which that penalty is chosen."""

NEWTON_STEPS = 40
SMALL_DECREMENT = 1e-8


class OwnRows(NamedTuple):
    """Rows of the owner: features with a column of ones, and numbers of classes or quantities."""

    inputs: np.ndarray
    labels: np.ndarray
    task: LearningTask
    outputs: int
    """How many outputs a model has: the number of classes, or 1."""

    def take(self, rows: np.ndarray) -> "OwnRows":
        """Return some of the rows."""
        return self._replace(inputs=self.inputs[rows], labels=self.labels[rows])

    @property
    def total(self) -> int:
        """The number of rows."""
        return len(self.labels)


def add_ones(inputs: np.ndarray) -> np.ndarray:
    """Return the features of each row, flattened, with a 1 at the end."""
    flat = np.asarray(inputs, np.float64).reshape(len(inputs), -1)
    return np.concatenate([flat, np.ones((len(flat), 1))], axis=1)


def losses(outputs: np.ndarray, labels: np.ndarray, task: LearningTask) -> np.ndarray:
    """Return each row's loss: minus the log of its class's probability, or half the squared error.

    >>> losses(np.array([[0.0, 0.0]]), np.array([1]), "classification").round(4).tolist()
    [0.6931]
    """
    if task == "regression":
        return 0.5 * (outputs[..., 0] - labels) ** 2
    shifted = outputs - outputs.max(axis=-1, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=-1))
    chosen = np.take_along_axis(shifted, np.asarray(labels, int)[..., None], axis=-1)[..., 0]
    return total - chosen


def residuals(outputs: np.ndarray, labels: np.ndarray, task: LearningTask) -> np.ndarray:
    """Return the derivative of each row's loss by its outputs."""
    if task == "regression":
        return outputs - labels[:, None]
    shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    probabilities[np.arange(len(labels)), labels] -= 1
    return probabilities


def train(rows: OwnRows, l2: float, start: np.ndarray | None = None) -> np.ndarray:
    r"""Minimize the mean loss plus :math:`\frac{l2}{2}\|A\|^2` by Newton's method.

    >>> rows = OwnRows(add_ones(np.array([[0.0], [1.0]])), np.array([1.0, 3.0]), "regression", 1)
    >>> train(rows, 1e-9).round(4).ravel().tolist()
    [2.0, 1.0]
    """
    features = rows.inputs.shape[1]
    model = np.zeros((features, rows.outputs)) if start is None else start
    value = _objective(rows, model, l2)
    for _ in range(NEWTON_STEPS):
        gradient = rows.inputs.T @ residuals(rows.inputs @ model, rows.labels, rows.task)
        gradient = gradient / rows.total + l2 * model
        hessian = _hessian(rows, model) + l2 * np.eye(model.size)
        step = -np.linalg.solve(hessian, gradient.T.ravel()).reshape(rows.outputs, features).T
        decrement = -float(np.sum(gradient * step))
        if decrement < SMALL_DECREMENT:
            break
        share = 1.0
        while (
            following := _objective(rows, model + share * step, l2)
        ) > value - 0.05 * share * decrement and share > 1e-4:
            share /= 2
        model, value = model + share * step, following
    return model


def _objective(rows: OwnRows, model: np.ndarray, l2: float) -> float:
    mean = losses(rows.inputs @ model, rows.labels, rows.task).mean()
    return float(mean + 0.5 * l2 * np.sum(model**2))


def _hessian(rows: OwnRows, model: np.ndarray) -> np.ndarray:
    """Return the Hessian of the mean loss, with the coefficients of one class after the other."""
    inputs = rows.inputs
    if rows.task == "regression":
        return inputs.T @ inputs / rows.total
    shifted = inputs @ model
    shifted = np.exp(shifted - shifted.max(axis=1, keepdims=True))
    p = shifted / shifted.sum(axis=1, keepdims=True)
    blocks = [
        [
            (inputs.T * (p[:, i] * ((i == j) - p[:, j]))) @ inputs / rows.total
            for j in range(rows.outputs)
        ]
        for i in range(rows.outputs)
    ]
    return np.block(blocks)


def train_alone(rows: OwnRows, inner_folds: np.ndarray) -> np.ndarray:
    """Train on the owner's rows alone, with the penalty that cross-validation finds best.

    Args:
        rows: The rows.
        inner_folds: The fold of each row.
    """
    total = np.zeros(len(STRENGTHS))
    for fold in np.unique(inner_folds):
        kept, held = rows.take(inner_folds != fold), rows.take(inner_folds == fold)
        model = None
        # From the strongest penalty to the weakest, each from where the last has led.
        for place in reversed(range(len(STRENGTHS))):
            model = train(kept, STRENGTHS[place] / kept.total, model)
            total[place] += losses(held.inputs @ model, held.labels, rows.task).sum()
    return train(rows, STRENGTHS[int(np.argmin(total))] / rows.total)


def recalibrate(model: np.ndarray, rows: OwnRows) -> np.ndarray:
    r"""Return the model whose outputs are a + b·outputs, with a and b ≥ 0 fitted to the owner's rows.

    The summed loss has the penalty ½(b − 1)² + ‖a‖², so that few rows change little; numbers are measured in
    units of what the model leaves unexplained.

    >>> rows = OwnRows(add_ones(np.array([[-1.0], [1.0]] * 20)), np.array([0, 1] * 20), "classification", 2)
    >>> hostile = np.array([[1.0, -1.0], [0.0, 0.0]])
    >>> bool(np.abs(recalibrate(hostile, rows)).max() < 1e-4)
    True
    """
    outputs = rows.inputs @ model
    unit = 1.0 if rows.task == "classification" else max(float(np.var(rows.labels)), 1e-12)

    def penalized(values: np.ndarray) -> tuple[float, np.ndarray]:
        scale, shift = values[0], values[1:]
        calibrated = shift + scale * outputs
        slope = residuals(calibrated, rows.labels, rows.task)
        value = losses(calibrated, rows.labels, rows.task).sum()
        value += unit * (0.5 * (scale - 1) ** 2 + np.sum(shift**2))
        by_scale = np.sum(slope * outputs) + unit * (scale - 1)
        return float(value), np.array([by_scale, *(slope.sum(axis=0) + 2 * unit * shift)])

    start = np.array([1.0, *np.zeros(rows.outputs)])
    bounds = [(0, None)] + [(None, None)] * rows.outputs
    # L-BFGS-B sometimes stops at once where the bound on the scale is reached.
    found = minimize(penalized, start, jac=True, method="SLSQP", bounds=bounds).x
    calibrated = found[0] * model
    calibrated[-1] += found[1:]
    return calibrated


def coefficients(theta: Vector, objective: Objective) -> np.ndarray:
    """Return a linear model's parameters as one matrix, with the intercepts in the last row."""
    parameters = objective.unflatten(jnp.asarray(theta))
    kernel = np.asarray(parameters["kernel"], np.float64)
    bias = np.asarray(parameters["bias"], np.float64)
    return np.concatenate([kernel.reshape(len(kernel), -1), bias.reshape(1, -1)])


def parameters(matrix: np.ndarray, objective: Objective) -> np.ndarray:
    """Return the flat vector of a linear model, given its matrix."""
    shapes = {tuple(shape) for shape in objective.shapes}
    kernel, bias = matrix[:-1], matrix[-1]
    if () in shapes:  # a regression has one output, without an axis for it
        kernel, bias = kernel[:, 0], bias[0]
    # The leaves of a dict are in the order of its keys.
    return np.concatenate([np.ravel(bias), np.ravel(kernel)]).astype(np.float32)
