"""Powers of ε, fitted to the rounds that the command `rates` has counted."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from reproduction.theory.tables import numbers, select

PREDICTED_SLOPES = {
    ("convex", False): -0.5,
    ("convex", True): -1.5,
    ("non-convex", False): -2.0,
    ("non-convex", True): -4.0,
}
"""Rounds grow as this power of ε, up to logarithms; True: with local steps (τ > 1)."""


@dataclass(frozen=True)
class Slope:
    """A power law fitted to rounds against ε."""

    outer_problem: str
    period: int
    slope: float
    standard_error: float
    promised_slope: float
    """The same fit to the theory's own promise over the same iterations: with its logarithms."""
    predicted: float
    """The theory's power, without logarithms."""
    points: int

    @property
    def no_worse(self) -> bool:
        """Whether rounds grow no faster than promised, within two standard errors."""
        return self.slope + 2 * self.standard_error >= self.promised_slope


def fit_slopes(rounds: pd.DataFrame) -> list[Slope]:
    """Fit log rounds = a + slope · log ε for each run, over the iterations that are marked `fitted`.

    They begin when the first transient is over and end before the flattest direction of F is solved: the
    range follows from the federation's spectrum (`HardFederation.last_sublinear`).

    Iterations follow each other, so their errors are not independent: ten points are taken evenly in
    log rounds, and the standard error is that of a jackknife over these.

    Args:
        rounds: From `measure_rounds`.
    """
    slopes = []
    kinds = rounds[["outer_problem", "period"]].drop_duplicates()
    for problem, period in kinds.itertuples(index=False):
        group = select(rounds, outer_problem=problem, period=period, fitted=True)
        logs = np.log(numbers(group, "rounds"))
        wanted = np.linspace(logs[0], logs[-1], 10)
        chosen = np.unique(np.searchsorted(logs, wanted - 1e-12).clip(max=len(logs) - 1))
        picked = group.iloc[chosen]
        accuracy = np.log(numbers(picked, "accuracy"))
        promised = np.log(numbers(picked, "promised"))
        slope, error = _jackknife_slope(accuracy, logs[chosen])
        slopes.append(
            Slope(
                str(problem),
                int(period),
                slope,
                error,
                _slope(promised, logs[chosen]),
                PREDICTED_SLOPES[str(problem), int(period) > 1],
                len(chosen),
            )
        )
    return slopes


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.polyfit(x, y, 1)[0])


def _jackknife_slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    count = len(x)
    without = np.array([_slope(np.delete(x, i), np.delete(y, i)) for i in range(count)])
    spread = math.sqrt((count - 1) / count * float(np.sum((without - without.mean()) ** 2)))
    return _slope(x, y), spread
