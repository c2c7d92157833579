"""The node's side of preprocessing: what one node reports about its table, never a row.

A node reports the count, mean and sum of squared deviations of every numeric column, the categories
of every text column, and the classes of the label. The center's side is `preprocessing.py`.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fedkin.data.columns import (
    Column,
    as_text,
    categories_in_order,
    decimal_comma,
    first_text,
    is_date,
    is_numeric,
    missing_cells,
    mostly_numbers,
)
from fedkin.data.tables import Table
from fedkin.errors import InputError
from fedkin.messages import check_printable, listing, shorten
from fedkin.types import LearningTask

MOST_CATEGORIES = 100
"""A text column with more categories probably identifies people, so a node does not report it."""

FEWEST_IDENTIFYING = 5
"""This many different texts, or more, may identify rows, however few rows there are."""

IDENTIFYING_SHARE = 0.7
"""They do where more than this share of the cells are different: nobody else has the same."""


Name: TypeAlias = Annotated[str, AfterValidator(check_printable)]
"""A name or a category, which others will read on their terminals."""


class Frozen(BaseModel):
    """A message or a record: immutable, readable and writable as JSON, without unknown keys or NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NumericSummary(Frozen):
    """What the center needs for the mean and standard deviation of a numeric column."""

    kind: Literal["numeric"] = "numeric"
    count: int = Field(ge=0)
    mean: float
    squared_deviations: float = Field(ge=0)


class TextSummary(Frozen):
    """The texts that occur in a text column. `example` is one of them that is not a number."""

    kind: Literal["text"] = "text"
    count: int = Field(ge=0)
    categories: tuple[Name, ...]
    example: Name


ColumnSummary: TypeAlias = Annotated[NumericSummary | TextSummary, Field(discriminator="kind")]


class TableSummary(Frozen):
    """Everything that leaves a node before training."""

    rows: int = Field(ge=1)
    columns: dict[Name, ColumnSummary]
    label: ColumnSummary


def summarize(
    table: Table,
    label: str,
    task: LearningTask = "classification",
    categorical: Sequence[str] = (),
    parts: Sequence[Table] = (),
) -> TableSummary:
    """Summarize one node's table: counts, means, squared deviations, categories and classes.

    Args:
        table: The table.
        label: The column to predict.
        task: Classification or regression.
        categorical: Columns of numbers that are categories.
        parts: If the table is one part of a table that was split, all its parts: whether a column
            identifies rows is a question about the whole.
    """
    table.column(label)
    features = {name: values for name, values in table.columns.items() if name != label}
    if not features:
        raise InputError(
            f"{table.owner} has no column besides the label '{shorten(label)}': add at least one"
        )
    return TableSummary(
        rows=table.rows,
        columns=_summarize_columns(table, list(features), set(categorical), parts or (table,)),
        label=_summarize_label(table, label, task),
    )


class _LeaveOutError(InputError):
    """A column that does not suit as a feature, most likely because it identifies people or days."""


def _summarize_columns(
    table: Table, names: Sequence[str], categorical: set[str], parts: Sequence[Table]
) -> dict[str, ColumnSummary]:
    """Summarize columns; if some have to be left out, one error names them all."""
    found: dict[str, ColumnSummary] = {}
    refused: dict[str, _LeaveOutError] = {}
    for name in names:
        try:
            found[name] = _summarize_column(table, name, name in categorical, parts)
        except _LeaveOutError as error:
            refused[name] = error
    if not refused:
        return found
    first, *others = refused
    if not others:
        raise refused[first]
    raise InputError(
        f"{refused[first]}; {listing([shorten(name) for name in others], 5)} cannot be used either (--drop "
        f"{','.join(refused)} leaves them all out)"
    ) from refused[first]


