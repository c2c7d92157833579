r"""The center's side of preprocessing: from the nodes' summaries to one transformation for all.

The center merges the summaries of `summaries.py` into a `Preprocessing`, which is immutable and can
be written as JSON. Every node transforms its own rows with it. The merge is exact and loses no
digits, however far a column is from zero (Chan, Golub and LeVeque, 1983): with counts $n_k$, means
$m_k$ and sums of squared deviations $s_k$,

$$m = \sum_k n_k m_k / n, \qquad s = \sum_k s_k + \sum_k n_k (m_k - m)^2.$$

Only the nodes' training rows enter the statistics and the category lists. The validation and test
tables evaluate the result, so nothing is fitted to them. They are summarized too, because their
columns, kinds and classes must match those of the nodes.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationError

from fedkin.data.column_choice import choose_columns
from fedkin.data.columns import Column, as_text, categories_in_order, first_text, is_numeric
from fedkin.data.summaries import (
    ColumnSummary,
    Frozen,
    NumericSummary,
    TableSummary,
    TextSummary,
    categories_of,
)
from fedkin.data.tables import Table
from fedkin.errors import InputError
from fedkin.messages import join_names, listing, shorten

FARTHEST = 1e6
"""A value this many standard deviations from the nodes' mean must be a mistake."""

MOST_DESCRIBED = 50
"""Lists of the columns used end after this many."""


class NumericColumn(Frozen):
    """A standardized column. A missing value becomes 0, the mean."""

    kind: Literal["numeric"] = "numeric"
    name: str
    mean: float
    standard_deviation: float = Field(ge=0)


class CategoricalColumn(Frozen):
    """One indicator per category, and one for missing values and categories that no node has."""

    kind: Literal["categorical"] = "categorical"
    name: str
    categories: tuple[str, ...]


class Classes(Frozen):
    """The label of a classification, with its classes in the order of the model's outputs."""

    kind: Literal["classes"] = "classes"
    name: str
    classes: tuple[str, ...] = Field(min_length=2)


class Quantity(Frozen):
    """The label of a regression, standardized for training."""

    kind: Literal["quantity"] = "quantity"
    name: str
    mean: float
    standard_deviation: float = Field(gt=0)

    def restore(self, values: np.ndarray) -> np.ndarray:
        """Convert standardized values back to the label's unit."""
        return self.mean + self.standard_deviation * np.asarray(values, dtype=np.float64)


class Preprocessing(Frozen):
    """How a table becomes a matrix, the same way on every node."""

    format: Literal["fedkin preprocessing 1"] = "fedkin preprocessing 1"
    columns: tuple[Annotated[NumericColumn | CategoricalColumn, Field(discriminator="kind")], ...]
    label: Annotated[Classes | Quantity, Field(discriminator="kind")]
    missing_codes: dict[str, float] = Field(default_factory=dict)
    """For some columns, the number that means a missing value, such as a cholesterol of 0."""

    @property
    def feature_names(self) -> list[str]:
        """The meaning of each column of the matrix."""
        names: list[str] = []
        for column in self.columns:
            if isinstance(column, NumericColumn):
                names.append(column.name)
            else:
                names += [f"{column.name}={category}" for category in column.categories]
                names.append(f"{column.name} missing or other")
        return names

    @property
    def described_columns(self) -> str:
        """The columns used (the first, if they are many), and the categories of those that are texts."""
        more = len(self.columns) - MOST_DESCRIBED
        return ", ".join(
            shorten(column.name)
            if isinstance(column, NumericColumn)
            else f"{shorten(column.name)} ({' '.join(map(shorten, column.categories[:6]))}"
            + (f" and {len(column.categories) - 6} more)" if len(column.categories) > 6 else ")")
            for column in self.columns[:MOST_DESCRIBED]
        ) + (f" and {more:,} more" if more > 0 else "")

    def save(self, path: Path) -> None:
        """Write the preprocessing as JSON."""
        path.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Preprocessing":
        """Read what `save` wrote."""
        try:
            return cls.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        except (ValidationError, ValueError, RecursionError):
            raise InputError(
                f"{path} is damaged or was not written by fedkin fit; run fedkin fit again"
            ) from None


