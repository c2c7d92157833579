"""What a study says where every node is an owner: who learns with whom, and who gains by it.

Nodes of partitions with groups play the same part with every seed, so their weights and scores are averaged
over seeds. Other partitions draw other nodes for every seed: what is shown of single nodes is then the first
seed's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedkin.numerics.communities import find_groups
from fedkin.report.reading import Cell, Record, Run
from fedkin.training.collaboration import LEAST_CHANGE, summarize_scores

ALONE = "local"
"""The method that gains are measured against."""


@dataclass(frozen=True)
class OwnerMatrix:
    """Whom each node learns with, in the order of the groups found."""

    names: tuple[str, ...]
    weights: np.ndarray
    """A row per owner; NaN where learning failed."""
    groups: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class NodeScores:
    """One node's scores by method, each with its standard deviation over seeds."""

    name: str
    group: int
    """The number of the group that it was found in; 0 without groups."""
    points: float
    scores: dict[str, tuple[float, float | None]]

    def gain(self, label: str, alone: str) -> float | None:
        """Return what a method gains over learning alone."""
        if label not in self.scores or alone not in self.scores:
            return None
        return self.scores[label][0] - self.scores[alone][0]


@dataclass(frozen=True)
class MethodSummary:
    """A method's scores over all nodes: each a mean over seeds with its standard deviation."""

    label: str
    numbers: dict[str, tuple[float, float | None]]


@dataclass(frozen=True)
class Everyone:
    """What is shown of one cell."""

    cell: Cell
    title: str
    seeds: int
    averaged: bool
    """Whether what is shown of single nodes is a mean over seeds."""
    learner: str | None
    """The label whose matrix is shown."""
    matrix: OwnerMatrix | None
    within: tuple[float, float | None] | None
    """The share of the weight within the groups that the data have; None if they have none."""
    exact: tuple[int, int] | None
    """In how many runs the groups were found exactly, and of how many; None without known groups."""
    alone: str | None
    """The label of learning alone."""
    nodes: list[NodeScores]
    summaries: list[MethodSummary]
    best_mean: str
    best_worst: str
    measure: str
    """What scores are, such as `test accuracy`."""
    higher: bool
    """Whether higher scores are better."""
    sentence: str


def everyone_of(record: Record) -> list[Everyone]:
    """Return what is shown of every cell in which all nodes are owners."""
    cells = [cell for cell in record.cells if any(run.owners for run in record.of(cell))]
    return [_of_cell(record, cell) for cell in cells]


def _of_cell(record: Record, cell: Cell) -> Everyone:
    runs = [run for run in record.of(cell) if run.owners]
    seeds = sorted({run.seed for run in runs})
    averaged = len(seeds) == 1 or all(_same_parts(run, runs[0]) for run in runs)
    shown = runs if averaged else [run for run in runs if run.seed == seeds[0]]
    labels = [label for label in record.labels if any(run.label == label for run in runs)]
    learner = next((label for label in labels if _learns(record, runs, label)), None)
    matrix = None
    if learner is not None:
        matrix = _matrix([run for run in shown if run.label == learner])
    alone = next((label for label in labels if record.labels[label] == ALONE), None)
    measure = (runs[0].owners or {})["measure"]
    higher = measure == "accuracy"
    summaries = [_summary(runs, label, alone, measure) for label in labels]
    best_mean, best_worst = (_best(summaries, name, higher).label for name in ("mean", "worst"))
    shown_measure = f"{(runs[0].owners or {})['scored_on']} {measure}"
    learned = [run for run in runs if run.label == learner]
    nodes = _nodes(shown, labels, matrix)
    return Everyone(
        cell=cell,
        title=cell.short_title,
        seeds=len(seeds),
        averaged=averaged and len(seeds) > 1,
        learner=learner,
        matrix=matrix,
        within=_within(learned),
        exact=_exact(learned),
        alone=alone,
        nodes=nodes,
        summaries=summaries,
        best_mean=best_mean,
        best_worst=best_worst,
        measure=shown_measure,
        higher=higher,
        sentence=_sentence(nodes, summaries, learner, alone, len(seeds), shown_measure, higher),
    )


def _best(summaries: Sequence[MethodSummary], name: str, higher: bool) -> MethodSummary:
    sign = 1 if higher else -1
    return max(summaries, key=lambda each: sign * each.numbers[name][0])


def _same_parts(run: Run, other: Run) -> bool:
    """Tell whether nodes of the same name play the same part: the data have groups, and the same."""
    parts = [
        [(row["name"], row["group"]) for row in (each.owners or {})["owners"]]
        for each in (run, other)
    ]
    return parts[0] == parts[1] and all(group is not None for _, group in parts[0])


def _learns(record: Record, runs: Sequence[Run], label: str) -> bool:
    """Tell whether a label has learned weights, which differ between owners."""
    for run in runs:
        matrix = (run.owners or {}).get("matrix")
        if run.label == label and matrix is not None:
            rows = np.array([row for row in matrix if row is not None])
            return len(rows) > 0 and bool(np.ptp(rows, axis=0).max() > LEAST_CHANGE)
    return False


