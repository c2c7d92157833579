"""The statistics of a verdict: held-out losses, what joining gains, and how sure that is.

docs/verdict.md explains the procedure; reproduction/verdict/ measures it on federations whose truth is known.
"""

from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.stats import t as student

from fedkin.training.alone import OwnRows, losses, residuals

VerdictName = Literal["join", "alone", "unclear"]

NORMAL = 1.645
"""The quantile of the normal distribution for 90% intervals, and for tests in one direction at 5%."""

AGAINST = 2.5
"""How many standard errors, widened as for intervals, the best way of joining must lose by for the verdict
`alone`. The final model then does without the others altogether; a mixture with a small share of them is
rarely worse than that."""

SPREAD = 1.75
"""Intervals that are shown are wider than standard errors over held-out rows by this factor: those do not
see that other rows of the owner would have led to other models."""

SHRINKAGE = 0.25
"""How far the variance of a node's weight is drawn toward the mean over all nodes: from few folds it is a
rough estimate, and zero where the folds agree by chance."""

MIXTURE_PRIOR = {"alone": 0.2, "equal": 0.15, "size": 0.15, "learned": 0.5}
"""The shares of the candidates in the final model where the owner's rows say nothing."""

MIXTURE_STRENGTH = 6.0
"""How many rows that prior is worth."""


class Interval(NamedTuple):
    """An estimate, and the 90% interval around it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} (90% interval {self.low:.3g} to {self.high:.3g})"


class Gain(NamedTuple):
    """How much lower one score is than another, on average over the owner's rows."""

    value: float
    error: float
    """The standard error of the mean over rows."""

    @property
    def interval(self) -> Interval:
        """The interval that is shown."""
        reach = NORMAL * SPREAD * self.error
        return Interval(self.value, self.value - reach, self.value + reach)

    @property
    def is_positive(self) -> bool:
        """Whether chance alone hardly explains it."""
        return self.value > NORMAL * self.error

    @property
    def is_negative(self) -> bool:
        """Whether neither chance nor other rows of the owner explain that it is below zero."""
        return self.value < -AGAINST * SPREAD * self.error


def gain(scores: np.ndarray, model: int) -> Gain:
    """Return how much lower a model's score is than that of the first model, `alone`.

    >>> gain(np.array([[3.0, 1.0], [3.0, 3.0]]), 1)
    Gain(value=1.0, error=1.0)

    Args:
        scores: (rows, models); lower is better.
        model: The place of the model.
    """
    difference = scores[:, 0] - scores[:, model]
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return Gain(float(difference.mean()), float(error))


def mix(outputs: np.ndarray, rows: OwnRows, prior: np.ndarray) -> np.ndarray:
    r"""Return the shares of candidates in a mixture that does best on held-out rows.

    Minimizes the held-out loss of :math:`\sum_j m_j \cdot` outputs plus
    :math:`\frac{s}{2n}\sum_j (m_j - p_j)^2/p_j` over the simplex.

    Args:
        outputs: Outputs for rows by models that have not seen them: (repetitions, rows, candidates, outputs).
        rows: The rows.
        prior: The shares p.
    """
    flat = np.concatenate(list(outputs))
    labels = np.tile(rows.labels, len(outputs))
    unit = 1.0 if rows.task == "classification" else float(np.var(rows.labels)) or 1.0
    strength = MIXTURE_STRENGTH * unit / rows.total

    def objective(shares: np.ndarray) -> tuple[float, np.ndarray]:
        mixed = np.einsum("ijk,j->ik", flat, shares)
        slope = np.einsum("ik,ijk->j", residuals(mixed, labels, rows.task), flat) / len(labels)
        away = (shares - prior) / prior
        value = losses(mixed, labels, rows.task).mean()
        value += 0.5 * strength * np.sum(away * (shares - prior))
        return float(value), slope + strength * away

    found = minimize(
        objective,
        prior,
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * len(prior),
        constraints={"type": "eq", "fun": lambda m: m.sum() - 1, "jac": lambda m: np.ones_like(m)},
    )
    if not np.isfinite(found.x).all():
        return prior
    shares = np.clip(found.x, 0, 1)
    shares[shares < 1e-6] = 0
    return shares / shares.sum()


def cross_fit(
    outputs: np.ndarray, rows: OwnRows, folds_of_rows: np.ndarray, prior: np.ndarray
) -> np.ndarray:
    """Return the mixture's outputs for every row, with shares that this row had no part in.

    Args:
        outputs: Outputs for rows by models that have not seen them: (repetitions, rows, candidates, outputs).
        rows: The rows.
        folds_of_rows: The fold of each row in each repetition: (repetitions, rows).
        prior: The shares where the rows say nothing.

    Returns:
        (repetitions, rows, outputs).
    """
    mixed = np.zeros_like(outputs[:, :, 0])
    for repeat, folds in enumerate(folds_of_rows):
        for fold in np.unique(folds):
            held = folds == fold
            shares = mix(outputs[repeat : repeat + 1, ~held], rows.take(~held), prior)
            mixed[repeat, held] = np.einsum("ijk,j->ik", outputs[repeat, held], shares)
    return mixed


def weight_intervals(
    weights: np.ndarray, of_folds: np.ndarray, cap: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the 90% intervals of the weights that other rows of the owner would lead to.

    Leaving out one fold of g at a time gives g sets of weights, whose spread tells the variance of the
    weights from all rows (the jackknife). Another draw differs by two such deviations, hence the root of 2.

    Args:
        weights: The weights learned from all rows.
        of_folds: The weights of every fold: (repetitions, folds, nodes).
        cap: The largest weight.
    """
    folds = of_folds.shape[1]
    away = of_folds - of_folds.mean(axis=1, keepdims=True)
    variance = (folds - 1) / folds * np.sum(away**2, axis=1).mean(axis=0)
    variance = (1 - SHRINKAGE) * variance + SHRINKAGE * variance.mean()
    # The variance comes from as many sets of weights as there are folds: Student's quantile.
    reach = float(student.ppf(0.95, folds - 1)) * np.sqrt(2 * variance)
    return np.clip(weights - reach, 0, cap), np.clip(weights + reach, 0, cap)