class Merged(NamedTuple):
    """What the center makes of all summaries."""

    preprocessing: Preprocessing
    warnings: tuple[str, ...]
    """Which columns are missing where, which are not used, and which categories look like one."""


def merge_summaries(
    nodes: Mapping[str, TableSummary],
    validation: TableSummary,
    test: TableSummary | None,
    label: str,
    missing_codes: Mapping[str, float] | None = None,
    *,
    owner_trains: bool = False,
    strict: bool = False,
) -> Merged:
    """Merge the nodes' summaries, and check that the validation and test tables match them.

    The nodes replace missing codes by missing values before they summarize their tables.

    Args:
        nodes: The summaries of the nodes' tables.
        validation: That of the owner's rows.
        test: That of the test rows.
        label: The column to predict.
        missing_codes: Numbers that stand for a missing value, by column.
        owner_trains: Whether the owner's rows are trained on, too, and so decide how columns are scaled.
        strict: Whether to refuse tables with different columns.
    """
    title = "the owner's table" if owner_trains else "the validation table"
    judges = {title: validation}
    if test is not None:
        judges["the test table"] = test
    found = merge_with_judges(
        nodes,
        judges,
        label,
        missing_codes,
        training=[title] if owner_trains else [],
        owner=title,
        strict=strict,
    )
    judged = validation.label
    if isinstance(judged, TextSummary) and len(judged.categories) == 1:
        raise InputError(
            f"{title} has only the class '{shorten(next(iter(judged.categories)))}' of the "
            f"label '{shorten(label)}', so it cannot evaluate a model; add rows of another class"
        )
    return found


def merge_with_judges(
    nodes: Mapping[str, TableSummary],
    judges: Mapping[str, TableSummary],
    label: str,
    missing_codes: Mapping[str, float] | None = None,
    *,
    training: Collection[str] = (),
    owner: str | None = None,
    strict: bool = False,
) -> Merged:
    """Merge the nodes' summaries, and check that other tables match them.

    Args:
        nodes: The summaries of what the nodes train on.
        judges: Those of other tables, by what messages call them.
        label: The column to predict.
        missing_codes: Numbers that stand for a missing value, by column.
        training: The other tables that are trained on, too.
        owner: The other table that decides which columns are used; None if every node is an owner.
        strict: Whether to refuse tables with different columns.
    """
    trained = {**nodes, **{name: judges[name] for name in training}}
    tables = {f"node '{name}'": summary for name, summary in nodes.items()} | dict(judges)
    holders = [owner for owner in tables if owner not in judges or owner in training]
    titles = [f"node '{name}'" for name in nodes]
    chosen = choose_columns(
        # What a node that is an owner holds out has the columns of the node.
        {title: tables[title].columns for title in (titles if owner is None else tables)},
        titles if owner is None else holders,
        owner,
        strict=strict,
    )
    columns = []
    for name in chosen.used:
        own = {
            title: table.columns[name] for title, table in tables.items() if name in table.columns
        }
        _check_one_kind(name, own)
        parts = [table.columns[name] for table in trained.values() if name in table.columns]
        _check_one_unit(name, {title: own[title] for title in holders if title in own})
        # A column without a value on any node is of no use.
        if any(part.count for part in parts):
            columns.append(_merge_column(name, parts))
    if not columns:
        raise InputError(
            "no column besides the label has a value on any node: there is nothing to learn from"
        )
    if isinstance(next(iter(tables.values())).label, NumericSummary):
        merged: Classes | Quantity = _merge_quantity(trained, label)
    else:
        merged = _merge_classes(nodes, tables, label)
    found = Preprocessing(
        columns=tuple(columns), label=merged, missing_codes=dict(missing_codes or {})
    )
    return Merged(found, (*chosen.warnings, *_spelling_warnings(found.columns)))


