"""The directory of an advice on tables: written completely or not at all."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.advice.result import Advice
from fedkin.data.columns import as_text, missing_cells
from fedkin.data.preprocessing import Preprocessing, Quantity
from fedkin.data.summaries import TableSummary, TextSummary
from fedkin.data.tables import Table
from fedkin.errors import InputError
from fedkin.training import result_directory
from fedkin.training.result import load
from fedkin.training.result_directory import write_directory, write_json


def describe_table(table: Table, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return what a report shows of a table: rows, the share of missing values, the balance of classes."""
    table = table.with_missing_codes(preprocessing.missing_codes)
    used = [table.columns.get(column.name) for column in preprocessing.columns]
    missing = float(np.mean([1 if each is None else missing_cells(each).mean() for each in used]))
    label = preprocessing.label
    values = table.columns[label.name]
    description: dict[str, Any] = {"rows": table.rows, "missing": missing}
    if isinstance(label, Quantity):
        numbers = np.asarray(values, np.float64)
        return description | {"mean": float(numbers.mean()), "deviation": float(numbers.std())}
    texts = as_text(values).tolist()
    return description | {"classes": {name: texts.count(name) for name in label.classes}}


def describe_summary(summary: TableSummary, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the same of a table that stays at its node. How many rows have which class, it does not say."""
    used = [summary.columns.get(column.name) for column in preprocessing.columns]
    missing = float(
        np.mean([1 if each is None else 1 - each.count / summary.rows for each in used])
    )
    label, description = summary.label, {"rows": summary.rows, "missing": missing}
    if isinstance(label, TextSummary):
        return description | {"classes": dict.fromkeys(label.categories)}
    deviation = float(np.sqrt(label.squared_deviations / label.count))
    return description | {"mean": label.mean, "deviation": deviation}


def write_advice(
    out: Path,
    advice: Advice,
    preprocessing: Preprocessing,
    tables: dict[str, dict[str, Any]],
    owner: dict[str, Any],
    contributions: dict[str, Any] | None = None,
) -> None:
    """Write the directory.

    Args:
        out: The directory.
        advice: What was advised.
        preprocessing: How rows of a table become what the model takes.
        tables: What `describe_table` says about each node.
        owner: The same about the owner.
        contributions: What each node contributes, if that was asked.
    """
    columns = [column.name for column in preprocessing.columns]
    label = preprocessing.label.name

    def fill(directory: Path) -> None:
        content = plain(advice.summary())
        more = {"nodes": tables, "owner": owner, "columns": columns, "label": label}
        write_json(directory / result_directory.ADVICE, content | more)
        write_json(directory / result_directory.WEIGHTS, plain(advice.weights["weight"].to_dict()))
        advice.weights.to_csv(directory / result_directory.WEIGHTS_TABLE)
        advice.candidates.to_csv(directory / result_directory.CANDIDATES)
        preprocessing.save(directory / result_directory.PREPROCESSING)
        advice.model.save(directory / result_directory.MODEL)
        if contributions is not None:
            write_json(directory / result_directory.CONTRIBUTIONS, contributions)

    write_directory(out, fill)


def read_advice(directory: Path) -> tuple[Advice, dict[str, Any]]:
    """Read a directory of `fedkin advise`; return the advice and everything that was written with it."""
    path = directory / result_directory.ADVICE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Advice.from_summary(content, load(directory / result_directory.MODEL)), content
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged or missing; run fedkin advise again") from error


def plain(value: Any) -> Any:
    """Return values as JSON has them: NumPy's numbers as Python's, NaN as null."""
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
