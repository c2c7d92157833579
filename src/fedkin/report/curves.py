"""The content of figures: curves, levels and weights, averaged over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedkin.report.reading import Cell, Record, Run
from fedkin.training.history import WEIGHT_PREFIX

MOST_POINTS = 150
"""The largest number of points in a curve: more would not be visible."""

COSTS = {
    "synchronizations": ("synchronizations", 1.0),
    "points": ("points processed, thousands", 1e3),
    "bytes_up": ("sent up by all nodes, MB", 1e6),
    "bytes_down": ("sent down to all nodes, MB", 1e6),
}
"""The costs on horizontal axes, each with the title of the axis and its unit.

Points are those of the busiest node. A title must fit under a panel of a study's grid.
"""

SCORES = {
    "test_accuracy": "test accuracy",
    "validation_accuracy": "validation accuracy",
    "validation_loss": "validation loss",
}
"""The scores that curves may show; the first that a history has is used."""

UNEQUAL = 1e-6
"""Weights that differ by more than this were learned."""


@dataclass(frozen=True)
class Band:
    """A mean over seeds with its interval. Both ends are None for a single seed."""

    mean: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    seeds: int


@dataclass(frozen=True)
class Curve:
    """A score against a cost. `level`: a method that never communicates, shown as a horizontal line."""

    x: np.ndarray
    band: Band
    level: bool = False


@dataclass(frozen=True)
class WeightPaths:
    """The weight of each node over outer iterations, averaged over seeds."""

    names: list[str]
    similar: list[bool | None]
    steps: np.ndarray
    weights: np.ndarray
    """Of shape (nodes, steps)."""


@dataclass(frozen=True)
class FinalWeights:
    """The weight of each node in the result, mean and standard deviation over seeds."""

    names: list[str]
    similar: list[bool | None]
    mean: np.ndarray
    deviation: np.ndarray | None


def interval(values: np.ndarray) -> Band:
    """Return the mean and an interval over the first axis, the seeds.

    The interval is Student's 95% confidence interval of the mean. For two seeds, where that is too wide
    to be useful, it is the range of both. One seed has no interval.
    """
    seeds = len(values)
    mean = values.mean(axis=0)
    if seeds == 1:
        return Band(mean, None, None, 1)
    if seeds == 2:
        return Band(mean, values.min(axis=0), values.max(axis=0), 2)
    from scipy.special import stdtrit  # loaded only where there are several seeds

    half = stdtrit(seeds - 1, 0.975) * values.std(axis=0, ddof=1) / np.sqrt(seeds)
    return Band(mean, mean - half, mean + half, seeds)


def score_interval(values: np.ndarray, score: str) -> Band:
    """Return the mean and interval of a score; an accuracy's interval stays between 0 and 1.

    With few seeds Student's interval can be wider than that.

    Args:
        values: One row per seed.
        score: The name of the score's column in the history.
    """
    band = interval(values)
    if band.low is None or band.high is None or not score.endswith("accuracy"):
        return band
    return replace(band, low=np.maximum(band.low, 0.0), high=np.minimum(band.high, 1.0))


def interval_words(*seeds: int) -> str:
    """Describe what `interval` is for a number of seeds, or for several such numbers."""
    if len(set(seeds)) > 1:
        spread = f"{min(seeds)} to {max(seeds)} seeds, some runs are missing"
        if max(seeds) == 2:
            return f"the range of two seeds ({spread})"
        return f"95% confidence interval; for two seeds their range, for one seed none ({spread})"
    if seeds[0] == 1:
        return "one seed, so no interval"
    if seeds[0] == 2:
        return "the range of two seeds"
    return f"95% confidence interval, {seeds[0]} seeds"


def score_column(record: Record) -> str:
    """Return the history's column that curves show."""
    columns = record.runs[0].history.columns
    if record.kind == "fit":  # an accuracy on few rows is flat, and says little
        return "validation_loss"
    return next(name for name in SCORES if name in columns)