def _check_one_kind(name: str, filled: Mapping[str, ColumnSummary]) -> None:
    """Refuse a column with numbers on some tables and text on others; empty columns fit both."""
    texts = {owner: c for owner, c in filled.items() if isinstance(c, TextSummary) and c.count}
    numbers = [owner for owner, c in filled.items() if isinstance(c, NumericSummary) and c.count]
    if texts and numbers:
        example = next(iter(texts.values())).example
        raise InputError(
            f"column '{shorten(name)}' has text on {join_names(list(texts))} (such as "
            f"'{shorten(example)}') but numbers on {join_names(numbers)}; "
            f"correct it, or make it a category everywhere (--categorical {shorten(name)})"
        )


def _check_one_unit(name: str, parts: Mapping[str, ColumnSummary]) -> None:
    """Refuse a column that one table has in another unit: beside it, all others would look constant."""
    numbers = {
        owner: part
        for owner, part in parts.items()
        if isinstance(part, NumericSummary) and part.count
    }
    if len(numbers) < 2:
        return
    largest = max(numbers, key=lambda owner: abs(numbers[owner].mean))
    mean, deviation = _merge_moments([part for owner, part in numbers.items() if owner != largest])
    own = numbers[largest].mean
    if deviation > 1e-12 * abs(mean) and abs(own - mean) > FARTHEST * deviation:
        raise InputError(
            f"{largest}: column '{shorten(name)}' is {own:.3g} on average, more than a million standard "
            f"deviations from the others' mean {mean:.3g}; is it in another unit?"
        )


def _merge_column(name: str, parts: Sequence[ColumnSummary]) -> NumericColumn | CategoricalColumn:
    texts = [part for part in parts if isinstance(part, TextSummary)]
    if texts:
        categories = {category for part in texts for category in part.categories}
        return CategoricalColumn(name=name, categories=tuple(categories_in_order(categories)))
    mean, deviation = _merge_moments([part for part in parts if isinstance(part, NumericSummary)])
    return NumericColumn(name=name, mean=mean, standard_deviation=deviation)


def _spelling_warnings(columns: Sequence[NumericColumn | CategoricalColumn]) -> list[str]:
    """Name the columns in which one category seems to be written in several ways."""
    warnings = []
    for column in columns:
        if not isinstance(column, CategoricalColumn):
            continue
        alike: dict[str, list[str]] = {}
        for category in column.categories:
            alike.setdefault(" ".join(category.casefold().split()), []).append(category)
        pairs = [spellings for spellings in alike.values() if len(spellings) > 1]
        if pairs:
            warnings.append(
                f"column '{shorten(column.name)}' has {listing(pairs[0], 3)} as different categories: if "
                "they mean the same, give them one spelling in all tables"
            )
    return warnings


def _merge_moments(parts: Sequence[NumericSummary]) -> tuple[float, float]:
    count = sum(part.count for part in parts)
    if count == 0:
        return 0.0, 0.0
    # Relative to the first node's mean, so that small differences are summed, not large means.
    start = next(part.mean for part in parts if part.count)
    mean = start + sum(part.count * (part.mean - start) for part in parts if part.count) / count
    squares = sum(
        part.squared_deviations + part.count * (part.mean - mean) ** 2
        for part in parts
        if part.count
    )
    return mean, float(np.sqrt(squares / count))


def _merge_quantity(nodes: Mapping[str, TableSummary], label: str) -> Quantity:
    parts = [node.label for node in nodes.values() if isinstance(node.label, NumericSummary)]
    mean, deviation = _merge_moments(parts)
    if deviation <= 1e-12 * abs(mean):
        raise InputError(
            f"the label '{shorten(label)}' is {mean:g} in every row of every node: there is nothing to learn"
        )
    return Quantity(name=label, mean=mean, standard_deviation=deviation)


