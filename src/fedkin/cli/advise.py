"""`fedkin advise`: one table per node and the owner's own, and the answer whether to join."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as RichTable
from rich.text import Text

from fedkin.advice import advise as api
from fedkin.advice.directory import describe_table, plain, write_advice
from fedkin.advice.result import Advice, candidate_title, records
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
    JUDGE_PANEL,
    LABEL,
    METHOD_PANEL,
    ForceOption,
    L2Option,
    OwnOption,
    SeedOption,
    TestFractionOption,
    TestOption,
    read_request,
)
from fedkin.cli.output import (
    BAR_WIDTH,
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
from fedkin.data.table_federation import TableFederation, federate_request
from fedkin.data.table_request import GatheredTables, gather
from fedkin.errors import InputError
from fedkin.events import Event, OnEvent, StepDone
from fedkin.training import result_directory
from fedkin.valuation.result import Contributions


@takes(*NODE_OPTIONS, *COLUMN_OPTIONS)
def advise(
    context: typer.Context,
    label: Annotated[str, LABEL],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="A directory for model and report; default: print only."
        ),
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
    own: OwnOption = None,
    target_node: Annotated[
        str | None,
        typer.Option(
            "--target-node",
            "--owner",
            metavar="NAME",
            help="Instead of --own: the node whose question it is. All its rows are the owner's.",
            rich_help_panel=JUDGE_PANEL,
        ),
    ] = None,
    test: TestOption = None,
    test_fraction: TestFractionOption = None,
    cap: Annotated[
        float,
        typer.Option(
            "--cap",
            help="The largest weight that one of K nodes may get, from 1/K to 1.",
            rich_help_panel=METHOD_PANEL,
        ),
    ] = 1.0,
    l2: L2Option = None,
    folds: Annotated[
        int,
        typer.Option(
            "--folds",
            min=2,
            help="How many folds the owner's rows are divided into.",
            rich_help_panel=METHOD_PANEL,
        ),
    ] = 5,
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats",
            min=1,
            help="How often they are divided.",
            rich_help_panel=METHOD_PANEL,
        ),
    ] = 2,
    seed: SeedOption = 0,
    contributions: ContributionsOption = False,
    contribution_score: ContributionScoreOption = None,
    contribution_weights: ContributionWeightsOption = None,
    orders: OrdersOption = None,
) -> None:
    """Say whether to learn with the nodes or alone, what that gains, and how sure it is.

    Example: fedkin advise --node a.csv --node b.csv --own own.csv --label outcome --out advice
    """
    if out is not None:
        result_directory.check_writable(out, force, result_directory.ADVICE_FILES, "fedkin advise")
    elif force:
        raise InputError("--force replaces the directory of --out: add --out DIR, or leave it out")
    questions = read_questions(context)
    request = read_request(context, whole_owner=True)
    tables = gather(request)
    for note in tables.notes:
        print_note(f"note: {note}")
    federation = federate_request(tables, request)
    for line in federation.warnings:
        print_warning(line)
    with kept_events(out) as keep:
        advice = _advise(federation, keep, cap=cap, l2=l2, folds=folds, repeats=repeats, seed=seed)
        advice = advice.with_warnings(federation.warnings)
        found = find_contributions(advice.model, federation, questions, keep)
        page = None if out is None else _write(out, advice, tables, federation.preprocessing, found)
    show_advice(
        advice,
        federation.preprocessing,
        out,
        page,
        json,
        shown=federation.warnings,
        contributions=found,
    )


def show_advice(
    advice: Advice,
    preprocessing: Preprocessing,
    out: Path | None,
    page: Path | None,
    json: bool,
    *,
    shown: Collection[str] = (),
    contributions: Contributions | None = None,
) -> None:
    """Show an advice on tables, and where it was written; warnings that were `shown` are not repeated."""
    for warning in advice.model.warnings:
        if warning not in shown:
            print_note(f"note: {warning}")
    if json:
        answer = plain(advice.summary()) | {
            "columns": [column.name for column in preprocessing.columns],
            "contributions": None if contributions is None else contributions.summary(),
            "out": None if out is None else str(out),
            "report": None if page is None else str(page),
        }
        print_json(answer, schema="advise/1")
        return
    print_advice(advice)
    if contributions is not None:
        print_contributions(contributions)
    print_result(f"\ncolumns used: {preprocessing.described_columns}")
    if out is not None:
        print_result(f"written to {out}\n\nreport: {page}")


def _advise(
    federation: TableFederation,
    on_event: OnEvent,
    *,
    cap: float,
    l2: float | None,
    folds: int,
    repeats: int,
    seed: int,
) -> Advice:
    label = federation.preprocessing.label
    number = isinstance(label, Quantity)
    doing = f"comparing ({len(federation.nodes)} nodes, {folds * repeats} folds)"
    furthest = 0
    with notes.status(f"{doing} …") as status:

        def report(event: Event) -> None:
            nonlocal furthest
            on_event(event)
            if isinstance(event, StepDone):
                furthest = max(furthest, event.step)
                status.update(f"{doing}: step {furthest}")

        advice = api.advise(
            federation.nodes,
            federation.validation,
            test=federation.test,
            task="regression" if number else "classification",
            classes=None if number else len(label.classes),
            cap=cap,
            l2=l2,
            folds=folds,
            repeats=repeats,
            seed=seed,
            on_event=report,
            minimum_rows=1,  # as many as were asked for: that is checked when the tables are read
        )
    return advice.in_unit(label.standard_deviation) if number else advice


def _write(
    out: Path,
    advice: Advice,
    tables: GatheredTables,
    preprocessing: Preprocessing,
    contributions: Contributions | None,
) -> Path:
    # What draws the report takes a moment to load, and is not needed before.
    from fedkin.report.advice_page import write_advice_page

    described = {name: describe_table(table, preprocessing) for name, table in tables.nodes.items()}
    owner = describe_table(tables.validation, preprocessing)
    summary = None if contributions is None else contributions.summary()
    write_advice(out, advice, preprocessing, described, owner, summary)
    return write_advice_page(out)


def print_advice(advice: Advice) -> None:
    """Show the verdict, the candidates and the weights."""
    print_result(advice.sentence)
    print_result(f"{advice.partners}\n")
    results.print(_candidates(advice))
    results.print()
    results.print(_weights(advice))
    if advice.verdict != "alone":
        print_result(" share: in the final model; the rest is your own rows'")
    print_result(
        f"\ncost: {advice.cost.synchronizations} synchronizations, "
        f"{(advice.cost.bytes_up + advice.cost.bytes_down) / 1e6:.2f} MB"
    )


def _candidates(advice: Advice) -> RichTable:
    table = RichTable(box=None, padding=(0, 1), header_style="bold")
    table.add_column("candidate")
    known = [
        name for name in ("accuracy", "test_accuracy", "test_loss") if name in advice.candidates
    ]
    titles = {"accuracy": "accuracy", "test_accuracy": "test accuracy", "test_loss": "test loss"}
    for title in (advice.score_name, "gain over alone (90% interval)", *map(titles.get, known)):
        table.add_column(str(title), justify="right")
    for row in records(advice.candidates):
        name = row["candidate"]
        gain = f"{row['gain']:+.3g} ({row['gain_low']:+.3g} to {row['gain_high']:+.3g})"
        table.add_row(
            Text(candidate_title(name)),
            f"{row['loss']:.3g}",
            "" if name == "alone" else gain,
            *(f"{row[column]:.3g}" for column in known),
            style="bold" if name == advice.compared else None,
        )
    return table


def _weights(advice: Advice) -> RichTable:
    table = RichTable(box=None, padding=(0, 1), header_style="bold")
    for title in ("node", "rows", "share", "learned weight", "90% interval", ""):
        table.add_column(title, justify="left" if title in ("node", "") else "right")
    rows = records(advice.weights)
    longest = max(1e-12, *(row["weight"] for row in rows))
    for row in rows:
        bar = "█" * round(BAR_WIDTH / 2 * row["weight"] / longest)
        capped = " at the cap" if row["at_cap"] else ""
        table.add_row(
            Text(str(row["node"])),
            f"{row['rows']:.0f}",
            f"{row['share']:.0%}",
            f"{row['weight']:.3f}",
            f"{row['low']:.2f} to {row['high']:.2f}",
            Text(bar + capped, style="cyan"),
        )
    return table