def shown_costs(record: Record) -> list[str]:
    """Return the costs to show: only points if no method communicates.

    A fit has one method, whose curve against bytes would look like that against synchronizations.
    """
    communicates = any(run.history.synchronizations.max() > 0 for run in record.runs)
    if not communicates:
        return ["points"]
    return list(COSTS) if record.kind == "study" else ["synchronizations", "points"]


def over_seeds(histories: Sequence[pd.DataFrame], x: str, y: str) -> Curve:
    """Average runs that were evaluated at different costs.

    Runs are interpolated linearly between evaluations. After its last evaluation a run keeps its score.
    """
    places = np.unique(np.concatenate([history[x].to_numpy(float) for history in histories]))
    places = places[places >= max(float(history[x].iloc[0]) for history in histories)]
    if len(places) > MOST_POINTS:
        chosen = np.unique(np.linspace(0, len(places) - 1, MOST_POINTS).round().astype(int))
        places = places[chosen]
    values = [
        np.interp(places, history[x].to_numpy(float), history[y].to_numpy(float))
        for history in histories
    ]
    return Curve(places, score_interval(np.stack(values), y))


def score_curves(record: Record, cell: Cell, x: str) -> dict[str, Curve]:
    """Return the curve of each method of a cell.

    A method that never communicates is a level, its score at the end of training, if there are others
    to compare with. Otherwise it is a curve against its own cost.
    """
    y = score_column(record)
    compared = any(run.history.synchronizations.max() > 0 for run in record.of(cell))
    curves = {}
    for label in record.labels:
        histories = [run.history for run in record.of(cell, label) if y in run.history]
        if not histories:
            continue
        silent = max(history.synchronizations.max() for history in histories) == 0
        if silent and compared:
            final = np.array([float(history[y].iloc[-1]) for history in histories])
            curves[label] = Curve(np.empty(0), score_interval(final, y), level=True)
        else:
            curves[label] = over_seeds(histories, x, y)
    return curves


def learners(record: Record, cell: Cell) -> list[str]:
    """Return the labels whose runs learned weights, so that they are not all equal."""
    return [
        label
        for label in record.labels
        if any(
            run.weights and max(run.weights.values()) - min(run.weights.values()) > UNEQUAL
            for run in record.of(cell, label)
        )
    ]


def all_learners(record: Record) -> list[str]:
    """Return the labels that learned weights in any cell, in order."""
    found = {label for cell in record.cells for label in learners(record, cell)}
    return [label for label in record.labels if label in found]


def weight_paths(record: Record, cell: Cell, label: str) -> WeightPaths:
    """Return the weights of a cell's nodes over outer iterations."""
    runs = _same_nodes(record.of(cell, label))
    names = list(runs[0].weights or {})
    steps = np.arange(1, max(int(run.history.step.max()) for run in runs) + 1)
    weights = [
        [
            np.interp(steps, run.history.step, run.history[WEIGHT_PREFIX + name].to_numpy(float))
            for name in names
        ]
        for run in runs
    ]
    return WeightPaths(names, _groups(runs[0], names), steps, np.mean(weights, axis=0))


def final_weights(record: Record, cell: Cell, label: str) -> FinalWeights:
    """Return the weights that belong to the resulting models."""
    runs = _same_nodes(record.of(cell, label))
    names = list(runs[0].weights or {})
    weights = np.array([[(run.weights or {})[name] for name in names] for run in runs])
    deviation = weights.std(axis=0, ddof=1) if len(runs) > 1 else None
    return FinalWeights(names, _groups(runs[0], names), weights.mean(axis=0), deviation)


def _same_nodes(runs: list[Run]) -> list[Run]:
    """Keep the runs with weights for the same nodes: only these can be averaged."""
    weighted = [run for run in runs if run.weights]
    return [run for run in weighted if run.weights.keys() == weighted[0].weights.keys()]  # pyright: ignore


def _groups(run: Run, names: list[str]) -> list[bool | None]:
    similar = run.similar
    return [similar.get(name) for name in names]