def _summarize_column(
    table: Table, name: str, categorical: bool, parts: Sequence[Table]
) -> ColumnSummary:
    values = table.columns[name]
    if is_numeric(values) and not categorical:
        return _summarize_numbers(values)
    if not categorical and (written := decimal_comma(values)) is not None:
        raise InputError(
            f"{table.owner}: column '{shorten(name)}' has numbers with a comma, such as '{shorten(written)}'"
            f": write 3.5, not 3,5, and 1000, not 1,000 (or, if they are codes, --categorical "
            f"{shorten(name)})"
        )
    categories = categories_of(values)
    if len(categories) > MOST_CATEGORIES:
        slip = None if categorical or not mostly_numbers(values) else first_text(values)
        if slip is not None:
            raise InputError(
                f"{table.owner}: column '{shorten(name)}' has numbers, but '"
                f"{shorten(values[slip])}' in {table.where(slip)}; correct it, or leave it empty"
            )
        _refuse_dates(name, table, categories)
        raise _LeaveOutError(
            f"{table.owner}: column '{shorten(name)}' has {len(categories)} different texts, more than "
            f"the {MOST_CATEGORIES} categories allowed; if it identifies people, leave it out "
            f"(--drop {shorten(name)})"
        )
    _refuse_identifying(name, parts)
    example = first_text(values)
    return TextSummary(
        count=_filled(values),
        categories=tuple(categories),
        example=values[example] if example is not None else (categories or [""])[0],
    )


def _filled(values: Column) -> int:
    return int((~missing_cells(values)).sum())


def _refuse_dates(name: str, table: Table, categories: Iterable[str]) -> None:
    dated = next((category for category in categories if is_date(category)), None)
    if dated is not None:
        raise _LeaveOutError(
            f"{table.owner}: column '{shorten(name)}' holds dates, such as '{shorten(dated)}', which would "
            f"leave the node as categories; leave it out (--drop {shorten(name)}), or replace it by a "
            "number, such as an age in years"
        )


def _refuse_identifying(name: str, parts: Sequence[Table]) -> None:
    """Refuse a text column that would tell other nodes who somebody is, or when something happened."""
    table, columns = parts[0], [part.columns[name] for part in parts]
    categories = categories_in_order({text for own in columns for text in categories_of(own)})
    cells = sum(_filled(own) for own in columns)
    _refuse_dates(name, table, categories)
    if len(categories) >= FEWEST_IDENTIFYING and len(categories) > IDENTIFYING_SHARE * cells:
        raise _LeaveOutError(
            f"{table.owner}: column '{shorten(name)}' has {len(categories)} different texts in {cells} rows, "
            "so it identifies them, and its texts would leave the node; leave it out "
            f"(--drop {shorten(name)}), or group its values"
        )


def _summarize_numbers(values: Column) -> NumericSummary:
    present = values[~np.isnan(values)]
    if present.size == 0:
        return NumericSummary(count=0, mean=0.0, squared_deviations=0.0)
    mean = float(present.mean())
    return NumericSummary(
        count=present.size, mean=mean, squared_deviations=float(np.sum((present - mean) ** 2))
    )


def _summarize_label(table: Table, label: str, task: LearningTask) -> ColumnSummary:
    values = table.columns[label]
    if missing_cells(values).any():
        raise InputError(f"{table.owner} has rows without a label; leave them out")
    if task == "regression":
        if not is_numeric(values):
            row = first_text(values) or 0
            raise InputError(
                f"{table.owner}: the label '{shorten(label)}' is '{shorten(values[row])}' in "
                f"{table.where(row)}; regression needs numbers (3.5, not 3,5)"
            )
        return _summarize_numbers(values)
    classes = categories_of(values)
    if len(classes) > MOST_CATEGORIES or (is_numeric(values) and _looks_measured(values)):
        raise InputError(
            f"{table.owner}: the label '{shorten(label)}' has {len(classes)} different values; "
            "is it a measured quantity (--task regression), or another column?"
        )
    return TextSummary(count=table.rows, categories=tuple(classes), example=classes[0])


def _looks_measured(values: Column) -> bool:
    distinct = np.unique(values)
    return distinct.size > 10 and bool(np.any(distinct != np.round(distinct)))


def categories_of(values: Column) -> list[str]:
    """Return the different values of a column, numbers in one spelling."""
    return categories_in_order({cell for cell in as_text(values) if cell is not None})