def _matrix(runs: Sequence[Run]) -> OwnerMatrix | None:
    found = [np.array(_filled(run), float) for run in runs]
    if not found:
        return None
    names = [row["name"] for row in (runs[0].owners or {})["owners"]]
    # A row that is missing with one seed is the mean of the others.
    known = ~np.isnan(found)
    total = np.where(known, found, 0.0).sum(axis=0)
    weights = np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)
    groups = find_groups(np.nan_to_num(weights))
    order = [place for group in groups for place in group]
    return OwnerMatrix(
        tuple(names[place] for place in order),
        weights[np.ix_(order, order)],
        tuple(tuple(names[place] for place in group) for group in groups),
    )


def _filled(run: Run) -> list[list[float]]:
    owners = run.owners or {}
    unknown = [float("nan")] * len(owners["owners"])
    return [unknown if row is None else row for row in owners["matrix"]]


def _within(runs: Sequence[Run]) -> tuple[float, float | None] | None:
    shares = [run.outcome.get("similar_weight") for run in runs]
    known = [share for share in shares if share is not None]
    return _mean_and_deviation(known) if known else None


def _exact(runs: Sequence[Run]) -> tuple[int, int] | None:
    """Count the runs whose groups are those of the data."""
    if not runs or any(
        row["group"] is None for run in runs for row in (run.owners or {})["owners"]
    ):
        return None
    count = 0
    for run in runs:
        owners = run.owners or {}
        true: dict[str, set[str]] = {}
        for row in owners["owners"]:
            true.setdefault(row["group"], set()).add(row["name"])
        found = {frozenset(group) for group in owners["found_groups"]}
        count += found == {frozenset(group) for group in true.values()}
    return count, len(runs)


def _nodes(
    runs: Sequence[Run], labels: Sequence[str], matrix: OwnerMatrix | None
) -> list[NodeScores]:
    rows: dict[str, dict[str, list[float]]] = {}
    points: dict[str, list[float]] = {}
    for run in runs:
        for row in (run.owners or {})["owners"]:
            points.setdefault(row["name"], []).append(row["test_points"])
            own = rows.setdefault(row["name"], {})
            if row.get("score") is not None:
                own.setdefault(run.label, []).append(row["score"])
    groups = () if matrix is None else matrix.groups
    place = {name: number for number, group in enumerate(groups) for name in group}
    order = [name for group in groups for name in group] or list(rows)
    return [
        NodeScores(
            name,
            place.get(name, 0),
            float(np.mean(points[name])),
            {
                label: _mean_and_deviation(rows[name][label])
                for label in labels
                if rows[name].get(label)
            },
        )
        for name in order
    ]


SUMMARY_COLUMNS = {
    "mean": "mean",
    "worst": "worst node",
    "tenth_percentile": "tenth percentile",
    "weighted_mean": "mean by points",
    "std": "spread over nodes",
    "gain": "nodes that gain",
    "lose": "nodes that lose",
}
"""The columns of the table of methods, with their titles."""


def _summary(runs: Sequence[Run], label: str, alone: str | None, measure: str) -> MethodSummary:
    """Summarize a method over nodes for each seed, and then over seeds."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if run.label != label:
            continue
        table = _table(run)
        other = next((each for each in runs if (each.label, each.seed) == (alone, run.seed)), None)
        if other is not None and label != alone:
            table["local"] = _table(other)["score"]
        numbers = summarize_scores(table, measure).loc["score"]
        for name, value in numbers.items():
            found.setdefault(str(name), []).append(float(value))
    return MethodSummary(label, {name: _mean_and_deviation(each) for name, each in found.items()})


def _table(run: Run) -> pd.DataFrame:
    owners = (run.owners or {})["owners"]
    return pd.DataFrame(
        {
            "points": [row["test_points"] for row in owners],
            "score": [np.nan if row.get("score") is None else row["score"] for row in owners],
        },
        index=pd.Index([row["name"] for row in owners]),
    )


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return float(np.mean(values)), spread


def _sentence(
    nodes: Sequence[NodeScores],
    summaries: Sequence[MethodSummary],
    learner: str | None,
    alone: str | None,
    seeds: int,
    measure: str,
    higher: bool,
) -> str:
    """Say plainly who wins, and how many nodes gain."""
    best = _best(summaries, "mean", higher)
    over = f", mean over {seeds} seeds" if seeds > 1 else ""
    extreme = "highest" if higher else "lowest"
    value = best.numbers["mean"][0]
    text = f"{best.label} has the {extreme} mean {measure} over all nodes: {value:.3f}{over}."
    compared = learner or best.label
    if alone is None or compared == alone:
        return text
    sign = 1 if higher else -1
    gains = [sign * gain for node in nodes if (gain := node.gain(compared, alone)) is not None]
    better = sum(gain > LEAST_CHANGE for gain in gains)
    worse = sum(gain < -LEAST_CHANGE for gain in gains)
    return (
        f"{text} With {compared}, {better} of {len(gains)} nodes do better than by learning alone, and "
        f"{worse} do worse."
    )


def summary_entry(value: Any, name: str) -> str:
    """Format a number of the table of methods with its deviation."""
    mean, deviation = value
    digits = 1 if name in ("gain", "lose") else 3
    text = f"{mean:.{digits}f}".removesuffix(".0")
    return text if deviation is None else f"{text} ± {deviation:.{digits}f}"
