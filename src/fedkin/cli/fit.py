"""`fedkin fit`: one table a node in, the weight of every node and a model out."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
import pandas as pd
import typer
from rich.table import Table as RichTable
from rich.text import Text

from fedkin.cli import result_directory
from fedkin.cli.fit_tables import TableRequest, gather
from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.cli.table_options import (
    ColumnsOption,
    NoHeaderOption,
    SeparatorOption,
    table_format,
)
from fedkin.data import option_text
from fedkin.data.preprocessing import Preprocessing, Quantity
from fedkin.data.table_federation import TableFederation, federate
from fedkin.errors import InputError
from fedkin.numerics.scores import classification_scores, regression_scores
from fedkin.training import fit as api
from fedkin.training.result import Result
from fedkin.training.runner import Evaluation
from fedkin.types import Points

Scores: TypeAlias = dict[str, float | int | None]


class TaskName(StrEnum):
    """What the label is."""

    classification = "classification"
    regression = "regression"


class ModelName(StrEnum):
    """The models that take rows of a table."""

    logistic = "logistic"
    ridge = "ridge"
    mlp = "mlp"


class MethodName(StrEnum):
    """The methods that give one model."""

    bilevel = "bilevel"
    fedavg = "fedavg"
    local = "local"
    ditto = "ditto"
    pfedme = "pfedme"


COLUMNS_PANEL = "What the columns mean"
METHOD_PANEL = "Model and method"


def fit(
    context: typer.Context,
    node: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]FILE",
            help="A node's CSV or Parquet file; once for each node. Its name is the file's, "
            "without the ending, unless given.",
        ),
    ],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the result.")],
    validation: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The center's own data: what the weights are judged by."),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Data to measure the final model on.")
    ] = None,
    target_node: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Instead of --validation: hold out rows of this node for it; its other rows stay "
            "a node.",
        ),
    ] = None,
    validation_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of the target node's rows to hold out for validation, 0.3 if not given."
        ),
    ] = None,
    test_fraction: Annotated[
        float | None,
        typer.Option(help="Share of the target node's rows to hold out for test as well."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier result.")] = False,
    json: JsonOption = False,
    task: Annotated[
        TaskName, typer.Option(help="What the label is.", rich_help_panel=COLUMNS_PANEL)
    ] = TaskName.classification,
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="Make the label yes or no: a comparison such as '>0', or the class that is yes.",
            rich_help_panel=COLUMNS_PANEL,
        ),
    ] = None,
    categorical: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="Columns whose numbers are codes, not quantities.",
            rich_help_panel=COLUMNS_PANEL,
        ),
    ] = None,
    drop: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="Columns to leave out, such as patient numbers.",
            rich_help_panel=COLUMNS_PANEL,
        ),
    ] = None,
    missing: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN=NUMBER,…",
            help="Numbers that stand for a missing value, such as chol=0. Empty cells, ?, NA and "
            "NaN are missing anyway.",
            rich_help_panel=COLUMNS_PANEL,
        ),
    ] = None,
    columns: ColumnsOption = None,
    no_header: NoHeaderOption = False,
    separator: SeparatorOption = ",",
    model: Annotated[
        ModelName | None,
        typer.Option(
            help="Logistic if not given; ridge for regression.", rich_help_panel=METHOD_PANEL
        ),
    ] = None,
    method: Annotated[
        MethodName, typer.Option(help="How to weigh the nodes.", rich_help_panel=METHOD_PANEL)
    ] = MethodName.bilevel,
    cap: Annotated[
        float | None,
        typer.Option(
            help="The largest weight one of K nodes may get, 1/K to 1. If not given: 1/3, or 2/K "
            "with fewer than six nodes.",
            rich_help_panel=METHOD_PANEL,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Same seed, same result.", rich_help_panel=METHOD_PANEL)
    ] = 0,
) -> None:
    """Learn whom to learn with, and how much: one table a node in, weights and a model out.

    Example: fedkin fit --node a.csv --node b.csv --node c.csv --validation own.csv --label outcome
    --out result
    """
    if context.args:
        raise InputError(
            f"'{context.args[0]}' stands alone; every node's file needs its own --node: "
            f"--node {node[0]} --node {context.args[0]} …"
        )
    chosen_model = model_for(task, model)
    result_directory.check_writable(out, force)
    request = TableRequest(
        nodes=tuple(node),
        validation=validation,
        test=test,
        target_node=target_node,
        validation_fraction=validation_fraction,
        test_fraction=test_fraction,
        label=label,
        task=task.value,
        positive=positive,
        categorical=option_text.parse_names(categorical),
        missing_codes=option_text.parse_missing_codes(missing),
        table_format=table_format(columns, no_header, separator, drop),
        seed=seed,
    )
    tables = gather(request)
    for note in tables.notes:
        notes.print(f"note: {note}", markup=False, soft_wrap=True)
    federation = federate(
        tables.nodes,
        tables.validation,
        tables.test,
        label,
        task.value,
        request.categorical,
        request.missing_codes,
    )
    result = train(federation, chosen_model, method.value, cap, seed)
    metrics = {"validation": score(result, federation.validation, federation.preprocessing)}
    if federation.test is not None:
        metrics["test"] = score(result, federation.test, federation.preprocessing)
    rows = {name: table.rows for name, table in tables.nodes.items()}
    save(out, result, federation, metrics, rows)
    # What makes the report takes a moment to load, and is not needed before.
    from fedkin.cli.endings import print_path, write_report

    _, page = write_report(out)
    if json:
        print_json(
            {
                "out": str(out),
                "weights": weights_of(result),
                "rows": rows,
                "metrics": metrics,
                "stopped": result.stopped,
                "report": str(page),
            }
        )
    else:
        print_result(result, rows, metrics, out)
        print_path(page)


def model_for(task: TaskName, model: ModelName | None) -> str:
    """Return the model to train: the one asked for, if it suits the task."""
    if task is TaskName.regression:
        if model is ModelName.logistic:
            raise InputError("the model logistic gives classes; use ridge or mlp for regression")
        return (model or ModelName.ridge).value
    if model is ModelName.ridge:
        raise InputError("the model ridge gives numbers; use logistic or mlp, or --task regression")
    return (model or ModelName.logistic).value


def train(
    federation: TableFederation, model: str, method: str, cap: float | None, seed: int
) -> Result:
    """Run the method on the prepared matrices."""
    label = federation.preprocessing.label
    doing = f"training ({method}, {len(federation.nodes)} nodes)"
    with notes.status(f"{doing} …") as status:

        def show(evaluation: Evaluation) -> None:
            status.update(
                f"{doing}: step {evaluation.step}, validation loss {evaluation.validation.loss:.4f}"
            )

        result = api.fit(
            federation.nodes,
            federation.validation,
            model=model,
            method=method,
            cap=cap,
            seed=seed,
            task="regression" if isinstance(label, Quantity) else "classification",
            classes=None if isinstance(label, Quantity) else len(label.classes),
            on_step=show,
        )
    for warning in result.warnings:
        notes.print(f"note: {warning}", markup=False, soft_wrap=True)
    return result


def score(result: Result, points: Points, preprocessing: Preprocessing) -> Scores:
    """Measure the model on a table; errors of a regression are in the label's own unit."""
    label = preprocessing.label
    if isinstance(label, Quantity):
        predicted = np.asarray(result.predict(points.inputs), dtype=np.float64)
        return regression_scores(label.restore(points.labels), label.restore(predicted))
    probabilities = np.asarray(result.predict_proba(points.inputs), dtype=np.float64)
    return classification_scores(points.labels, probabilities)


