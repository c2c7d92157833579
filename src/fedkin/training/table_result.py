"""A result learned from tables: its scores, and the directory that it is written to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from fedkin.data.preprocessing import Preprocessing, Quantity
from fedkin.data.table_federation import Points
from fedkin.numerics.scores import classification_scores, regression_scores
from fedkin.training import result_directory
from fedkin.training.result import Result

Scores: TypeAlias = dict[str, float | int | None]


def score(result: Result, points: Points, preprocessing: Preprocessing) -> Scores:
    """Measure the model on a table; errors of a regression are in the label's own unit."""
    label = preprocessing.label
    if isinstance(label, Quantity):
        predicted = np.asarray(result.predict(points.inputs), dtype=np.float64)
        return regression_scores(label.restore(points.labels), label.restore(predicted))
    probabilities = np.asarray(result.predict_proba(points.inputs), dtype=np.float64)
    return classification_scores(points.labels, probabilities)


def score_tables(
    result: Result, validation: Points, test: Points | None, preprocessing: Preprocessing
) -> dict[str, Scores]:
    """Measure the model on the center's own tables; return the scores by name of the table."""
    tables = {"validation": validation, "test": test}
    return {
        name: score(result, points, preprocessing)
        for name, points in tables.items()
        if points is not None
    }


def weights_by_node(result: Result) -> dict[str, float]:
    """Return the weight of each node; empty for local training, which gives none."""
    return dict(result.weights or {})


def write_result(
    out: Path,
    result: Result,
    preprocessing: Preprocessing,
    metrics: Mapping[str, Scores],
    rows: Mapping[str, int],
    contributions: Mapping[str, Any] | None = None,
) -> None:
    """Write the result directory, completely or not at all.

    Args:
        out: The directory.
        result: What was learned.
        preprocessing: How rows of a table become what the model takes.
        metrics: The scores, by name of the table.
        rows: The number of rows of each node.
        contributions: What each node contributes, if that was asked.
    """

    def fill(directory: Path) -> None:
        fill_result(directory, result, preprocessing, metrics, rows)
        if contributions is not None:
            result_directory.write_json(directory / result_directory.CONTRIBUTIONS, contributions)

    result_directory.write_directory(out, fill)


def fill_result(
    directory: Path,
    result: Result,
    preprocessing: Preprocessing,
    metrics: Mapping[str, Scores],
    rows: Mapping[str, int],
) -> None:
    """Write the files of a result into an empty directory."""
    weights = weights_by_node(result)
    table = pd.DataFrame(
        [(name, weights.get(name), count) for name, count in rows.items()],
        columns=["node", "weight", "rows"],
    )
    result_directory.write_json(directory / result_directory.WEIGHTS, weights)
    table.to_csv(directory / result_directory.WEIGHTS_TABLE, index=False)
    result_directory.write_json(directory / result_directory.METRICS, metrics)
    preprocessing.save(directory / result_directory.PREPROCESSING)
    result.history.to_csv(directory / result_directory.HISTORY, index=False)
    result.save(directory / result_directory.MODEL)


def read_rows(directory: Path) -> dict[str, int]:
    """Read the number of rows of each node from a result directory."""
    # Nodes may have names such as 01 or NA, which are neither numbers nor missing.
    table = pd.read_csv(
        directory / result_directory.WEIGHTS_TABLE, dtype={"node": str}, keep_default_na=False
    )
    return {str(node): int(rows) for node, rows in zip(table["node"], table["rows"], strict=True)}
