"""The options that several commands share: one name, one meaning and one help text each.

A constant `X` is the option alone, for commands that differ in whether it is required; an `XOption` is the
option with its type.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from fedkin.data import option_text
from fedkin.data.federated import Target
from fedkin.data.partitions.named import PARTITIONS
from fedkin.data.table_request import TableRequest, parse_nodes
from fedkin.data.tables import TableFormat, is_parquet
from fedkin.errors import InputError
from fedkin.messages import suggestion
from fedkin.methods.bilevel.hypergradient import SOLVERS as KNOWN_SOLVERS
from fedkin.methods.registry import METHODS as KNOWN_METHODS
from fedkin.methods.settings import LARGEST_SEED
from fedkin.models.named import MODELS as KNOWN_MODELS

METHODS = KNOWN_METHODS.names()
TARGETS: tuple[str, ...] = get_args(Target)
SOLVERS = KNOWN_SOLVERS.names()
MODELS = KNOWN_MODELS.names()

METHOD_PANEL = "Model and method"
JUDGE_PANEL = "What the weights are judged by"
COLUMNS_PANEL = "What the columns mean"
FILES_PANEL = "How the files are written"


def was_given(context: typer.Context, *parameters: str) -> list[str]:
    """Return the options, as they are written, that were given on the command line."""
    found = []
    for name in parameters:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            found.append("--" + name.replace("_", "-"))
    return found


def alternatives(choices: Sequence[str]) -> str:
    """Write out choices for a help text: `a, b or c`."""
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


def one_of(option: str, choices: Sequence[str]) -> Callable[[Any], Any]:
    """Return the check of an option, or of each value of a repeated one, against its choices."""

    def check(given: Any) -> Any:
        for value in given if isinstance(given, list | tuple) else [given]:
            # package.module:Name is looked up where it is used, with a message of its own.
            if value is not None and value not in choices and ":" not in value:
                raise InputError(f"{option}: '{value}' is unknown{suggestion(value, choices)}")
        return given

    return check


def _choice(
    option: str,
    choices: Sequence[str],
    text: str,
    panel: str | None = None,
    *,
    repeated: bool = False,
) -> Any:
    return typer.Option(
        option,
        metavar="NAME",
        help=f"{text}: {alternatives(choices)}." + (" May be repeated." if repeated else ""),
        callback=one_of(option, choices),
        autocompletion=lambda: list(choices),
        rich_help_panel=panel,
    )


# Runs and their results

OutOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="The directory for the results.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an earlier result.")]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Continue what was stopped; finished runs are not repeated."),
]
JobsOption = Annotated[
    int, typer.Option("--jobs", min=1, help="How many runs to do at the same time.")
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="The directory with the data sets; default: FEDKIN_DATA."
    ),
]
L2Option = Annotated[
    float | None,
    typer.Option(
        "--l2",
        help="The factor of the penalty on the model's size; default: 0.001.",
        rich_help_panel=METHOD_PANEL,
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(
        "--seed", min=0, max=LARGEST_SEED, help="The same seed gives the same data and result."
    ),
]
STEPS = typer.Option("--steps", min=1, help="The largest number of outer steps of a run.")
SYNCHRONIZATIONS = typer.Option(
    "--synchronizations", min=1, help="The largest number of synchronizations of a run."
)

# What is learned, and how

METHOD = _choice("--method", METHODS, "The method", METHOD_PANEL)
METHODS_REPEATED = _choice("--method", METHODS, "The method", METHOD_PANEL, repeated=True)
MODEL = _choice("--model", MODELS, "The model", METHOD_PANEL)
SOLVER = _choice("--solver", SOLVERS, "How Bi-level solves its linear system", METHOD_PANEL)
OWNERS_GROUP = "The group of nodes that the owner's data are like"
TARGET = _choice("--target", TARGETS, OWNERS_GROUP)
PARTITION = _choice("--partition", list(PARTITIONS), "How a data set is divided among nodes")
TARGETS_REPEATED = _choice("--target", TARGETS, OWNERS_GROUP, repeated=True)

# Tables: whose they are, what the columns mean, how they are written

NODE = typer.Option(
    "--node",
    metavar="[NAME=]FILE",
    help="A node's CSV or Parquet file; once per node. The node's name is the file's without its "
    "ending, unless given.",
)
TABLE = typer.Argument(
    metavar="[TABLE]",
    help="One CSV or Parquet file with the rows of all nodes; --site says whose a row is.",
    show_default=False,
)
SITE = typer.Option(
    "--site",
    metavar="COLUMN",
    help="The column of TABLE that names the site of a row; every site is a node.",
)
OwnOption = Annotated[
    Path | None,
    typer.Option(
        "--own",
        metavar="FILE",
        help="The owner's own rows, all of them.",
        rich_help_panel=JUDGE_PANEL,
    ),
]
CAP = typer.Option(
    "--cap",
    help="The largest weight that one of K nodes may get, from 1/K to 1; default: 1/3, or 2/K "
    "with fewer than six nodes.",
    rich_help_panel=METHOD_PANEL,
)
OWN_CAP = typer.Option(
    "--own-cap",
    help="The largest weight that a node may give to its own training rows; default: that of --cap.",
    rich_help_panel=METHOD_PANEL,
)
LABEL = typer.Option(
    "--label", metavar="COLUMN", help="The column to predict.", rich_help_panel=COLUMNS_PANEL
)
ValidationOption = Annotated[
    Path | None,
    typer.Option(
        "--validation",
        metavar="FILE",
        help="The center's own data, which the weights are judged by.",
        rich_help_panel=JUDGE_PANEL,
    ),
]
TestOption = Annotated[
    Path | None,
    typer.Option(
        "--test",
        metavar="FILE",
        help="Data to measure the final model on.",
        rich_help_panel=JUDGE_PANEL,
    ),
]
TargetNodeOption = Annotated[
    str | None,
    typer.Option(
        "--target-node",
        "--owner",
        metavar="NAME",
        help="Instead of --validation: hold out rows of this node; its other rows remain a node.",
        rich_help_panel=JUDGE_PANEL,
    ),
]
ValidationFractionOption = Annotated[
    float | None,
    typer.Option(
        "--validation-fraction",
        help="The share of the target node's rows to hold out for validation; default: 0.3.",
        rich_help_panel=JUDGE_PANEL,
    ),
]
TestFractionOption = Annotated[
    float | None,
    typer.Option(
        "--test-fraction",
        help="The share of the target node's rows to hold out for testing; default: none.",
        rich_help_panel=JUDGE_PANEL,
    ),
]


MinimumRowsOption = Annotated[
    int,
    typer.Option(
        "--minimum-rows",
        min=1,
        help="Refuse a node with fewer rows than this.",
        rich_help_panel=JUDGE_PANEL,
    ),
]


class TaskName(StrEnum):
    """What the label is."""

    classification = "classification"
    regression = "regression"


TaskOption = Annotated[
    TaskName, typer.Option("--task", help="What the label is.", rich_help_panel=COLUMNS_PANEL)
]
PositiveOption = Annotated[
    str | None,
    typer.Option(
        "--positive",
        metavar="RULE",
        help="Turn the label into yes or no: a comparison such as '>0', or the class that is yes.",
        rich_help_panel=COLUMNS_PANEL,
    ),
]
CategoricalOption = Annotated[
    str | None,
    typer.Option(
        "--categorical",
        metavar="A,B,C",
        help="Columns whose numbers are codes, not quantities.",
        rich_help_panel=COLUMNS_PANEL,
    ),
]
DropOption = Annotated[
    str | None,
    typer.Option(
        "--drop",
        metavar="A,B,C",
        help="Columns to leave out, such as patient numbers.",
        rich_help_panel=COLUMNS_PANEL,
    ),
]
MissingOption = Annotated[
    str | None,
    typer.Option(
        "--missing",
        metavar="COLUMN=NUMBER,…",
        help="Numbers that stand for a missing value, such as chol=0. Empty cells, ?, NA and NaN "
        "always do.",
        rich_help_panel=COLUMNS_PANEL,
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse a table without a column that others have; without it, the column counts as missing "
        "there.",
        rich_help_panel=COLUMNS_PANEL,
    ),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="A,B,C",
        help="Column names, for CSV files without a header line.",
        rich_help_panel=FILES_PANEL,
    ),
]
NoHeaderOption = Annotated[
    bool,
    typer.Option(
        "--no-header",
        help="CSV files have no header line; columns are called column1, column2, …",
        rich_help_panel=FILES_PANEL,
    ),
]
SeparatorOption = Annotated[
    str,
    typer.Option(
        "--separator",
        help="The character that separates the cells of CSV files, unless their header line shows "
        "another; 'tab' for a tab.",
        rich_help_panel=FILES_PANEL,
    ),
]


def table_format(
    columns: str | None, no_header: bool, separator: str, drop: str | None = None
) -> TableFormat:
    """Return how files are written, from the options."""
    return TableFormat(
        separator=option_text.parse_separator(separator),
        header=not no_header,
        names=option_text.parse_names(columns) if columns is not None else None,
        drop=option_text.parse_names(drop),
    )


def refuse_csv_options(context: typer.Context, files: Iterable[Path]) -> None:
    """Refuse options about CSV files where all files are Parquet."""
    given = was_given(context, "columns", "no_header", "separator")
    if given and all(is_parquet(path) for path in files):
        raise InputError(f"{given[0]} is for CSV files, and there is none: leave it out")


def refuse_further_files(
    context: typer.Context, nodes: Sequence[str], table: Path | None, site: str | None
) -> None:
    """Refuse files that have no option before them, and say how to write the command.

    A single file is the table of all nodes, but only together with the column of `--site`.
    """
    files = [str(table)] if table is not None and site is None else []
    files += context.args
    if files:
        first = nodes[0] if nodes else "FILE"
        raise InputError(
            f"'{files[0]}' has no option before it; every node's file needs its own --node: "
            f"--node {first} --node {files[0]} …"
        )


def read_request(context: typer.Context, **chosen: Any) -> TableRequest:
    """Return which tables a command's options name, and what their columns mean.

    Refuses files without an option, and options that would change nothing. Options that the command does not
    have are left open.

    Args:
        context: The command with its options, called as in this module.
        **chosen: Fields of the request that the command decides itself.
    """
    given = context.params
    nodes = tuple(given.get("node") or ())
    paths = {
        name: None if given.get(name) is None else Path(given[name])
        for name in ("table", "validation", "own", "test")
    }
    refuse_further_files(context, nodes, paths["table"], given.get("site"))
    files = [path for path in paths.values() if path is not None]
    refuse_csv_options(context, [*parse_nodes(nodes).values(), *files])
    open_fields = {name: given[name] for name in ("minimum_rows", "site") if name in given}
    fields = {
        "nodes": nodes,
        "validation": paths["own"] or paths["validation"],
        "test": paths["test"],
        "target_node": given.get("target_node"),
        "validation_fraction": given.get("validation_fraction"),
        "test_fraction": given.get("test_fraction"),
        "label": given["label"],
        "task": TaskName(given["task"]).value,
        "positive": given["positive"],
        "categorical": option_text.parse_names(given["categorical"]),
        "missing_codes": option_text.parse_missing_codes(given["missing"]),
        "table_format": table_format(
            given["columns"], given["no_header"], given["separator"], given["drop"]
        ),
        "seed": given["seed"],
        "table": paths["table"],
        "strict": given["strict"],
    }
    return TableRequest(**fields | open_fields | chosen)
