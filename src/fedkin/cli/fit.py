"""`fedkin fit`: one table per node in, a weight for every node and a model out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.cli.contributions import (
    ContributionScoreOption,
    ContributionsOption,
    ContributionWeightsOption,
    OrdersOption,
    find_contributions,
    print_contributions,
    read_questions,
)
from fedkin.cli.kept_events import kept_events
from fedkin.cli.options import (
    CAP,
    LABEL,
    METHOD,
    METHOD_PANEL,
    MODEL,
    STEPS,
    ForceOption,
    L2Option,
    OutOption,
    SeedOption,
    TargetNodeOption,
    TestFractionOption,
    TestOption,
    ValidationFractionOption,
    ValidationOption,
    one_of,
    read_request,
)
from fedkin.cli.output import (
    JsonOption,
    notes,
    print_json,
    print_note,
    print_result,
    print_warning,
    results,
    weight_bars,
)
from fedkin.cli.table_options import COLUMN_OPTIONS, NODE_OPTIONS, takes
from fedkin.cli.tracking import MLflowOption, TensorBoardOption, open_trackers
from fedkin.data.preprocessing import Preprocessing, Quantity
from fedkin.data.table_federation import TableFederation, federate_request
from fedkin.data.table_request import gather
from fedkin.events import Event, OnEvent, Warned
from fedkin.models.named import model_for
from fedkin.training import fit as api
from fedkin.training import result_directory
from fedkin.training.result import Result
from fedkin.training.runner import Evaluation
from fedkin.training.table_result import Scores, score_tables, weights_by_node, write_result
from fedkin.valuation.result import Contributions

SECURE_SUMS = "secure sums: the center saw no node's vectors, but sums and numbers only"
PLAIN_SUMS = "plain sums: the center saw every node's vectors"


@takes(*NODE_OPTIONS, *COLUMN_OPTIONS)
def fit(
    context: typer.Context,
    label: Annotated[str, LABEL],
    out: OutOption,
    force: ForceOption = False,
    json: JsonOption = False,
    validation: ValidationOption = None,
    test: TestOption = None,
    target_node: TargetNodeOption = None,
    validation_fraction: ValidationFractionOption = None,
    test_fraction: TestFractionOption = None,
    model: Annotated[str | None, MODEL] = None,
    method: Annotated[str, METHOD] = "bilevel",
    cap: Annotated[float | None, CAP] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            "--prior",
            metavar="NAME",
            help="Draw the weights toward shares of all rows (size) or equal ones (equal).",
            callback=one_of("--prior", ("size", "equal")),
            rich_help_panel=METHOD_PANEL,
        ),
    ] = None,
    l2: L2Option = None,
    steps: Annotated[int | None, STEPS] = None,
    refit: Annotated[
        bool | None,
        typer.Option(
            "--refit/--no-refit",
            help="Put the validation rows back as a node once the weights are chosen; default: where "
            "possible.",
            rich_help_panel=METHOD_PANEL,
        ),
    ] = None,
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            help="Fit the model's outputs to the validation rows by a shift and a scale instead.",
            rich_help_panel=METHOD_PANEL,
        ),
    ] = False,
    seed: SeedOption = 0,
    contributions: ContributionsOption = False,
    contribution_score: ContributionScoreOption = None,
    contribution_weights: ContributionWeightsOption = None,
    orders: OrdersOption = None,
    mlflow: MLflowOption = None,
    tensorboard: TensorBoardOption = None,
) -> None:
    """Learn a weight for every node, and the model trained with those weights.

    Example: fedkin fit --node a.csv --node b.csv --node c.csv --validation own.csv --label outcome
    --out result

    With one table of all: fedkin fit table.csv --site hospital --owner va --label outcome --out result
    """
    result_directory.check_writable(out, force)
    questions = read_questions(context)
    request = read_request(context)
    chosen_model = model_for(request.task, model)
    tables = gather(request)
    for note in tables.notes:
        print_note(f"note: {note}")
    federation = federate_request(tables, request)
    for line in federation.warnings:
        print_warning(line)
    settings = {
        "method": method,
        "cap": cap,
        "prior": prior,
        "l2": l2,
        "steps": steps,
        "refit": False if recalibrate and refit is None else refit,
        "recalibrate": recalibrate,
        "seed": seed,
    }
    rows = {name: table.rows for name, table in tables.nodes.items()}
    name = out.resolve().name
    with (
        kept_events(out) as keep,
        open_trackers(mlflow, tensorboard, experiment="fedkin", run_name=name) as trackers,
    ):
        trained = train(federation, chosen_model, settings, (keep, *trackers))
        result = replace(trained, warnings=(*federation.warnings, *trained.warnings))
        metrics = score_tables(
            result.before or result,
            federation.validation,
            federation.test,
            federation.preprocessing,
        )
        found = find_contributions(result, federation, questions, keep)
        summary = None if found is None else found.summary()
        write_result(out, result, federation.preprocessing, metrics, rows, summary)
    show_fit(result, rows, metrics, out, json, found)


def show_fit(
    result: Result,
    rows: Mapping[str, int],
    metrics: Mapping[str, Scores],
    out: Path,
    json: bool,
    contributions: Contributions | None = None,
) -> None:
    """Write the report of a fit and show the result."""
    # What draws the report takes a moment to load, and is not needed before.
    from fedkin.cli.report_summary import print_path, write_report

    _, page = write_report(out)
    preprocessing = Preprocessing.load(out / result_directory.PREPROCESSING)
    if json:
        print_json(
            {
                "out": str(out),
                "weights": weights_by_node(result),
                "rows": rows,
                "columns": [column.name for column in preprocessing.columns],
                "metrics": metrics,
                "comparison": _comparison_json(result),
                "at_cap": list(result.at_cap),
                "stopped": result.stopped,
                "warnings": list(result.warnings),
                "secure_sums": result.secure_sums,
                "contributions": None if contributions is None else contributions.summary(),
                "report": str(page),
            },
            schema="fit/1",
        )
    else:
        print_result(f"columns used: {preprocessing.described_columns}")
        print_fit(result, rows, metrics, out)
        if contributions is not None:
            print_contributions(contributions)
        print_path(page)
    for line in result.warnings:
        print_warning(line)


def train(
    federation: TableFederation,
    model: str,
    settings: Mapping[str, Any],
    listeners: Sequence[OnEvent],
) -> Result:
    """Run the method on the prepared matrices, with these settings of `fedkin.fit`."""
    label = federation.preprocessing.label
    doing = f"training ({settings['method']}, {len(federation.nodes)} nodes)"
    with notes.status(f"{doing} …") as status:

        def show(evaluation: Evaluation) -> None:
            status.update(
                f"{doing}: step {evaluation.step}, validation loss {evaluation.validation.loss:.4f}"
            )

        def report(event: Event) -> None:
            for listener in listeners:
                listener(event)
            if isinstance(event, Warned):
                print_warning(event.message)

        return api.fit(
            federation.nodes,
            federation.validation,
            model=model,
            **settings,
            task="regression" if isinstance(label, Quantity) else "classification",
            classes=None if isinstance(label, Quantity) else len(label.classes),
            minimum_rows=1,  # as many as were asked for: that is checked when the tables are read
            on_step=show,
            on_event=report,
        )


def print_fit(
    result: Result, rows: Mapping[str, int], metrics: Mapping[str, Scores], out: Path
) -> None:
    """Show the weights as bars and the scores below."""
    weights = weights_by_node(result)
    if weights:
        results.print(weight_bars(weights, rows=rows, at_cap=result.at_cap))
    else:
        results.print("trained on the validation rows alone: no node has a weight")
    for kind, scores in metrics.items():
        shown = ", ".join(
            f"{name.replace('_', ' ')} {'–' if value is None else f'{value:.3f}'}"
            for name, value in scores.items()
            if name != "rows"
        )
        print_result(f"{kind} ({scores['rows']} rows): {shown}")
    line = comparison_line(result)
    if line is not None:
        print_result(line)
    print_result(result.stopped)
    if result.secure_sums is not None:
        print_result(SECURE_SUMS if result.secure_sums else PLAIN_SUMS)
    print_result(f"written to {out}")


def comparison_line(result: Result) -> str | None:
    """Say what the learned weights have to beat, and whether they do."""
    table = result.comparison
    if table is None:
        return None
    names = {
        "alone": "alone (cross-validated)",
        "equal": "equal weights",
        "prior": "the prior's weights",
        "learned": "learned weights",
    }
    shown = ", ".join(f"{names[str(name)]} {loss:.3f}" for name, loss in table["loss"].items())
    return f"loss on the validation rows: {shown}"


def _comparison_json(result: Result) -> dict[str, Any] | None:
    return None if result.comparison is None else result.comparison.to_dict(orient="index")