def _merge_classes(
    nodes: Mapping[str, TableSummary], tables: Mapping[str, TableSummary], label: str
) -> Classes:
    held = {
        owner: set(table.label.categories)
        for owner, table in tables.items()
        if isinstance(table.label, TextSummary)
    }
    classes = categories_in_order(set().union(*held.values()))
    if len(classes) == 1:
        raise InputError(
            f"the label '{shorten(label)}' is '{shorten(classes[0])}' in every row of every table: "
            "there is nothing to learn; is it the right column?"
        )
    for name in classes:
        holders = [owner for owner, own in held.items() if name in own]
        elsewhere = set().union(*(own for owner, own in held.items() if owner not in holders))
        on_a_node = any(owner.startswith("node ") for owner in holders)
        if on_a_node and (len(holders) > 1 or len(nodes) == 1):
            continue
        raise InputError(
            f"the label '{shorten(name)}' is on {join_names(holders)} but on no other node "
            f"(the others have {listing(categories_in_order(elsewhere))}); correct it, or leave "
            "those rows out"
        )
    return Classes(name=label, classes=tuple(classes))


# What each node does with its own rows


def transform(table: Table, preprocessing: Preprocessing) -> np.ndarray:
    """Return the table's features as a `float32` matrix, in the order of the rows.

    A column that the table lacks is missing in every row.
    """
    table = table.with_missing_codes(preprocessing.missing_codes)
    blocks = []
    for column in preprocessing.columns:
        values = table.columns.get(column.name, np.full(table.rows, np.nan))
        if isinstance(column, NumericColumn):
            blocks.append(_standardize(table, column, values).astype(np.float32))
        else:
            blocks.append(_indicate(column, values))
    return np.concatenate(blocks, axis=1)


def _standardize(table: Table, column: NumericColumn, values: Column) -> np.ndarray:
    if not is_numeric(values):
        row = first_text(values) or 0
        raise InputError(
            f"{table.owner}: column '{shorten(column.name)}' has '{shorten(values[row])}' in "
            f"{table.where(row)}, but the nodes have numbers; correct it, or leave it empty"
        )
    # The deviation of a column with a single value is at most a rounding error.
    if column.standard_deviation <= 1e-12 * abs(column.mean):
        return np.zeros((table.rows, 1))
    standard = np.where(np.isnan(values), 0.0, (values - column.mean) / column.standard_deviation)
    far = np.flatnonzero(np.abs(standard) > FARTHEST)
    if far.size:
        raise InputError(
            f"{table.owner}: column '{shorten(column.name)}' has {values[far[0]]:g} in "
            f"{table.where(far[0])}, more than a million standard deviations from the nodes' "
            f"mean {column.mean:g}; is it in another unit?"
        )
    return standard[:, None]


def _indicate(column: CategoricalColumn, values: Column) -> np.ndarray:
    other = len(column.categories)
    position = {category: index for index, category in enumerate(column.categories)}
    chosen = [position.get(cell, other) for cell in as_text(values)]
    return np.eye(other + 1, dtype=np.float32)[chosen]


def transform_label(table: Table, preprocessing: Preprocessing) -> np.ndarray:
    """Return the number of each row's class, or the standardized quantity."""
    label = preprocessing.label
    values = table.column(label.name)
    if isinstance(label, Quantity):
        return ((values - label.mean) / label.standard_deviation).astype(np.float32)
    position = {name: index for index, name in enumerate(label.classes)}
    return np.array([position[cell] for cell in as_text(values)], dtype=np.int32)


def unknown_categories(table: Table, preprocessing: Preprocessing) -> dict[str, list[str]]:
    """Return the categories of a table, by column, that no node has."""
    found = {}
    for column in preprocessing.columns:
        if isinstance(column, CategoricalColumn) and column.name in table.columns:
            own = categories_of(table.columns[column.name])
            unknown = [category for category in own if category not in column.categories]
            if unknown:
                found[column.name] = unknown
    return found
