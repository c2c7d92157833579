r"""A node's own check of the preprocessing that the center says was agreed on.

The node compares it with the summaries of its own table, which the center knows: what it refuses tells nobody
anything new. With a transformation of its own choice, a center could see single values: each value of a
column of numbers as a category, the label as a feature, or one value at a time declared missing.

The scale of a column is bounded by what an honest center can have found. Of $n$ rows in all, a node has
$n_k$; with the mean $m$ and the deviation $s$ of all rows,

$$\frac{1}{n_k} \sum_{i \in k} \frac{(x_i - m)^2}{s^2} \le \frac{n}{n_k},$$

because the sum over all rows is $n s^2$. So the mean square of a node's standardized column is at most the
ratio of all rows to its own.
"""

from collections import Counter
from collections.abc import Mapping

from fedkin.data.preprocessing import (
    CategoricalColumn,
    Classes,
    NumericColumn,
    Preprocessing,
    Quantity,
)
from fedkin.data.summaries import ColumnSummary, NumericSummary, TableSummary, TextSummary
from fedkin.errors import InputError
from fedkin.messages import shorten

MOST_AGREED_CATEGORIES = 1_000
"""The most categories of a column, or classes of the label, that all nodes together may have."""


def check_agreement(
    agreed: Preprocessing,
    own: Mapping[str, TableSummary],
    label: str,
    missing: Mapping[str, float],
    largest_spread: float,
    *,
    strict: bool = False,
) -> None:
    """Refuse a transformation that nodes like this one cannot have agreed on.

    Args:
        agreed: The transformation that the center sends.
        own: The summaries of this node's rows: those it trains on, and those it holds out.
        label: The label, as the node's owner has named it.
        missing: The owner's own numbers that stand for a missing value, by column.
        largest_spread: The largest root mean square of a standardized column.
        strict: Whether to refuse a column that is not here, which would be missing in every row.

    Raises:
        InputError: If it does not fit. The message is for the owner: it names columns, but quotes no cell.
    """
    if agreed.label.name != label:
        raise InputError(
            f"the label is '{shorten(label)}' here, and '{shorten(agreed.label.name)}' elsewhere"
        )
    names = Counter(column.name for column in agreed.columns)
    for name, count in names.items():
        if name == label:
            raise InputError(f"the center uses the label '{shorten(label)}' as a feature")
        if count > 1:
            raise InputError(f"the center uses the column '{shorten(name)}' {count} times")
    for name, code in agreed.missing_codes.items():
        if missing.get(name) != code:
            raise InputError(
                f"the center says that {code:g} means a missing value in the column '{shorten(name)}', and "
                "the node's settings do not (missing)"
            )
    for summary in own.values():
        for column in agreed.columns:
            if column.name in summary.columns:
                _check_column(column, summary.columns[column.name], largest_spread)
            elif strict:
                raise InputError(f"there is no column '{shorten(column.name)}' here (strict)")
        if summary.columns.keys().isdisjoint(names):
            raise InputError("none of the columns that were agreed on is here")
        _check_label(agreed.label, summary.label, largest_spread)


def _check_column(
    column: NumericColumn | CategoricalColumn, own: ColumnSummary, largest_spread: float
) -> None:
    title = f"the column '{shorten(column.name)}'"
    if own.count == 0:
        return  # a column without a value fits both kinds
    if isinstance(column, NumericColumn):
        if not isinstance(own, NumericSummary):
            raise InputError(f"{title} is a column of numbers elsewhere, and of categories here")
        _check_scale(title, column, own, largest_spread)
    elif not isinstance(own, TextSummary):
        raise InputError(
            f"the center treats {title} as categories, and here it is a column of numbers (categorical)"
        )
    elif len(set(column.categories)) > MOST_AGREED_CATEGORIES:
        raise InputError(
            f"{title} would have {len(column.categories):,} categories, more than "
            f"{MOST_AGREED_CATEGORIES:,}"
        )


def _check_label(agreed: Classes | Quantity, own: ColumnSummary, largest_spread: float) -> None:
    if isinstance(agreed, Quantity):
        if not isinstance(own, NumericSummary):
            raise InputError("the label is a number elsewhere, and a class here (task)")
        _check_scale("the label", agreed, own, largest_spread)
        return
    if not isinstance(own, TextSummary):
        raise InputError("the label is a class elsewhere, and a number here (task)")
    if len(set(agreed.classes)) > MOST_AGREED_CATEGORIES:
        raise InputError(f"the label would have more than {MOST_AGREED_CATEGORIES:,} classes")
    if len(set(agreed.classes)) < len(agreed.classes):
        raise InputError("the center names a class of the label twice")
    if not set(own.categories) <= set(agreed.classes):
        raise InputError("a class of the label that is here is not among those that were agreed on")


def _check_scale(
    title: str, agreed: NumericColumn | Quantity, own: NumericSummary, largest_spread: float
) -> None:
    """Refuse a scale with which the column's mean square would be larger than honest scales make it."""
    if agreed.standard_deviation <= 1e-12 * abs(agreed.mean):
        return  # a column with a single value, which becomes zero
    # Divided before they are squared, since numbers of any size are allowed.
    spread = (own.squared_deviations / own.count) ** 0.5 / agreed.standard_deviation
    distance = (own.mean - agreed.mean) / agreed.standard_deviation
    if not max(spread, abs(distance)) <= 2 * largest_spread or not (
        spread**2 + distance**2 <= largest_spread**2
    ):
        raise InputError(
            f"{title} has a mean of {agreed.mean:g} and a standard deviation of "
            f"{agreed.standard_deviation:g} elsewhere, which does not suit the {own.mean:g} and "
            f"{(own.squared_deviations / own.count) ** 0.5:g} here: is it in another unit? (largest-spread)"
        )
