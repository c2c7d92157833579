"""The statistics of a verdict: held-out losses, what joining gains, and how sure that is.

docs/verdict.md explains the procedure; reproduction/verdict.py measures it on federations whose truth is
known.
"""

from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import minimize

from fedkin.training.alone import OwnRows, losses, residuals

VerdictName = Literal["join", "alone", "unclear"]

CONFIDENCE = 0.9
NORMAL = 1.645
"""The quantile of the normal distribution for intervals of that confidence."""

SPREAD = 1.5
"""Standard errors over held-out rows are multiplied by this: they do not see that other rows of the owner
would have led to other models. Chosen on federations that the evidence does not use."""

AGAINST = 1.1
"""How many such standard errors joining must lose by for the verdict `alone`. Staying alone gives nothing
away, so it takes less evidence than joining."""

SHRINKAGE = 0.25
"""How far the variance of a node's weight is drawn toward the mean over all nodes: from few folds it is a
rough estimate, and zero where the folds agree by chance."""

MIXTURE_PRIOR = {"alone": 0.4, "equal": 0.15, "size": 0.15, "learned": 0.3}
"""The shares of the candidates in the final model where the owner's rows say nothing."""

MIXTURE_STRENGTH = 1.0
"""How many rows that prior is worth."""


class Interval(NamedTuple):
    """An estimate, and the 90% interval around it."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} (90% interval {self.low:.3g} to {self.high:.3g})"


class HeldOut(NamedTuple):
    """What cross-validation has found, for candidates in a fixed order."""

    outputs: np.ndarray
    """Outputs for rows that a model has not seen: (repetitions, rows, candidates, outputs)."""
    of_folds: np.ndarray
    """Mean score over all rows of every fold's models: (repetitions, folds, candidates)."""
    of_all: np.ndarray
    """Mean score over all rows of the models trained on all of them: (candidates,)."""


class Scored(NamedTuple):
    """Scores of candidates on held-out rows; lower is better."""

    per_row: np.ndarray
    """(rows, candidates), the mean over repetitions."""
    means: np.ndarray
    """(candidates,), corrected for the folds' models being trained on fewer rows (Burman, 1989)."""

    def gain(self, candidate: int, baseline: int = 0) -> Interval:
        """Return how much lower a candidate's score is than another's."""
        difference = self.per_row[:, baseline] - self.per_row[:, candidate]
        error = SPREAD * difference.std(ddof=1) / np.sqrt(len(difference))
        value = float(self.means[baseline] - self.means[candidate])
        return Interval(value, float(value - NORMAL * error), float(value + NORMAL * error))

    def own_interval(self, candidate: int) -> Interval:
        """Return a candidate's own score with its interval."""
        error = SPREAD * self.per_row[:, candidate].std(ddof=1) / np.sqrt(len(self.per_row))
        value = float(self.means[candidate])
        return Interval(value, float(value - NORMAL * error), float(value + NORMAL * error))


def score(held_scores: np.ndarray, of_folds: np.ndarray, of_all: np.ndarray) -> Scored:
    """Return the scores on held-out rows, with Burman's correction.

    A fold's model has seen fewer rows than the final one and does worse. How much worse shows on the rows
    of all folds together: there, too, the folds' models are compared with the final one.

    Args:
        held_scores: Scores of rows by models that have not seen them: (repetitions, rows, candidates).
        of_folds: Mean scores of the folds' models on all rows: (repetitions, folds, candidates).
        of_all: Mean scores of the final models on all rows: (candidates,).
    """
    correction = of_all - of_folds.mean(axis=(0, 1))
    return Scored(held_scores.mean(axis=0), held_scores.mean(axis=(0, 1)) + correction)


def decide(gain: Interval) -> VerdictName:
    """Say whether to join, given what the best way of joining gains over staying alone.

    >>> decide(Interval(0.1, 0.02, 0.18)), decide(Interval(-0.1, -0.2, 0.0)), decide(Interval(0.1, -0.1, 0.3))
    ('join', 'alone', 'unclear')
    """
    if gain.low > 0:
        return "join"
    error = (gain.high - gain.value) / NORMAL
    return "alone" if gain.value < -AGAINST * error else "unclear"


def mix(
    outputs: np.ndarray, rows: OwnRows, correction: np.ndarray, prior: np.ndarray
) -> np.ndarray:
    r"""Return the shares of candidates in a mixture that does best on held-out rows.

    Minimizes the held-out loss of :math:`\sum_j m_j \cdot` outputs, with the correction of `score`, plus
    :math:`\frac{s}{2n}\sum_j (m_j - p_j)^2/p_j` over the simplex.

    Args:
        outputs: Outputs for rows by models that have not seen them: (repetitions, rows, candidates, outputs).
        rows: The rows.
        correction: What to add to each candidate's loss.
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
        value = losses(mixed, labels, rows.task).mean() + correction @ shares
        value += 0.5 * strength * np.sum(away * (shares - prior))
        return float(value), slope + correction + strength * away

    found = minimize(
        objective,
        prior,
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * len(prior),
        constraints={"type": "eq", "fun": lambda m: m.sum() - 1, "jac": lambda m: np.ones_like(m)},
    ).x
    shares = np.clip(found, 0, 1)
    shares[shares < 1e-6] = 0
    return shares / shares.sum()


def weight_intervals(
    weights: np.ndarray, of_folds: np.ndarray, cap: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return where the weights would lie in 9 of 10 cases, had the owner drawn other rows.

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
    reach = NORMAL * np.sqrt(2 * variance)
    return np.clip(weights - reach, 0, cap), np.clip(weights + reach, 0, cap)
