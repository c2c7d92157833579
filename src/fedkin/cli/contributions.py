"""The options `--contributions` of fit and advise: what each node contributes, as a second opinion."""

import math
from typing import Annotated, Any, get_args

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from fedkin.cli.options import one_of, was_given
from fedkin.cli.output import notes, print_result, print_warning, results
from fedkin.data.preprocessing import Quantity
from fedkin.data.table_federation import TableFederation
from fedkin.errors import InputError
from fedkin.events import Event, GroupsTrained, OnEvent
from fedkin.training.result import Result
from fedkin.valuation import contributions as api
from fedkin.valuation.result import Contributions, GroupWeights, ScoreName, with_error

PANEL = "A second opinion"
DETAILS = ("contribution_score", "contribution_weights", "orders")

ContributionsOption = Annotated[
    bool,
    typer.Option(
        "--contributions",
        help="Also say what each node contributes to the score: its Shapley value, and what is lost "
        "without it.",
        rich_help_panel=PANEL,
    ),
]
ContributionScoreOption = Annotated[
    str | None,
    typer.Option(
        "--contribution-score",
        metavar="NAME",
        help="The score: loss (default) or accuracy.",
        callback=one_of("--contribution-score", get_args(ScoreName)),
        rich_help_panel=PANEL,
    ),
]
ContributionWeightsOption = Annotated[
    str | None,
    typer.Option(
        "--contribution-weights",
        metavar="NAME",
        help="The weights of nodes that train together: by size (default), equal, or learned.",
        callback=one_of("--contribution-weights", get_args(GroupWeights)),
        rich_help_panel=PANEL,
    ),
]
OrdersOption = Annotated[
    int | None,
    typer.Option(
        "--orders",
        min=api.FEWEST_ORDERS,
        help=f"How many random orders of the nodes Shapley values come from: an even number; default: "
        f"{api.ORDERS}, or all groups of up to {api.EXACT_UP_TO} nodes.",
        rich_help_panel=PANEL,
    ),
]


def read_questions(context: typer.Context) -> dict[str, Any] | None:
    """Return the arguments of `fedkin.contributions` that the options stand for; None if it is not asked."""
    if not context.params["contributions"]:
        given = was_given(context, *DETAILS)
        if given:
            raise InputError(f"{given[0]} changes nothing without --contributions: give that, too")
        return None
    score, weights, orders = (context.params[name] for name in DETAILS)
    if score == "accuracy" and context.params["task"] == "regression":
        raise InputError(
            "--contribution-score accuracy is for classes, and --task is regression: leave one out"
        )
    if orders is not None and orders % 2:
        raise InputError(
            f"--orders must be even, since each order is drawn with its reverse: give {orders + 1}"
        )
    return {
        "score": score or "loss",
        "weights": weights or "size",
        "orders": orders,
        "seed": context.params["seed"],
    }


def find_contributions(
    result: Result,
    federation: TableFederation,
    questions: dict[str, Any] | None,
    on_event: OnEvent,
) -> Contributions | None:
    """Train on groups of nodes, with a progress bar; None if it was not asked."""
    if questions is None:
        return None
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("groups"),
        console=notes,
        transient=True,
        disable=not notes.is_terminal,
    )
    with progress:
        task = progress.add_task("training on groups of nodes", total=None)

        def show(event: Event) -> None:
            on_event(event)
            if isinstance(event, GroupsTrained):
                progress.update(task, completed=event.done, total=event.most)

        found = api.contributions(
            result,
            federation.nodes,
            federation.validation,
            on_event=show,
            **questions,
        )
    for line in found.warnings:
        print_warning(line)
    label = federation.preprocessing.label
    return found.in_unit(label.standard_deviation) if isinstance(label, Quantity) else found


def print_contributions(found: Contributions) -> None:
    """Show each node's Shapley value and what is lost without it, with standard errors."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("node")
    for title in ("rows", "weight", "contribution", "lost without it"):
        table.add_column(title, justify="right")
    for each in found.nodes:
        table.add_row(
            Text(each.node),
            str(each.rows),
            "–" if math.isnan(each.weight) else f"{each.weight:.3f}",
            with_error(each.shapley, each.error),
            with_error(each.leave_one_out, each.leave_one_out_error),
        )
    print_result(f"\nwhat each node contributes ({found.score_name}, ± one standard error):")
    results.print(table)
    print_result(found.sentence)
    for line in filter(None, [found.caution]):
        print_result(line)
    print_result(found.method)
