r"""Linear models at the center, in float64: training on the owner's own rows, recalibration, mixtures.

A model is a matrix of coefficients: one row per feature and a last one for the intercept, one column per
class (a single column for regression). Its outputs are :math:`[X, 1]\,A`.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedkin.models.objective import Objective
from fedkin.types import LearningTask, Vector

STRENGTHS = (0.1, 0.5, 2.0, 8.0, 30.0, 120.0, 1000.0)
"""Penalties of a model trained alone, as a number of rows: the factor of ½‖θ‖² is this over the rows. The
strongest leaves nearly a constant."""

INTERCEPT_STRENGTH = 0.1
"""The penalty of the intercept, likewise, whatever that of the slopes is."""

INNER_FOLDS = 5
"""The folds by which penalties are judged."""

OVERDISPERSION = 3.0
"""How many times larger the variance of held-out losses is than their spread over rows shows: other rows of
the owner would have led to other models."""

FEWEST_OWN_ROWS = 10
"""The fewest rows of the owner by which training alone can be judged."""

CHANCE = 0.5
"""How much a scale raises the log-likelihood of rows where there is nothing to fit: half of a chi-squared
variable's mean."""

NEGLIGIBLE = 1e-4
"""A penalty with a smaller share is left out."""

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


class PenalizedLoss:
    r"""The weighted loss of rows with a penalty, :math:`\sum_i c_i \ell_i(A) + \frac12 \sum_f p_f \|A_f\|^2`.

    A point is a vector: the matrix of coefficients, one class after the other. Two classes need only
    the difference of their columns, which is all that the loss depends on.

    Args:
        rows: The rows.
        counts: How much each row counts.
        penalty: The penalty of each row of the matrix.
    """

    def __init__(self, rows: OwnRows, counts: np.ndarray, penalty: np.ndarray) -> None:
        self.rows, self.counts = rows, counts
        self.two_classes = rows.task == "classification" and rows.outputs == 2
        self.columns = 1 if self.two_classes else rows.outputs
        # Columns -x/2 and x/2 have half the squares of x.
        self.penalty = np.tile(penalty / 2 if self.two_classes else penalty, self.columns)
        self._signs = 2.0 * rows.labels - 1 if self.two_classes else None

    def value(self, point: np.ndarray) -> float:
        """Return the penalized loss."""
        outputs = self.rows.inputs @ self._columns(point)
        if self._signs is not None:
            each = np.logaddexp(0, -self._signs * outputs[:, 0])
        else:
            each = losses(outputs, self.rows.labels, self.rows.task)
        return float(self.counts @ each + 0.5 * self.penalty @ point**2)

    def slopes(self, point: np.ndarray) -> np.ndarray:
        """Return the derivative of each row's own loss by its outputs: (rows, columns)."""
        outputs = self.rows.inputs @ self._columns(point)
        if self._signs is not None:
            return (-self._signs * sigmoid(-self._signs * outputs[:, 0]))[:, None]
        return residuals(outputs, self.rows.labels, self.rows.task)

    def derivatives(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient and the Hessian."""
        inputs = self.rows.inputs
        slopes = self.slopes(point)
        gradient = (inputs.T @ (self.counts[:, None] * slopes)).T.ravel() + self.penalty * point
        if self.rows.task == "regression":
            return gradient, self._block(1.0) + np.diag(self.penalty)
        if self.two_classes:
            chance = np.abs(slopes[:, 0])
            return gradient, self._block(chance * (1 - chance)) + np.diag(self.penalty)
        p = slopes.copy()
        p[np.arange(len(p)), self.rows.labels] += 1
        blocks = [
            [self._block(p[:, i] * ((i == j) - p[:, j])) for j in range(self.columns)]
            for i in range(self.columns)
        ]
        return gradient, np.block(blocks) + np.diag(self.penalty)

    def minimize(self, start: np.ndarray | None = None) -> np.ndarray:
        """Return the minimum, by Newton's method with halved steps."""
        size = self.rows.inputs.shape[1] * self.columns
        point = np.zeros(size) if start is None else start
        value = self.value(point)
        for _ in range(NEWTON_STEPS):
            gradient, hessian = self.derivatives(point)
            step = -np.linalg.solve(hessian, gradient)
            decrement = -float(gradient @ step)
            if decrement < SMALL_DECREMENT:
                break
            share = 1.0
            while (
                following := self.value(point + share * step)
            ) > value - 0.05 * share * decrement and share > 1e-4:
                share /= 2
            point, value = point + share * step, following
        return point

    def matrix(self, point: np.ndarray) -> np.ndarray:
        """Return the matrix of coefficients of a point."""
        found = self._columns(point)
        return np.concatenate([-found / 2, found / 2], axis=1) if self.two_classes else found

    def point(self, matrix: np.ndarray) -> np.ndarray:
        """Return the point of a matrix of coefficients."""
        return matrix[:, 1] - matrix[:, 0] if self.two_classes else matrix.T.ravel()

    def _columns(self, point: np.ndarray) -> np.ndarray:
        return point.reshape(self.columns, -1).T

    def _block(self, curvature: np.ndarray | float) -> np.ndarray:
        return (self.rows.inputs.T * (self.counts * curvature)) @ self.rows.inputs


def train(rows: OwnRows, l2: float, start: np.ndarray | None = None) -> np.ndarray:
    r"""Minimize the mean loss plus :math:`\frac{l2}{2}\|A\|^2`, with a weak penalty for the intercept.

    However strong the penalty is, the classes keep their shares. The intercept's own penalty is what
    keeps it finite where all rows have the same class.

    >>> rows = OwnRows(add_ones(np.array([[0.0], [1.0]])), np.array([1.0, 3.0]), "regression", 1)
    >>> train(rows, 1e-9).round(4).ravel().tolist()
    [2.0, 1.0]
    """
    penalty = np.full(rows.inputs.shape[1], l2)
    penalty[-1] = min(l2, INTERCEPT_STRENGTH / rows.total)
    loss = PenalizedLoss(rows, np.full(rows.total, 1 / rows.total), penalty)
    return loss.matrix(loss.minimize(None if start is None else loss.point(start)))


def train_alone(rows: OwnRows, inner_folds: np.ndarray) -> np.ndarray:
    r"""Train on the owner's rows alone, as cross-validation finds best: the mean over all penalties.

    Each counts by the likelihood of the held-out rows, :math:`e^{-L/3}`, so that few rows do not choose one
    penalty by chance.

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
    # For numbers, the log-likelihood is in units of the variance of the errors.
    unit = 1.0 if rows.task == "classification" else 2 * total.min() / rows.total
    away = (total - total.min()) / max(OVERDISPERSION * unit, 1e-300)
    shares = np.exp(-away) / np.exp(-away).sum()
    models = [
        share * train(rows, strength / rows.total)
        for share, strength in zip(shares, STRENGTHS, strict=True)
        if share > NEGLIGIBLE
    ]
    return np.sum(models, axis=0)


def recalibrate(model: np.ndarray, rows: OwnRows) -> np.ndarray:
    r"""Return the model whose outputs are a + b·outputs, with a and b ≥ 0 fitted to the owner's rows.

    The summed loss has the penalty ½(b − 1)² + ‖a‖², so that few rows change little; for numbers it is
    multiplied by the variance of the labels.

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

    from scipy.optimize import minimize  # a fifth of a second to load: only for those who calibrate

    start = np.array([1.0, *np.zeros(rows.outputs)])
    bounds = [(0, None)] + [(None, None)] * rows.outputs
    # L-BFGS-B sometimes stops at once where the bound on the scale is reached.
    found = minimize(penalized, start, jac=True, method="SLSQP", bounds=bounds).x
    if not np.isfinite(found).all():
        return model
    calibrated = found[0] * model
    calibrated[-1] += found[1:]
    return calibrated


def points_along(model: np.ndarray, rows: OwnRows) -> bool:
    """Tell whether a model agrees with the rows.

    It does if its outputs, shifted and scaled, fit them better than a constant, by more than chance gives
    where there is nothing to fit.

    >>> rows = OwnRows(add_ones(np.array([[-1.0], [1.0]] * 20)), np.array([0, 1] * 20), "classification", 2)
    >>> along = np.array([[-1.0, 1.0], [0.0, 0.0]])
    >>> points_along(along, rows), points_along(-along, rows), points_along(0 * along, rows)
    (True, False, False)
    """
    scaled = losses(rows.inputs @ recalibrate(model, rows), rows.labels, rows.task).sum()
    if rows.task == "regression":
        constant = 0.5 * rows.total * float(np.var(rows.labels))
        return bool(0.5 * rows.total * np.log(constant / max(scaled, 1e-300)) > CHANCE)
    counts = np.bincount(rows.labels, minlength=rows.outputs)
    shares = counts[counts > 0] / rows.total
    entropy = -float(np.sum(shares * np.log(shares)))
    return bool(rows.total * entropy - scaled > CHANCE)


def sigmoid(values: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + e^-x), for any x without overflow.

    >>> sigmoid(np.array([-1000.0, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return np.exp(-np.logaddexp(0.0, -values))


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
