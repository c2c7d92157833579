"""`fedkin map`: every node asks whom it should learn with; a matrix of weights and a model for each out."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from fedkin.cli.kept_events import kept_events
from fedkin.cli.options import (
    CAP,
    LABEL,
    METHOD,
    MODEL,
    OWN_CAP,
    ForceOption,
    OutOption,
    SeedOption,
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
)
from fedkin.cli.table_options import COLUMN_OPTIONS, NODE_OPTIONS, takes
from fedkin.data.preprocessing import Preprocessing, Quantity
from fedkin.data.table_federation import OwnersPoints, federate_owners
from fedkin.data.table_request import gather_owners
from fedkin.events import Event, OnEvent, StepDone
from fedkin.models.named import model_for
from fedkin.training import map_directory, result_directory
from fedkin.training.collaboration import Collaboration
from fedkin.training.fit_all import fit_all
from fedkin.training.table_result import score_tables

MOST_SHOWN = 20
"""With more nodes, the matrix is in the files and on the page only."""


@takes(*NODE_OPTIONS, *COLUMN_OPTIONS)
def map_command(
    context: typer.Context,
    label: Annotated[str, LABEL],
    out: OutOption,
    force: ForceOption = False,
    json: JsonOption = False,
    validation_fraction: Annotated[
        float | None,
        typer.Option(
            "--validation-fraction",
            help="The share of every node's rows that its weights are learned by; default: 0.2.",
        ),
    ] = None,
    test_fraction: Annotated[
        float | None,
        typer.Option(
            "--test-fraction",
            help="The share of every node's rows that only its scores are for; default: none.",
        ),
    ] = None,
    model: Annotated[str | None, MODEL] = None,
    method: Annotated[str, METHOD] = "bilevel",
    cap: Annotated[float | None, CAP] = None,
    own_cap: Annotated[float | None, OWN_CAP] = None,
    seed: SeedOption = 0,
) -> None:
    """Answer every node's question at once: who learns with whom, and what each gains by it.

    Examples: fedkin map --node a.csv --node b.csv --node c.csv --label outcome --out map

    fedkin map table.csv --site hospital --label outcome --out map
    """
    result_directory.check_writable(out, force, map_directory.FILES, "fedkin map")
    request = read_request(context)
    chosen_model = model_for(request.task, model)
    tables, remarks = gather_owners(request)
    for note in remarks:
        print_note(f"note: {note}")
    owners, preprocessing, warnings = federate_owners(
        tables,
        label,
        request.task,
        request.categorical,
        request.missing_codes,
        strict=request.strict,
    )
    for line in warnings:
        print_warning(line)
    rows = {name: len(own.train.labels) for name, own in owners.items()}
    with kept_events(out) as keep:
        learned = learn(owners, preprocessing, chosen_model, method, (cap, own_cap), seed, keep)
        everyone = replace(learned, warnings=(*warnings, *learned.warnings))
        metrics = {
            name: score_tables(result, owners[name].validation, owners[name].test, preprocessing)
            for name, result in everyone.models.items()
        }
        map_directory.write_map(out, everyone, rows, metrics, preprocessing)
    if not json:
        print_result(f"columns used: {preprocessing.described_columns}")
    show(everyone, out, json, shown=warnings)


def learn(
    owners: dict[str, OwnersPoints],
    preprocessing: Preprocessing,
    model: str,
    method: str,
    caps: tuple[float | None, float | None],
    seed: int,
    on_event: OnEvent,
) -> Collaboration:
    """Run the method for all owners, with progress.

    Args:
        owners: The matrices of every node.
        preprocessing: How they were made.
        model: The name of the model.
        method: The name of the method.
        caps: The largest weights of other nodes and of an owner's own; None for the method's choice.
        seed: Decides everything random.
        on_event: Called with the events.
    """
    label = preprocessing.label
    names = None if isinstance(label, Quantity) else np.array(label.classes)

    def pair(points):
        return points.inputs, points.labels if names is None else names[points.labels]

    furthest: dict[str, int] = {}
    with notes.status(f"training for {len(owners)} nodes …") as status:

        def report(event: Event) -> None:
            on_event(event)
            if isinstance(event, StepDone):
                doing, _, owner = event.run.partition(": ")
                furthest[doing] = max(furthest.get(doing, 0), event.step)
                loss = f"{owner}: validation loss {event.validation_loss:.4f}"
                status.update(f"{doing} for {len(owners)} nodes: step {furthest[doing]}, {loss}")

        return fit_all(
            {name: pair(own.train) for name, own in owners.items()},
            validations={name: pair(own.validation) for name, own in owners.items()},
            tests=None
            if any(own.test is None for own in owners.values())
            else {name: pair(own.test) for name, own in owners.items()},
            model=model,
            method=method,
            cap=caps[0],
            own_cap=caps[1],
            seed=seed,
            task="regression" if names is None else "classification",
            classes=None if names is None else names.tolist(),
            on_event=report,
            minimum_rows=1,  # as many as were asked for: that is checked when the tables are read
        )


def show(everyone: Collaboration, out: Path, json: bool, *, shown: Collection[str] = ()) -> None:
    """Write the page, and show the result; warnings that were `shown` before are not repeated."""
    for warning in everyone.warnings:
        if warning not in shown:
            print_note(f"note: {warning}")
    for name, why in everyone.failures.items():
        print_note(f"note: {name} has no model: {why}")
    # What draws the report takes a moment to load, and is not needed before.
    from fedkin.cli.report_summary import print_path, write_report

    _, page = write_report(out)
    if json:
        matrix = everyone.matrix
        print_json(
            {
                "out": str(out),
                "method": everyone.method,
                "nodes": everyone.nodes,
                "matrix": None if matrix is None else matrix.to_dict(orient="index"),
                "groups": everyone.groups,
                "measure": everyone.measure,
                "scored_on": everyone.scored_on,
                "scores": everyone.scores.to_dict(orient="index"),
                "summary": everyone.summary.to_dict(orient="index"),
                "synchronizations": everyone.cost.synchronizations,
                "failures": everyone.failures,
                "warnings": everyone.warnings,
                "report": str(page),
            },
            schema="map/1",
        )
        return
    if everyone.matrix is not None and len(everyone.nodes) <= MOST_SHOWN:
        results.print(_matrix(everyone))
    for number, group in enumerate(everyone.groups, start=1):
        print_result(f"group {number}: {', '.join(group)}")
    results.print(_summary(everyone))
    print_result(f"{everyone.cost.synchronizations} synchronizations for all nodes together")
    print_result(f"written to {out}; one result per node in {out / map_directory.OWNERS}")
    print_path(page)


def _matrix(everyone: Collaboration) -> Table:
    """Show whom each node learns with, in percent, in the order of groups."""
    assert everyone.matrix is not None
    order = [name for group in everyone.groups for name in group]
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("learns with, %", no_wrap=True)
    for name in order:
        table.add_column(Text(name), justify="right")
    for owner in order:
        weights = everyone.matrix.loc[owner, order].to_numpy(float)
        cells = ["–" if np.isnan(weight) else f"{100 * weight:.0f}" for weight in weights]
        table.add_row(Text(owner), *("" if cell == "0" else cell for cell in cells))
    return table


def _summary(everyone: Collaboration) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column(f"{everyone.scored_on} {everyone.measure}")
    summary = everyone.summary
    for name in summary.columns:
        table.add_column(str(name).replace("_", " "), justify="right")
    for method, row in summary.iterrows():
        cells = [
            f"{value:.0f}" if name in ("gain", "lose") else f"{value:.3f}"
            for name, value in row.items()
        ]
        table.add_row(Text(str(method)), *cells)
    return table