def weights_of(result: Result) -> dict[str, float]:
    """Return the weight of each node; none of them has one in local training."""
    return dict(result.weights or {})


def save(
    out: Path,
    result: Result,
    federation: TableFederation,
    metrics: Mapping[str, Scores],
    rows: Mapping[str, int],
) -> None:
    """Write the result directory, whole or not at all."""
    weights = weights_of(result)
    table = pd.DataFrame(
        [(name, weights.get(name), count) for name, count in rows.items()],
        columns=["node", "weight", "rows"],
    )

    def fill(directory: Path) -> None:
        result_directory.write_json(directory / result_directory.WEIGHTS, weights)
        table.to_csv(directory / result_directory.WEIGHTS_TABLE, index=False)
        result_directory.write_json(directory / result_directory.METRICS, metrics)
        federation.preprocessing.save(directory / result_directory.PREPROCESSING)
        result.history.to_csv(directory / result_directory.HISTORY, index=False)
        result.save(directory / result_directory.MODEL)

    result_directory.write_directory(out, fill)


def print_result(
    result: Result, rows: Mapping[str, int], metrics: Mapping[str, Scores], out: Path
) -> None:
    """Show the weights as bars and the scores below."""
    weights = weights_of(result)
    if weights:
        results.print(_weights_chart(weights, rows))
    else:
        results.print("trained on the validation rows alone: no node has a weight")
    for kind, scores in metrics.items():
        shown = ", ".join(
            f"{name.replace('_', ' ')} {'–' if value is None else f'{value:.3f}'}"
            for name, value in scores.items()
            if name != "rows"
        )
        results.print(f"{kind} ({scores['rows']} rows): {shown}", soft_wrap=True)
    results.print(result.stopped, markup=False, soft_wrap=True)
    results.print(f"written to {out}", markup=False, soft_wrap=True)


def _weights_chart(weights: Mapping[str, float], rows: Mapping[str, int]) -> RichTable:
    chart = RichTable(box=None)
    chart.add_column("node")
    chart.add_column("rows", justify="right")
    chart.add_column("weight", justify="right")
    chart.add_column("")
    largest = max(weights.values())
    for name, weight in weights.items():
        chart.add_row(
            Text(name), str(rows[name]), f"{weight:.3f}", "█" * round(30 * weight / largest)
        )
    return chart
